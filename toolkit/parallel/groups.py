"""Process groups of a topology."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property

import torch.distributed as dist

from toolkit.parallel.topology import Topology


class ProcessGroups:
    """Process groups of this rank, with the method names that DeepSpeed expects (Megatron's `mpu`).

    `data` are the ranks with the same part of each copy of the model, `tensor` those with the shares of a layer of one
    copy. Construction is collective. A process group lives as long as the process: use `process_groups`, which caches
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
        """First and last stage's ranks with the same share of the vocabulary, which sum the gradient of tied weights.

        None on ranks of other stages. Collective on first access.
        """
        return _own_group(self.topology, lambda place: place.vocabulary_ranks)

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        """See `data`."""
        return self.data

    def get_data_parallel_group_ranks(self) -> list[int]:
        """Ranks of `data`."""
        return list(self.topology.data_parallel_ranks)

    def get_data_parallel_rank(self) -> int:
        """Index of the copy of the model of which this rank has a part."""
        return self.topology.data_rank

    def get_data_parallel_world_size(self) -> int:
        """Number of copies of the model."""
        return self.topology.dp

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        """Group over which DeepSpeed sums a norm: without pipeline stages, `tensor`."""
        return self.tensor

    get_tensor_model_parallel_group = get_model_parallel_group

    def get_model_parallel_rank(self) -> int:
        """Index of this rank's share."""
        return self.topology.tp_rank

    get_tensor_model_parallel_rank = get_model_parallel_rank

    def get_model_parallel_world_size(self) -> int:
        """Number of shares."""
        return self.topology.tp

    get_tensor_model_parallel_world_size = get_model_parallel_world_size


@cache
def process_groups(topology: Topology) -> ProcessGroups:
    """The groups of a topology, made once per process; collective in the first call."""
    return ProcessGroups(topology)


def _own_group(topology: Topology, ranks_of: Callable[[Topology], tuple[int, ...]]) -> dist.ProcessGroup | None:
    """This rank's group among those that `ranks_of` gives for all ranks; None if it is in none."""
    group: dist.ProcessGroup | None
    if len(own := ranks_of(topology)) == 1:
        # Made locally: else each of ten thousand ranks would make ten thousand groups.
        group = dist.new_group(list(own), use_local_synchronization=True)
        return group
    groups, placed = list[list[int]](), set[int]()
    for rank in range(topology.world_size):
        # Ranks of middle stages are in no group of `vocabulary`; `ranks_of` repeats one for them.
        if rank not in placed and (ranks := ranks_of(replace(topology, rank=rank)))[0] not in placed:
            groups.append(list(ranks))
            placed.update(ranks)
    group, _ = dist.new_subgroups_by_enumeration(groups)  # type: ignore[no-untyped-call]
    return group
