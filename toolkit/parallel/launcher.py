"""This process's place in a launch, from the environment variables that launchers set; their only reader."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launched:
    """This process among those of a launch, as `deepspeed` and `torchrun` number them."""

    rank: int
    """Among the processes of all machines."""
    local_rank: int
    """Among those of this machine: which GPU is ours."""
    world_size: int
    """Processes on all machines."""
    local_world_size: int
    """Processes on this machine."""
    is_launched: bool
    """False in a process that nobody launched: it is alone."""


def read_launcher(environment: Mapping[str, str] = os.environ) -> Launched:
    """This process's place; rank 0 of 1 where there is no launcher."""
    world_size = int(environment.get("WORLD_SIZE") or 1)
    # torchrun sets LOCAL_WORLD_SIZE, deepspeed LOCAL_SIZE; where neither is set there is one machine.
    local_world_size = environment.get("LOCAL_WORLD_SIZE") or environment.get("LOCAL_SIZE") or world_size
    return Launched(
        rank=int(environment.get("RANK") or 0),
        local_rank=int(environment.get("LOCAL_RANK") or 0),
        world_size=world_size,
        local_world_size=int(local_world_size),
        is_launched="RANK" in environment,
    )
