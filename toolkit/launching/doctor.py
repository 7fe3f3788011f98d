"""`toolkit doctor`: before a large job, its ranks report what they find on their machines and try what the run will do.

1. Ranks rendezvous, so that missing ones are named, and form their groups as for training.
2. Each examines its machine, and all together the network and devices; rank 0 prints the findings.
3. They train the next five steps of the run in a folder beside it, with all the usual checks and writes.

From step 2 on, a rank that fails, exits or hangs is named as in training.
"""

import hashlib
import math
import os
import platform
import shutil
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib.metadata import distributions
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import numpy as np
import torch

import toolkit
from toolkit.checkpoint.folders import half_removed
from toolkit.core.cache import digest_of
from toolkit.core.console import columns, console
from toolkit.core.errors import SettingsError, UserError
from toolkit.core.files import hash_folder
from toolkit.core.locks import is_held, locked_folder
from toolkit.core.text import counted, rounded
from toolkit.data.corpus.shards import file_names
from toolkit.engine.gpus import has_gpu
from toolkit.engine.meeting import measure_speed, meet
from toolkit.engine.peers import peers_watched
from toolkit.engine.ranks import Ranks
from toolkit.launching.findings import Facts, Row, findings
from toolkit.launching.rank import own_errors_reported
from toolkit.parallel.launcher import read_launcher
from toolkit.preprocess.bundled import prepare_if_named
from toolkit.run.checks import check_wandb
from toolkit.run.continuation import find_continuation
from toolkit.run.corpora import open_corpora
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.forecast import checkpoint_bytes, checkpoints_kept
from toolkit.run.load import declare_run, declare_settings, to_toml
from toolkit.run.metrics import positions_per_second, read_lines
from toolkit.training.pretrain import join, pretrain_declared

_PACKAGES = (
    *("torch", "deepspeed", "transformers", "tokenizers", "safetensors", "numpy", "pydantic", "triton"),
    *("flash-attn-3", "flash-attn-4", "gigatoken", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)
_BLOCK_BYTES = 1 << 16
_SECONDS_FOR_LOCK = 5.0
_STEPS = 5


def examine(source: str, overrides: Sequence[str], *, ds_config: str) -> None:
    """Examine a run as one of its ranks; rank 0 prints a table, and a SettingsError on all names what is wrong."""
    with own_errors_reported():
        store = meet()
        ranks = join()
        del store
        with peers_watched(ranks):
            facts = ranks.gather_on_first(_look(source, overrides, ranks))
            _show(findings(facts, device=ranks.device.type) if facts else [], ranks)
        try_steps(source, overrides, ds_config)


def _show(rows: Sequence[Row], ranks: Ranks) -> None:
    if ranks.rank == 0:
        table = columns("", "", "check", "expected", "found", "what to do")
        for row in rows:
            table.add_row("wrong" if row.remedy else "ok", *row, style="bold red" if row.remedy else "")
        console().print(table)
    wrong = [row.check for row in rows if row.remedy]
    with ranks.together():
        if wrong:
            failed = f"{len(wrong)} of {len(rows)} checks failed: {', '.join(wrong)}"
            raise SettingsError(f"{failed}.\nFollow the table's last column, then run it again.")


def _look(source: str, overrides: Sequence[str], ranks: Ranks) -> Facts:
    facts, lock = Facts(socket.gethostname()), None
    with ExitStack() as stack:
        try:
            folder = look_at_machine(source, overrides, facts)
            if ranks.rank == 0:
                lock = folder / f".look-{uuid.uuid4().hex[:12]}.lock"
                stack.callback(lock.unlink, missing_ok=True)
                stack.enter_context(_locked(lock))
        except Exception as error:
            facts.error = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if (shared := ranks.broadcast(None if facts.error else lock)) is not None:
            seen = "seen, and locked" if is_held(shared) else "seen, but not locked" if shared.exists() else "not seen"
            facts.same["shared folder"] = {"a file of rank 0": seen}
        # After this exchange all ranks have looked, and continue at the same moment.
        ranks.gather(None)
        facts.clock = time.time()
    facts.speed = measure_speed(ranks)
    return facts


def _locked(lock: Path) -> AbstractContextManager[None]:
    # On some file systems a file that cannot be created looks like one that is locked.
    told = f"could not create and lock a file in {lock.parent}, for run.dir. Set another."
    return locked_folder(
        lock.parent, lock.name, timeout=_SECONDS_FOR_LOCK, in_use=told, unwritable=lambda why: f"{told} ({why})"
    )


def look_at_machine(source: str, overrides: Sequence[str], facts: Facts) -> Path:
    """Look at packages, devices and files of this machine; returns the run folder, or its nearest existing parent."""
    place, versions = read_launcher(), {"toolkit": toolkit.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        versions[name] = next((found.version for found in distributions(name=name)), "not installed")
    facts.same["packages"] = versions
    facts.same["device"] = {"name": torch.cuda.get_device_name() if has_gpu() else "cpu"}
    declared = declare_run(source, overrides)
    path = declared.folder.path.absolute()
    facts.same["run"] = {"run.dir": str(path), "settings": digest_of(to_toml(declared.settings))[:12]}
    folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
    facts.free = shutil.disk_usage(folder).free
    facts.left = (left := half_removed(declared.folder.checkpoints)) and f"; {left}"
    check_wandb(declared.settings)
    prepare_if_named(declared.settings.data)
    corpora = open_corpora(declared)
    complete = corpora.with_vocabulary(declared)
    num_missing = sum(checkpoints_kept(complete)) + 1 - len(complete.folder.steps())
    facts.needed = max(0, num_missing) * (checkpoint_bytes(complete.settings) or 0)
    data, tokenizers = facts.same.setdefault("data", {}), facts.same.setdefault("tokenizer", {})
    for key, corpus in ((named.key, named.corpus) for named in corpora.named):
        data[key] = corpus.manifest.manifest_sha256[:12]
        files = digest_of(hash_folder(corpus.tokenizer_folder))
        tokenizers[key] = f"{corpus.fingerprint[:12]}, files {files[:12]}"
        # Other ranks of a machine read the same files; those of object storage are hashed on arrival.
        for name in corpus.manifest.table.names if place.local_rank == 0 else ():
            shard = [file for file in file_names(corpus.path / name) if file.is_file()]
            data |= {f"{key} {file.name}": _sampled(file) for file in shard}
    return folder


def _sampled(file: Path) -> str:
    """Digest of a file's size and of three blocks of it."""
    content = np.memmap(file, np.uint8, "r")
    blocks = [content[start : start + _BLOCK_BYTES] for start in (0, content.size // 2, -_BLOCK_BYTES)]
    return hashlib.sha256(b"%d" % content.size + b"".join(map(bytes, blocks))).hexdigest()[:12]


def try_steps(source: str, overrides: Sequence[str], ds_config: str) -> None:
    """Train the next steps of a run in a folder beside it; rank 0 prints speed and hours left. Collective."""
    run, is_first, began = declare_run(source, overrides), read_launcher().rank == 0, time.monotonic()
    # The working directory, ".", has no name.
    path = Path(os.path.abspath(run.folder.path))
    folder = path.with_name(f".{path.name}.doctor.partial")
    changes = {
        "run": {"dir": str(folder)},
        # The run's own copies stay untouched, and are not resumed from.
        "checkpoint": {"copy_to": None},
        "eval": {"rows": 1},
        "log": {"tensorboard": False, "wandb": False, "every": 1},
    }
    changed = {group: getattr(run.settings, group).model_copy(update=values) for group, values in changes.items()}
    scratch = declare_settings(run.settings.model_copy(update=changed))
    if is_first:
        # Leftovers of a killed doctor would be resumed. Other ranks open the folder only after rank 0 has created it.
        shutil.rmtree(folder, ignore_errors=True)
    try:
        outcome = pretrain_declared(scratch, ds_config=ds_config, as_next_of=run, most_steps=_STEPS)
        lines = read_lines(scratch.folder) if is_first else []
    finally:
        if is_first:
            shutil.rmtree(folder, ignore_errors=True)
    if is_first:
        first = find_continuation(run).step + 1
        if outcome.was_there:
            all_well = f"all is well; the run has finished at step {outcome.step:,}"
        elif outcome.step < first:
            all_well = f"stopped before step {first:,}"
        else:
            steps = f"step {first:,}" if outcome.step == first else f"steps {first:,} to {outcome.step:,}"
            all_well = f"all is well; {steps}, trained and saved, took {time.monotonic() - began:,.1f} s"
            all_well += _pace(run, lines, step=first - 1)
        print(all_well, flush=True)


def _pace(run: DeclaredRun, lines: Sequence[Mapping[str, Any]], *, step: int) -> str:
    """Tokens per second of the last logged steps, and the time left after `step` at that speed."""
    # The first two steps include compilation and measurements.
    timed = [line for line in lines if "tokens_per_second" in line][1:][-(_STEPS - 2) :]
    speeds = list(filter(None, (positions_per_second(run.plan, line) for line in timed)))
    if not speeds:
        return ""
    total = run.plan.schedule.total_steps
    hours = (run.plan.positions(total) - run.plan.positions(step)) / harmonic_mean(speeds) / 3600
    tokens = harmonic_mean([line["tokens_per_second"] for line in timed])
    pace = f"\n{tokens:,.0f} tokens/s: about {rounded(hours)} hours for the {total - step:,} steps left"
    limit = [float(os.environ.get(f"SLURM_JOB_{name}_TIME", "nan")) for name in ("START", "END")]
    job_hours = (limit[1] - limit[0]) / 3600
    jobs = f", {counted(math.ceil(hours / job_hours), 'job')} as long as this one" if job_hours > 0 else ""
    return f"{pace}{jobs}, without evaluation and checkpoints"
