"""Tasks that write the groups of a corpus: in this process, in others, on a Ray cluster, or as jobs of Slurm.

A task takes one free group after another until there is none. It needs nothing but the folder of the corpus.
"""

import faulthandler
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import accumulate
from pathlib import Path

import tokenization
from tokenization import BackendsDiffer, Tokenizer
from toolkit.core.allocator import give_back_freed_memory
from toolkit.core.console import Progress, console, progress
from toolkit.core.errors import ToolkitError, UserError
from toolkit.core.files import cache_folder
from toolkit.core.text import counted
from toolkit.data import CORPUS_MANIFEST
from toolkit.execution.local import LocalExecutor
from toolkit.execution.ray_actors import RayExecutor
from toolkit.execution.ray_cluster import Cluster
from toolkit.execution.scheduling import run_work
from toolkit.execution.work import Event, Lost, Resources, Work, WorkShare
from toolkit.execution.worker import Runner
from toolkit.preprocess.accounts import Account
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.source_checks import check_sources
from toolkit.preprocess.tokenizer_checks import BackendChoice, open_backend
from toolkit.preprocess.unfinished import UnfinishedCorpus
from toolkit.preprocess.writer.groups import BEGUN, UNFINISHED_FOLDER, SourceGroup, group_folder
from toolkit.preprocess.writer.writing import OnSpan, spans_of, write_group
from toolkit.work.slurm import SlurmJobs

_SECONDS_BETWEEN_LOOKS = 2.0
_TASK = "toolkit.preprocess.tasks:open_task"


def write_groups(
    corpus: UnfinishedCorpus, tokenizer: Tokenizer, choice: BackendChoice | None, *, on_span: OnSpan
) -> None:
    """Be a task. A group that fails is noted, and the others are written."""
    while True:
        with corpus.claim() as group:
            if group is None and not corpus.is_screening():
                return
            if group is None:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                continue
            if not corpus.is_screened(group):
                _screen(corpus, group, on_span)
                continue
            if choice is None or choice.why_reference != corpus.why_reference:
                choice = open_backend(tokenizer, why_reference=corpus.why_reference)
            try:
                write_group(
                    group,
                    group_folder(corpus.output, group.number),
                    corpus.group_key(group.number),
                    tokenizer=tokenizer,
                    choice=choice,
                    settings=corpus.rest_of_limits(),
                    screened=None if corpus.screening is None else corpus.screened(group),
                    on_span=on_span,
                )
            except BackendsDiffer as error:
                corpus.start_over(f"the fast backend differs: {error.difference}")
            except UserError as error:
                corpus.fail(group, str(error))


def _screen(corpus: UnfinishedCorpus, group: SourceGroup, on_span: OnSpan) -> None:
    ends = list(accumulate((file.num_bytes for file in group.files), initial=0))

    def on_source(number: int, num_bytes: int) -> None:
        on_span(ends[number] + num_bytes, "looking for documents to leave out")

    def check(accounts: Mapping[int, Account]) -> None:
        check_sources([(file, accounts[number]) for number, file in enumerate(group.files)], corpus.settings)

    assert corpus.screening is not None
    try:
        spans = spans_of(group.files, corpus.settings)
        corpus.screening.read_group(spans, corpus.screened(group), corpus.settings.workers, on_source, check)
    except UserError as error:
        corpus.fail(group, str(error))


def open_task() -> Runner:
    """Get ready to be a task in a process of its own."""
    give_back_freed_memory()
    faulthandler.enable(2)

    def run(work: Work) -> None:
        corpus: UnfinishedCorpus = work.payload
        # Of a thousand tasks a few may have done it all; for the others a tokenizer would be loaded in vain.
        if corpus.has_free() or corpus.is_screening():
            write_groups(corpus, load_tokenizer(corpus.settings), None, on_span=lambda num_bytes, note: None)

    return run


def write_all(corpus: UnfinishedCorpus, tokenizer: Tokenizer, choice: BackendChoice | None) -> bool:
    """Write until no group is missing; False where another command waits for those that others write."""
    total = sum(file.num_bytes for file in corpus.files) * (1 if corpus.screening is None else 2) - corpus.num_bytes
    with ExitStack() as stack, progress("Preparing", total=total / 1e6, unit="MB") as bar:
        shown, rest = _Shown(corpus, bar), None
        while corpus.missing():
            if corpus.has_free():
                _run_tasks(corpus, tokenizer, choice, shown)
                continue
            if failed := corpus.failures():
                raise UserError(_failed(corpus, failed))
            # Of the commands that have nothing to do one stays: it writes what those that are killed leave.
            rest = rest or corpus.claim_rest()
            if rest is None:
                return False
            stack.callback(rest.release)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            shown.on_look()
    return True


def _run_tasks(corpus: UnfinishedCorpus, tokenizer: Tokenizer, choice: BackendChoice | None, shown: "_Shown") -> None:
    settings, num_missing = corpus.settings, len(corpus.missing())
    if settings.executor == "local" and (settings.tasks or 1) == 1:
        write_groups(corpus, tokenizer, choice, on_span=shown.on_span)
        return
    most = min(settings.tasks or num_missing, num_missing)
    with closing(_executor(corpus, most)) as executor:
        works = [Work(f"task {number}", corpus) for number in range(1, most + 1)]
        failed = run_work(works, executor, share=WorkShare(), observer=shown)
    # The others have done the work of a task that failed, unless all have.
    if failed and corpus.has_free():
        raise (ToolkitError if any("\nTraceback" in message for message in failed.values()) else UserError)(
            "\n".join(f"{name} failed: {message}" for name, message in failed.items())
        )


def _executor(corpus: UnfinishedCorpus, most: int) -> LocalExecutor | RayExecutor:
    settings, logs, cores = corpus.settings, logs_folder(corpus.output), len(os.sched_getaffinity(0))
    num_here = most if settings.executor == "local" else 1
    workers = settings.workers or max(1, cores // num_here)
    corpus.settings = settings.model_copy(update={"workers": workers})
    if settings.executor == "local":
        return LocalExecutor(_TASK, environments=[{}] * most, logs=logs)
    return RayExecutor(
        Cluster(),
        _TASK,
        most=most,
        resources=Resources(cpus=workers),
        logs=logs,
        shared="--output, sources, the tokenizer and the working directory",
        cpus_setting="--workers",
    )


class _Shown:
    """Progress of all tasks, this command's and others'."""

    def __init__(self, corpus: UnfinishedCorpus, bar: Progress) -> None:
        self._corpus, self._bar, self._before = corpus, bar, corpus.num_bytes

    def on_span(self, num_bytes: int, note: str) -> None:
        """So much of the group that this process writes is read."""
        self._bar.update((self._corpus.num_bytes - self._before + num_bytes) / 1e6, note)

    def on_look(self) -> None:
        """Look what tasks have written."""
        self._corpus.look()
        self.on_span(0, f"{len(self._corpus.written):,} of {counted(len(self._corpus.groups), 'source group')}")

    def on_start(self, worker: int, key: str) -> None:
        """Show nothing that is new."""

    def on_event(self, event: Event) -> None:
        """Tell of a lost task."""
        if isinstance(event, Lost):
            log = logs_folder(self._corpus.output)
            self._bar.say(f"{event.key} ended by {event.reason}; another takes its group (what it printed: {log})")


def _failed(corpus: UnfinishedCorpus, failed: dict[int, str]) -> str:
    if len(corpus.groups) == 1:
        return failed[0]
    messages = "\n".join(f"  {corpus.groups[number]}: {message}" for number, message in failed.items())
    left = len(corpus.groups) - len(corpus.written) - len(failed)
    others = f"{left:,} more not finished" if left else "the others are finished"
    return (
        f"{counted(len(failed), 'source group')} of {len(corpus.groups):,} failed; {others}, and the same command "
        f"tries again:\n{messages}"
    )


def submit(corpus: UnfinishedCorpus, sources: Sequence[str]) -> None:
    """Submit jobs to Slurm, each this command as one task, until as many are in the queue as are asked for."""
    output, settings, missing = corpus.output, corpus.settings, corpus.missing()
    num_groups = len(corpus.groups)
    console().print(f"{output}: {num_groups - len(missing):,} of {counted(num_groups, 'source group')} written")
    for number, message in corpus.failures().items():
        console().print(f"{corpus.groups[number]} failed: {message}")
    logs = logs_folder(output)
    logs.mkdir(exist_ok=True)
    jobs = SlurmJobs(logs / "jobs.json", remedy="Correct SBATCH_PARTITION and the like, or --workers")
    # One that begins when the others have finished it all has nothing to do.
    manifest, begun = (shlex.quote(str(output / name)) for name in (CORPUS_MANIFEST, f"{UNFINISHED_FOLDER}/{BEGUN}"))
    unseen = shlex.quote(f"no corpus is begun in {output} on this machine: put --output where all machines see it")
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
    """Folder of what tasks print, beside the corpus, which has nothing of theirs; hidden, as it is no source."""
    return output.absolute().with_name(f".{output.absolute().name}.tasks")


def load_tokenizer(settings: PreprocessSettings) -> Tokenizer:
    """The tokenizer that a corpus is made with."""
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
