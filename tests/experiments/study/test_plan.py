"""Studies, trained piece by piece in this process: models equal those trained alone, and what is there is kept."""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.runs import read_metrics, write_run
from toolkit.checkpoint.read import open_checkpoint
from toolkit.core.errors import SettingsError
from toolkit.core.files import atomic_write
from toolkit.experiments.grid.declaration import TaskEntry
from toolkit.experiments.grid.inputs import at_steps
from toolkit.experiments.study.declaration import load_study
from toolkit.experiments.study.models import models_of
from toolkit.experiments.study.names import axis_labels
from toolkit.experiments.study.plan import StudyPlan
from toolkit.experiments.study.program import grid_of, run_study, show_plan, tidy_study
from toolkit.experiments.study.slurm import joined
from toolkit.experiments.study.tree import Tree
from toolkit.run.folder import RunFolder
from toolkit.run.identity import snapshot
from toolkit.run.load import load_run, to_toml
from toolkit.run.metrics import history
from toolkit.testing.distributed import run_distributed

pytestmark = pytest.mark.costs(15)

STUDY = """
[study]
base = "{folder}/run.toml"
dir = "{folder}/study"
{study}
[set.eval]
every = 100
{head}
[set.lr]
warmup_steps = 1
decay_steps = 2
[[models]]
axes.schedule = [{schedules}]
"""
SHARES = ["clm 8", "clm 3 + mlm 5", "clm 5 + mlm 3", "mlm 8", "mlm 6"]
CLM, THREE, FIVE, MLM, SHORT = "run-clm-8", "run-clm-3-mlm40-8", "run-clm-5-mlm40-8", "run-mlm40-8", "run-mlm40-6"


def write_study(folder: Path, schedules: list[str], head: str = "", study: str = "") -> str:
    path, listed = folder / "shares.toml", ", ".join(f'"{each}"' for each in schedules)
    path.write_text(STUDY.format(folder=folder, head=head, study=study, schedules=listed))
    return str(path)


def planned(source: str) -> StudyPlan:
    study = load_study(source)
    return StudyPlan(study, Tree(models_of(study)))


@dataclass(frozen=True)
class Study:
    """Trains `most` pieces of a study at most, in the order of its plan; alone: each model as `--show` prints it."""

    source: str
    most: int = 99
    alone: str = ""
    ds_config: str = "zero0"

    def __call__(self) -> list[tuple[str, int, int]]:
        from toolkit.training import pretrain

        plan = planned(self.source)
        for name in plan.tree.leaves:
            folder = plan.folder(name)
            folder.path.mkdir(parents=True, exist_ok=True)
            atomic_write(folder.settings_file, to_toml(plan.run_file(name)))
        for piece in plan.pieces[: self.most]:
            run_file = plan.folder(piece.name).settings_file
            pretrain(load_run(str(run_file)), ds_config=self.ds_config, until=piece.until)
        if self.alone:
            for name in plan.tree.leaves:
                own = plan.tree.settings_alone(name)
                run = own.run.model_copy(update={"dir": f"{self.alone}/{name}"})
                pretrain(own.model_copy(update={"run": run}), ds_config=self.ds_config)
        return [(piece.name, piece.first, piece.until) for piece in plan.pieces[: self.most]]


def train(study: Study, ranks: int = 1) -> list[tuple[str, int, int]]:
    return run_distributed([study], world_size=ranks)[0][0]


def files(run: Path) -> dict[str, str]:
    return {name: entry.sha256 for name, entry in open_checkpoint(run).manifest.files.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, int, int]]]:
    """A study that was trained in two goes, and each of its models alone."""
    folder = tmp_path_factory.mktemp("study")
    write_run(folder, phase_steps=4)
    source = write_study(folder, SHARES)
    pieces = [*train(Study(source, most=2)), *train(Study(source, alone=str(folder / "alone")))]
    return folder, pieces


def test_every_model_is_the_one_trained_alone(trained):
    folder, pieces = trained
    assert pieces == [
        (CLM, 0, 3), (CLM, 3, 5), (CLM, 5, 8), (FIVE, 5, 8), (THREE, 3, 8), (MLM, 0, 4), (MLM, 4, 8), (SHORT, 4, 6),
    ]  # fmt: skip
    runs = folder / "study" / "runs"
    for name in (CLM, THREE, FIVE, MLM, SHORT):
        assert files(runs / name) == files(folder / "alone" / name), name
    # Each trained step stands in one run's metrics.
    lines = [line for run in runs.iterdir() for line in read_metrics(run) if "loss" in line]
    assert len(lines) == 8 + 8 + 5 + 3 + 2
    assert planned(str(folder / "shares.toml")).pieces == ()


def test_steps_that_are_kept_are_models_of_the_grid(trained):
    """Each where it is trained: step 5 of `THREE`, which forks at 3; the last two of 8 steps decay. Runs that were past
    a step before it was to be kept do without.
    """
    study = load_study(str(trained[0] / "shares.toml"))
    files = {"train": "a.tsv", "validation": "b.tsv", "test": "c.tsv"}
    task = TaskEntry.model_validate({"name": "t", "kind": "sc", **files})
    settings = study.study.model_copy(update={"keep": (3, 5, 8)})
    begun = study.model_copy(update={"task": (task,), "study": settings})
    new = begun.model_copy(update={"study": settings.model_copy(update={"dir": str(trained[0] / "new")})})
    tree = Tree(models_of(begun))
    assert grid_of(begun, tree).report.x == axis_labels(begun)
    of_begun, of_new = grid_of(begun, tree).model, grid_of(new, Tree(models_of(new))).model
    assert {entry.name: entry.steps for entry in of_new if entry.steps} == {CLM: (3, 5), THREE: (5,), MLM: (3, 5)}
    for entries in (of_begun, of_new):
        assert {entry.name for entry in entries if not entry.steps} == {CLM, THREE, FIVE, MLM, SHORT}
    entries = [entry for entry in of_begun if entry.steps]
    assert [(entry.name, entry.steps) for entry in entries] == [(CLM, (3, 5))]
    notes = [note.partition(";")[0] for note in StudyPlan(begun, tree).notes]
    assert f"{THREE}: it has no checkpoint of step 5, which study.keep names, and is at 8" in notes
    assert [note.partition(":")[0] for note in notes] == [THREE, MLM, MLM]
    (clm,) = entries
    runs = trained[0] / "study" / "runs"
    assert [(model.name, model.path, model.labels) for model in at_steps(clm)] == [
        (
            f"{CLM}@{step}",
            str(RunFolder(runs / CLM).checkpoint(step)),
            {"size": "run", "run": CLM, "training_step": step},
        )
        for step in (3, 5)
    ]


def test_a_model_that_is_added_costs_its_own_steps(trained):
    folder, _ = trained
    plan = planned(write_study(folder, [*SHARES, "clm 5 + mlm 5", "clm 4 + mlm 4"]))
    assert [(piece.name, piece.first, piece.until, piece.needs) for piece in plan.pieces] == [
        ("run-clm-5-mlm40-10", 5, 10, None),
        # Step 4 of its giver has passed, and was not kept.
        ("run-clm-4-mlm40-8", 3, 8, None),
    ]
    assert plan.notes == [
        "run-clm-4-mlm40-8: step 4 of run-clm-5-mlm40-10 is not kept, or damaged; from 3 on it trains 1 step again"
    ]
    # What it begins from instead stays until it has, where nobody else does.
    plan = planned(write_study(folder, ["clm 8", "clm 4 + mlm 4"]))
    assert plan.run_file(CLM).checkpoint.keep_at == (3, 4, 8)
    write_study(folder, SHARES)


def test_a_damaged_checkpoint_is_none(trained, tmp_path):
    folder, _ = trained
    plan = planned(write_study(folder, [*SHARES, "clm 5 + mlm 2"]))
    before = next(piece for piece in plan.pieces if piece.name == "run-clm-5-mlm40-7")
    assert before.first == 5
    checkpoint = folder / "study" / "runs" / CLM / "checkpoints" / "step-00000005"
    weights = max(checkpoint.iterdir(), key=lambda path: path.stat().st_size)
    whole = weights.read_bytes()
    try:
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        plan = planned(str(folder / "shares.toml"))
        assert [piece.first for piece in plan.pieces] == [3]
        assert "step 5 of" in plan.notes[0]
    finally:
        weights.write_bytes(whole)
        write_study(folder, SHARES)


def test_a_last_checkpoint_that_lacks_bytes_is_made_again_and_the_grid_takes_no_earlier_one(trained):
    folder, _ = trained
    last = RunFolder(folder / "study" / "runs" / CLM).checkpoint(8)
    weights = max(last.iterdir(), key=os.path.getsize)
    whole = weights.read_bytes()
    try:
        weights.write_bytes(whole[:-1])
        plan = planned(write_study(folder, SHARES))
        assert [(piece.name, piece.first, piece.until) for piece in plan.pieces] == [(CLM, 5, 8)]
        task = f'[[task]]\nname = "S"\nkind = "sc"\ntext_columns = ["text"]\ntrain = "{folder}/corpus"\n'
        task += "".join(f'{split} = "{folder}/corpus"\n' for split in ("validation", "test"))
        study = load_study(write_study(folder, SHARES, head=task))
        grid = grid_of(study, plan.tree)
        assert [entry.path for entry in grid.model if entry.name == CLM] == [str(last)]
    finally:
        weights.write_bytes(whole)
        write_study(folder, SHARES)


def test_what_changes_no_weight_reaches_a_run_that_has_begun(trained):
    folder, _ = trained
    base = folder / "run.toml"
    text = base.read_text()
    try:
        base.write_text(text.replace('precision = "fp32"\n', ""))
        plan = planned(write_study(folder, SHARES, head="[set.log]\nevery = 7\n[set.checkpoint]\nevery = 2"))
        settings = plan.run_file(THREE)
        assert (settings.log.every, settings.checkpoint.every, settings.checkpoint.keep_at) == (7, 2, (8,))
        # What its start has chosen, and where it began.
        assert (settings.precision, settings.fork.step) == ("fp32", 3)
    finally:
        base.write_text(text)
        write_study(folder, SHARES)


def test_a_run_file_that_was_removed_is_written_again(trained):
    folder, _ = trained
    path = folder / "study" / "runs" / THREE / "run.toml"
    before = load_run(str(path))
    path.unlink()
    assert run_study(str(folder / "shares.toml")) == 0
    assert load_run(str(path)) == before


def test_a_dry_run_says_what_is_left_and_where_bits_will_differ(trained, capsys):
    folder, _ = trained
    source = write_study(folder, [*SHARES, "clm 5 + mlm 5"], head="[machine]\ngpus = 2")
    try:
        show_plan(source)
    finally:
        write_study(folder, SHARES)
    printed = " ".join(capsys.readouterr().out.split())
    assert "trained: 5 of 6 models; left: 5 steps in 1 piece run-clm-5-mlm40-10: " in printed
    assert "step-00000005 is of 1 rank, and machine.gpus and nodes make 2 ranks of it: not the same bits" in printed


def test_a_run_on_disk_is_the_one_of_the_file(trained):
    folder, _ = trained
    try:
        with pytest.raises(SettingsError) as caught:
            planned(write_study(folder, SHARES, head="[set.train]\nweight_decay = 0.3"))
        for name in (CLM, THREE, FIVE, MLM, SHORT):
            assert f"{name}: the run in " in str(caught.value)
        assert str(caught.value).count("train.weight_decay: was 0.1, now 0.3") == 5
    finally:
        write_study(folder, SHARES)


def test_runs_that_were_trained_before_are_begun_from(trained, tmp_path):
    folder, _ = trained
    source = write_study(folder, ["clm 6 + mlm 4"])
    path = Path(source)
    # What the start of the other run has chosen is not in the file.
    lines = (folder / "run.toml").read_text().splitlines(keepends=True)
    chosen = [line for line in lines if line.startswith(("vocab_size", "precision"))]
    assert len(chosen) == 2
    (tmp_path / "run.toml").write_text("".join(line for line in lines if line not in chosen))
    path.write_text(
        path.read_text()
        .replace(f'dir = "{folder}/study"', f'dir = "{tmp_path}/other"\nadopt = ["{folder}/study/runs/{CLM}"]')
        .replace(f'base = "{folder}/', f'base = "{tmp_path}/')
    )
    plan = planned(source)
    assert [(piece.first, piece.until) for piece in plan.pieces] == [(5, 10)]
    assert plan.run_file("run-clm-6-mlm40-10").fork.step == 5
    write_study(folder, SHARES)


def test_a_model_that_was_trained_before_is_taken_over(trained, tmp_path):
    folder, _ = trained
    adopt = f'adopt = ["{folder}/study/runs/{CLM}"]'
    path = Path(write_study(folder, ["clm 8"], study=adopt))
    path.write_text(path.read_text().replace(f'dir = "{folder}/study"', f'dir = "{tmp_path}/other"'))
    assert planned(str(path)).pieces == ()
    assert run_study(str(path)) == 0
    run = tmp_path / "other" / "runs" / CLM
    before = folder / "study" / "runs" / CLM
    assert files(run) == files(before)
    assert read_metrics(run) == read_metrics(before) != []
    assert load_run(str(run / "run.toml")).fork is None
    assert planned(str(path)).done(CLM) == 8
    write_study(folder, SHARES)


def test_a_fork_that_was_trained_before_is_taken_over_with_the_lines_before_it(trained, tmp_path):
    folder, _ = trained
    before = folder / "study" / "runs" / THREE
    path = Path(write_study(folder, ["clm 3 + mlm 5"], study=f'adopt = ["{before}"]'))
    path.write_text(path.read_text().replace(f'dir = "{folder}/study"', f'dir = "{tmp_path}/other"'))
    try:
        assert run_study(str(path)) == 0
    finally:
        write_study(folder, SHARES)
    run = RunFolder(tmp_path / "other" / "runs" / THREE)
    assert read_metrics(run.path) == read_metrics(before)
    lines, is_whole = history(run, snapshot(load_run(str(run.settings_file))))
    assert ([line["step"] for line in lines if "loss" in line], is_whole) == ([*range(1, 9)], True)


def test_the_beginning_of_a_longer_run_is_taken_over_and_stays(trained, tmp_path):
    """Its rate does not decay, so the longer run has made its five steps; its checkpoint names that run's settings."""
    folder, _ = trained
    path = Path(write_study(folder, ["clm 5"], study=f'adopt = ["{folder}/study/runs/{CLM}"]'))
    text = path.read_text().replace(f'dir = "{folder}/study"', f'dir = "{tmp_path}/other"')
    path.write_text(text.replace("decay_steps = 2", "decay_steps = 0"))
    for _ in range(2):
        assert run_study(str(path)) == 0
        assert planned(str(path)).pieces == ()
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"schedule\.0\.steps: was 8, now 5"):
        planned(str(path))
    write_study(folder, SHARES)


def test_a_corpus_at_another_place_is_the_same(trained):
    folder, _ = trained
    (folder / "corpus").rename(folder / "moved")
    try:
        assert planned(write_study(folder, SHARES, head=f'[set.data]\ntrain = "{folder}/moved"')).pieces == ()
    finally:
        (folder / "moved").rename(folder / "corpus")
        write_study(folder, SHARES)


def test_another_corpus_at_the_same_place_makes_another_run(trained, tmp_path):
    """One that is finished too, and one that is to be adopted."""
    folder, _ = trained
    (folder / "corpus").rename(tmp_path / "corpus")
    shutil.copytree(folder / "validation", folder / "corpus")
    try:
        with pytest.raises(SettingsError, match=rf"{CLM}: data\.train names another corpus"):
            planned(write_study(folder, SHARES))
        path = Path(write_study(folder, ["clm 8"], study=f'adopt = ["{folder}/study/runs/{CLM}"]'))
        path.write_text(path.read_text().replace(f'dir = "{folder}/study"', f'dir = "{tmp_path}/other"'))
        assert [(piece.first, piece.until) for piece in planned(str(path)).pieces] == [(0, 8)]
    finally:
        shutil.rmtree(folder / "corpus")
        (tmp_path / "corpus").rename(folder / "corpus")
        write_study(folder, SHARES)


def test_other_first_weights_at_the_same_place_make_another_run(trained, tmp_path):
    """Moved elsewhere they make the same one."""
    folder, _ = trained
    trunk, weights = RunFolder(f"{folder}/study/runs/{CLM}"), tmp_path / "weights"
    shutil.copytree(trunk.checkpoint(8), weights)

    def study(name: str, first: Path, adopt: str = "") -> str:
        path = Path(write_study(folder, ["mlm 4"], head=f'[set.init]\nfrom = "{first}"', study=adopt))
        path.write_text(path.read_text().replace(f'dir = "{folder}/study"', f'dir = "{tmp_path}/{name}"'))
        return str(path)

    try:
        assert run_study(study("one", weights)) == 0
        assert planned(study("one", weights)).pieces == ()
        (made,) = (tmp_path / "one" / "runs").iterdir()
        adopt = f'adopt = ["{made}"]'
        weights.rename(tmp_path / "moved")
        assert planned(study("one", tmp_path / "moved")).pieces == ()
        assert planned(study("two", tmp_path / "moved", adopt)).pieces == ()
        shutil.copytree(trunk.checkpoint(5), weights)
        with pytest.raises(SettingsError, match=r"init\.from names other weights"):
            planned(study("one", weights))
        assert [(piece.first, piece.until) for piece in planned(study("two", weights, adopt)).pieces] == [(0, 4)]
    finally:
        write_study(folder, SHARES)


def test_a_run_that_a_model_is_from_is_not_trained_again(trained, tmp_path):
    folder, _ = trained
    source = write_study(folder, ["mlm 4"])
    path = Path(source)
    text = path.read_text().replace(f'dir = "{folder}/study"', f'dir = "{tmp_path}/other"')
    path.write_text(f'{text}from = "{folder}/study/runs/{THREE}"\nrewarm = {{ optimizer = "reset" }}')
    plan = planned(source)
    assert [(piece.first, piece.until, piece.needs) for piece in plan.pieces] == [(8, 12, None)]
    assert plan.run_file(plan.pieces[0].name).fork.source == str(
        RunFolder(f"{folder}/study/runs/{THREE}").checkpoint(8)
    )
    write_study(folder, SHARES)


def test_checkpoints_that_nobody_needs_are_removed_when_asked(trained, capsys):
    folder, _ = trained
    source = write_study(folder, SHARES)
    assert [(path.parents[1].name, path.name) for path in planned(source).needless()] == [
        (CLM, "step-00000005"), (CLM, "step-00000003"), (MLM, "step-00000004"),
    ]  # fmt: skip
    # What a model that is not trained yet begins from is needed.
    plan = planned(write_study(folder, [*SHARES, "clm 5 + mlm 2"]))
    assert [path.name for path in plan.needless()] == ["step-00000003", "step-00000004"]
    write_study(folder, SHARES)
    # A run whose newest checkpoint is damaged goes on from one before it.
    weights = max((folder / "study" / "runs" / CLM / "checkpoints" / "step-00000008").iterdir(), key=os.path.getsize)
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert [path.parents[1].name for path in planned(source).needless()] == [MLM]
    weights.write_bytes(whole)
    tidy_study(source)
    assert capsys.readouterr().out.count("removed ") == 3
    assert planned(source).needless() == []
    assert planned(source).pieces == ()


def test_short_jobs_are_joined(tmp_path):
    write_run(tmp_path, phase_steps=4)
    plan = planned(write_study(tmp_path, SHARES))
    assert [str(piece.key) for piece in joined(plan.pieces, shortest=0, queued={})] == [
        str(piece.key) for piece in plan.pieces
    ]
    found = {(piece.name, piece.until): piece for piece in joined(plan.pieces, shortest=4, queued={})}
    # The cut at step 3 is left out, so what forks there waits for the one behind it, and still forks there.
    assert set(found) == {(CLM, 5), (CLM, 8), (MLM, 4), (MLM, 8), (THREE, 8), (FIVE, 8), (SHORT, 6)}
    assert found[THREE, 8].needs == (CLM, 5)
    assert found[THREE, 8] == replace(next(p for p in plan.pieces if p.name == THREE), needs=(CLM, 5))
    assert plan.run_file(THREE).fork.step == 3
    assert plan.run_file(CLM).checkpoint.keep_at == (3, 5, 8)


def test_a_queued_job_stays_a_piece_however_much_of_it_is_done(tmp_path):
    write_run(tmp_path, phase_steps=4)
    pieces = planned(write_study(tmp_path, SHARES)).pieces
    # Step 3 is made: from there on the cut at 5 would be too short.
    rest = [replace(pieces[1], needs=None), *pieces[2:]]
    assert (CLM, 5) not in {piece.key for piece in joined(rest, shortest=4, queued={})}
    assert joined(rest, shortest=4, queued={CLM: [5]})[0].key == (CLM, 5)


def test_a_cut_in_front_of_a_queued_job_is_part_of_it(tmp_path):
    write_run(tmp_path, phase_steps=4)
    pieces = planned(write_study(tmp_path, SHARES)).pieces
    found = {piece.key: piece for piece in joined(pieces, shortest=0, queued={CLM: [8], MLM: [4]})}
    assert set(found) == {(CLM, 8), (MLM, 4), (MLM, 8), (THREE, 8), (FIVE, 8), (SHORT, 6)}
    assert found[CLM, 8].first == 0
    assert found[THREE, 8].needs == found[FIVE, 8].needs == (CLM, 8)
    assert found[MLM, 8].needs == found[SHORT, 6].needs == (MLM, 4)
    # A job whose end is no cut any more.
    found = {piece.key: piece for piece in joined(pieces, shortest=0, queued={CLM: [4]})}
    assert found[CLM, 5].needs == found[THREE, 8].needs == (CLM, 4)
