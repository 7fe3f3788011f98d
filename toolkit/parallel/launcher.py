"""Place of this process in a launch, from the environment variables that launchers set.

`toolkit train` passes its ranks two more things the same way: who started them, and where a stop is requested.
"""

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from toolkit.core.errors import SettingsError

STOP_FILE_VARIABLE = "TOOLKIT_STOP_FILE"
STARTER_VARIABLE = "TOOLKIT_STARTER_PID"
LOOPBACK = "127.0.0.1"

_OTHER_STARTERS = {"SLURM_STEP_NUM_TASKS": "srun", "OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpiexec"}
"""Variables with the number of processes, one per launcher; none of these launchers sets RANK."""
_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE")
_LAST_PORT = 65_535
_NEEDED = ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_REMEDY = (
    "Start ranks with `deepspeed` or `torchrun`, which set all of these (docs/clusters.md). For a run in a single "
    "process, unset them."
)


@dataclass(frozen=True)
class Launched:
    """Place of a process in a launch, numbered as by `deepspeed` and `torchrun`."""

    rank: int
    """Rank among the processes of all machines."""
    local_rank: int
    """Rank among the processes of this machine: selects the GPU."""
    world_size: int
    """Number of processes on all machines."""
    local_world_size: int
    """Number of processes on this machine."""
    is_launched: bool
    """Whether there is a launcher; without one, this is the only process."""
    main_address: str = LOOPBACK
    """Name or address of rank 0's machine; the loopback if there is no other machine."""
    is_one_machine: bool = True
    """Whether all processes are on this machine."""


def read_launcher(environment: Mapping[str, str] = os.environ) -> Launched:
    """Place of this process, unchecked; rank 0 of 1 without a launcher."""
    world_size = _number(environment, "WORLD_SIZE") or 1
    # torchrun sets LOCAL_WORLD_SIZE, deepspeed LOCAL_SIZE; if neither is set, all processes may be here.
    local_world_size = _number(environment, "LOCAL_WORLD_SIZE") or _number(environment, "LOCAL_SIZE")
    address = environment.get("MASTER_ADDR") or LOOPBACK
    is_on_loopback = address.startswith("127.") or address in ("localhost", "::1")
    # A script that numbers ranks itself may set neither, even on several machines: then the address decides.
    is_one_machine = world_size in (1, local_world_size) or (local_world_size is None and is_on_loopback)
    return Launched(
        rank=_number(environment, "RANK") or 0,
        local_rank=_number(environment, "LOCAL_RANK") or 0,
        world_size=world_size,
        local_world_size=local_world_size or world_size,
        is_launched=bool(environment.get("RANK")),
        main_address=LOOPBACK if is_one_machine else address,
        is_one_machine=is_one_machine,
    )


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port of this machine for rank 0, which listens on it only seconds later; launches must not share one.

    A port that is merely free may be taken meanwhile. Then rank 0 exits, and the others wait for it for minutes.
    """
    with socket.socket() as holder:
        # Linux never gives a bound port to a process that asks for any free one; a process that names it and sets this
        # option, as torch does, may listen on it.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        port: int = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port


def alone(port: int) -> dict[str, str]:
    """Environment variables of a launch of one process."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return {**place, "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}


def check_launcher(environment: Mapping[str, str] = os.environ) -> None:
    """Check that a launcher's variables are complete and consistent.

    Otherwise, ranks would wait for others that never come, or several processes would each run alone.
    """
    found = {name: environment[name] for name in _NUMBERS if environment.get(name)}
    shown = " ".join(f"{name}={value}" for name, value in found.items())
    if not all(value.isdecimal() for value in found.values()):
        raise SettingsError(f"expected numbers from the launcher in the environment, found {shown}.\n{_REMEDY}")
    if "RANK" not in found:
        starter = next((name for name in _OTHER_STARTERS if (_number(environment, name) or 1) > 1), None)
        if int(found.get("WORLD_SIZE", 1)) > 1:
            raise SettingsError(f"the environment has {shown}, but not RANK.\n{_REMEDY}")
        if starter is not None:
            raise SettingsError(
                f"{_OTHER_STARTERS[starter]} started several processes ({starter}={environment[starter]}), but the "
                f"environment has no RANK: each would run alone.\n{_REMEDY}"
            )
        return
    if missing := [name for name in _NEEDED if not environment.get(name)]:
        raise SettingsError(f"the environment has {shown}, but not {', '.join(missing)}.\n{_REMEDY}")
    if not (port := environment["MASTER_PORT"]).isdecimal() or int(port) > _LAST_PORT:
        raise SettingsError(f"expected a port, 0 to {_LAST_PORT:,}, found MASTER_PORT={port}.\n{_REMEDY}")
    place = read_launcher(environment)
    if place.rank >= place.world_size or place.local_rank >= place.local_world_size:
        raise SettingsError(
            f"ranks count from 0, but the environment has {shown} ({place.local_world_size} on this machine).\n"
            f"{_REMEDY}"
        )


def unreachable(reason: str) -> SettingsError:
    """Error of a rank that torch could not connect to the others; `reason` is torch's message."""
    place = f"{read_launcher().main_address}:{os.environ.get('MASTER_PORT')}"
    return SettingsError(
        f"{socket.gethostname()} does not meet rank 0 at {place} (MASTER_ADDR, MASTER_PORT): {reason}\n"
        "Give an address of rank 0's machine that this one reaches, and a port that is free there and open."
    )


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """A variable's number; None if it is unset, empty or not a number."""
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else None
