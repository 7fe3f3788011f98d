"""Checks of what the ranks of a run must have in common, in one exchange each before the first step.

Every rank opens corpora and first weights by itself, possibly copies on its machine's disk. A wrong copy would still
train: its rank would feed other rows, or other weights, and no loss would show it.
"""

import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import toolkit
from toolkit.checkpoint.manifest import MANIFEST_NAME
from toolkit.checkpoint.read import Checkpoint
from toolkit.core.errors import SettingsError
from toolkit.core.files import hash_file
from toolkit.engine.ranks import Ranks
from toolkit.run.data import RunData

# Packages that losses depend on.
_PACKAGES = ("torch", "deepspeed", "numpy")


@dataclass(frozen=True)
class Input:
    """Something that a rank has opened or imported; it must be equal on all ranks, but may be in different places."""

    identity: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.identity} ({self.place})" if self.place else self.identity


def check_same_inputs(ranks: Ranks, data: RunData, checkpoint: Checkpoint | None, *, key: str) -> None:
    """Compare the corpora, first weights and packages of all ranks; collective, with an error on all if they differ.

    `key` is what messages call the checkpoint.
    """
    with ranks.together():
        mine = {"toolkit": Input(toolkit.__version__)} | {name: Input(version(name)) for name in _PACKAGES}
        mine |= {f"objectives of kind {kind}": Input(package) for kind, package in data.plugins.items()}
        mine["device"] = Input(ranks.device.type)
        for named in data.corpora.named:
            mine[named.key] = _file(named.corpus.manifest.manifest_sha256, named.corpus.path)
        if checkpoint is not None:
            mine[key] = _file(hash_file(checkpoint.path / MANIFEST_NAME), checkpoint.path)
    gathered = ranks.gather_on_first((socket.gethostname(), mine))
    with ranks.together():
        if gathered and (found := differences(gathered)):
            raise SettingsError(
                "\n  ".join(["the ranks of this run do not start from the same things:", *found])
                + "\nPut the same files in these places on every machine, with absolute paths in the run file, and "
                "install the same packages. Then start again."
            )


def agree(ranks: Ranks, reason: str | None) -> str | None:
    """Reason of the first rank that has one against what all are about to do; None if no rank has one. Collective."""
    if ranks.sum_counts(int(reason is not None)) == (0,):
        return None
    rank, found = next((rank, found) for rank, found in enumerate(ranks.gather(reason)) if found is not None)
    return found if rank == 0 else f"on rank {rank}, {found}"


def differences(gathered: Sequence[tuple[str, Mapping[str, Input]]]) -> list[str]:
    """Lines on inputs that differ from rank 0's: one per name, on the first such rank.

    `gathered` has each rank's host and inputs; a rank need not have all inputs that rank 0 has.
    """
    (first_host, first), lines = gathered[0], []
    for name, ours in first.items():
        for rank, (host, inputs) in enumerate(gathered):
            if inputs.get(name, ours).identity != ours.identity:
                lines.append(f"{name}: rank 0 on {first_host} has {ours}, rank {rank} on {host} has {inputs[name]}")
                break
    return lines


def check_shared_folder(folder: Path, ranks: Ranks) -> None:
    """Check that every rank sees a file that rank 0 just made: else the first checkpoint would fail. Collective."""
    probe = folder / ranks.broadcast(f".look-{uuid.uuid4().hex[:12]}.partial")
    try:
        with ranks.together():
            if ranks.rank == 0:
                probe.touch()
        with ranks.together():
            if not probe.exists():
                raise SettingsError(
                    f"rank {ranks.rank} on {socket.gethostname()} does not see what rank 0 writes to the run folder "
                    f"{folder}.\nSet run.dir to an absolute path on a file system that all machines of the run share."
                )
    finally:
        if ranks.rank == 0:
            probe.unlink(missing_ok=True)


def _file(sha256: str, path: Path) -> Input:
    return Input(f"SHA-256 {sha256[:12]}", str(path.absolute()))
