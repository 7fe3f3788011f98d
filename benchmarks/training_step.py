"""A training step on a CPU: our engine against the Hugging Face Trainer, on the same rows and masks.

    python benchmarks/training_step.py [--shape d256|nano] [--dtypes fp32 bf16] [--threads N] [--compile]

Two inputs of 4,096 tokens a step, 40 % masked: `documents`, 8 rows of 512 with two documents each, which the Trainer
gets as 16 sequences padded to the longest of the batch; and `blocks`, 8 rows of 512 that are one sequence each, the
Trainer's best case. Each contender is a process of its own with the same initial weights; a step of one begins when
the step of another has ended. Nothing is timed before the losses of the first step agree (fp32: to 4
decimals).

Our side sets its allocator (`toolkit.core.allocator`), the Trainer's users have the default: `own`. The same setting
given to the peer too is the other comparison: `both`. One JSON row per comparison goes to
benchmarks/results/training_step.jsonl.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from rows import append_row, machine, versions

RESULTS = Path(__file__).parent / "results" / "training_step.jsonl"
ROWS, COLUMNS, SHORTEST, MASK_RATIO, SEED = 8, 512, 12, 0.4, 0
PAD, MASK, FIRST_ORDINARY = 0, 1, 2
SHAPES: dict[str, dict[str, int]] = {
    "d256": {
        "vocab_size": 21_504,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
    },
    "nano": {
        "vocab_size": 8192,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    },
}
PACKAGES = ("torch", "transformers", "deepspeed", "accelerate", "encoder-pretraining-toolkit")
Gate = Callable[[], None]


@dataclass(frozen=True)
class Contender:
    """What one process runs."""

    side: str
    rows: str
    dtype: str
    shape: str
    steps: int
    keeps_freed_memory: bool
    is_compiled: bool
    num_threads: int

    @property
    def name(self) -> str:
        """As it stands in the results."""
        return f"{self.side} {self.rows}"


def token_rows(contender: Contender, step: int) -> tuple[Any, Any]:
    """Tokens with the frequencies of a natural language (Zipf), and segments, both (B, S), of one step."""
    generator = np.random.default_rng((SEED, step))
    num_ordinary = SHAPES[contender.shape]["vocab_size"] - FIRST_ORDINARY
    frequencies = 1 / np.arange(10, num_ordinary + 10)
    tokens = FIRST_ORDINARY + generator.choice(num_ordinary, (ROWS, COLUMNS), p=frequencies / frequencies.sum())
    segments = np.ones((ROWS, COLUMNS), dtype=np.int32)
    if contender.rows == "documents":
        cuts = generator.integers(SHORTEST, COLUMNS - SHORTEST + 1, ROWS)
        segments += np.arange(COLUMNS) >= cuts[:, None]
    return tokens.astype(np.int32), segments


def supervised(contender: Contender, step: int) -> tuple[Any, Any]:
    """What a step of either side learns from: the objective's targets, and the segments."""
    from toolkit.core.draws import Draws
    from toolkit.core.types import Vocabulary
    from toolkit.objectives.mlm import MaskedLanguageModeling, MlmSettings

    size = SHAPES[contender.shape]["vocab_size"]
    vocabulary = Vocabulary(size=size, mask_id=MASK, pad_id=PAD, bos_id=None, eos_id=None, special_ids=(PAD, MASK))
    objective = MaskedLanguageModeling(MlmSettings(mask_ratio=MASK_RATIO), vocabulary)
    tokens, segments = token_rows(contender, step)
    draws = Draws(SEED, np.arange(step * ROWS, (step + 1) * ROWS), num_columns=COLUMNS)
    return objective.build(tokens, segments, draws), segments


def initial_encoder(contender: Contender) -> Any:
    from toolkit.model import Encoder, ModelSettings, initialize_

    encoder = Encoder(ModelSettings(**SHAPES[contender.shape]))
    initialize_(encoder, SEED)
    return encoder


def micro_batch(targets: Any, segments: Any) -> Any:
    """What the training loop makes of an objective's targets."""
    import torch

    from toolkit.engine.engine import MicroBatch
    from toolkit.model import SegmentLayout

    return MicroBatch(
        input_ids_BS=torch.from_numpy(targets.input_ids_BS.astype(np.int64)),
        layout=SegmentLayout.from_segments(segments),
        positions_N=torch.from_numpy(targets.positions_N.astype(np.int64)),
        labels_N=torch.from_numpy(targets.labels_N.astype(np.int64)),
    )


def run_ours(contender: Contender, say: Callable[[float], None], gate: Gate) -> None:
    """Steps through the toolkit's engine with the shipped zero2."""
    from toolkit.core.types import AttentionKind
    from toolkit.engine.ds_config import read_ds_config, resolve_ds_config
    from toolkit.engine.engine import Engine
    from toolkit.engine.optimizer import OptimizerSettings
    from toolkit.engine.ranks import join_ranks
    from toolkit.model import compile_blocks_
    from toolkit.parallel.topology import batch_plan

    ranks = join_ranks()
    os.environ["LOCAL_RANK"] = "0"  # DeepSpeed wants it, as a launcher would set it.
    encoder = initial_encoder(contender)
    if contender.is_compiled:
        compile_blocks_(encoder)
    config = resolve_ds_config(
        read_ds_config("zero2"),
        batch=batch_plan(ROWS, ROWS, data_parallel=1),
        grad_clip=1.0,
        precision=contender.dtype,
        source="zero2",
    )
    engine = Engine(encoder, config=config, optimizer=OptimizerSettings(), ranks=ranks)
    first = micro_batch(*supervised(contender, 0))
    say(engine.loss_sum([first], attention=AttentionKind.BIDIRECTIONAL) / len(first.labels_N))
    for step in range(contender.steps):
        rows = supervised(contender, step)
        gate()
        batch = micro_batch(*rows)
        engine.train_step(
            [batch], attention=AttentionKind.BIDIRECTIONAL, num_targets=len(batch.labels_N), learning_rate=5e-4
        )
    gate()
    engine.close()


def sequences(contender: Contender) -> Iterator[dict[str, Any]]:
    """The same rows for the Trainer: one item per segment, label -100 where there is nothing to predict."""
    for step in range(contender.steps):
        targets, segments = supervised(contender, step)
        labels = np.full(ROWS * COLUMNS, -100)
        labels[targets.positions_N] = targets.labels_N
        for ids_S, labels_S, segments_S in zip(
            targets.input_ids_BS, labels.reshape(ROWS, COLUMNS), segments, strict=True
        ):
            for segment in range(1, segments_S.max() + 1):
                here = segments_S == segment
                yield {"input_ids": ids_S[here].astype(np.int64), "labels": labels_S[here]}


def collate(items: list[dict[str, Any]], *, is_padded: bool) -> dict[str, Any]:
    """Pad to the longest of the batch. Rows of one length go without a mask, which is faster."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    columns = {key: [torch.from_numpy(item[key]) for item in items] for key in ("input_ids", "labels")}
    if is_padded:
        columns["attention_mask"] = [torch.ones_like(ids) for ids in columns["input_ids"]]
    fill = {"input_ids": PAD, "labels": -100, "attention_mask": 0}
    return {key: pad_sequence(values, batch_first=True, padding_value=fill[key]) for key, values in columns.items()}


def run_peer(contender: Contender, say: Callable[[float], None], gate: Gate) -> None:
    """Steps through transformers' Trainer, as its users run it."""
    import torch
    from torch.utils.data import SequentialSampler
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from toolkit.core.types import AttentionKind
    from toolkit.testing.models import hugging_face_twin

    class Gated(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            gate()

    class InOrder(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *args: Any) -> Any:
            return SequentialSampler(self.train_dataset)

    data = list(sequences(contender))
    model = hugging_face_twin(initial_encoder(contender), AttentionKind.BIDIRECTIONAL)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=len(data) // contender.steps,
            max_steps=contender.steps,
            learning_rate=5e-4,
            weight_decay=0.1,
            bf16=contender.dtype == "bf16",
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = InOrder(
            model=model,
            args=arguments,
            train_dataset=data,
            data_collator=partial(collate, is_padded=contender.rows == "documents"),
            callbacks=[Gated()],
        )
        with torch.no_grad(), trainer.compute_loss_context_manager():
            say(float(trainer.compute_loss(model, next(iter(trainer.get_train_dataloader())))))
        trainer.train()
    gate()


def work(contender: Contender, pipe: Connection) -> None:
    """One contender's process: says its first loss, then answers "go" with the seconds of a step, wall and CPU."""
    if contender.keeps_freed_memory:
        from toolkit.core.allocator import keep_freed_memory

        assert keep_freed_memory()
    import torch

    torch.set_num_threads(contender.num_threads)
    started: list[tuple[float, float]] = []

    def gate() -> None:
        if started:
            wall, cpu = started[-1]
            pipe.send((time.perf_counter() - wall, time.process_time() - cpu))
        pipe.recv()
        started.append((time.perf_counter(), time.process_time()))

    {"ours": run_ours, "peer": run_peer}[contender.side](contender, pipe.send, gate)


def compare(contenders: list[Contender], *, num_warm: int) -> dict[str, dict[str, Any]]:
    """Run the contenders' steps in turn: first loss, and median seconds after `num_warm` steps, by contender."""
    context = get_context("spawn")
    pipes, processes, losses = [], [], []
    for contender in contenders:
        mine, theirs = context.Pipe()
        processes.append(context.Process(target=work, args=(contender, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        losses.append(mine.recv())
        pipes.append(mine)
    check_first_losses(contenders, losses)
    times: list[list[tuple[float, float]]] = [[] for _ in contenders]
    for _ in range(contenders[0].steps):
        for pipe, seconds in zip(pipes, times, strict=True):
            pipe.send("go")
            seconds.append(pipe.recv())
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send("end")
        process.join()
    rows = {}
    for contender, loss, seconds in zip(contenders, losses, times, strict=True):
        wall, cpu = (statistics.median(column) for column in zip(*seconds[num_warm:], strict=True))
        rate = ROWS * COLUMNS / wall
        rows[contender.name] = {"first_loss": loss, "wall_s": wall, "cpu_s": cpu, "tokens_per_second": round(rate)}
    return rows


def check_first_losses(contenders: list[Contender], losses: list[float]) -> None:
    """The two sides must do the same work: equal losses to 4 decimals, for each kind of rows.

    In bf16 the two round in different places (weights and stream here, products there), which moves the loss of 10 by
    about 1e-4; the same comparison in fp32 is the one that shows the work is equal.
    """
    limit = {"fp32": 5e-5, "bf16": 5e-4}[contenders[0].dtype]
    by_name = {contender.name: loss for contender, loss in zip(contenders, losses, strict=True)}
    for rows in ("documents", "blocks"):
        ours, peer = by_name[f"ours {rows}"], by_name[f"peer {rows}"]
        if abs(ours - peer) > limit:
            raise SystemExit(f"{rows}: the first losses differ, {ours:.6f} and {peer:.6f}; nothing was timed.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="d256")
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--allocators", nargs="+", choices=["own", "both"], default=["own", "both"])
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each contender")
    parser.add_argument("--warm", type=int, default=2, help="steps before those")
    parser.add_argument("--compile", action="store_true", help="compile our blocks")
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="of each contender; on a busy machine take 1 and trust CPU seconds: two threads that wait for one another "
        "there burn several times the work",
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    for dtype in options.dtypes:
        for allocator in options.allocators:
            contenders = [
                Contender(
                    side=side,
                    rows=rows,
                    dtype=dtype,
                    shape=options.shape,
                    steps=options.warm + options.steps,
                    keeps_freed_memory=side == "ours" or allocator == "both",
                    is_compiled=options.compile,
                    num_threads=options.threads,
                )
                for rows in ("documents", "blocks")
                for side in ("ours", "peer")
            ]
            found = compare(contenders, num_warm=options.warm)
            ratios = {
                f"{rows} {clock}": round(found[f"peer {rows}"][clock] / found[f"ours {rows}"][clock], 3)
                for rows in ("documents", "blocks")
                for clock in ("wall_s", "cpu_s")
            }
            row = {
                "benchmark": "training_step",
                "shape": options.shape,
                "dtype": dtype,
                "allocator_set_by": allocator,
                "compiled": options.compile,
                "timed_steps": options.steps,
                "threads": options.threads,
                "ratios": ratios,
                "contenders": found,
                "machine": machine(),
                "load_average": os.getloadavg()[0],
                "versions": versions(PACKAGES),
            }
            print(json.dumps(row, indent=1), flush=True)
            append_row(options.output, row)


if __name__ == "__main__":
    main()
