"""Ways to spread one run over ranks."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """How a run is spread: a DeepSpeed file, ranks, and degrees of model parallelism."""

    ds_config: str
    ranks: int
    tp: int = 1
    pp: int = 1

    @property
    def dp(self) -> int:
        """Copies of the model."""
        return self.ranks // (self.tp * self.pp)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Settings that ask for it."""
        return (f"parallel.tp={self.tp}", f"parallel.pp={self.pp}")

    def __str__(self) -> str:
        degrees = (("dp", self.dp), ("tp", self.tp), ("pp", self.pp))
        return " ".join([Path(self.ds_config).stem, *(f"{name}{size}" for name, size in degrees if size > 1)])


def stage3(folder: Path) -> str:
    """A DeepSpeed file of stage 3 that partitions everything: by default it keeps parameters of tiny models whole."""
    path = folder / "zero3.json"
    path.write_text('{"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}')
    return str(path)
