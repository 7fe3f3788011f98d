"""Which jobs the sections and the calls of `benchmarks/gpu.py` are made of."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpu_attention import measure_attention
from gpu_layers import measure_head, measure_optimizer, measure_pointwise
from gpu_machine import measure_machine, measure_roofs, measure_tests
from gpu_matmul import measure_products
from gpu_peer import measure_peer
from gpu_scale import PRESETS, RunVariant, Scale
from gpu_step import measure_runs
from gpu_timing import Rows

SECTIONS = ("machine", "tests", "kernels", "step", "ablations", "peer")
EAGER, COMPILED = "train.compile=false", "train.compile=true"


@dataclass(frozen=True)
class Planned:
    """A job before it is started."""

    section: str
    name: str
    limit_s: int
    preset: str = ""
    runs: tuple[RunVariant, ...] = ()


MEASURES: dict[str, Callable[..., Rows]] = {
    "machine": measure_machine,
    "machine-end": measure_roofs,
    "tests": measure_tests,
    "kernels-products": measure_products,
    "kernels-attention": measure_attention,
    "kernels-head": measure_head,
    "kernels-pointwise": measure_pointwise,
    "kernels-optimizer": measure_optimizer,
    "peer": measure_peer,
}
"""By the name of a job; those that train are `measure_runs`."""


def measure_of(name: str) -> Callable[..., Rows]:
    """What a job measures with."""
    return MEASURES.get(name.partition(":")[0], measure_runs)


@dataclass(frozen=True)
class Call:
    """What one call to a machine does: its sections, and within how many minutes."""

    sections: tuple[str, ...]
    minutes: float
    steps: Callable[[Scale, Iterable[str]], Iterator[RunVariant]]
    presets: tuple[str, ...] = PRESETS


def plan(call: Call, scale: Scale, *, sections: Iterable[str], presets: Iterable[str]) -> list[Planned]:
    """The jobs of a call in their order; the machine is measured again at the end."""
    presets = tuple(presets)
    by_section = {
        "machine": [Planned("machine", "machine", 60)],
        "tests": [Planned("tests", "tests", 180)],
        "kernels": [Planned("kernels", name, 150) for name in MEASURES if name.startswith("kernels-")],
        "step": list(_step_jobs(call.steps(scale, presets))),
        "ablations": [Planned("ablations", "ablations", 300, runs=tuple(ablations(scale)))],
        "peer": [Planned("peer", f"peer:{preset}", 120, preset=preset) for preset in presets],
    }
    wanted = set(sections)
    order = dict.fromkeys([*call.sections, *SECTIONS])
    jobs = [job for section in order if section in wanted for job in by_section[section]]
    return [*jobs, Planned("machine", "machine-end", 60)] if "machine" in wanted else jobs


def _step_jobs(variants: Iterable[RunVariant]) -> Iterator[Planned]:
    """A process for each preset: the memory of one must not stand in the way of the next."""
    by_preset: dict[str, list[RunVariant]] = {}
    for variant in variants:
        by_preset.setdefault(variant.preset, []).append(variant)
    for preset, runs in by_preset.items():
        yield Planned("step", f"step:{preset}", 90 * len(runs), preset=preset, runs=tuple(runs))


def standard_steps(scale: Scale, presets: Iterable[str]) -> Iterator[RunVariant]:
    """12 rows, and as many as fill the memory."""
    for preset in presets:
        yield RunVariant("12 rows", preset, scale.rows, is_profiled=True, keeps_trace=preset == "210m")
        yield RunVariant("planned rows", preset, scale.planned_rows[preset], is_profiled=True)


def first_steps(scale: Scale, presets: Iterable[str]) -> Iterator[RunVariant]:
    """The first steps on a machine: compiled and eager."""
    for preset in presets:
        yield RunVariant("12 rows", preset, scale.rows, is_profiled=True, keeps_trace=preset == "210m")
        yield RunVariant("eager", preset, scale.rows, (EAGER,), is_profiled=True)


def both_objectives(scale: Scale, presets: Iterable[str]) -> Iterator[RunVariant]:
    """MLM and CLM on full micro-batches."""
    for preset in presets:
        rows = scale.planned_rows[preset]
        yield RunVariant("planned rows", preset, rows, is_profiled=True)
        yield RunVariant("clm", preset, rows, objective="clm", is_profiled=True)


def final_rows(scale: Scale, presets: Iterable[str]) -> Iterator[RunVariant]:
    """What a table of results has: both objectives, both kinds of windows."""
    for preset in presets:
        for windows in ("random-cut", "documents"):
            for objective in ("mlm", "clm"):
                yield RunVariant(
                    f"{objective} {windows}",
                    preset,
                    scale.planned_rows[preset],
                    (f'data.windows="{windows}"',),
                    objective=objective,
                    is_profiled=(objective, windows) == ("mlm", "random-cut"),
                    keeps_trace=(preset, objective, windows) == ("210m", "mlm", "random-cut"),
                )


def ablations(scale: Scale) -> Iterator[RunVariant]:
    """The 210m with one thing changed in each run; the first is the one that the others differ from."""
    rows = scale.rows
    yield RunVariant("as shipped", "210m", rows)
    yield RunVariant("eager", "210m", rows, (EAGER,))
    changes: dict[str, tuple[tuple[str, object], ...]] = {
        "timers on": (("timers.throughput.enabled", True),),
        "gradients summed in bf16": (("communication_data_type", "bf16"),),
        "gradients added at once": (("bf16.immediate_grad_update", True),),
        "gradients added later": (("bf16.immediate_grad_update", False),),
        "zero2": (("zero_optimization.stage", 2),),
    }
    for name, ds_changes in changes.items():
        yield RunVariant(name, "210m", rows, ds_changes=ds_changes)
    yield RunVariant("documents", "210m", rows, ('data.windows="documents"',))
    for few_or_many in scale.ablated_rows:
        yield RunVariant(f"{few_or_many} rows", "210m", few_or_many)


CALLS = {
    # Kernels last: they would leave no time for the first steps.
    "A": Call(("machine", "tests", "step", "kernels"), 8.0, first_steps, ("210m",)),
    "B": Call(("machine", "step", "ablations"), 8.8, standard_steps),
    "C": Call(("machine", "step"), 8.8, both_objectives),
    "D": Call(("machine", "step", "peer"), 8.8, final_rows),
}
ALL = Call(SECTIONS, 60.0, standard_steps)
