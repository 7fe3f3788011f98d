"""Everything that needs a GPU, in one call: correctness first, then one real training step of each preset, timed.

    python benchmarks/gpu.py [--presets 210m 610m 1b] [--micro-rows N] [--steps N] [--without-tests]

1. The tests marked `gpu`: leaks, values and gradients against the definition, a step that never waits for the device,
   golden losses. Nothing is timed if one fails.
2. For each preset, in a process of its own: the run preset with MLM at 40 % on random ids, rows of 2,048 by
   `random-cut`, bf16, ZeRO 1 on one rank, through the toolkit's own loop, without checkpoints. Rates are the median
   over the steps after the first few, which compile.

One JSON row per preset goes to benchmarks/results/gpu.jsonl: tokens/s, useful FLOP/s, MFU, the peak of memory, beside
the machine and versions. Without a GPU it says so and leaves with 2.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rows import append_row, versions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "gpu.jsonl"
PRESETS = ("210m", "610m", "1b")
PACKAGES = ("torch", "deepspeed", "encoder-pretraining-toolkit")
VOCABULARY, ROW, STEPS, SKIPPED = 128_256, 2048, 12, 4
MICRO_BATCHES = 4
"""Micro-batches in a step: enough that the optimizer's share is small, as it is in a real step."""


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=PRESETS)
    parser.add_argument("--micro-rows", type=int, default=12, help="rows of one forward pass; the paper has 12")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps, of which the first {SKIPPED} are not timed")
    parser.add_argument("--without-tests", action="store_true", help="time without testing; the rows say so")
    parser.add_argument("--child", choices=PRESETS, help=argparse.SUPPRESS)
    parser.add_argument("--row", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps <= SKIPPED:
        parser.error(f"--steps has to be more than {SKIPPED}, which are not timed")
    import torch

    if not torch.cuda.is_available():
        print("There is no GPU that torch can use here, so there is nothing to measure.", file=sys.stderr)
        return 2
    if given.child:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(given.child, Path(folder), micro_rows=given.micro_rows, steps=given.steps)
        given.row.write_text(json.dumps(row))
        return 0
    if not given.without_tests and subprocess.run(gpu_tests(), cwd=ROOT, check=False).returncode:
        print("A test failed on this GPU, so nothing was timed.", file=sys.stderr)
        return 1
    return _measure_all(given)


def _measure_all(given: argparse.Namespace) -> int:
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for preset in given.presets:
            # A process each: memory of one must not stand in the way of the next.
            place = Path(folder) / f"{preset}.json"
            numbers = ["--micro-rows", str(given.micro_rows), "--steps", str(given.steps)]
            command = [sys.executable, __file__, "--child", preset, "--row", str(place), *numbers]
            done = subprocess.run(command, cwd=ROOT, check=False)
            if done.returncode:
                print(f"{preset}: no figure, the run left with {done.returncode}.", file=sys.stderr)
                failed = True
                continue
            row = json.loads(place.read_text()) | {"tested": not given.without_tests}
            append_row(RESULTS, row)
            print(f"{preset}: {row['tokens_per_second']:,.0f} tokens/s, MFU {row['mfu']}, {row['memory_gb']} GB")
    return int(failed)


def gpu_tests() -> list[str]:
    """The command that runs what is marked `gpu`."""
    return [sys.executable, "-m", "pytest", "-m", "gpu", "tests/model", "tests/golden"]


def measure(
    preset: str,
    folder: Path,
    *,
    micro_rows: int,
    steps: int,
    overrides: Sequence[str] = (),
    vocabulary: int = VOCABULARY,
) -> dict[str, Any]:
    """Train a preset for some steps on made-up ids and say how fast it was.

    Args:
        preset: of a run.
        folder: where corpus and run may lie.
        micro_rows: rows of one forward pass.
        steps: more than `SKIPPED`.
        overrides: further settings, `a.b=value`.
        vocabulary: ids in the corpus.
    """
    import torch

    from toolkit.engine.engine import Engine
    from toolkit.engine.ranks import join_ranks
    from toolkit.model.encoder import Encoder, compile_blocks_, initialize_
    from toolkit.run import RunFolder, load_run
    from toolkit.run.metrics import read_lines
    from toolkit.run.resolve import resolve_run
    from toolkit.training.assembly import assemble
    from toolkit.training.hooks import Hook
    from toolkit.training.loop import train
    from toolkit.training.run_state import RunState

    class NeverSaves:
        """Saving is not part of a step, and at 1b takes longer than all of them."""

        is_writing = False

        def is_due(self, state: RunState) -> bool:
            return False

        def is_saved(self, state: RunState) -> bool:
            return True

        def advance(self, hooks: Hook) -> None:
            pass

        finish = advance

    settings = load_run(preset, [*_overrides(folder, vocabulary, micro_rows, steps), *overrides])
    (folder / "run").mkdir()
    resolved = resolve_run(settings, ds_config="zero1", num_ranks=1)
    data = resolved.data
    ranks = join_ranks()
    encoder = Encoder(data.settings.model)
    initialize_(encoder, data.settings.run.seed)
    if data.settings.train.compile:
        compile_blocks_(encoder)
    engine = Engine(encoder, config=resolved.ds_config, optimizer=data.settings.train, ranks=ranks)
    run = assemble(data, engine, resolved.plan, state=RunState(), origin={}, is_stop_requested=lambda: False)
    run = replace(run, saver=NeverSaves())
    try:
        train(run, RunState())
    finally:
        engine.close()
    lines = read_lines(RunFolder(folder / "run"))
    device = ranks.device
    return {
        "preset": preset,
        "micro_batch_rows": micro_rows,
        "micro_batches": MICRO_BATCHES,
        "sequence_length": data.settings.data.sequence_length,
        "precision": data.settings.precision,
        "compile": data.settings.train.compile,
        "first_loss": lines[0]["loss"],
        **rates(lines[SKIPPED:]),
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1) if device.type == "cuda" else None,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "versions": versions(PACKAGES),
    }


def _overrides(folder: Path, vocabulary: int, micro_rows: int, steps: int) -> list[str]:
    """What makes a few steps out of a preset of many thousand."""
    return [
        f"data.train={_corpus(folder / 'corpus', vocabulary, rows=2 * MICRO_BATCHES * micro_rows)}",
        f"run.dir={folder / 'run'}",
        f'schedule=[{{objective="mlm",steps={steps}}}]',
        f"train.global_batch_rows={MICRO_BATCHES * micro_rows}",
        f"train.micro_batch_rows={micro_rows}",
        "lr.warmup_steps=1",
        "lr.decay_steps=1",
        "log.every=1",
        "log.tensorboard=false",
    ]


def rates(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of what steps logged; `mfu` is None where the device's peak is not known."""
    named = {
        name: [line[name] for line in lines if name in line]
        for name in ("tokens_per_second", "model_flops_per_second", "mfu")
    }
    return {name: statistics.median(values) if values else None for name, values in named.items()}


def _corpus(folder: Path, vocabulary: int, *, rows: int) -> Path:
    """Random ids, enough for so many rows of 2,048: what they say does not change how long a step takes."""
    from toolkit.testing.corpora import random_documents, write_token_corpus

    documents = random_documents(rows, vocabulary_size=vocabulary, min_length=ROW, max_length=ROW)
    special = range(vocabulary - 256, vocabulary)
    return write_token_corpus(
        folder, documents, vocabulary_size=vocabulary, bos=special[0], eos=special[1], mask=special[2], pad=special[3]
    )


if __name__ == "__main__":
    sys.exit(main())
