"""Process groups of a topology."""

from collections.abc import Callable
from functools import cache, cached_property

import torch.distributed as dist

from toolkit.parallel.topology import Topology


class ProcessGroups:
    """The groups that this rank is in, with the names by which DeepSpeed asks for them (Megatron's `mpu`).

    `data` are ranks with the same part of each copy of the model, `tensor` those with the shares of a layer of one
    copy. Made by all ranks at once. A process group lives as long as the process: use `process_groups`, which keeps
    them.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        data = _own_group(topology, lambda place: place.data_parallel_ranks)
        tensor = _own_group(topology, lambda place: place.tensor_parallel_ranks)
        assert data is not None
        assert tensor is not None
        self.data, self.tensor = data, tensor

    @cached_property
    def vocabulary(self) -> dist.ProcessGroup | None:
        """First and last stage's ranks with one share of the vocabulary: those that sum the gradient of tied weights.

        None on ranks of other stages. Made by all ranks at once, when first asked for.
        """
        return _own_group(self.topology, lambda place: place.vocabulary_ranks)

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        """See `data`."""
        return self.data

    def get_data_parallel_group_ranks(self) -> list[int]:
        """Ranks of `data`."""
        return list(self.topology.data_parallel_ranks)

    def get_data_parallel_rank(self) -> int:
        """Number of the copy of the model of which this rank holds a part."""
        return self.topology.data_rank

    def get_data_parallel_world_size(self) -> int:
        """Copies of the model."""
        return self.topology.dp

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        """Group of the ranks over which DeepSpeed sums a norm: without pipeline stages, those of `tensor`."""
        return self.tensor

    get_tensor_model_parallel_group = get_model_parallel_group

    def get_model_parallel_rank(self) -> int:
        """Number of the share that this rank holds."""
        return self.topology.tp_rank

    get_tensor_model_parallel_rank = get_model_parallel_rank

    def get_model_parallel_world_size(self) -> int:
        """Number of shares."""
        return self.topology.tp

    get_tensor_model_parallel_world_size = get_model_parallel_world_size


@cache
def process_groups(topology: Topology) -> ProcessGroups:
    """The groups of a topology, made once in a process; collective the first time."""
    return ProcessGroups(topology)


def _own_group(topology: Topology, ranks_of: Callable[[Topology], tuple[int, ...]]) -> dist.ProcessGroup | None:
    """The group that this rank is in, if any, of those that `ranks_of` gives for all ranks."""
    group: dist.ProcessGroup | None
    if len(own := ranks_of(topology)) == 1:
        # Its own affair: else each of ten thousand ranks would make ten thousand groups.
        group = dist.new_group(list(own), use_local_synchronization=True)
        return group
    groups, placed = list[list[int]](), set[int]()
    for rank in range(topology.world_size):
        # Ranks of the stages between are in none of the groups of `vocabulary`, of which they name one again.
        if rank not in placed and (ranks := ranks_of(topology.at(rank)))[0] not in placed:
            groups.append(list(ranks))
            placed.update(ranks)
    group, _ = dist.new_subgroups_by_enumeration(groups)  # type: ignore[no-untyped-call]
    return group
