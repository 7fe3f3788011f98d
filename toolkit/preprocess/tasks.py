"""Tasks that write the groups of a corpus: in this process, in others, on a Ray cluster, or as Slurm jobs.

A task takes one free group after another until all are written. It needs only the folder of the corpus.
"""

import faulthandler
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import tokenization
from tokenization import BackendsDiffer, Tokenizer
from toolkit.core.allocator import give_back_freed_memory
from toolkit.core.console import console, progress
from toolkit.core.errors import ToolkitError, UserError
from toolkit.core.files import cache_folder
from toolkit.core.text import counted
from toolkit.data import CORPUS_MANIFEST
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.tokenizer_checks import BackendChoice, open_backend
from toolkit.preprocess.writer.corpus import UnfinishedCorpus
from toolkit.preprocess.writer.groups import BEGUN, UNFINISHED_FOLDER, group_folder
from toolkit.preprocess.writer.writing import OnSpan, write_group
from toolkit.work.claims import BrokenError, Claims, Item, Job, StoppedError, work_on
from toolkit.work.commands import work_folder
from toolkit.work.ray import Cluster, OnRay, Resources
from toolkit.work.slurm import SlurmJobs
from toolkit.work.start import Crew, Here

_SECONDS_BETWEEN_LOOKS = 2.0


def _unheard(num_bytes: int, note: str) -> None:
    """Ignore the progress of a worker in another process: its folder shows it."""


class CorpusJob(Job):
    """Groups to write; if documents are to be left out, all groups are read first, then the choice is made."""

    def __init__(self, corpus: UnfinishedCorpus) -> None:
        super().__init__(work_folder(corpus.output), _items(corpus))
        self.corpus = corpus
        self.tokenizer: Tokenizer | None = None
        self.choice: BackendChoice | None = None
        self.on_span: OnSpan = _unheard

    def is_done(self, item: Item) -> bool:
        """True if the item is done, including when another command has finished the corpus since."""
        step, number = item.payload
        if step == "read":
            return number not in self.corpus.unread()
        if step == "decide":
            return self.corpus.is_decided
        try:
            return all(group.number != number for group in self.corpus.missing())
        except UserError as error:  # about all groups so far: the command raises it itself
            raise StoppedError from error

    def do(self, item: Item) -> None:
        """Read or write a group, or decide which documents are left out."""
        step, number = item.payload
        if self.tokenizer is None:
            give_back_freed_memory()
            faulthandler.enable(2)
            self.tokenizer = load_tokenizer(self.corpus.settings)
        if step == "decide":
            self.corpus.decide()
        else:
            (self._read if step == "read" else self._write)(number)

    def _read(self, number: int) -> None:
        corpus, group = self.corpus, self.corpus.groups[number]
        assert corpus.screening is not None
        corpus.screening.read_group(
            group.files,
            corpus.screened(group),
            settings=corpus.settings,
            on_span=lambda num_bytes: self.on_span(num_bytes, "looking for documents to leave out"),
        )

    def _write(self, number: int) -> None:
        corpus, group = self.corpus, self.corpus.groups[number]
        assert self.tokenizer is not None
        if self.choice is None or self.choice.why_reference != corpus.why_reference:
            self.choice = open_backend(
                self.tokenizer, why_reference=corpus.why_reference, num_threads=corpus.settings.workers
            )
        try:
            write_group(
                group,
                group_folder(corpus.output, number),
                corpus.group_key(number),
                tokenizer=self.tokenizer,
                choice=self.choice,
                settings=corpus.rest_of_limits(),
                screened=None if corpus.screening is None else corpus.screened(group),
                on_span=self.on_span,
            )
        except BackendsDiffer as error:
            corpus.start_over(f"the fast backend differs: {error.difference}")
            corpus.missing()
            self._write(number)


def _items(corpus: UnfinishedCorpus) -> list[Item]:
    missing, unread = corpus.missing(), sorted(corpus.unread())
    items = [Item(item_key("read", number, ""), ("read", number)) for number in unread]
    if missing and not corpus.is_decided:
        items.append(Item(DECIDE, ("decide", -1), needs=tuple(item.key for item in items)))
    before = DECIDE
    for group in missing:
        key = item_key("write", group.number, corpus.why_reference)
        items.append(Item(key, ("write", group.number), needs=(before,)))
        before = key if corpus.settings.is_limited else before
    return items


DECIDE = "decide"
"""Key of the item that decides which documents are left out."""


def item_key(step: Literal["read", "write"], number: int, why_reference: str) -> str:
    """Key of the item that reads or writes a group; it differs by backend, so groups of the other one are redone."""
    return f"{step} {number:05d}" + " by the reference" * (step == "write" and bool(why_reference))


def write_all(corpus: UnfinishedCorpus, tokenizer: Tokenizer, choice: BackendChoice | None) -> None:
    """Write until no group is missing, including groups that a killed command left unfinished."""
    before = corpus.num_bytes
    total = sum(file.num_bytes for file in corpus.files) * (1 if corpus.screening is None else 2) - before
    with progress("Preparing", total=total / 1e6, unit="MB") as bar:

        def on_span(num_bytes: int, note: str) -> None:
            bar.update((corpus.num_bytes - before + num_bytes) / 1e6, note)

        def look(lines: Sequence[str]) -> None:
            for line in lines:
                bar.say(f"{line} (what it printed: {logs_folder(corpus.output)})")
            corpus.look()
            on_span(0, f"{len(corpus.written):,} of {counted(len(corpus.groups), 'source group')}")

        while (job := CorpusJob(corpus)).items:
            if corpus.settings.executor == "local" and (corpus.settings.tasks or 1) == 1:
                job.tokenizer, job.choice, job.on_span = tokenizer, choice, on_span
                _work_here(job)
            else:
                _work_in_others(job, look)
            is_left = bool(corpus.missing())  # raises if too many rows are bad
            _check_failures(job)
            if is_left:  # the backend changed, or another machine's groups are not visible here yet
                time.sleep(_SECONDS_BETWEEN_LOOKS)


def _work_here(job: CorpusJob) -> None:
    try:
        with suppress(StoppedError):
            work_on(job)
    except BrokenError as broken:
        raise broken.__cause__ or broken from None


def _work_in_others(job: CorpusJob, look: Callable[[Sequence[str]], None]) -> None:
    with _crew(job) as crew:
        crew.run(look)


def _crew(job: CorpusJob) -> Crew:
    corpus, cores = job.corpus, len(os.sched_getaffinity(0))
    settings, logs, num_missing = corpus.settings, logs_folder(corpus.output), len(job.items)
    most = min(settings.tasks or num_missing, num_missing)
    workers = settings.workers or max(1, cores // (most if settings.executor == "local" else 1))
    corpus.settings = settings.model_copy(update={"workers": workers})
    if settings.executor == "local":
        return Here(job, places=[{}] * most, logs=logs)
    return OnRay(
        job,
        cluster=Cluster(),
        most=most,
        resources=Resources(cpus=workers),
        logs=logs,
        shared="--output, sources, the tokenizer and the working directory",
        cpus_setting="--workers",
    )


def _failures(job: CorpusJob) -> dict[str, str]:
    """Error messages by group, without items that only wait for a failed one."""
    claims = Claims(job)
    claims.look()
    failed = [item for item in job.items if item.key in claims.failed and claims.failed.keys().isdisjoint(item.needs)]
    return {_name(job.corpus, item): claims.failed[item.key] for item in failed}


def _name(corpus: UnfinishedCorpus, item: Item) -> str:
    step, number = item.payload
    return item.key if step == "decide" else str(corpus.groups[number])


def _check_failures(job: CorpusJob) -> None:
    """Raise an error that names the failed groups, if any."""
    if not (failed := _failures(job)):
        return
    is_bug = any("\nTraceback" in message for message in failed.values())
    num_groups, messages = len(job.corpus.groups), "\n".join(f"  {name}: {message}" for name, message in failed.items())
    left = num_groups - len(job.corpus.written) - len(failed)
    others = f"{left:,} more not finished" if left else "the others are finished"
    text = (
        f"{counted(len(failed), 'source group')} of {num_groups:,} failed; {others}, and the same command tries "
        f"again:\n{messages}"
    )
    raise (ToolkitError if is_bug else UserError)(text if num_groups > 1 else next(iter(failed.values())))


def submit(corpus: UnfinishedCorpus, sources: Sequence[str]) -> None:
    """Submit Slurm jobs, each running this command as one task, until the requested number is in the queue."""
    output, settings, missing = corpus.output, corpus.settings, corpus.missing()
    num_groups = len(corpus.groups)
    console().print(f"{output}: {num_groups - len(missing):,} of {counted(num_groups, 'source group')} written")
    for name, message in _failures(CorpusJob(corpus)).items():
        console().print(f"{name} failed: {message}")
    logs = logs_folder(output)
    logs.mkdir(exist_ok=True)
    jobs = SlurmJobs(logs / "jobs.json", remedy="Correct SBATCH_PARTITION and the like, or --workers")
    # A job that starts after the others have finished everything has nothing to do.
    manifest, begun = (shlex.quote(str(output / name)) for name in (CORPUS_MANIFEST, f"{UNFINISHED_FOLDER}/{BEGUN}"))
    unseen = shlex.quote(f"no corpus is in progress in {output} here: put --output where all machines see it")
    line = f"[ -e {manifest} ] || [ -e {begun} ] || {{ echo {unseen} >&2; exit 2; }}; "
    line += f"[ -e {manifest} ] && [ ! -e {begun} ] || exec {shlex.join(_command(sources, output, settings))}"
    options = [f"--cpus-per-task={settings.workers}"] if settings.workers else []
    most = min(settings.tasks or 1, max(1, len(missing)))
    jobs.keep_equal(line, logs, output.absolute().name, most=most, options=options)


def _command(sources: Sequence[str], output: Path, settings: PreprocessSettings) -> list[str]:
    own = {"add_bos", "add_eod", "executor", "overwrite", "tasks"}
    given = settings.model_dump(mode="json", exclude_defaults=True, exclude=own)
    words = [f"--{name}={value}" for name in ("exclude", "without") for value in given.pop(name, ())]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    words += ["--no-eod"] * (not settings.add_eod) + ["--no-bos"] * (not settings.add_bos)
    return [sys.executable, "-m", "toolkit.cli", "preprocess", f"--output={output}", *words, "--", *sources]


def logs_folder(output: Path) -> Path:
    """Folder of the tasks' logs: beside the corpus, not in it, and hidden, so that it is not read as a source."""
    return output.absolute().with_name(f".{output.absolute().name}.tasks")


def load_tokenizer(settings: PreprocessSettings) -> Tokenizer:
    """Load the tokenizer of a corpus."""
    tokenizer = tokenization.load(
        settings.tokenizer,
        mask_token=settings.mask_token,
        eod=settings.eod,
        rules=tokenization.EncodingRules(
            parse_special_text=None if settings.special_text is None else settings.special_text == "parse",
            add_bos=None if settings.add_bos else False,
            add_eod=settings.add_eod,
        ),
        cache_folder=cache_folder(),
    )
    if settings.add_eod:
        tokenizer.require_eod()
    return tokenizer
