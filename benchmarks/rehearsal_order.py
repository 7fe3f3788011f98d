"""The rows of two steps by layout, dealt to all ranks of it: one digest, and what the exchange of a step costs a rank.

    python benchmarks/rehearsal_order.py

Every data-parallel rank's rows are read, masked and hashed by the real batcher, one rank after the other; the ranks of
one copy tell the same. A step has 10,240 rows of 256 tokens. Prints a JSON line for each layout.
"""

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolkit.engine.ranks import Ranks
from toolkit.objectives.base import at_progress
from toolkit.objectives.mixture import StepMix
from toolkit.parallel.topology import ParallelSettings, topology
from toolkit.run.resolve import ResolvedRun
from toolkit.training.batching import Batcher, StepRows
from toolkit.training.run_state import RunState, StepCounts

ROWS, SEQUENCE_LENGTH = 10_240, 256
LAYOUTS = [(1, 1, 1), (512, 1, 1), (512, 8, 4), (10_240, 1, 1), (10_240, 8, 4)]


def walk(run: ResolvedRun, world_size: int, parallel: ParallelSettings) -> dict[str, Any]:
    """Two steps; seconds of the part of one rank, and of what it does with those of all."""
    place, data, plan = topology(0, world_size, parallel), run.data, run.plan
    ranks, state, seconds = Ranks.__new__(Ranks), RunState(), {"own_part_s": 0.0, "all_parts_s": 0.0}
    ranks.topology = place
    stream = data.training[0].stream()

    def rows_at(step: int) -> StepRows:
        return StepRows(
            stream, data.training[0].paths, plan.position(step), run.division.batches.at(step), plan.dealt(step)
        )

    batchers = [
        Batcher(
            rows_at,
            data_rank=rank,
            seed=run.settings.run.seed,
            device=torch.device("cpu"),
            targets_multiple=1,
            model=run.settings.model,
        )
        for rank in range(place.dp)
    ]
    for step in range(2):
        phase = plan.schedule.phase_at(step)
        progress = phase.progress_at(step)
        mix = StepMix(
            phase.objectives,
            tuple(at_progress(data.objectives[name], progress) for name in phase.objectives),
            plan.coefficients(step),
        )
        started = time.perf_counter()
        parts = [batcher.step(step, mix) for batcher in batchers]
        seconds["own_part_s"] += (time.perf_counter() - started) / place.dp / 2
        packed = [np.concatenate([part.counts.packed(), part.row_hashes.view(np.int64).ravel()]) for part in parts]
        of_copies = np.repeat(np.stack(packed), place.tp, axis=0)
        gathered = np.tile(of_copies, (place.pp, 1))
        size, started = len(parts[0].counts.packed()), time.perf_counter()
        by_copy = ranks.one_of_each_copy(gathered)
        counts = StepCounts.summed(by_copy[:, :size])
        hashes = np.ascontiguousarray(by_copy[:, size:]).view(np.uint8).reshape(place.dp, -1, 8)
        in_order = run.division.batches.at(step).in_step_order(hashes)
        state = state.after_step(phase, counts, in_order, means={})
        seconds["all_parts_s"] += (time.perf_counter() - started) / 2
    found = {name: round(value, 5) for name, value in seconds.items()}
    return found | {"digest": state.digest.hex(), "tokens": state.tokens, "gathered_bytes": gathered.nbytes}


def main() -> None:
    from rehearsal import Case, run_file
    from sparse_corpus import write_sparse_corpus

    from toolkit.run.load import declare_run
    from toolkit.run.resolve import resolve_run

    base, found = Path(tempfile.mkdtemp()), []
    try:
        write_sparse_corpus(base / "corpus", num_shards=12, shard_tokens=1 << 22, sequence_length=SEQUENCE_LENGTH)
        (base / "corpus" / "tokenizer").mkdir()
        for world_size, tp, pp in LAYOUTS:
            case = Case(world_size, "pipeline" if pp > 1 else "zero1", tp, pp)
            overrides = [f"data.sequence_length={SEQUENCE_LENGTH}", f"train.global_batch_rows={ROWS}"]
            declared = declare_run(
                str(run_file(base, base / "run", case)), [*overrides, "schedule.0.steps=1", "schedule.1.steps=2"]
            )
            run = resolve_run(declared, ds_config=case.zero, num_ranks=world_size)
            found.append({"case": str(case)} | walk(run, world_size, run.settings.parallel))
            print(json.dumps(found[-1]), flush=True)
    finally:
        shutil.rmtree(base)
    assert len({row["digest"] for row in found}) == 1, "ranks were dealt other rows, or in another order"


if __name__ == "__main__":
    main()
