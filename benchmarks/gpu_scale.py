"""Sizes that the sections of `benchmarks/gpu.py` work at: those of the presets, or a toy's for a CPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolkit.model import ModelSettings, model_settings

PRESETS = ("210m", "610m", "1b")
VOCABULARY, ROW_LENGTH = 128_256, 2048
MICRO_BATCHES = 4
"""Micro-batches in a step: enough that the optimizer's share is small, as it is in a real step."""


@dataclass(frozen=True)
class Scale:
    """Sizes that one call measures at."""

    name: str
    models: dict[str, ModelSettings]
    """By name of the preset."""
    vocabulary: int
    row_length: int
    rows: int
    """Of a micro-batch; the paper has 12."""
    planned_rows: dict[str, int]
    """Of a micro-batch that fills the memory, by preset."""
    ablated_rows: tuple[int, ...]
    """Of micro-batches whose times tell what launching costs."""
    call_rows: tuple[int, ...]
    """The same where there is little time."""
    matmul_rows: tuple[int, ...]
    """Positions of a micro-batch, for the table of matrix products."""
    head_chunks: tuple[int, ...]
    copy_bytes: int
    square: int
    """Side of the matrices that the machine is known by."""
    repeats: int
    steps: int
    skipped_steps: int
    """Not timed: they compile, or warm up."""
    compile_backend: str
    overrides: tuple[str, ...] = ()
    """Settings of every run, `a.b=value`."""

    @property
    def has_gpu(self) -> bool:
        """True for the sizes of a GPU."""
        return self.name == "full"

    @property
    def positions(self) -> int:
        """T of a micro-batch."""
        return self.rows * self.row_length

    @property
    def targets(self) -> int:
        """N of a micro-batch at MLM 40 %, filled up as the training loop does."""
        return -(-int(0.4 * self.positions) // 256) * 256


FULL = Scale(
    name="full",
    models={name: model_settings(name) for name in PRESETS},
    vocabulary=VOCABULARY,
    row_length=ROW_LENGTH,
    rows=12,
    planned_rows={"210m": 48, "610m": 36, "1b": 24},
    ablated_rows=(3, 6, 24, 48),
    call_rows=(3, 24),
    matmul_rows=(24_576, 98_304),
    head_chunks=(2048, 4096, 8192, 16_384),
    copy_bytes=4 << 30,
    square=8192,
    repeats=10,
    steps=9,
    skipped_steps=3,
    compile_backend="inductor",
)

_TOY_SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TOY = Scale(
    name="toy",
    models={name: model_settings(name, **_TOY_SIZES) for name in PRESETS},
    vocabulary=300,
    row_length=64,
    rows=2,
    planned_rows=dict.fromkeys(PRESETS, 3),
    ablated_rows=(1,),
    call_rows=(1,),
    matmul_rows=(128,),
    head_chunks=(32, 64),
    copy_bytes=1 << 20,
    square=64,
    repeats=2,
    steps=3,
    skipped_steps=1,
    compile_backend="eager",
    overrides=(
        *(f"model.{name}={value}" for name, value in _TOY_SIZES.items()),
        "data.sequence_length=64",
        "log.peak_tflops=0.5",
        'precision="bf16"',
        "train.compile=false",
    ),
)
SCALES = {scale.name: scale for scale in (FULL, TOY)}


@dataclass(frozen=True)
class RunVariant:
    """A run of some steps: how it differs from the preset with MLM on `Scale.rows` rows."""

    name: str
    preset: str
    rows: int
    overrides: tuple[str, ...] = ()
    ds_changes: tuple[tuple[str, Any], ...] = ()
    """Values of the DeepSpeed file that differ from `zero1`, by dotted key."""
    objective: str = "mlm"
    forms: Literal["shipped", "plain"] = "shipped"
    """Of code that is written for the compiler; see `gpu_forms`."""
    is_profiled: bool = False
    keeps_trace: bool = False


@dataclass(frozen=True)
class Job:
    """One process: its name, what it measures, and where to."""

    section: str
    name: str
    scale: Scale
    folder: Path
    """For results that are no JSON line, such as traces."""
    preset: str = ""
    runs: tuple[RunVariant, ...] = ()
    """For jobs that train."""
    seconds: float = float("inf")
    """After which it is stopped."""
