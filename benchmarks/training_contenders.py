"""Contenders that run training steps on a CPU, each in its own process: our engine, the Hugging Face Trainer."""

import importlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from rows import num_cores, resident_megabytes

SHORTEST, MASK_RATIO, SEED = 12, 0.4, 0
PAD, MASK, FIRST_ORDINARY = 0, 1, 2
_D256 = {"vocab_size": 21_504, "hidden_size": 256, "num_attention_heads": 4}
SHAPES: dict[str, dict[str, Any]] = {
    "nano": {"preset": "nano", "vocab_size": 8192},
    "d256": {"preset": "nano", "intermediate_size": 1024, "num_hidden_layers": 6} | _D256,
    "modernbert": {"preset": "modernbert-base", "intermediate_size": 384, "num_hidden_layers": 10}
    | {"rope_theta": 160_000.0, **_D256},
}
"""Presets, and what is changed of them."""
Gate = Callable[[], None]


@dataclass(frozen=True)
class Contender:
    """Settings of one process."""

    side: str
    rows: str
    dtype: str
    shape: str
    steps: int
    """Timed ones."""
    warm: int = 2
    """Steps before those."""
    allocator: str = "own"
    """Who sets the allocator: our side alone, or "both"."""
    is_compiled: bool = False
    num_threads: int = num_cores()
    num_rows: int = 8
    columns: int = 512

    @property
    def name(self) -> str:
        """Name in the results."""
        return f"{self.side} {self.rows}"

    @property
    def all_steps(self) -> int:
        """Those that are not timed too."""
        return self.warm + self.steps

    @property
    def shape_BS(self) -> tuple[int, int]:
        """Rows, and tokens of a row."""
        return self.num_rows, self.columns


def token_rows(contender: Contender, step: int) -> tuple[Any, Any]:
    """Tokens with the frequencies of a natural language (Zipf), and segments, both (B, S), of one step."""
    generator = np.random.default_rng((SEED, step))
    num_ordinary = SHAPES[contender.shape]["vocab_size"] - FIRST_ORDINARY
    frequencies = 1 / np.arange(10, num_ordinary + 10)
    tokens = FIRST_ORDINARY + generator.choice(num_ordinary, contender.shape_BS, p=frequencies / frequencies.sum())
    segments = np.ones(contender.shape_BS, dtype=np.int32)
    if contender.rows == "documents":
        cuts = generator.integers(SHORTEST, contender.columns - SHORTEST + 1, contender.num_rows)
        segments += np.arange(contender.columns) >= cuts[:, None]
    return tokens.astype(np.int32), segments


def posed(contender: Contender, step: int) -> Any:
    """The `Problem` of a step, from whose targets either side learns."""
    from toolkit.core.draws import Draws
    from toolkit.core.types import Vocabulary
    from toolkit.data import TokenRows
    from toolkit.objectives.mlm import MaskedLanguageModeling, MlmSettings
    from toolkit.training.problem import Problem

    size = SHAPES[contender.shape]["vocab_size"]
    vocabulary = Vocabulary(size=size, mask_id=MASK, pad_id=PAD, bos_id=None, eos_id=None, special_ids=(PAD, MASK))
    objective = MaskedLanguageModeling(MlmSettings(mask_ratio=MASK_RATIO), vocabulary)
    samples = step * contender.num_rows + np.arange(contender.num_rows)
    draws = Draws(SEED, samples, num_columns=contender.columns)
    return Problem.of_one(objective, TokenRows(*token_rows(contender, step)), draws)


def initial_encoder(contender: Contender) -> Any:
    from toolkit.model import Encoder, model_settings
    from toolkit.model.initialization import initialize_

    encoder = Encoder(model_settings(**SHAPES[contender.shape]))
    initialize_(encoder, SEED)
    return encoder


def run_ours(contender: Contender, say: Callable[[float], None], gate: Gate) -> None:
    """Steps through the toolkit's engine with the shipped zero2."""
    from toolkit.engine.ds_config import read_ds_config, resolve_ds_config
    from toolkit.engine.engine import Engine
    from toolkit.engine.optimizer import OptimizerSettings
    from toolkit.engine.ranks import join_ranks
    from toolkit.engine.step import LossTerm
    from toolkit.model.compiled_blocks import compile_blocks_
    from toolkit.parallel.topology import batch_plan
    from toolkit.training.batching import _make_micro_batch

    ranks = join_ranks()
    os.environ["LOCAL_RANK"] = "0"  # DeepSpeed wants it, as a launcher would set it.
    encoder = initial_encoder(contender)
    if contender.is_compiled:
        compile_blocks_(encoder)
    config = resolve_ds_config(
        read_ds_config("zero2"),
        batch=batch_plan(contender.num_rows, contender.num_rows, data_parallel=1),
        grad_clip=1.0,
        precision=contender.dtype,
        source="zero2",
        largest_parameter=max(parameter.numel() for parameter in encoder.parameters()),
    )
    engine = Engine(encoder, config=config, optimizer=OptimizerSettings(), ranks=ranks)
    first = _make_micro_batch(posed(contender, 0), 1, ranks.device, 1)
    say(engine.loss_sum([first])[0] / len(first.labels_N))
    for step in range(contender.all_steps):
        problem = posed(contender, step)
        gate()
        batch = _make_micro_batch(problem, 1, ranks.device, 1)
        engine.train_step([batch], terms=[LossTerm(len(batch.labels_N))], learning_rate=5e-4)
    gate()
    engine.close()


def sequences(contender: Contender) -> Iterator[dict[str, Any]]:
    """The same rows for the Trainer: one item per segment, label -100 where there is nothing to predict."""
    for step in range(contender.all_steps):
        problem = posed(contender, step)
        targets = problem.targets
        labels = np.full(contender.num_rows * contender.columns, -100)
        labels[targets.positions_N] = targets.labels_N
        for ids_S, labels_S, segments_S in zip(
            targets.input_ids_BS, labels.reshape(contender.shape_BS), problem.segments_BS, strict=True
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
            per_device_train_batch_size=len(data) // contender.all_steps,
            max_steps=contender.all_steps,
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
    """Run one contender's process: it says its first loss, answers "go" with the seconds of a step, wall and CPU.

    It answers "end" with the MB of 10^6 bytes that it held at most, beyond the libraries.
    """
    if contender.side == "ours" or contender.allocator == "both":
        from toolkit.core.allocator import keep_freed_memory

        assert keep_freed_memory()
    import torch

    importlib.import_module({"ours": "toolkit.engine.engine", "peer": "transformers.trainer"}[contender.side])
    libraries = resident_megabytes()
    torch.set_num_threads(contender.num_threads)
    started: list[tuple[float, float]] = []

    def gate() -> None:
        if started:
            wall, cpu = started[-1]
            pipe.send((time.perf_counter() - wall, time.process_time() - cpu))
        pipe.recv()
        started.append((time.perf_counter(), time.process_time()))

    {"ours": run_ours, "peer": run_peer}[contender.side](contender, pipe.send, gate)
    pipe.send(resident_megabytes("VmHWM") - libraries)


def compare(*rows: str, **same: Any) -> dict[str, dict[str, Any]]:
    """Run the steps of both sides on these kinds of rows in turn; `same` are the other settings of all contenders.

    Gives by contender the first loss, median seconds of the timed steps, seconds from the start of its process to the
    end of its first step, and the most memory it held beyond its libraries.
    """
    contenders = [Contender(side, kind, **same) for kind in rows for side in ("ours", "peer")]
    context = get_context("spawn")
    pipes, processes, losses, starts = [], [], [], []
    for contender in contenders:
        mine, theirs = context.Pipe()
        begun = time.perf_counter()
        processes.append(context.Process(target=work, args=(contender, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        losses.append(mine.recv())
        starts.append(time.perf_counter() - begun)
        pipes.append(mine)
    check_first_losses(contenders, losses)
    times: list[list[tuple[float, float]]] = [[] for _ in contenders]
    for _ in range(contenders[0].all_steps):
        for pipe, seconds in zip(pipes, times, strict=True):
            pipe.send("go")
            seconds.append(pipe.recv())
    peaks = []
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send("end")
        peaks.append(pipe.recv())
        process.join()
    found = {}
    for contender, loss, start, seconds, peak in zip(contenders, losses, starts, times, peaks, strict=True):
        wall, cpu = (statistics.median(column) for column in zip(*seconds[contender.warm :], strict=True))
        found[contender.name] = {
            "first_loss": loss,
            "wall_s": wall,
            "cpu_s": cpu,
            "tokens_per_second": round(contender.num_rows * contender.columns / wall),
            "first_step_done_s": round(start + seconds[0][0], 2),
            "peak_mb": round(peak, 1),
        }
    return found


def check_first_losses(contenders: list[Contender], losses: list[float]) -> None:
    """The two sides must do the same work: equal losses to 4 decimals, for each kind of rows.

    In bf16 the two round in different places (weights and stream here, products there), which moves the loss of 10 by
    about 1e-4; the same comparison in fp32 is the one that shows the work is equal.
    """
    limit = {"fp32": 5e-5, "bf16": 5e-4}[contenders[0].dtype]
    by_name = {contender.name: loss for contender, loss in zip(contenders, losses, strict=True)}
    for rows in dict.fromkeys(contender.rows for contender in contenders):
        ours, peer = by_name[f"ours {rows}"], by_name[f"peer {rows}"]
        if abs(ours - peer) > limit:
            raise SystemExit(f"{rows}: the first losses differ, {ours:.6f} and {peer:.6f}; nothing was timed.")
