"""Sizes that the sections of `benchmarks/gpu.py` work at, those of the presets or a toy's, and what a job is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolkit.model import ModelSettings, model_settings

PRESETS = ("210m", "610m", "1b")
MODERNBERT = "modernbert-base"
MICRO_BATCHES = 4
"""Micro-batches in a step: enough that the optimizer's share is small, as it is in a real step."""


@dataclass(frozen=True)
class Scale:
    """Sizes that one call measures at."""

    name: str
    models: dict[str, ModelSettings]
    """By name of the preset."""
    row_length: int
    rows: int
    """Of a micro-batch, at most; the paper has 12."""
    most_rows: int
    """Of which a micro-batch that fills the memory is the largest divisor that fits."""
    few_rows: tuple[int, ...]
    """Of micro-batches whose times tell what launching costs."""
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
    def kernel_models(self) -> dict[str, ModelSettings]:
        """Those whose kernels are measured one by one."""
        return {name: self.models[name] for name in PRESETS}

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
    models={name: model_settings(name) for name in (*PRESETS, MODERNBERT)},
    row_length=2048,
    rows=12,
    most_rows=144,
    few_rows=(3, 6, 24),
    copy_bytes=4 << 30,
    square=8192,
    repeats=10,
    steps=8,
    skipped_steps=3,
    compile_backend="inductor",
)

_TOY_SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    # A multiple of the key-value heads of each preset.
    "num_attention_heads": 12,
}
TOY = Scale(
    name="toy",
    models={name: model_settings(name, **_TOY_SIZES) for name in FULL.models},
    row_length=64,
    rows=2,
    most_rows=3,
    few_rows=(1,),
    copy_bytes=1 << 20,
    square=64,
    repeats=1,
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
    """A run of some steps: how it differs from the preset with MLM."""

    name: str
    preset: str
    rows: int | None = None
    """Of a micro-batch, or as many as fit if those are fewer; None: as many as fit."""
    overrides: tuple[str, ...] = ()
    ds_config: str = "zero1"
    objective: str = "mlm"
    forms: Literal["shipped", "plain"] = "shipped"
    """Of code that is written for the compiler; see `gpu_forms`."""
    steps: int | None = None
    """None: those of the scale."""
    is_profiled: bool = False


@dataclass(frozen=True)
class Job:
    """What one process measures."""

    name: str
    scale: Scale
    limit_s: float
    """After which it is stopped."""
    measure: Callable[["Job"], Any]
    """Gives its rows."""
    least_s: float = 15
    """With less time left it is not begun."""
    preset: str = ""
    items: tuple[Any, ...] = ()
    """Runs of jobs that train, each with a name."""
    folder: Path = Path()
    """For results that are no JSON line, such as traces."""
