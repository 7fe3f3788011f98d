"""Jobs of the sections and of the calls of `benchmarks/gpu.py`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from gpu_attention import measure_attention, measure_random_cut
from gpu_layers import measure_head, measure_optimizer, measure_pointwise, measure_toolkit_head
from gpu_machine import measure_machine, measure_roofs, measure_tests
from gpu_matmul import measure_products
from gpu_peer import measure_peer
from gpu_scale import PRESETS, RunVariant, Scale
from gpu_step import measure_runs
from gpu_timing import Rows

SECTIONS = ("machine", "tests", "kernels", "step", "ablations", "peer")
EAGER = "train.compile=false"


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
    "attention-random-cut": measure_random_cut,
    "head-210m": measure_toolkit_head,
    "peer": measure_peer,
}
"""By the name of a job; those that train are `measure_runs`."""


def measure_of(name: str) -> Callable[..., Rows]:
    """Function that a job measures with."""
    return MEASURES.get(name.partition(":")[0], measure_runs)


@dataclass(frozen=True)
class Call:
    """Jobs of one call to a machine, and within how many minutes."""

    minutes: float
    jobs: Callable[[Scale], list[Planned]]


def plan(call: Call, scale: Scale, *, sections: Iterable[str], presets: Iterable[str]) -> list[Planned]:
    """The jobs of a call in their order, as far as they are of these sections and presets."""
    wanted, named = set(sections), set(presets)
    return [job for job in call.jobs(scale) if job.section in wanted and (not job.preset or job.preset in named)]


def all_jobs(scale: Scale) -> list[Planned]:
    """Each section; the machine is measured again at the end."""
    return [
        Planned("machine", "machine", 90),
        Planned("tests", "tests", 300),
        *(Planned("kernels", name, 150) for name in MEASURES if name.startswith("kernels-")),
        *(_steps(preset, tuple(standard_steps(scale, preset)), seconds=360) for preset in PRESETS),
        Planned("ablations", "ablations", 300, runs=tuple(ablations(scale))),
        *(Planned("peer", f"peer:{preset}", 120, preset=preset) for preset in PRESETS),
        Planned("machine", "machine-end", 60),
    ]


def one_call(scale: Scale) -> list[Planned]:
    """Jobs most worth knowing first; what does not fit into the minutes is at the end.

    The limits are half as long again as what a job should take: what has hung must not take the time of the others.
    """
    full = {
        preset: (RunVariant("planned rows", preset, scale.planned_rows[preset], is_profiled=True),)
        for preset in PRESETS
    }
    full["210m"] = (replace(full["210m"][0], keeps_trace=True),)
    flash2 = ('train.attention_kernel="flash2"',) if scale.has_gpu else ()
    forms = (
        RunVariant("12 rows, flash2", "210m", scale.rows, flash2),
        RunVariant("12 rows, flash2, plain forms", "210m", scale.rows, flash2, forms="plain"),
    )
    few = tuple(RunVariant(f"{rows} rows", "210m", rows) for rows in scale.call_rows)
    zero2 = RunVariant("zero2", "210m", scale.rows, ds_changes=(("zero_optimization.stage", 2),))
    return [
        Planned("machine", "machine", 40),
        _steps("210m", full["210m"], seconds=115),
        _steps("610m", full["610m"], seconds=150),
        _steps("1b", full["1b"], seconds=165),
        Planned("ablations", "ablations:forms", 60, runs=forms),
        Planned("kernels", "attention-random-cut", 90),
        Planned("kernels", "head-210m", 30),
        Planned("ablations", "ablations:rows", 90, runs=(*few, zero2)),
        Planned("tests", "tests", 120),
    ]


def _steps(preset: str, runs: tuple[RunVariant, ...], *, seconds: int) -> Planned:
    """A process for each preset: the memory of one must not stand in the way of the next."""
    return Planned("step", f"step:{preset}", seconds, preset=preset, runs=runs)


def standard_steps(scale: Scale, preset: str) -> Iterator[RunVariant]:
    """12 rows, and as many as fill the memory: with MLM, with CLM, and with windows that are documents."""
    rows = scale.planned_rows[preset]
    yield RunVariant("12 rows", preset, scale.rows, is_profiled=True, keeps_trace=preset == "210m")
    yield RunVariant("planned rows", preset, rows, is_profiled=True)
    yield RunVariant("clm", preset, rows, objective="clm")
    yield RunVariant("documents", preset, rows, ('data.windows="documents"',))


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


CALLS = {"ONE": Call(9.5, one_call)}
ALL = Call(60.0, all_jobs)
