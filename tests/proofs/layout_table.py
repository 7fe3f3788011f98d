"""One run in every layout against one process: `python -m tests.proofs.layout_table [--write docs/parallelism.md]`.

Every layout trains the run of `write_run` for 20 steps with the models of three families: CLM, MLM, and a ramp from
the one to the other. Compared with the run on one rank are, in fp32, the loss and the gradient norm of every step, and
the gradient of every parameter in a step of both objectives. In bf16 the measure is what one process shows when its
micro-batch goes from 1 row to 4, or its precision to fp32: whichever is more, since layouts round other numbers.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.proofs.pages import made_by, write_between
from tests.support.layouts import Layout, stage3
from tests.support.runs import MODERNBERT, ULTRABERT, RunCase, read_metrics, write_run
from toolkit.checkpoint.read import open_checkpoint
from toolkit.testing.distributed import run_distributed
from toolkit.testing.tolerances import gradient_tolerance

BEGIN, END = "<!-- layouts: made by python -m tests.proofs.layout_table -->", "<!-- end of layouts -->"
LARGEST_LOSS_DIFFERENCE = 1e-5
"""Relative, fp32."""
SPREADS = 2
"""A bf16 layout may differ from one process by so many times what micro-batch or precision alone change there."""
_REFERENCE = Layout("zero1", 1)
_FOUR_ROWS = "train.micro_batch_rows=4"
_MODELS = {
    "untied GQA": (),
    "tied GQA": ("model.tie_word_embeddings=true",),
    "untied MHA": ("model.num_key_value_heads=4",),
    "tied MHA": ("model.tie_word_embeddings=true", "model.num_key_value_heads=4"),
    "tied ModernBERT": (MODERNBERT, "model.tie_word_embeddings=true"),
    "untied ModernBERT": (MODERNBERT,),
    "tied UltraBERT": (ULTRABERT, "model.tie_word_embeddings=true"),
    "untied UltraBERT": (ULTRABERT,),
}
_FAMILIES = (
    ("untied GQA", "tied GQA", "untied MHA", "tied MHA"),
    ("tied ModernBERT", "untied ModernBERT"),
    ("tied UltraBERT", "untied UltraBERT"),
)
"""Each with one measure of bf16: that of its first model."""
_PHASES = (
    'schedule=[{objective="clm", steps=7}, {objective="mlm", steps=7}, '
    '{mix=[{objective="clm", share={from=1.0, to=0.0}}, {objective="mlm", share={from=0.0, to=1.0}, weight=1.5}], '
    "steps=6}]",
)
# One step, half of each objective, whose first moment is the gradient.
_ONE_STEP = (
    'schedule=[{mix=[{objective="clm", share=0.5}, {objective="mlm", share=0.5, weight=1.5}], steps=1}]',
    "train.beta1=0.0",
    "train.grad_clip=0.0",
    "lr.warmup_steps=0",
    "lr.decay_steps=0",
)


@dataclass(frozen=True)
class Row:
    """A layout's largest differences from one process, over models and steps, each relative."""

    layout: Layout
    loss: float
    norm: float
    gradient: float
    """Of one parameter in a step of both objectives, |difference| / |gradient|."""
    bf16_loss: float | None
    """None at stage 0, which has no bf16."""

    def problems(self, spread: float) -> list[str]:
        """What is beyond its limit."""
        limits = {
            "loss": (self.loss, LARGEST_LOSS_DIFFERENCE),
            "gradient": (self.gradient, gradient_tolerance(torch.float32)),
            "bf16 loss": (self.bf16_loss or 0.0, SPREADS * spread),
        }
        return [
            f"{self.layout}: {name} {is_:.1e} > {most:.1e}" for name, (is_, most) in limits.items() if not is_ <= most
        ]


def all_layouts(folder: Path) -> list[Layout]:
    """Those of the table."""
    zero3 = stage3(folder)
    return [
        *(Layout(stage, ranks) for stage in ("zero0", "zero1", "zero2", zero3) for ranks in (1, 2)),
        *(Layout(stage, 2, tp=2) for stage in ("zero1", "zero2", zero3)),
        Layout("pipeline", 2, pp=2),
        Layout("zero1", 4, tp=2),
        Layout("pipeline", 4, pp=2),
        Layout("pipeline", 4, tp=2, pp=2),
    ]


class Runs:
    """Runs below a folder, each by its layout and a name for what else it has."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._run_file = folder, str(write_run(folder))
        self._wanted: dict[tuple[Layout, str], tuple[str, ...]] = {}

    def want(self, layout: Layout, name: str, overrides: Sequence[str]) -> None:
        """Have `make` train it."""
        self._wanted[layout, name] = (
            *layout.overrides,
            "train.micro_batch_rows=2",
            *overrides,
            f"run.dir={self._at(layout, name)}",
        )

    def make(self) -> None:
        """Train all that are wanted; those with equally many ranks in one process group after another."""
        for ranks in sorted({layout.ranks for layout, _ in self._wanted}):
            cases = [
                RunCase(self._run_file, layout.ds_config, overrides)
                for (layout, _), overrides in self._wanted.items()
                if layout.ranks == ranks
            ]
            for start in range(0, len(cases), 15):
                run_distributed(cases[start : start + 15], world_size=ranks, timeout=1800)

    def difference(self, key: str, layout: Layout, name: str, *, reference: str | None = None) -> float:
        """The largest relative difference of a metric from the reference layout; the data have to be the same."""
        expected = read_metrics(self._at(_REFERENCE, reference or name))
        found = read_metrics(self._at(layout, name))
        assert [line["data_digest"] for line in found] == [line["data_digest"] for line in expected]
        return max(abs(other[key] / one[key] - 1) for one, other in zip(expected, found, strict=True) if one["step"])

    def gradient_difference(self, layout: Layout, name: str) -> float:
        """The worst parameter's, in runs of one step."""
        expected, found = (open_checkpoint(self._at(one, name)) for one in (_REFERENCE, layout))
        gradients = {name: (expected.parameter(name).exp_avg, found.parameter(name).exp_avg) for name in expected.names}
        return max(float((other - one).norm() / one.norm()) for one, other in gradients.values())

    def _at(self, layout: Layout, name: str) -> Path:
        return self._folder / "runs" / str(layout).replace(" ", "-") / name.replace(" ", "-")


def measure(folder: Path, layouts: Sequence[Layout], models: Sequence[str]) -> tuple[list[Row], tuple[float, float]]:
    """Rows of the table, and what bf16 losses of the first model differ by in one process: between micro-batches of 1
    and of 4 rows, and from fp32.
    """
    runs = Runs(folder)
    bf16 = (*_PHASES, *_MODELS[models[0]], 'precision="bf16"')
    runs.want(_REFERENCE, "bf16 four rows", (*bf16, _FOUR_ROWS))
    for layout in dict.fromkeys((_REFERENCE, *layouts)):
        for model in models:
            runs.want(layout, model, (*_PHASES, *_MODELS[model]))
            runs.want(layout, f"{model} one step", (*_MODELS[model], *_ONE_STEP))
        if layout.ds_config != "zero0":
            runs.want(layout, "bf16", (*bf16, "train.micro_batch_rows=1"))
    runs.make()
    spreads = (
        runs.difference("loss", _REFERENCE, "bf16 four rows", reference="bf16"),
        runs.difference("loss", _REFERENCE, "bf16", reference=models[0]),
    )
    rows = [
        Row(
            layout,
            max(runs.difference("loss", layout, model) for model in models),
            max(runs.difference("grad_norm", layout, model) for model in models),
            max(runs.gradient_difference(layout, f"{model} one step") for model in models),
            None if layout.ds_config == "zero0" else runs.difference("loss", layout, "bf16"),
        )
        for layout in layouts
    ]
    return rows, spreads


def largest(rows: Sequence[Row]) -> Row:
    """Of each figure of a layout in several families."""
    bf16 = [row.bf16_loss for row in rows if row.bf16_loss is not None]
    return Row(
        rows[0].layout,
        max(row.loss for row in rows),
        max(row.norm for row in rows),
        max(row.gradient for row in rows),
        max(bf16, default=None),
    )


def table(rows: Sequence[Row], spreads: tuple[float, float], models: Sequence[str]) -> str:
    """The table in Markdown."""
    lines = [
        f"{made_by('tests.proofs.layout_table', packages=('deepspeed', 'torch'))}: 20 steps, CLM to step 7, MLM to "
        f"step 14, then a ramp of shares from CLM to MLM; {', '.join(models)}, "
        f"the largest difference of all. In bf16 one process differs from itself by up to {spreads[0]:.1e} when its "
        f"micro-batch goes from 1 row to 4, and by up to {spreads[1]:.1e} from fp32.",
        "",
        "| layout | ranks | loss, fp32 | gradient norm, fp32 | gradient of a parameter in a step of both objectives | "
        "loss, bf16 |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        bf16 = "" if row.bf16_loss is None else f"{row.bf16_loss:.1e}"
        figures = f"{row.loss:.1e} | {row.norm:.1e} | {row.gradient:.1e} | {bf16}"
        lines.append(f"| {row.layout} | {row.layout.ranks} | {figures} |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print, write where asked; 1 if a figure is beyond its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the page's markers")
    page: Path | None = parser.parse_args().write
    with tempfile.TemporaryDirectory(prefix="layouts-") as folder:
        layouts = all_layouts(Path(folder))
        measured = [measure(Path(folder, str(n)), layouts, models) for n, models in enumerate(_FAMILIES)]
    rows = [largest(same) for same in zip(*(rows for rows, _ in measured), strict=True)]
    four_rows, fp32 = zip(*(spreads for _, spreads in measured), strict=True)
    text = table(rows, (max(four_rows), max(fp32)), list(_MODELS))
    print(text)
    if page is not None:
        write_between(page, BEGIN, END, text)
    problems = [problem for rows, spreads in measured for row in rows for problem in row.problems(max(spreads))]
    print(*problems, sep="\n", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
