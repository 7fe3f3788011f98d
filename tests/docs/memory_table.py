"""The table of memory in docs/parallelism.md, made from the formula.

python -m tests.docs.memory_table      writes it into the page
"""

from typing import get_args

from tests.docs.pages import ROOT
from toolkit.engine.ds_config import read_ds_config
from toolkit.model.config import ActivationCheckpointing
from toolkit.model.kernels.cross_entropy_forms import EAGER
from toolkit.model.presets import MODEL_PRESETS
from toolkit.parallel.division import stage_blocks
from toolkit.parallel.memory import rank_memory, shapes_of_stages
from toolkit.parallel.topology import ParallelSettings

__all__ = ["PAGE", "with_table"]

PAGE = ROOT / "docs/parallelism.md"
_START, _END = "<!-- memory -->\n", "<!-- end -->"
_RANKS, _ROWS, _LENGTH, _MICRO_BATCHES = 8, 4, 2048, 8
_MODES: tuple[ActivationCheckpointing, ...] = get_args(ActivationCheckpointing)
_MODELS = ("210m", "610m", "1b", "3b")
# (dp, shipped file, tp, pp)
_LAYOUTS = (
    ("dp 8", "zero1", 1, 1),
    ("dp 8", "zero2", 1, 1),
    ("dp 8", "zero3", 1, 1),
    ("dp 4, tp 2", "zero1", 2, 1),
    ("dp 4, pp 2", "pipeline", 1, 2),
    ("dp 2, tp 2, pp 2", "pipeline", 2, 2),
)


def with_table(text: str) -> str:
    """The page with the table as the formula has it."""
    before, _, rest = text.partition(_START)
    return before + _START + _table() + _END + rest.partition(_END)[2]


def _table() -> str:
    lines = [f"| 8 ranks | {' | '.join(f'`{name}`' for name in _MODELS)} |", "|---" * (len(_MODELS) + 1) + "|"]
    for label, file, tp, pp in _LAYOUTS:
        cells = [
            " / ".join(f"{_gigabytes(name, file, tp, pp, mode):.0f}" for mode in ("none", "selective", "full"))
            for name in _MODELS
        ]
        lines.append(f"| {label}, `{file}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _gigabytes(name: str, file: str, tp: int, pp: int, mode: ActivationCheckpointing) -> float:
    model = MODEL_PRESETS[name]
    blocks = stage_blocks(model, ParallelSettings(tp=tp, pp=pp), targets_per_position=0.5)
    shapes = shapes_of_stages(model, tp=tp, stages=blocks, num_micro_batches=_MICRO_BATCHES)
    memories = [
        rank_memory(
            shape, dp=_RANKS // (tp * pp), zero=read_ds_config(file)["zero_optimization"], precision="bf16",
            micro_batch_rows=_ROWS, sequence_length=_LENGTH, activation_checkpointing=mode, form=EAGER,
        )
        for shape in shapes
    ]  # fmt: skip
    return max(memory.total for memory in memories) / 1e9


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
