"""One rank of a run of any size, alone: the real start, steps and checkpoint over a process group that sends nothing.

    python benchmarks/rehearsal_rank.py RUN_FOLDER RANK WORLD_SIZE UNTIL

Real: every function of `toolkit.training.pretrain` but those below; DeepSpeed's engine and its groups; all reading and
writing. Not real: exchanges (torch's fake process group, on which each rank hears itself from all others; what rank 0
broadcast is read from a file that the child of rank 0 left), the watch over peers, forward and backward passes. Rank 0
writes the parts of all other ranks too, one after the other. Prints one JSON line.
"""

import importlib
import json
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

RUN_FOLDER, RANK, WORLD_SIZE, UNTIL = Path(sys.argv[1]), *map(int, sys.argv[2:5])
RANKS_PER_MACHINE = 8
BASE = RUN_FOLDER.parent
PLACES = {"corpus": BASE / "corpus", "checkpoints": RUN_FOLDER / "checkpoints", "run folder": RUN_FOLDER}


def place_of(path: Any, environment: tuple[str, ...] = (sys.prefix, sys.base_prefix)) -> str | None:
    """What is looked at: by the deepest folder of `PLACES`, or "environment" for Python and its packages."""
    try:
        name = os.path.abspath(os.fsdecode(path))
    except TypeError:
        return None
    for place, folder in PLACES.items():
        if name == str(folder) or name.startswith(f"{folder}/"):
            return place
    return "environment" if name.startswith(environment) or "site-packages" in name else None


class Meter:
    """Seconds, memory and looks at files, by stage of a rank's life; exchanges by name."""

    def __init__(self) -> None:
        self.stages: dict[str, dict[str, Any]] = {}
        self.files: Counter[str] = Counter()
        self.exchanges: Counter[str] = Counter()
        self.stage = "start"

    def watch_files(self) -> None:
        """Count opened files, listed folders and looks at a file's size from here on."""
        sys.addaudithook(self._audited)
        stat, safe_stat = os.stat, os.lstat

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def looked(path: Any, *arguments: Any, **named: Any) -> Any:
                descriptor = named.get("dir_fd")
                folder = "" if descriptor is None else os.readlink(f"/proc/self/fd/{descriptor}")
                self._count("stat", os.path.join(folder, os.fsdecode(path)) if isinstance(path, str) else path)
                return function(path, *arguments, **named)

            return looked

        os.stat, os.lstat = counted(stat), counted(safe_stat)

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not isinstance(arguments[0], int):
            self._count("open", arguments[0])
        elif event in ("os.listdir", "os.scandir"):
            self._count("list", arguments[0])

    def _count(self, what: str, path: Any) -> None:
        if (place := place_of(path)) is not None:
            self.files[f"{self.stage} / {place} / {what}"] += 1

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """A stage; one inside another counts for itself."""
        outer, self.stage = self.stage, name
        before, wall, cpu = resident_mb(), time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.stage = outer
            entry = self.stages.setdefault(name, {"calls": 0, "wall_s": 0.0, "cpu_s": 0.0, "resident_mb": 0.0})
            entry["calls"] += 1
            entry["wall_s"] += time.perf_counter() - wall
            entry["cpu_s"] += time.process_time() - cpu
            entry["resident_mb"] += resident_mb() - before

    def measured(self, module: Any, function: str, stage: str | None = None) -> None:
        """Make each call of a function of a module or class a stage."""
        inner = getattr(module, function)

        def outer(*arguments: Any, **named: Any) -> Any:
            with self.at(stage or function):
                return inner(*arguments, **named)

        setattr(module, function, outer)


def resident_mb() -> float:
    """Resident memory now, in MB of 10^6 bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def fake_ranks(meter: Meter) -> None:
    """Join a process group of so many ranks in which nothing is sent, and let rank 0's words be kept or repeated."""
    import deepspeed
    import torch.distributed as dist
    from deepspeed.ops import __compatible_ops__ as compatible_ops
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from toolkit.engine.ranks import Ranks

    dist.init_process_group("fake", rank=RANK, world_size=WORLD_SIZE, store=FakeStore())
    compatible_ops["deepspeed_shm_comm"] = False
    # Finds the group there, and keeps it for DeepSpeed's own calls.
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    new_group = dist.new_group

    def counted(*arguments: Any, **named: Any) -> Any:
        meter.exchanges["groups"] += 1
        return new_group(*arguments, **{**named, "backend": "fake"})

    dist.new_group = dist.distributed_c10d.new_group = counted
    said = BASE / f"said-{UNTIL}"
    told = iter(pickle.loads(said.read_bytes()) if RANK else ())
    kept: list[Any] = []

    def broadcast(_: Ranks, value: Any) -> Any:
        meter.exchanges["broadcast"] += 1
        if RANK:
            value = next(told)
            if isinstance(value, Path) and value.name.startswith(".writing"):
                value.mkdir(parents=True, exist_ok=True)
            if isinstance(value, str) and value.startswith(".look-"):
                (RUN_FOLDER / value).touch()
            return value
        kept.append(value)
        said.write_bytes(pickle.dumps(kept))
        return value

    Ranks.broadcast = broadcast  # type: ignore[method-assign]
    for name in ("gather", "gather_on_first", "sum_counts", "_gather_numbers", "sum_with_flags", "one_of_each_copy"):
        if hasattr(Ranks, name):
            meter.measured(Ranks, name, f"exchange: {name}")
    _with_parts_of_all(Ranks)


def _with_parts_of_all(ranks_class: Any) -> None:
    """Where the parts of a checkpoint are gathered, rank 0 first writes those of all other ranks."""
    from toolkit.checkpoint.write import PartEntry, write_part

    name = "gather_on_first" if hasattr(ranks_class, "gather_on_first") else "gather"
    gather = getattr(ranks_class, name)

    kept = BASE / f"parts-{UNTIL}"

    def gathered(ranks: Any, mine: Any) -> Any:
        answer = gather(ranks, mine)
        if not isinstance(mine, PartEntry):
            return answer
        if RANK:
            return pickle.loads(kept.read_bytes()) if answer else answer
        folder = next((RUN_FOLDER / "checkpoints").glob(".writing-*"))
        sync, os.fsync = os.fsync, lambda _: None
        stage, METER.stage = METER.stage, "other ranks' parts"
        parts = [
            mine,
            *(
                write_part(folder, part=rank, num_parts=WORLD_SIZE, parameters=parameters)
                for rank, parameters in _others_parameters(ranks)
            ),
        ]
        os.fsync, METER.stage = sync, stage
        kept.write_bytes(pickle.dumps(parts))
        return parts

    setattr(ranks_class, name, gathered)


def _others_parameters(ranks: Any) -> Iterator[tuple[int, list[Any]]]:
    """The parameters that each other rank writes, as zeros; by the real division of a stage's among its ranks."""
    import torch

    from toolkit.checkpoint.read import ParameterState
    from toolkit.engine import saving

    engine, shapes = ENGINES[0], whole_shapes(ENGINES[0].ranks.topology)
    topology = ranks.topology
    for stage, shapes_of_stage in shapes.items():
        names = sorted(shapes_of_stage, key=lambda name: -torch.Size(shapes_of_stage[name]).numel())
        # The largest first, each to who has least: the first ranks of a stage have one each, where there are enough.
        writers = {
            name: number if topology.ranks_per_stage >= len(names) else None for number, name in enumerate(names)
        }
        if None in writers.values():
            writers = _shared_out(names, shapes_of_stage, topology.ranks_per_stage)
        by_rank: dict[int, list[Any]] = {}
        for name, writer in writers.items():
            zeros = torch.zeros(shapes_of_stage[name])
            by_rank.setdefault(writer, []).append(ParameterState(name, zeros, zeros, zeros))
        if stage == topology.stage:
            mine = {state.name for state in by_rank[topology.rank % topology.ranks_per_stage]}
            assert mine == saving._own_part(engine), "the parameters are not divided as here"
        for number in range(topology.ranks_per_stage):
            rank = stage * topology.ranks_per_stage + number
            if rank != topology.rank:
                yield rank, by_rank.get(number, [])


def _shared_out(names: list[str], shapes: dict[str, Any], num_ranks: int) -> dict[str, int]:
    import torch

    loads, writers = [0] * num_ranks, {}
    for name in names:
        writers[name] = loads.index(min(loads))
        loads[writers[name]] += torch.Size(shapes[name]).numel()
    return writers


def whole_shapes(topology: Any) -> dict[int, dict[str, tuple[int, ...]]]:
    """Shape of each parameter of the model, by the pipeline stage that writes it."""
    import torch

    from toolkit.model.encoder import Encoder
    from toolkit.run.load import read_resolved

    run = read_resolved(RUN_FOLDER / "run.toml")
    with torch.device("meta"):
        encoder = Encoder(run.settings.model)
    stages: dict[int, dict[str, tuple[int, ...]]] = {number: {} for number in range(topology.pp)}
    for name, parameter in encoder.named_parameters():
        number = 0 if "embed" in name else topology.pp - 1
        if "layers." in name:
            block = int(name.split("layers.")[1].split(".")[0])
            number = next(stage for stage, blocks in enumerate(run.stages) if block in blocks)
        stages[number][name] = tuple(parameter.shape)
    return stages


ENGINES: list[Any] = []
METER = Meter()


def without_compute(meter: Meter) -> None:
    """Steps that compute nothing: the loss and the norm are 1, and the moments of AdamW exist."""
    from toolkit.engine import optimizer_state
    from toolkit.engine.engine import Engine
    from toolkit.engine.step import StepResult

    def train_step(engine: Engine, micro_batches: Any, *, terms: Any, flags: Any, **_: Any) -> StepResult:
        if not ENGINES:
            ENGINES.append(engine)
            optimizer_state._make_moments_exist(engine.deepspeed.optimizer, 1)
        import torch

        _, raised = engine.ranks.sum_with_flags([torch.ones((), dtype=torch.float64)], flags())
        return StepResult(1.0, 1.0, (1.0,) * len(terms), flags=raised)

    Engine.train_step = train_step  # type: ignore[method-assign]
    Engine.optimizer_step = property(lambda _: 1)  # type: ignore[assignment,method-assign]


def main() -> None:
    os.environ.update(
        RANK=str(RANK),
        WORLD_SIZE=str(WORLD_SIZE),
        LOCAL_RANK=str(RANK % RANKS_PER_MACHINE),
        LOCAL_WORLD_SIZE=str(min(RANKS_PER_MACHINE, WORLD_SIZE)),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="1",
    )
    meter = METER
    meter.watch_files()
    with meter.at("imports"):
        import deepspeed  # noqa: F401

        from toolkit.checkpoint import read
        from toolkit.engine import saving
        from toolkit.run.folder import RunFolder
        from toolkit.training import set_up, steps_ahead

        pretrain = importlib.import_module("toolkit.training.pretrain")
    with meter.at("join"):
        fake_ranks(meter)
    without_compute(meter)
    pretrain.peers_watched = lambda *_, **__: nullcontext()
    for function in (
        *("join", "check_shared_folder", "read_resolved", "join_ranks", "read_continuation", "read_run"),
        *("check_same_inputs", "build_engine", "assemble", "train"),
    ):
        meter.measured(pretrain, function)
    meter.measured(set_up, "load_checkpoint")
    meter.measured(steps_ahead, "_agree", "step ahead")
    meter.measured(saving, "collect", "save: collect")
    meter.measured(saving.AsyncCheckpoint, "__init__", "save: begin")
    meter.measured(saving.AsyncCheckpoint, "_finish", "save: finish")
    meter.measured(saving, "merge_parts", "save: merge")
    opened = read.safe_open

    def safe_open(path: Any, **named: Any) -> Any:
        meter._count("open", path)
        return opened(path, **named)

    read.safe_open = safe_open

    folder = RunFolder(RUN_FOLDER)
    outcome = pretrain.pretrain_resolved(folder, until=UNTIL)
    print(
        json.dumps(
            {
                "rank": RANK,
                "outcome": str(outcome),
                "stages": meter.stages,
                "files": meter.files,
                "exchanges": meter.exchanges,
                "resident_mb": resident_mb(),
                "open_files": len(os.listdir("/proc/self/fd")),
            }
        )
    )


if __name__ == "__main__":
    main()
