"""A run of 512 and of 10,240 ranks through the real code, a few ranks of each, without network and GPUs.

    python benchmarks/rehearsal.py [--shards 373] [--cases 1 3 7]

The corpus is made up: 373 shards of 2^28 tokens (10^11 tokens in sparse files; packing plans are there). The first two
ranks and the last of each case start, train two steps and save, each in a process of its own; then the run is resumed
at another number of ranks. Prints the table of docs/performance.md as it is now, a column for each case.

Real: every function of `toolkit.training.pretrain` but those below; DeepSpeed's engine and its groups; all reading and
writing. Not real: exchanges (torch's fake process group, on which each rank hears itself from all others; what rank 0
broadcast is kept in a file), the watch over peers, forward and backward passes. Rank 0 writes the parts of all others.
"""

import argparse
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from rows import resident_megabytes

ROWS, SEQUENCE_LENGTH, SHARD_TOKENS, PER_MACHINE = 10_240, 2048, 1 << 28, 8
_EXCHANGES = ("gather", "gather_on_first", "sum_counts")
_OF_A_STEP = ("_gather_numbers", "one_of_each_copy")
# As many tensors as the preset `3b` has, each narrow.
_RUN = """precision = "bf16"
run.dir = "{base}/run"
model = {{vocab_size=128320, hidden_size=64, intermediate_size=128, num_hidden_layers=28, num_attention_heads=8}}
data = {{train = "{base}/corpus", sequence_length = {length}}}
schedule = [{{objective = "clm", steps = 2}}, {{objective = "mlm", steps = 1}}]
train.global_batch_rows = {rows}
lr = {{warmup_steps = 1, decay_steps = 1}}
parallel = {{tp = {case.tp}, pp = {case.pp}}}
"""


class Case(NamedTuple):
    """A layout of so many ranks."""

    world_size: int
    zero: str = "zero1"
    tp: int = 1
    pp: int = 1

    def __str__(self) -> str:
        return f"{self.world_size:,} ranks: tp {self.tp}, pp {self.pp}, {self.zero}"


CASES = (
    *(Case(1), Case(512), Case(512, "pipeline", 8, 4), Case(10_240), Case(10_240, "zero2"), Case(10_240, "zero3")),
    *(Case(10_240, "zero1", 8), Case(10_240, "pipeline", 8, 4)),
)
RESUMED = {512: Case(10_240), 10_240: Case(512)}


class Meter:
    """Calls, CPU seconds, memory and looks at files, by stage of a rank's life."""

    def __init__(self, base: Path) -> None:
        self._places = {"corpus": base / "corpus", "checkpoints": base / "run" / "checkpoints"}
        self.stages: dict[str, Counter[str]] = {}
        self.stage = "start"
        sys.addaudithook(self._audited)
        os.stat, os.lstat = self._counted(os.stat), self._counted(os.lstat)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def looked(path: Any, *arguments: Any, **named: Any) -> Any:
            descriptor = named.get("dir_fd")
            folder = "" if descriptor is None else os.readlink(f"/proc/self/fd/{descriptor}")
            self.look(os.path.join(folder, os.fsdecode(path)) if isinstance(path, str) else path)
            return function(path, *arguments, **named)

        return looked

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.listdir", "os.scandir") or (event == "open" and not isinstance(arguments[0], int)):
            self.look(arguments[0])

    def look(self, path: Any) -> None:
        """Count a look at a file: it is opened, its folder listed, or its size asked for."""
        try:
            name = os.path.abspath(os.fsdecode(path))
        except TypeError:
            return
        found = [place for place, folder in self._places.items() if f"{name}/".startswith(f"{folder}/")]
        if "site-packages" in name or name.startswith((sys.prefix, sys.base_prefix)):
            found.append("environment")
        self.stages.setdefault(self.stage, Counter()).update(found[:1])

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """A stage; files that one inside another looks at count for that one alone."""
        outer, self.stage = self.stage, name
        memory, cpu = resident_megabytes(), time.process_time()
        try:
            yield
        finally:
            self.stage, spent = outer, time.process_time() - cpu
            found = self.stages.setdefault(name, Counter())
            found.update({"calls": 1, "cpu_s": spent, "mb": resident_megabytes() - memory})  # type: ignore[dict-item]

    def measured(self, owner: Any, function: str, stage: str | None = None) -> None:
        """Make each call of a function of a module or class a stage."""
        inner = getattr(owner, function)

        def outer(*arguments: Any, **named: Any) -> Any:
            with self.at(stage or function):
                return inner(*arguments, **named)

        setattr(owner, function, outer)


class Rank:
    """One rank, alone in its process."""

    def __init__(self, base: Path, rank: int, world_size: int, until: int) -> None:
        self._base, self._rank, self._world_size, self._until = base, rank, world_size, until
        self._meter, self._has_moments, self._num_groups = Meter(base), False, 0

    def run(self) -> dict[str, Any]:
        """Start, train and save; what it took, by stage."""
        local = {"LOCAL_RANK": self._rank % PER_MACHINE, "LOCAL_WORLD_SIZE": min(PER_MACHINE, self._world_size)}
        given = {"RANK": self._rank, "WORLD_SIZE": self._world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
        os.environ.update({name: str(value) for name, value in (given | local).items()})
        meter = self._meter
        with meter.at("imports"):
            import deepspeed  # noqa: F401

            from toolkit.checkpoint import read
            from toolkit.engine import saving
            from toolkit.run.folder import RunFolder
            from toolkit.training import pretrain as _  # noqa: F401
            from toolkit.training import set_up

            pretrain = sys.modules["toolkit.training.pretrain"]
        with meter.at("join"):
            self._join()
        self._compute_nothing()
        pretrain.peers_watched = lambda *_, **__: nullcontext()  # type: ignore[attr-defined]
        for name in ("join_ranks", "read_run", "build_engine", "train"):
            meter.measured(pretrain, name)
        meter.measured(set_up, "load_checkpoint")
        meter.measured(saving.AsyncCheckpoint, "_finish", "save")
        opened = read.safe_open
        read.safe_open = lambda path, **named: (meter.look(path), opened(path, **named))[1]
        with meter.at("pretrain"):
            pretrain.pretrain_resolved(RunFolder(self._base / "run"), until=self._until)
        return {"groups": self._num_groups, "stages": meter.stages, "open_files": len(os.listdir("/proc/self/fd"))}

    def _join(self) -> None:
        """Join a process group of so many ranks in which nothing is sent; rank 0's words are kept, and repeated."""
        import deepspeed
        import torch.distributed as dist
        from deepspeed.ops import __compatible_ops__ as compatible_ops
        from torch.testing._internal.distributed.fake_pg import FakeStore

        from toolkit.engine.ranks import Ranks

        dist.init_process_group("fake", rank=self._rank, world_size=self._world_size, store=FakeStore())
        compatible_ops["deepspeed_shm_comm"] = False
        # Finds the group there, and keeps it for DeepSpeed's own calls.
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        new_group = dist.new_group

        def counted(*arguments: Any, **named: Any) -> Any:
            self._num_groups += 1
            return new_group(*arguments, **{**named, "backend": "fake"})

        dist.new_group = dist.distributed_c10d.new_group = counted
        said, kept = self._base / f"said-{self._until}", list[Any]()
        told = iter(pickle.loads(said.read_bytes()) if self._rank else ())

        def broadcast(_: Ranks, value: Any) -> Any:
            if self._rank == 0:
                kept.append(value)
                said.write_bytes(pickle.dumps(kept))
                return value
            value = next(told)
            if isinstance(value, Path) and value.name.startswith(".writing"):
                value.mkdir(parents=True, exist_ok=True)
            if isinstance(value, str) and value.startswith(".look-"):
                (self._base / "run" / value).touch()
            return value

        Ranks.broadcast = broadcast  # type: ignore[method-assign]
        for name in (*_EXCHANGES, *_OF_A_STEP):
            self._meter.measured(Ranks, name)
        self._write_parts_of_all(Ranks)

    def _write_parts_of_all(self, ranks_class: Any) -> None:
        """Where rank 0 gathers the parts of a checkpoint, it first writes those of all other ranks, as zeros."""
        from toolkit.checkpoint.write import PartEntry, write_part

        gather = ranks_class.gather_on_first

        def gathered(ranks: Any, mine: Any) -> Any:
            answer = gather(ranks, mine)
            if not isinstance(mine, PartEntry) or self._rank:
                return answer
            folder = next((self._base / "run" / "checkpoints").glob(".writing-*"))
            with self._meter.at("parts of all others"):
                return [
                    mine,
                    *(
                        write_part(folder, part=rank, num_parts=self._world_size, parameters=parameters)
                        for rank, parameters in self._parameters_of_others(ranks.topology)
                    ),
                ]

        ranks_class.gather_on_first = gathered

    def _parameters_of_others(self, topology: Any) -> Iterator[tuple[int, list[Any]]]:
        """The parameters that each other rank writes: the largest first, each to who has least."""
        import torch

        from toolkit.checkpoint.read import ParameterState
        from toolkit.model.encoder import Encoder
        from toolkit.run.load import read_resolved

        run = read_resolved(self._base / "run" / "run.toml")
        with torch.device("meta"):
            parameters = dict(Encoder(run.settings.model).named_parameters())
        per_stage = topology.ranks_per_stage
        loads = [[0] * per_stage for _ in range(topology.pp)]
        writers = dict[int, list[Any]]()
        for name in sorted(parameters, key=lambda name: -parameters[name].numel()):
            stage = 0 if "embed" in name else topology.pp - 1
            if "layers." in name:
                block = int(name.split("layers.")[1].split(".")[0])
                stage = next(number for number, blocks in enumerate(run.stages) if block in blocks)
            number = loads[stage].index(min(loads[stage]))
            loads[stage][number] += parameters[name].numel()
            zeros = torch.zeros(parameters[name].shape)
            writers.setdefault(stage * per_stage + number, []).append(ParameterState(name, zeros, zeros, zeros))
        for rank in range(1, self._world_size):
            yield rank, writers.get(rank, [])

    def _compute_nothing(self) -> None:
        """Steps without a pass: the loss and the norm are 1, and the moments of AdamW exist."""
        import torch

        from toolkit.engine import optimizer_state
        from toolkit.engine.engine import Engine
        from toolkit.engine.step import StepResult

        def train_step(engine: Engine, micro_batches: Any, *, terms: Any, flags: Any, **_: Any) -> StepResult:
            if not self._has_moments:
                self._has_moments = True
                optimizer_state._make_moments_exist(engine.deepspeed.optimizer, 1)
            _, raised = engine.ranks.sum_with_flags([torch.ones((), dtype=torch.float64)], flags())
            return StepResult(1.0, 1.0, (1.0,) * len(terms), flags=raised)

        Engine.train_step = train_step  # type: ignore[method-assign]
        Engine.optimizer_step = property(lambda _: 1)  # type: ignore[assignment,method-assign]


def resolve(base: Path, case: Case) -> None:
    """Resolve the run as `toolkit train` does, and write what ranks read."""
    from toolkit.run.load import declare_run
    from toolkit.run.resolve import resolve_run

    rows = ROWS if case.world_size > 1 else 16
    (base / "run.toml").write_text(_RUN.format(base=base, length=SEQUENCE_LENGTH, rows=rows, case=case))
    run = resolve_run(declare_run(str(base / "run.toml")), ds_config=case.zero, num_ranks=case.world_size)
    with run.folder.locked():
        run.write()


def rehearse(base: Path, case: Case, ranks: tuple[int, ...], *, until: int) -> list[dict[str, Any]]:
    """What some ranks of a case took, rank 0 first; each starts from the checkpoints that rank 0 found."""
    checkpoints, before, after = base / "run" / "checkpoints", base / "before", base / "after"
    shutil.rmtree(before, ignore_errors=True)
    if checkpoints.exists():
        shutil.copytree(checkpoints, before, copy_function=os.link)
    found = []
    for rank in ranks:
        if rank:
            shutil.rmtree(checkpoints)
            if before.exists():
                shutil.copytree(before, checkpoints, copy_function=os.link)
        arguments = [str(base), *map(str, (rank, case.world_size, until))]
        command = [sys.executable, __file__, "--rank", *arguments]
        environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            sys.exit(f"{case}, rank {rank}:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
        if not rank:
            shutil.copytree(checkpoints, after, copy_function=os.link, dirs_exist_ok=True)
    shutil.rmtree(checkpoints)
    after.rename(checkpoints)
    return found


def figures(base: Path, ranks: list[dict[str, Any]], resumed: list[dict[str, Any]]) -> dict[str, float]:
    """A column of the table; of the second rank, if nothing else is said."""
    newest = max((base / "run" / "checkpoints").glob("step-*"))

    def of(stage: str, what: str, rank: dict[str, Any]) -> float:
        return float(rank["stages"].get(stage, {}).get(what, 0))

    def looks(rank: dict[str, Any], place: str) -> float:
        return sum(float(stage.get(place, 0)) for stage in rank["stages"].values())

    first, second = ranks[0], ranks[min(1, len(ranks) - 1)]
    steps = sum(1e3 * of(name, "cpu_s", second) / (of(name, "calls", second) or 1) for name in _OF_A_STEP)
    return {
        "process groups created": second["groups"],
        "CPU seconds: groups": of("join_ranks", "cpu_s", second),
        "CPU seconds: DeepSpeed's engine": of("build_engine", "cpu_s", second),
        "CPU seconds: host exchanges, start to first checkpoint": sum(of(n, "cpu_s", second) for n in _EXCHANGES),
        "CPU seconds: the same, rank 0": sum(of(name, "cpu_s", first) for name in _EXCHANGES),
        "CPU ms a step: comparing what all ranks report of their rows": steps,
        "MB: imports": of("imports", "mb", second),
        "MB: corpus of 100B tokens, its plans, the order": of("read_run", "mb", second),
        "MB: host exchanges": sum(of(name, "mb", second) for name in _EXCHANGES),
        "open files at the end, sockets not counted": second["open_files"],
        "file lookups in the corpus, first rank of a machine": looks(first, "corpus"),
        "file lookups in the corpus, other ranks": looks(second, "corpus"),
        "file lookups in Python and its packages": looks(second, "environment"),
        "files of a checkpoint": sum(path.is_file() for path in newest.rglob("*")),
        "KB of its manifest": (newest / "manifest.json").stat().st_size / 1e3,
        "CPU seconds to make it visible, rank 0": of("save", "cpu_s", first),
        "file lookups in checkpoints, a rank of another copy": sum(looks(rank, "checkpoints") for rank in resumed[-1:]),
        "CPU seconds to load it there": sum(of("load_checkpoint", "cpu_s", rank) for rank in resumed[-1:]),
    }


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        print(json.dumps(Rank(Path(sys.argv[2]), *map(int, sys.argv[3:])).run()))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=373)
    parser.add_argument("--cases", type=int, nargs="+", default=[1, 3, 7], help="numbers, from 0")
    options = parser.parse_args()
    from sparse_corpus import write_sparse_corpus

    columns = dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as temporary:
        base = Path(temporary)
        sizes = {"shard_tokens": SHARD_TOKENS, "sequence_length": SEQUENCE_LENGTH}
        corpus = write_sparse_corpus(base / "corpus", num_shards=options.shards, **sizes)
        (corpus / "tokenizer").mkdir()
        (corpus / "tokenizer" / "tokenizer.json").write_text("{}")
        for case in (CASES[number] for number in options.cases):
            shutil.rmtree(base / "run", ignore_errors=True)
            resolve(base, case)
            ranks = rehearse(base, case, tuple(sorted({0, 1 % case.world_size, case.world_size - 1})), until=2)
            resumed = list[dict[str, Any]]()
            if other := RESUMED.get(case.world_size):
                resolve(base, other)
                resumed = rehearse(base, other, (0, other.world_size - 1), until=3)
            columns[str(case)] = figures(base, ranks, resumed)
    print("| per rank unless stated | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for what in next(iter(columns.values())):
        print(f"| {what} | " + " | ".join(f"{column[what]:,.4g}" for column in columns.values()) + " |")


if __name__ == "__main__":
    main()
