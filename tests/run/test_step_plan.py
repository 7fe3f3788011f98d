"""What each step of a run is: positions and learning rates against tables made by hand."""

import math
from pathlib import Path

import pytest

from tests.support.runs import write_run
from toolkit.core.errors import SettingsError
from toolkit.objectives.phase_settings import PhaseSettings
from toolkit.objectives.schedule import Schedule
from toolkit.run import load_run
from toolkit.run.load import declare_run
from toolkit.run.resolve import resolve_run
from toolkit.run.step_plan import StepPlan
from toolkit.testing.corpora import random_documents, write_token_corpus


def _plan(run_file: Path, schedule: str, *overrides: str) -> StepPlan:
    return StepPlan(load_run(str(run_file), [f"schedule=[{schedule}]", *overrides]))


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """8 rows of 64 a step; peak 1e-2."""
    return write_run(tmp_path, phase_steps=4)


_FIRST = '{objective="clm", steps=2}'


def test_positions_count_rows_of_the_same_data(run_file: Path) -> None:
    """8 + 8 rows; 2 x 4 rows of others; on with the first data: 16, then 3 a step."""
    plan = _plan(
        run_file,
        f'{_FIRST}, {{objective="mlm", steps=2, global_batch_rows=4, data={{sequence_length=32}}}}, '
        '{objective="mlm", steps=2, global_batch_rows=3}',
        "lr.warmup_steps=0",
        "lr.decay_steps=0",
    )
    assert [plan.position(step) for step in range(7)] == [0, 8, 0, 4, 16, 19, 22]
    assert plan.step_sizes == (512, 128, 192)
    assert [plan.describe_changes(phase) for phase in plan.schedule.phases] == [
        "",
        ", 4 rows of 32 a step",
        ", 3 rows of 64 a step",
    ]


def test_tokens_are_those_of_the_phase(run_file: Path) -> None:
    """1,000 positions are 2 steps of 512, and 16 of 64."""
    plan = _plan(
        run_file, '{objective="clm", tokens=1000}, {objective="mlm", tokens=1000, global_batch_rows=2, '
        "data={sequence_length=32}}", "lr.warmup_steps=0", "lr.decay_steps=0",
    )  # fmt: skip
    assert [(phase.start, phase.stop) for phase in plan.schedule.phases] == [(0, 2), (2, 18)]


def test_a_batch_warmup_adds_as_many_rows_at_a_time(run_file: Path) -> None:
    """256 positions at 2, 4 and 6 rows of 64: 2 steps, 1 and 1; a second phase is full at once."""
    warmup = "batch_warmup_rows=2, batch_warmup_tokens=768"
    plan = _plan(
        run_file,
        f'{{objective="clm", steps=6, {warmup}}}, {{objective="mlm", steps=2}}',
        "lr.warmup_steps=0",
        "lr.decay_steps=0",
    )
    assert [plan.rows_at(step) for step in range(8)] == [2, 2, 4, 6, 8, 8, 8, 8]
    assert [plan.position(step) for step in range(9)] == [0, 2, 4, 8, 14, 22, 30, 38, 46]
    assert [plan.rows_of(phase) for phase in plan.schedule.phases] == [30, 16]
    assert plan.describe_changes(plan.schedule.phases[0]) == ", over 4 steps from 2 to 8 rows a step"


@pytest.mark.parametrize(("tokens", "steps"), [(128, 1), (129, 2), (896, 4), (897, 5), (2000, 7)])
def test_tokens_of_a_phase_count_its_batch_warmup(tokens: int, steps: int) -> None:
    """Its four steps of 2, 2, 4 and 6 rows of 64 are 896 positions, each further step 512."""
    phase = PhaseSettings(objective="clm", steps=7, batch_warmup_rows=2, batch_warmup_tokens=768)
    (found,) = Schedule.resolve([phase], total_steps=None, global_batch_rows=8, sequence_length=64).phases
    assert found.rows.steps_for(math.ceil(tokens / 64)) == steps


def test_a_rewarmed_phase_begins_another_stretch(run_file: Path) -> None:
    """Steps 0 to 3: warm-up of one, decay of two; then the same lengths at a peak of 4e-3, over two phases."""
    plan = _plan(
        run_file,
        '{objective="clm", steps=4}, {objective="mlm", steps=2, lr="rewarm", lr_peak=4e-3}, {objective="mlm", steps=3}',
        "lr.warmup_steps=1",
        "lr.decay_steps=2",
    )
    rates = [plan.learning_rate(step) for step in range(9)]
    assert rates == pytest.approx([1e-2, 1e-2, 1e-2, 5e-3, 4e-3, 4e-3, 4e-3, 4e-3, 2e-3])
    # The first step of a decay is still at the peak.
    assert [step for step in range(10) if plan.has_decayed(step)] == [3, 4, 8, 9]
    assert plan.describe_learning_rate() == (
        "to step 4: peak 0.01, 1 step of warm-up, 2 of linear decay to 0; "
        "to step 9: peak 0.004, 1 step of warm-up, 2 of linear decay to 0"
    )


def test_a_rewarmed_phase_has_ramps_of_its_own(run_file: Path) -> None:
    """Eight steps with three of warm-up and four of decay; then four, for which those are too many, of none and two."""
    phase = '{objective="mlm", steps=4, lr="rewarm", lr_warmup_steps=0, lr_decay_steps=2}'
    plan = _plan(run_file, f'{{objective="clm", steps=8}}, {phase}', "lr.warmup_steps=3", "lr.decay_steps=4")
    rates = [plan.learning_rate(step) for step in range(8, 12)]
    assert rates == pytest.approx([1e-2, 1e-2, 1e-2, 5e-3])
    assert plan.learning_rate(7) == pytest.approx(2.5e-3)


def test_a_phase_changes_the_base_of_either_type_of_layer(run_file: Path) -> None:
    """ModernBERT's longer context leaves the base of sliding layers."""
    longer = '{objective="mlm", steps=9, model={rope_theta=160000.0}}'
    model = 'family="modernbert", hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4'
    plan = _plan(run_file, f'{{objective="clm", steps=9}}, {longer}', f"model={{{model}}}")
    assert [each.rope_base("full_attention") for each in plan.models] == [10_000.0, 160_000.0]
    assert [each.rope_base("sliding_attention") for each in plan.models] == [10_000.0, 10_000.0]
    other = longer.replace("rope_theta", "local_rope_theta")
    plan = _plan(run_file, f'{{objective="clm", steps=9}}, {other}', f"model={{{model}}}")
    assert [each.rope_base("sliding_attention") for each in plan.models] == [10_000.0, 160_000.0]
    assert [each.rope_base("full_attention") for each in plan.models] == [10_000.0, 10_000.0]


def test_the_optimizer_is_reset_before_the_first_step_of_a_phase(run_file: Path) -> None:
    plan = _plan(
        run_file,
        f'{_FIRST}, {{objective="mlm", steps=2, optimizer="reset"}}, {{objective="clm", steps=2}}, '
        '{objective="mlm", steps=2, optimizer="reset"}',
        "lr.warmup_steps=0",
        "lr.decay_steps=0",
    )
    assert [step for step in range(8) if plan.resets_optimizer(step)] == [2, 6]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (f'{_FIRST}, {{objective="mlm", steps=2, lr_peak=1e-3}}', r'lr_peak = 0\.001 and lr = .*Set lr = "rewarm"'),
        (f'{_FIRST}, {{objective="mlm", steps=2, lr_decay_steps=0}}', r"lr_decay_steps = 0 and lr = .*Set lr = "),
        ('{objective="clm", steps=2, lr="rewarm"}', r"phase 1 of the schedule .*nothing comes before it"),
        ('{objective="clm", steps=2, optimizer="reset"}', r"phase 1 of the schedule .*nothing comes before it"),
        (f'{_FIRST}, {{objective="mlm", steps=2, data={{validation="x"}}}}', r"schedule\.1\.data\.validation: .*set"),
        (f'{_FIRST}, {{objective="mlm", steps=2, data={{length=3}}}}', r"unknown key 'schedule\.1\.data\.length'"),
        (f'{_FIRST}, {{objective="mlm", tokens=2, data={{sequence_length="3"}}}}', r"1\.data\.sequence_length: "),
        (f'{_FIRST}, {{objective="mlm", steps=2, global_batch_rows=0}}', r"schedule\.1\.global_batch_rows"),
        (f'{_FIRST}, {{objective="mlm", steps=2, lr="rewarm"}}', r"longer than the run \(2 steps\)"),
        (f'{_FIRST}, {{objective="mlm", steps=6, model={{hidden_size=8}}}}', r"1\.model\.hidden_size: a phase may"),
        (f'{_FIRST}, {{objective="mlm", steps=6, model={{rope_theta=-1}}}}', r"schedule\.1\.model\.rope_theta: "),
        ('{objective="clm", steps=9, model={rope_theta=1e5}}', r"schedule\.0\.model: nothing comes before"),
        ('{objective="clm", steps=9, batch_warmup_rows=2}', r"batch_warmup_tokens = None\. Give both"),
        ('{objective="clm", steps=9, batch_warmup_rows=3, batch_warmup_tokens=9}', r"does not lead to its 8 rows"),
        ('{objective="clm", steps=9, batch_warmup_rows=8, batch_warmup_tokens=9}', r"does not lead to its 8 rows"),
        (
            '{objective="clm", steps=3, batch_warmup_rows=2, batch_warmup_tokens=768}',
            r"phase 1 of the schedule \(clm\) has 3 steps, and its batch-size warm-up takes 4 steps",
        ),
    ],
)  # fmt: skip
def test_contradictory_phases_are_refused(run_file: Path, schedule: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        _plan(run_file, schedule, "lr.warmup_steps=2", "lr.decay_steps=2")


def test_rows_that_the_ranks_cannot_share_are_refused_before_the_start(run_file: Path) -> None:
    declared = declare_run(str(run_file), [f'schedule=[{_FIRST}, {{objective="mlm", steps=6, global_batch_rows=3}}]'])
    message = r"phase 2 of the schedule \(mlm\) has global_batch_rows=3, which 2 data-parallel ranks cannot share"
    with pytest.raises(SettingsError, match=message):
        resolve_run(declared, ds_config="zero1", num_ranks=2)
    warmup = '[{objective="clm", steps=9, batch_warmup_rows=1, batch_warmup_tokens=9}]'
    with pytest.raises(SettingsError, match=r"\(clm\) has batch_warmup_rows=1, which 2 data-parallel ranks"):
        resolve_run(declare_run(str(run_file), [f"schedule={warmup}"]), ds_config="zero1", num_ranks=2)


def test_a_phase_on_another_vocabulary_is_refused_before_the_start(run_file: Path, tmp_path: Path) -> None:
    documents = random_documents(40, vocabulary_size=80, max_length=90, first_id=3, seed=1)
    other = write_token_corpus(tmp_path / "other", documents, vocabulary_size=80, eos=0, pad=1, mask=2)
    schedule = f'schedule=[{_FIRST}, {{objective="mlm", steps=6, data={{train="{other}"}}}}]'
    with pytest.raises(SettingsError, match=r"data\.train .* and schedule\.1\.data\.train .* different\s+tokenizers"):
        resolve_run(declare_run(str(run_file), [schedule]), ds_config="zero1", num_ranks=1)


def test_what_an_objective_counts_over_a_phase_is_its_share(tmp_path):
    """Of less than one row a step too: in the steps that have one it counts for the others."""
    mix = '{objective="mlm", share=0.98}, {objective="clm", share=0.02, weight=3.0}'
    plan = declare_run(str(write_run(tmp_path)), [f"schedule=[{{mix=[{mix}], steps=50}}]"]).plan
    found = [plan.coefficients(step) for step in range(50)]
    assert sorted({clm for _, clm in found}) == [0.0, 3 / 8]
    assert [sum(each) / 50 for each in zip(*found, strict=True)] == pytest.approx([0.98, 0.06])
