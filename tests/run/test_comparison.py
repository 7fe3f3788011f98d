"""Where two runs part: against every step compared by value, and with the reason."""

import copy
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from toolkit.core.errors import SettingsError
from toolkit.objectives.ramps import MaskRatioRamp
from toolkit.run.comparison import Course, Parting, parting
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.load import complete_run

_PAIRS = 1_500
_RAMP = {"start": 0.5, "stop": 0.2}


def _raw(**groups: Any) -> dict[str, Any]:
    """A small run of 12 steps: 4 of clm, 8 of mlm; 2 of warm-up and 2 of decay."""
    return {
        "run": {"dir": "runs/any", "seed": 7},
        "precision": "fp32",
        "model": {"preset": "test", "vocab_size": 97},
        "data": {"train": "a", "sequence_length": 64},
        "schedule": [{"objective": "clm", "steps": 4}, {"objective": "mlm", "steps": 8}],
        "train": {"global_batch_rows": 8},
        "lr": {"peak": 1e-2, "warmup_steps": 2, "decay_steps": 2},
    } | groups


def _run(**groups: Any) -> Course:
    return Course(complete_run(copy.deepcopy(_raw(**groups)), [], origin="test"))


def _maybe(draw: random.Random, *values: Any, share: float = 0.25) -> Any:
    return draw.choice(values) if draw.random() < share else None


def _phase(draw: random.Random) -> dict[str, Any]:
    phase: dict[str, Any] = {"objective": draw.choice(["clm", "mlm", "mlm", "hidden"]), "steps": draw.randint(1, 8)}
    given = {
        "global_batch_rows": _maybe(draw, 4, 8, 16),
        "data": _maybe(draw, {"train": "b"}, {"sequence_length": 32}, {"train": "a"}, {"min_length": 8}),
        "optimizer": _maybe(draw, "reset"),
        "lr": _maybe(draw, "rewarm"),
        "model": _maybe(draw, {"rope_theta": 2e4}, {"max_position_embeddings": 64}, share=0.15),
    }
    phase |= {key: value for key, value in given.items() if value is not None}
    if phase.get("lr") and draw.random() < 0.5:
        phase["lr_peak"] = draw.choice([1e-2, 3e-3])
    if draw.random() < 0.2:
        share = draw.choice([0.3, 0.45, {"from": 0.9, "to": 0.2}])
        rest = 1 - share if isinstance(share, float) else {"from": 0.1, "to": 0.8}
        del phase["objective"]
        phase["mix"] = [{"objective": "clm", "share": share}, {"objective": "mlm", "share": rest, "weight": 2.0}]
    if draw.random() < 0.2 and phase["steps"] >= 4:
        rows = phase.get("global_batch_rows", 8)
        phase |= {"batch_warmup_rows": rows // 4, "batch_warmup_tokens": draw.choice([200, 500])}
    return phase


def _random_run(draw: random.Random) -> dict[str, Any]:
    schedule = [_phase(draw) for _ in range(draw.randint(1, 4))]
    for key in ("lr", "lr_peak", "optimizer", "model"):
        schedule[0].pop(key, None)
    kind = draw.choice(["wsd", "wsd", "wsd", "cosine", "constant"])
    lr: dict[str, Any] = {"peak": 1e-2, "kind": kind, "warmup_steps": draw.choice([None, 0, 1, 2])}
    if kind == "wsd":
        lr |= {"decay_steps": draw.choice([None, 0, 1, 2, 4]), "decay": draw.choice(["linear", "1-sqrt", "cosine"])}
    ratio = draw.choice([0.4, 0.3, _RAMP, {**_RAMP, "shape": "steps", "steps": 2}])
    return _raw(
        schedule=schedule,
        lr={key: value for key, value in lr.items() if value is not None},
        objectives={"mlm": {"mask_ratio": ratio}, "hidden": {"kind": "mlm", "mask_ratio": draw.choice([0.4, 0.3])}},
        train={"global_batch_rows": 8, "on_spike": draw.choice(["tell", "tell", "tell", "stop", "skip"])},
    )


def _mutated(draw: random.Random, raw: dict[str, Any]) -> dict[str, Any]:
    """The same run with one or two parts of another one; or some phases of another one behind some of its own."""
    other, mixed = _random_run(draw), dict(raw)
    match draw.randrange(7):
        case 0:
            return other
        case 1 | 2:
            kept = draw.randint(1, len(raw["schedule"]))
            mixed["schedule"] = [*raw["schedule"][:kept], *map(dict, other["schedule"])]
        case 3:
            number = draw.randrange(len(raw["schedule"]))
            longer = raw["schedule"][number] | {"steps": raw["schedule"][number]["steps"] + draw.randint(1, 5)}
            mixed["schedule"] = [*raw["schedule"][:number], longer, *raw["schedule"][number + 1 :]]
        case 4:
            number = draw.randrange(len(raw["schedule"]))
            phase = raw["schedule"][number]
            half = {key: value for key, value in phase.items() if not key.startswith(("lr", "batch", "optimizer"))}
            mixed["schedule"] = [*raw["schedule"][:number], phase, half, *raw["schedule"][number + 1 :]]
        case 5:
            number = draw.randrange(len(raw["schedule"]))
            other_data = raw["schedule"][number] | {"data": draw.choice([{"train": "b"}, {"train": "c"}])}
            mixed["schedule"] = [*raw["schedule"][:number], other_data, *raw["schedule"][number + 1 :]]
        case _:
            key = draw.choice(["lr", "objectives", "train"])
            mixed[key] = other[key]
    return mixed


def _at(run: DeclaredRun, step: int) -> list[Any]:
    """Everything that the weights behind an update depend on, by value."""
    settings, plan = run.settings, run.plan
    phase = plan.schedule.phase_at(step)
    objectives = [settings.objectives[name] for name in phase.objectives]
    plain = [objective.plain() for objective in objectives]
    for objective, table in zip(objectives, plain, strict=True):
        if isinstance(getattr(objective.settings, "mask_ratio", None), MaskRatioRamp):
            table["mask_ratio"] = objective.settings.mask_ratio.at(phase.progress_at(step))
    data = plan.data[phase.index]
    is_skipping = settings.train.on_spike == "skip"
    return [
        plain,
        [(entry.weight, entry.share_at(phase.progress_at(step))) for entry in phase.mix],
        plan.dealt(step).tolist(),
        plan.learning_rate(step),
        plan.rows_at(step),
        plan.position(step),
        data.model_dump(exclude={"validation"}),
        plan.model_at(step).model_dump(exclude={"max_position_embeddings"}),
        plan.resets_optimizer(step),
        # The window in which spikes are looked for.
        [is_skipping, step - phase.start if is_skipping else None],
    ]


def _first_difference(a: DeclaredRun, b: DeclaredRun) -> int:
    stop = min(a.plan.schedule.total_steps, b.plan.schedule.total_steps)
    return next((step for step in range(stop) if _at(a, step) != _at(b, step)), stop)


def _declared(raw: dict[str, Any]) -> DeclaredRun | None:
    """The run; None where it has ramps that are longer than it."""
    try:
        return complete_run(copy.deepcopy(raw), [], origin="test")
    except SettingsError:
        return None


def test_no_parting_is_late_and_few_are_more_than_a_step_early() -> None:
    """Early are those of formulas with equal values for a while: ramps of the mask ratio, two shapes of a decay."""
    draw, early = random.Random(0), Counter[int]()
    while early.total() < _PAIRS:
        raw = _random_run(draw)
        a, b = _declared(raw), _declared(_mutated(draw, raw))
        if a is None or b is None:
            continue
        found, expected = parting(Course(a), Course(b)), _first_difference(a, b)
        assert found.step <= expected, (raw, found, expected)
        early[expected - found.step] += 1
    assert early[0] > 0.6 * _PAIRS
    assert early[0] + early[1] > 0.97 * _PAIRS


_LONG = {"peak": 1e-3, "warmup_steps": 2, "decay_steps": 2}


def _schedule(text: str) -> list[dict[str, Any]]:
    """Phases from words such as `clm 4, mlm 8`."""
    return [{"objective": phase.split()[0], "steps": int(phase.split()[1])} for phase in text.split(", ")]


@pytest.mark.parametrize(
    ("theirs", "ours", "step"),
    [
        # They part where the shorter stable part ends.
        ("clm 12", "clm 22", 10),
        ("clm 3, mlm 9", "clm 12", 3),
        ("clm 5, mlm 17", "clm 10, mlm 32", 5),
        # One is a prefix of the other, but for its decay; whole, of itself.
        ("clm 42", "clm 42, mlm 2", 40),
        ("clm 12", "clm 12", 12),
        # Phases are told apart by what holds in them.
        ("clm 3, clm 9", "clm 12", 12),
        ("clm 3, mlm 9", "mlm 12", 0),
    ],
)
def test_the_runs_of_a_family_share_their_stable_parts(theirs: str, ours: str, step: int) -> None:
    a, b = (_run(schedule=_schedule(text), lr=_LONG) for text in (theirs, ours))
    assert parting(a, b).step == parting(b, a).step == step


def test_a_decayed_run_is_a_prefix_of_one_that_warms_up_again() -> None:
    again = [*_schedule("clm 12"), {"objective": "mlm", "steps": 6, "lr": "rewarm", "optimizer": "reset"}]
    assert parting(_run(schedule=_schedule("clm 12"), lr=_LONG), _run(schedule=again, lr=_LONG)) == Parting(12)


_SPLITS = {12: (3, 6, 9), 22: (5, 11, 17), 42: (10, 21, 32)}


def _steps_of_their_own(runs: list[Course]) -> int:
    """Steps that are made, each once: every run goes on from the one before it that it shares most with."""
    left, placed = 0, list[Course]()
    for run in sorted(runs, key=lambda run: -run.run.plan.schedule.total_steps):
        left += run.run.plan.schedule.total_steps - max((parting(other, run).step for other in placed), default=0)
        placed.append(run)
    return left


def test_the_papers_comparisons_share_almost_half_of_their_steps() -> None:
    """From scratch, 15 models: MLM, CLM, and both in three splits, each at three budgets, 380,000 steps. Continued from
    two decayed models for three budgets, 408,000."""
    again = {"lr": "rewarm", "lr_peak": 5e-4, "lr_warmup_steps": 0, "lr_decay_steps": 2000, "optimizer": "reset"}
    scratch, continued = [], []
    for budget, splits in _SPLITS.items():
        texts = [f"clm {clm}000, mlm {budget - clm}000" for clm in splits]
        scratch += [_schedule(text) for text in (f"mlm {budget}000", *texts, f"clm {budget}000")]
    for kind in ("clm", "mlm"):
        continued += [_schedule(f"{kind} 42000")]
        continued += [
            [*_schedule(f"{kind} 42000"), {"objective": "mlm", "steps": steps} | again]
            for steps in (2_000, 12_000, 22_000)
        ]
    for schedules, alone, shared in ((scratch, 380_000, 206_000), (continued, 408_000, 136_000)):
        runs = [_run(schedule=schedule, lr={"warmup_steps": 2000, "decay_steps": 2000}) for schedule in schedules]
        assert sum(run.run.plan.schedule.total_steps for run in runs) == alone
        assert _steps_of_their_own(runs) == shared


def test_a_reason_names_what_was_left_unset() -> None:
    a, b = (_run(schedule=_schedule(f"clm {steps}"), lr={}) for steps in (12_000, 22_000))
    found = parting(a, b)
    assert (found.step, found.keys) == (0, ("lr",))
    assert found.reason == (
        "lr: from 0 to 0.0005 over steps 1 to 600 (lr.warmup_steps is not set) there, "
        "from 0 to 0.0005 over steps 1 to 1,100 (lr.warmup_steps is not set) here"
    )
    # Both are 2,000 steps there.
    a, b = (_run(schedule=_schedule(f"clm {steps}"), lr={}) for steps in (42_000, 45_000))
    assert parting(a, b).step == 40_000


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ({"run": {"dir": "x", "seed": 8}}, "run.seed: 7 there, 8 here"),
        ({"precision": "bf16"}, "precision: 'fp32' there, 'bf16' here"),
        ({"init": {"from": "m"}}, "init.from: not set there, 'm' here; init.optimizer: not set there, 'reset' here"),
        ({"train": {"global_batch_rows": 8, "grad_clip": 2.0}}, "train.grad_clip: 1.0 there, 2.0 here"),
        ({"train": {"global_batch_rows": 4}}, "rows: 8 there, 4 here"),
        ({"data": {"train": "b", "sequence_length": 64}}, "data.train: a there, b here"),
        ({"model": {"preset": "test", "vocab_size": 97, "qk_norm": True}}, "model.qk_norm: False there, True here"),
    ],
)
def test_what_holds_from_the_first_step_parts_there(groups: dict[str, Any], reason: str) -> None:
    assert parting(_run(), _run(**groups)).step == 0
    assert parting(_run(), _run(**groups)).reason == reason


@pytest.mark.parametrize("key", ["rope_theta", "local_rope_theta"])
def test_another_base_of_angles_parts_runs_where_its_phase_begins(key: str) -> None:
    model = {"family": "modernbert", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48}
    model |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    bases = [{"objective": "mlm", "steps": 8, "model": {key: base}} for base in (2e4, 3e4)]
    one, other = (_run(model=model, schedule=[{"objective": "clm", "steps": 4}, phase]) for phase in bases)
    assert parting(one, other) == Parting(4, (f"model.{key}",), (f"model.{key}: 20000.0 there, 30000.0 here",))


def _entry(objective: str, share: Any) -> dict[str, Any]:
    return {"objective": objective, "share": share}


def _mixed(*mix: dict[str, Any], first: int = 4, steps: int = 8) -> Course:
    lr = {"peak": 1e-2, "warmup_steps": 2, "decay_steps": 1}
    return _run(schedule=[{"objective": "clm", "steps": first}, {"mix": mix, "steps": steps}], lr=lr)


def test_mixtures_part_where_rows_are_dealt_otherwise() -> None:
    """Shares, weights, order and first step; the last step where shares are ramps, and else not."""
    half = (_entry("clm", 0.5), _entry("mlm", 0.5))
    ramp = (_entry("clm", {"from": 1.0, "to": 0.0}), _entry("mlm", {"from": 0.0, "to": 1.0}))
    for other, key in (
        (_mixed(_entry("clm", 0.25), _entry("mlm", 0.75)), "mix"),
        (_mixed(half[0] | {"weight": 2.0}, half[1]), "mix"),
        (_mixed(*reversed(half)), "objective"),
        (_mixed(*ramp), "mix"),
    ):
        assert parting(_mixed(*half), other).step == 4
        assert key in parting(_mixed(*half), other).keys
    assert parting(_mixed(*half), _mixed(*half, steps=9)).step == 12
    assert parting(_mixed(*ramp), _mixed(*ramp, steps=9)).step == 4
    assert parting(_mixed(*half), _mixed(*half, first=3)).step == 3
    assert parting(_mixed(_entry("mlm", 1.0)), _mixed(_entry("mlm", 1.0) | {"weight": 2.0})).keys == ("mix",)


def test_objectives_of_one_kind_in_a_mixture_are_compared_each() -> None:
    def of_ratios(first: float, second: float) -> Course:
        declared = {"rare": {"kind": "mlm", "mask_ratio": first}, "mlm": {"mask_ratio": second}}
        return _run(schedule=[{"mix": [_entry("rare", 0.5), _entry("mlm", 0.5)], "steps": 12}], objectives=declared)

    assert parting(of_ratios(0.1, 0.4), of_ratios(0.2, 0.4)).keys == ("objectives.0.mlm.mask_ratio",)
    assert parting(of_ratios(0.1, 0.4), of_ratios(0.1, 0.3)).keys == ("objectives.1.mlm.mask_ratio",)


@pytest.mark.parametrize(
    ("groups", "step", "key"),
    [
        ({"objectives": {"mlm": {"mask_ratio": 0.3}}}, 4, "objectives.mlm.mask_ratio"),
        ({"schedule": [*_schedule("clm 4"), {"objective": "mlm", "steps": 8, "data": {"train": "b"}}]}, 4, "position"),
        ({"schedule": _schedule("clm 4, mlm 9")}, 10, "lr"),
        # Where phases end matters to what changes in their course.
        ({"schedule": _schedule("clm 4, mlm 9"), "objectives": {"mlm": {"mask_ratio": _RAMP}}}, 4, "phase"),
        ({"schedule": _schedule("clm 4, mlm 9"), "objectives": {"mlm": {"unit": "word"}}}, 10, "lr"),
        ({"train": {"global_batch_rows": 8, "on_spike": "skip"}}, 0, "train.on_spike"),
        ({"schedule": [*_schedule("clm 4"), {"mix": [_entry("mlm", 0.5), _entry("clm", 0.5)], "steps": 8}]}, 4, "mix"),
    ],
)
def test_what_holds_later_parts_later(groups: dict[str, Any], step: int, key: str) -> None:
    before = {"objectives": groups["objectives"]} if "schedule" in groups and "objectives" in groups else {}
    found = parting(_run(**before), _run(**groups))
    assert found.step == step
    assert key in found.keys


def test_of_another_objective_its_settings_are_not_told_one_by_one() -> None:
    found = parting(_run(), _run(schedule=_schedule("clm 12")))
    assert (found.step, found.reason) == (4, "objective: mlm there, clm here")


def test_other_data_at_the_same_position_part() -> None:
    """Both begin theirs at row 0."""
    a, b = (
        _run(schedule=[*_schedule("clm 4"), {"objective": "mlm", "steps": 8, "data": {"train": name}}])
        for name in ("b", "c")
    )
    assert (parting(a, b).step, parting(a, b).reason) == (4, "data.train: b there, c here")


def test_other_temperatures_part_at_once() -> None:
    data = {"train": [{"path": "a"}, {"path": "b"}], "sequence_length": 64}
    a, b = (_run(data=data | {"weights": {"temperature": value}}) for value in (0.5, 0.7))
    assert parting(a, a) == Parting(12)
    assert parting(a, b).reason == "data.weights.temperature: 0.5 there, 0.7 here"


def test_a_batch_warm_up_is_shared_up_to_the_next_phase() -> None:
    first = {"objective": "clm", "steps": 6, "batch_warmup_rows": 2, "batch_warmup_tokens": 768}
    a, b = (_run(schedule=[first, *_schedule(f"{kind} 6")]) for kind in ("clm", "mlm"))
    assert parting(a, b).step == 6


def test_nothing_that_changes_no_weight_is_looked_at() -> None:
    free = {
        "run": {"dir": "elsewhere", "seed": 7},
        "data": {"train": "a", "validation": "v", "sequence_length": 64},
        "train": {"global_batch_rows": 8, "micro_batch_rows": 4, "activation_checkpointing": "full"},
        "checkpoint": {"every": 3},
        "log": {"every": 1},
        "parallel": {"tp": 2},
    }
    assert parting(_run(), _run(**free)) == Parting(12)


def test_corpora_are_known_by_their_hashes_where_these_are_given() -> None:
    moved = _run(data={"train": "moved/a", "sequence_length": 64})
    assert parting(_run(), moved).keys == ("data.train",)
    there, here = (replace(course, corpora={"data.train": "5f"}) for course in (_run(), moved))
    assert parting(there, here) == Parting(12)
    assert parting(there, replace(here, corpora={"data.train": "60"})).keys == ("data.train",)


_MIX = {"mix": [{"objective": "clm", "share": 0.3}, {"objective": "mlm", "share": 0.7}]}
_GROWING = {"objective": "clm", "steps": 12, "batch_warmup_rows": 2}


@pytest.mark.parametrize(
    ("theirs", "ours", "step", "key"),
    [
        ([_MIX | {"steps": 12}], [_MIX | {"steps": 4}, _MIX | {"steps": 8}], 4, "mix"),
        # 2, 4 and 6 rows of 64 positions: for 1, 1 and 1 steps, or for 2, 1 and 1.
        ([_GROWING | {"batch_warmup_tokens": 300}], [_GROWING | {"batch_warmup_tokens": 600}], 1, "rows"),
        # Both rise to the peak of step 3, one from step 1 on, the other from step 2 on.
        (
            [{"objective": "clm", "steps": 12}],
            [
                {"objective": "clm", "steps": 1, "lr_planned_to": 12},
                {"objective": "clm", "steps": 11, "lr": "rewarm", "lr_warmup_steps": 2},
            ],
            1,
            "lr",
        ),
    ],
    ids=["mixture", "batch warm-up", "rate"],
)
def test_what_depends_on_where_it_began(
    theirs: list[dict[str, Any]], ours: list[dict[str, Any]], step: int, key: str
) -> None:
    lr = {"peak": 1e-2, "warmup_steps": 3, "decay_steps": 2}
    a, b = _run(schedule=theirs, lr=lr), _run(schedule=ours, lr=lr)
    found = parting(a, b)
    assert (found.step, key in found.keys) == (step, True)
    assert _first_difference(a.run, b.run) >= step


def test_a_run_that_is_left_on_the_way_is_the_same_up_to_there() -> None:
    """In a warm-up of rate or rows, in a ramp, in a decay: what a phase and a rate were made for stays with them."""
    draw, tried = random.Random(5), 0
    while tried < 300:
        if (whole := _declared(raw := _random_run(draw))) is None:
            continue
        phases = whole.plan.schedule.phases
        step = draw.randint(1, phases[-1].stop)
        past = [
            given | {"steps": min(phase.stop, step) - phase.start, "planned_steps": phase.stop - phase.start}
            for given, phase in zip(raw["schedule"], phases, strict=True)
            if phase.start < step
        ]
        if (end := whole.plan.stretch_at(step - 1).stop) > step:
            past[-1]["lr_planned_to"] = end
        cut = _declared(raw | {"schedule": [*past, {"objective": "clm", "steps": 8, "lr": "rewarm"}]})
        assert cut is not None
        assert parting(Course(whole), Course(cut)).step >= step, (raw, step)
        assert [_at(whole, number) for number in range(step)] == [_at(cut, number) for number in range(step)]
        tried += 1
