"""Seconds for which a checkpoint blocks training: saved every 5 steps in the background, not at all, and waited for.

    python benchmarks/saving.py [--layers 6] [--width 256] [--ranks 2] [--rounds 4] [--folder DIR]

One run of the toolkit's own loop on random ids: MLM at 40 %, 8 rows of 512 a step, fp32, ZeRO 2, one thread for each
rank, on a CPU. After some steps that are not counted, rounds of 30 steps: 10 with a checkpoint every 5, 10 with none,
and 10 with one every 5 that is waited for, as it was before saving went to the background. Blocked is what the loop
spends in saving on rank 0, in the middle of all checkpoints of a kind; what hashing and writing take from the cores
that train shows in the seconds of 10 steps. One JSON row goes to benchmarks/results/saving.jsonl.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from made_up_run import ROWS, write_run
from rows import keep, parser_of

KINDS = ("background", "none", "waited")
WINDOW, EVERY, SKIPPED = 10, 5, 10


def kind_of(step: int) -> str:
    """Kind of saving in the window of a step, from 1; the first window is not counted."""
    return "skipped" if step <= SKIPPED else KINDS[(step - SKIPPED - 1) // WINDOW % len(KINDS)]


def is_saved(step: int) -> bool:
    """True if a checkpoint starts after the step; what it costs falls into the steps after it of its window."""
    return kind_of(step) in ("background", "waited") and step % EVERY == 1


@dataclass(frozen=True)
class Measured:
    """A run whose saver keeps the time; call it on every rank."""

    folder: str
    run_file: str

    def __call__(self) -> dict[str, Any]:
        """Run, and return the row's measured part."""
        from toolkit.run import load_run
        from toolkit.training import pretrain, set_up
        from toolkit.training.hooks import Hook
        from toolkit.training.run_state import RunState
        from toolkit.training.saving import CheckpointSaver

        ends: list[float] = []
        blocked: dict[str, list[float]] = {kind: [] for kind in KINDS}

        @contextmanager
        def blocking(kind: str) -> Iterator[None]:
            started = time.perf_counter()
            yield
            blocked[kind][-1] += time.perf_counter() - started

        class TimedSaver(CheckpointSaver):
            def is_due(self, state: RunState) -> bool:
                # It is asked more than once a step.
                if state.step == len(ends) + 1:
                    ends.append(time.perf_counter())
                self.kind = kind_of(state.step)
                return is_saved(state.step)

            def save(self, state: RunState, hooks: Hook) -> None:
                if not is_saved(state.step):
                    # The last of the run.
                    super().save(state, hooks)
                    return
                blocked[self.kind].append(0.0)
                with blocking(self.kind):
                    super().save(state, hooks)
                    if self.kind == "waited":
                        self.finish(hooks)

            def advance(self, hooks: Hook) -> None:
                # That of a background checkpoint outside of `save` belongs to it too.
                if self._in_flight is None or self.kind != "background":
                    super().advance(hooks)
                    return
                with blocking(self.kind):
                    super().advance(hooks)

        settings = load_run(self.run_file)
        with patch.object(set_up, "CheckpointSaver", TimedSaver):
            pretrain(settings, ds_config="zero2")
        size = sum(file.stat().st_size for file in Path(self.folder).glob("run/checkpoints/step-*/*.safetensors"))
        return {"checkpoint_mb": round(size / 1e6, 1), **summary(ends, blocked)}


def summary(ends: list[float], blocked: dict[str, list[float]]) -> dict[str, Any]:
    """Medians in seconds, and in steps without saving.

    `ends` are those of steps, from step 1; what saving after a step takes falls into the next one. `blocked` is what
    the loop spent on each checkpoint, by kind.
    """
    seconds = {step: end - start for step, (start, end) in enumerate(pairwise(ends), start=2)}
    step_s = median(took for step, took in seconds.items() if kind_of(step) == "none")
    windows: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for first in range(SKIPPED + 1, len(ends) - WINDOW + 2, WINDOW):
        windows[kind_of(first)].append(sum(seconds[step] for step in range(first, first + WINDOW)))
    found: dict[str, Any] = {"step_s": round(step_s, 4), "checkpoints": len(blocked["background"])}
    for kind in ("background", "waited"):
        found[f"blocked_{kind}_s"] = round(median(blocked[kind]), 4)
        found[f"blocked_{kind}_steps"] = round(median(blocked[kind]) / step_s, 2)
        found[f"longest_{kind}_steps"] = round(max(blocked[kind]) / step_s, 2)
    return found | {f"ten_steps_{kind}_s": round(median(took), 3) for kind, took in windows.items()}


def main() -> None:
    parser = parser_of("saving", __doc__)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; unset: a temporary folder")
    given = parser.parse_args()
    from toolkit.testing.distributed import run_distributed

    steps = SKIPPED + given.rounds * len(KINDS) * WINDOW
    settings = f"""
schedule = [{{objective = "mlm", steps = {steps}}}]
lr = {{warmup_steps = 1, decay_steps = 1}}
checkpoint.keep = 1
"""
    sizes = {"layers": given.layers, "width": given.width}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        run = Measured(folder, str(write_run(Path(folder), settings, micro_rows=ROWS // given.ranks, **sizes)))
        ((found, *_),) = run_distributed([run], world_size=given.ranks, timeout=3600)
    keep(given, **sizes, ranks=given.ranks, **found)


if __name__ == "__main__":
    main()
