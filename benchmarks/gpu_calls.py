"""Jobs of the three calls of `benchmarks/gpu.py`, and what earlier calls left."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from gpu_attention import measure_attention, measure_run_kernels
from gpu_head import measure_head
from gpu_launches import CASES, measure_launches
from gpu_machine import measure_machine, measure_roofs, measure_tests
from gpu_peer import measure_peer
from gpu_scale import MODERNBERT, PRESETS, Job, RunVariant, Scale
from gpu_step import measure_runs
from gpu_timing import Row

BAD = {"error", "not_reached"}
"""Keys of rows that call for another try."""
_DOCUMENTS = ('data.windows="documents"',)


def contact(scale: Scale) -> Iterator[Job]:
    """Does it work at all, everywhere?"""
    yield Job("machine", scale, 60, measure_machine)
    yield Job("launches", scale, 210, measure_launches, 60, items=CASES)
    yield Job("tests", scale, 150, measure_tests, 40)
    for preset in (*PRESETS, MODERNBERT):
        yield _runs(f"start:{preset}", scale, 80, RunVariant("12 rows, 4 steps", preset, scale.rows, steps=4))


def numbers(scale: Scale) -> Iterator[Job]:
    """How fast, and where the time goes. Limits are half as long again as what a job should take, compiling included:
    what has hung must not take the time of the others.
    """
    yield Job("machine-numbers", scale, 60, measure_machine)
    for preset, seconds in zip(PRESETS, (150, 170, 180), strict=True):
        yield _runs(
            f"step:{preset}",
            scale,
            seconds,
            RunVariant("mlm", preset, is_profiled=True),
            RunVariant("clm", preset, objective="clm"),
            RunVariant("documents", preset, overrides=_DOCUMENTS),
        )
    yield Job("kernels-attention", scale, 120, measure_run_kernels, 30)
    yield Job("kernels-head", scale, 60, measure_head)
    yield _peer(scale, PRESETS[0])
    flash2 = ('train.attention_kernel="flash2"',) if scale.name == "full" else ()
    at_12 = RunVariant("12 rows, flash2", "210m", scale.rows, flash2)
    plain = replace(at_12, name="12 rows, flash2, plain forms", forms="plain")
    yield _runs("ablations:forms", scale, 130, at_12, plain)
    few = (RunVariant(f"{rows} rows", "210m", rows) for rows in scale.few_rows)
    yield _runs("ablations:rows", scale, 120, *few, RunVariant("zero2", "210m", scale.rows, ds_config="zero2"))


def rest(scale: Scale) -> Iterator[Job]:
    """What the first two calls have no time for."""
    yield Job("machine-rest", scale, 60, measure_machine)
    yield _runs("step:modernbert", scale, 120, RunVariant("mlm", MODERNBERT))
    yield from (_peer(scale, preset) for preset in PRESETS[1:])
    yield Job("all-attention", scale, 150, measure_attention, 30)
    change = partial(RunVariant, preset="210m", rows=scale.rows)
    yield _runs(
        "ablations:settings",
        scale,
        180,
        change("as shipped"),
        change("eager", overrides=("train.compile=false",)),
        change("zero2", ds_config="zero2"),
        change("documents", overrides=_DOCUMENTS),
    )
    yield Job("machine-end", scale, 40, measure_roofs)


CALLS = {"contact": contact, "numbers": numbers, "rest": rest}


def jobs_of(call: str | None, scale: Scale, rows: Sequence[Row]) -> list[Job]:
    """Jobs of a call in their order; of the last, first what `rows` of the others lack. Without a call, of all."""
    if call == "rest":
        earlier = [*contact(scale), *numbers(scale)]
        first, *others = rest(scale)
        return [first, *remaining(earlier, rows), *others]
    return [job for jobs in ([CALLS[call]] if call else CALLS.values()) for job in jobs(scale)]


def remaining(jobs: Sequence[Job], rows: Sequence[Row]) -> Iterator[Job]:
    """Jobs that failed or were not reached; of those that train, the runs that did."""
    for job in jobs:
        own = [row for row in rows if row["job"] == job.name]
        good = {row.get("variant") for row in own if not BAD & row.keys()}
        last = [row for row in own if row["call"] == max(row["call"] for row in own)]
        if job.items:
            if left := tuple(item for item in job.items if item.name not in good):
                yield replace(job, items=left)
        elif not own or any(BAD & row.keys() for row in last):
            yield job


def _runs(name: str, scale: Scale, seconds: float, *variants: RunVariant) -> Job:
    """A process for each preset: the memory of one must not stand in the way of the next."""
    return Job(name, scale, seconds, measure_runs, 45, items=variants)


def _peer(scale: Scale, preset: str) -> Job:
    return Job(f"peer:{preset}", scale, 75, measure_peer, 30, preset=preset)
