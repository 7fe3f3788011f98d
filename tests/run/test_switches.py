"""What is said of a run's switches of objective, on metrics made up here; nothing is trained."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.checkpoints import states_of, write_checkpoint
from tests.support.runs import write_run
from toolkit.core.errors import SettingsError
from toolkit.experiments.report import write_report
from toolkit.inspection.runs import run_views
from toolkit.run import RunFolder, load_run
from toolkit.run.identity import snapshot
from toolkit.run.load import to_toml
from toolkit.run.switches import evaluated_run, switch_lines, switches_of_runs

CLM_MLM = "[{objective='clm', steps=1000}, {objective='mlm', steps=1000}]"
MLM = "[{objective='mlm', steps=2000}]"
STEPS = range(100, 2001, 100)
Make = Callable[..., RunFolder]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a run of 2,000 steps of 512 positions, evaluated every 100 steps: by objective a loss of the step."""
    run_file = str(write_run(tmp_path))

    def write(
        name: str, schedule: str, *overrides: str, steps: range = STEPS, **losses: Callable[[int], float]
    ) -> RunFolder:
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir()
        given = [f"run.dir={folder.path}", f"schedule={schedule}", "model.vocab_size=97", *overrides]
        folder.write(folder.settings_file, to_toml(load_run(run_file, given)))
        lines = []
        for step in steps:
            found: dict[str, Any] = {key: loss(step) for key, loss in losses.items()}
            line = {"step": step, "loss": 5.0, "tokens": 500 * step, "tokens_per_second": 64.0}
            lines.append(line | {"eval_loss": found | {"web": dict(found)}})
        folder.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return write


def _lines(run: RunFolder, *others: RunFolder) -> list[str]:
    return list(switch_lines(evaluated_run(run), [evaluated_run(other) for other in others]))


def _falling(to: float, at: int) -> Callable[[int], float]:
    """From 9 at the start to a loss at a step, along a line."""
    return lambda step: 9 - (9 - to) * step / at


@pytest.mark.parametrize(
    ("slope", "verdict"), [(-0.0004, "still falls"), (0.00001, "is level within its scatter"), (0.0005, "rises")]
)
def test_the_slope_of_the_last_half_is_told_with_its_error(make: Make, slope: float, verdict: str) -> None:
    def loss(step: int) -> float:
        # What the first half does, and what follows the switch, is of no account.
        return 20.0 if step < 500 or step > 1000 else 5 + slope * step + (0.02 if step % 200 else -0.02)

    (line,) = _lines(make("run", CLM_MLM, clm=loss, mlm=_falling(5, 2000)))
    steps = np.array([500, 600, 700, 800, 900, 1000])
    (fitted, _), covariance = np.polyfit(steps, [loss(step) for step in steps.tolist()], 1, cov=True)
    shown = f"{1000 * fitted:+.4f} a 1,000 steps, ± {2000 * covariance[0, 0] ** 0.5:.4f} (two standard errors)"
    assert line == (
        f"switch to mlm at step 1,000: the validation loss of clm {verdict}: {shown}, by 6 evaluations from step 500 on"
    )


def test_few_evaluations_say_nothing_and_a_switch_to_come_is_not_told(make: Make) -> None:
    (line,) = _lines(make("few", CLM_MLM, steps=range(300, 1501, 300), clm=_falling(5, 1000)))
    assert "2 evaluations from step 500 on, too few to say whether the validation loss of clm still falls" in line
    assert _lines(make("early", CLM_MLM, steps=range(100, 901, 100), clm=_falling(5, 1000))) == []
    assert _lines(make("one", MLM, mlm=_falling(5, 1000))) == []


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        # Once below is not caught up.
        (
            lambda step: 4.0 if step == 1100 or step > 1400 else 6.0,
            "at step 1,500 (500 steps after the switch, 750,000",
        ),
        (lambda step: 5.0, "by step 1,100, the first that is compared (100 steps after the switch, 550,000"),
        (lambda step: 5.25, "within 1,000 steps: its validation loss at step 2,000 is 0.2500 higher"),
    ],
)
def test_catching_up_is_to_be_at_or_below_from_a_step_on(make: Make, loss: Callable[[int], float], said: str) -> None:
    run = make("run", CLM_MLM, clm=_falling(5, 1000), mlm=loss)
    other = make("other", MLM, mlm=lambda step: 5.0)
    _, line = _lines(run, other)
    assert line.startswith(
        "mlm " + ("has not caught up" if "within" in said else "catches up") + f" with {other.path} "
    )
    assert said in line
    if "1,500" in said:
        assert line.endswith("750,000 tokens and 75% of the run); its validation loss at step 2,000 is 1.0000 lower")


def test_runs_of_other_batches_are_compared_after_as_many_positions(make: Make) -> None:
    """Twice the rows a step: its loss after half the steps, also between two evaluations."""
    run = make("run", CLM_MLM, clm=_falling(5, 1000), mlm=lambda step: 9.52 - 1.6 * step / 1000)
    rows, steps = "train.global_batch_rows=16", range(150, 1001, 100)
    other = make("other", "[{objective='mlm', steps=1000}]", rows, steps=steps, mlm=_falling(6.5, 1000))
    _, line = _lines(run, other)
    # 9.52 - 1.6 s / 1000 is below 9 - 2.5 (s / 2) / 1000 from step 1,486 on; compared by steps, it would never be.
    assert "catches up with" in line
    assert "at step 1,500 (500 steps" in line
    assert line.endswith("its validation loss at step 1,900 is 0.1450 lower")


def test_the_loss_that_begins_is_followed_to_the_phase_without_it(make: Make) -> None:
    phases = "[{objective='clm', steps=500}, {objective='mlm', steps=500}, {objective='mlm', steps=1000, lr='rewarm'}]"
    run = make("run", phases, clm=_falling(5, 500), mlm=lambda step: 6.0 if step < 1500 else 4.0)
    _, line = _lines(run, make("other", MLM, mlm=lambda step: 5.0))
    assert "at step 1,500 (1,000 steps after the switch" in line


def test_a_mixture_that_adds_an_objective_ends_none(make: Make) -> None:
    mix = "mix=[{objective='clm', share=0.5}, {objective='mlm', share=0.5}], steps=500"
    phases = f"[{{objective='clm', steps=500}}, {{{mix}}}, {{objective='mlm', steps=1000}}]"
    run = make("run", phases, clm=_falling(5, 1000), mlm=lambda step: 4.0)
    first, second, third = _lines(run, make("other", MLM, mlm=lambda step: 5.0))
    assert "by step 600, the first" in first
    assert second.startswith("switch to mlm at step 1,000: the validation loss of clm still falls")
    assert "by step 1,100, the first" in third


def test_a_fork_has_the_losses_of_its_trunk(make: Make, tmp_path: Path) -> None:
    trunk = make("trunk", "[{objective='clm', steps=2000}]", clm=_falling(5, 1000), mlm=_falling(8, 1000))
    settings = snapshot(load_run(str(trunk.settings_file)))
    (tmp_path / "tokenizer-files").mkdir()
    write_checkpoint(
        trunk.checkpoints, 1000, states=states_of(1), tokenizer_folder=tmp_path / "tokenizer-files", settings=settings
    )
    fork = f"fork={{from='{trunk.checkpoint(1000)}', step=1000}}"
    run = make("run", CLM_MLM, fork, steps=range(1000, 2001, 100), clm=_falling(5, 1000), mlm=_falling(5, 2000))
    (line,) = _lines(run)
    assert "the validation loss of clm still falls: -4.0000 a 1,000 steps" in line
    assert "by 6 evaluations from step 500 on" in line


def test_a_loss_that_a_branch_renamed_has_the_lines_of_its_trunks(make: Make) -> None:
    run = evaluated_run(make("run", CLM_MLM, mlm=_falling(5, 1000)))
    for line in run.lines[8:]:
        line["eval_loss"]["mlm-to-800"] = 4.0
    assert list(run.losses("mlm-to-800")) == list(STEPS)
    assert list(run.losses("mlm-to-800-to-1600")) == list(range(100, 1601, 100))
    assert [run.losses("mlm-to-800-to-1600")[step] for step in (800, 900)] == [5.8, 4.0]
    assert list(run.losses("mlm-to-300")) == [100, 200, 300]
    assert run.losses("clm-to-300") == {}


def _page(folders: Mapping[str, RunFolder], tmp_path: Path) -> str:
    out = write_report([folder.path for folder in folders.values()], output=tmp_path / "report")
    return (out / "report.html").read_text()


def test_a_report_compares_with_runs_that_differ_in_the_schedule_alone(make: Make, tmp_path: Path) -> None:
    losses = {"clm": _falling(5, 1000), "mlm": lambda step: 4.0}
    runs = {name: make(name, CLM_MLM, *given, **losses) for name, given in (("a", ()), ("b", ("run.seed=9",)))}
    for name, given in (
        ("like-a", "eval.every=50"),
        ("like-b", "run.seed=9"),
        ("other-ratio", "objectives.mlm.mask_ratio=0.2"),
        ("other-rate", "lr.peak=0.5"),
        ("other-rows", "eval.rows=7"),
    ):
        runs[name] = make(name, MLM, given, mlm=lambda step: 5.0, clm=lambda step: 9.0)
    runs["shorter"] = make("shorter", "[{objective='mlm', steps=1900}]", mlm=lambda step: 5.0)
    lines = [line for line in switches_of_runs(list(runs.values())) if "catches up" in line]
    named = [
        f"{runs[one].path}: mlm catches up with {runs[two].path} by" for one, two in (("a", "like-a"), ("b", "like-b"))
    ]
    assert [line[: len(start)] for line, start in zip(lines, named, strict=True)] == named
    page = _page(runs, tmp_path)
    assert page.count("<li>") >= 4
    assert "<h3>Switches of objective</h3><ul><li>" in page
    assert "the validation loss of clm still falls: -4.0000 a 1,000 steps" in page


def test_inspect_names_the_run_to_compare_with(make: Make) -> None:
    run, other = (
        make("run", CLM_MLM, clm=_falling(5, 1000), mlm=lambda step: 4.0),
        make("other", MLM, mlm=_falling(3, 9)),
    )
    shown = [view for view in run_views(run, other) if isinstance(view, str)]
    assert len(shown) == 1
    assert [line.split()[0] for line in shown[0].splitlines()] == ["switch", "mlm"]
    with pytest.raises(SettingsError, match=r"it is no run of one objective to which .* switches. Give one that has"):
        list(run_views(run, make("clm", "[{objective='clm', steps=2000}]")))


def test_losses_of_other_rows_or_targets_are_told_as_such(make: Make) -> None:
    run = make("run", CLM_MLM, "data.validation=held", clm=_falling(5, 1000), mlm=lambda step: 4.0)
    given = ("eval.rows=7", "objectives.mlm.mask_ratio=0.2", "data.validation={web='held', code='other'}")
    last = _lines(run, make("other", MLM, *given, mlm=lambda step: 5.0))[-1]
    named = "data.validation, data.validation.code, data.validation.web, eval.rows, objectives.mlm.mask_ratio"
    assert last.endswith(f"1.0000 lower (not of the same rows or targets: {named})")
    assert "not of the same" not in _lines(run, make("like", MLM, "data.validation=held", mlm=lambda step: 5.0))[-1]
