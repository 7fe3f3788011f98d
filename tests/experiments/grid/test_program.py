"""Grids of tiny encoders; cells run in this process unless a test is about workers."""

import json
import shutil
import threading

import pytest
from transformers import Trainer

from tests.support.checkpoints import write_tiny_run
from tests.support.grids import FAMILIES, run_cells_here, write_grid
from toolkit.experiments.finetune import finetune
from toolkit.experiments.grid import inputs
from toolkit.experiments.grid import program as grids
from toolkit.experiments.grid.declaration import load_grid
from toolkit.experiments.grid.plan import GridPlan
from toolkit.finetuning import Initialization, get_task
from toolkit.work.claims import Claims
from toolkit.work.start import ExecutorKind

END = {"sc": "jsonl", "tc": "conll", "qa": "json"}


@pytest.fixture
def ran(monkeypatch):
    """Numbers of cells that the grids of a test had to run; cells run in this process."""
    return run_cells_here(monkeypatch)


def run(path, **options):
    return grids.run_grid(load_grid(path), **options)


def outputs(folder):
    """Content by name of what a grid has written, but for what is not to be the same."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files if path.name != "grid.toml"}


def alone(folder, kind, output, *, model="eurobert", rate, seed, steps=2, initialization="pretrained"):
    data = folder / "data"
    names = {"train": "train", "validation": "dev", "test": "test"}
    files = {split: data / (f"{name}.{END[kind]}" if kind in END else "words") for split, name in names.items()}
    settings = get_task(kind).Settings(learning_rate=rate, seed=seed, steps=steps, batch_rows=4, threads=1)
    start = Initialization(initialization)
    finetune(kind, folder / model, output=output, settings=settings, initialization=start, **files)
    return {name: (output / name).read_bytes() for name in ("result.json", "predictions.jsonl")}


def test_a_cell_is_what_finetune_gives_alone_whatever_ran_before(tmp_path, ran):
    one = write_grid(tmp_path, seeds=(1,))
    assert run(one) == 0
    two = write_grid(tmp_path, seeds=(1,), output="two", kinds=FAMILIES[::-1], rates=(1e-2, 1e-3))
    assert run(two, num_workers=3) == 0
    assert ran == [8, 8]
    assert outputs(tmp_path / "out") == outputs(tmp_path / "two")
    for kind in FAMILIES:
        cell = tmp_path / "out" / "cells" / "eurobert" / kind / "lr-0.01" / "seed-1"
        found = {path.name: path.read_bytes() for path in cell.iterdir()}
        assert set(found) == {"declared.json", "predictions.jsonl", "result.json"}
        del found["declared.json"]
        assert found == alone(tmp_path, kind, tmp_path / "alone" / kind, rate=1e-2, seed=1)


def test_results_are_those_of_the_cells(tmp_path, ran):
    run(write_grid(tmp_path, kinds=("sc",)))
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [(row["seed"], row["learning_rate"]) for row in rows] == [(0, 1e-3), (0, 1e-2), (1, 1e-3), (1, 1e-2)]
    for row in rows:
        cell = tmp_path / "out" / "cells" / f"eurobert/sc/lr-{row['learning_rate']}/seed-{row['seed']}"
        result = json.loads((cell / "result.json").read_text())
        assert (row["metric"], row["validation"], row["test"]) == ("accuracy", result["validation"], result["test"])
    entry = json.loads((tmp_path / "out" / "selected.json").read_text())["eurobert"]["sc"]
    means = {
        rate: sum(row["validation"]["accuracy"] for row in rows if row["learning_rate"] == rate) / 2
        for rate in (1e-3, 1e-2)
    }
    assert entry["learning_rate"] == max(means, key=lambda rate: (means[rate], -rate))
    assert entry["seeds"] == [0, 1]


def test_what_is_added_later_runs_alone(tmp_path, ran):
    kinds = {"kinds": ("tc",), "rates": (1e-3,)}
    run(write_grid(tmp_path, seeds=(0,), **kinds))
    before = outputs(tmp_path / "out")
    run(write_grid(tmp_path, seeds=(0,), **kinds))
    assert outputs(tmp_path / "out") == before
    run(write_grid(tmp_path, seeds=(0, 1), models=("eurobert", "bert"), **kinds))
    after = outputs(tmp_path / "out")
    assert ran == [1, 3]
    assert {name: after[name] for name in before if name.startswith("cells/")} == {
        name: content for name, content in before.items() if name.startswith("cells/")
    }
    assert after["results.jsonl"].count(b"\n") == 4
    # Removed again: what it has is not deleted, and not in the results.
    run(write_grid(tmp_path, seeds=(0,), **kinds))
    assert outputs(tmp_path / "out")["results.jsonl"] == before["results.jsonl"]
    assert len(ran) == 2


def change_steps(folder):
    write_grid(folder, kinds=("sc",), rates=(1e-3,), seeds=(0,), steps=3)


def change_data(folder):
    path = folder / "data" / "dev.jsonl"
    path.write_text(path.read_text().replace('"label": 1', '"label": 0', 1))


def change_model(folder):
    path = folder / "eurobert" / "config.json"
    path.write_text(path.read_text().replace('"rms_norm_eps": 1e-05', '"rms_norm_eps": 1e-06'))


def move_data(folder):
    shutil.copytree(folder / "data", folder / "moved")
    path = folder / "out.toml"
    path.write_text(path.read_text().replace(f"{folder}/data", f"{folder}/moved"))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (change_steps, "settings.steps was 2 and is 3 (1 cell: eurobert/sc/lr-0.001/seed-0)"),
        (change_data, "data.validation.dev.jsonl has another content"),
        (change_model, "model.config.json has another content"),
    ],
)
def test_a_finished_cell_that_was_declared_otherwise_is_refused(tmp_path, toolkit, ran, change, found):
    path = write_grid(tmp_path, kinds=("sc",), rates=(1e-3,), seeds=(0,))
    run(path)
    before = outputs(tmp_path / "out")
    change(tmp_path)
    for words in ((path,), (path, "--dry-run")):
        code, _, err = toolkit("grid", *words)
        assert code == 2
        assert "1 finished cell in" in err
        assert found in err
        assert "set grid.dir to another folder" in err
    assert outputs(tmp_path / "out") == before
    assert ran == [1]


def test_data_may_move(tmp_path, ran):
    path = write_grid(tmp_path, kinds=("sc", "ir"), rates=(1e-3,), seeds=(0,))
    run(path)
    move_data(tmp_path)
    assert run(path) == 0
    assert ran == [2]


@pytest.mark.parametrize(("is_set", "code"), [(False, 0), (True, 2)])
def test_threads_count_only_if_the_grid_sets_them(tmp_path, toolkit, ran, is_set, code):
    """Without, a machine with other cores, or with a GPU, would refuse what is finished."""
    path = write_grid(tmp_path, kinds=("sc",), rates=(1e-3,), seeds=(0,))
    if not is_set:
        path.write_text(path.read_text().replace("threads = 1\n", ""))
    run(path)
    file = tmp_path / "out" / "cells/eurobert/sc/lr-0.001/seed-0/declared.json"
    declared = json.loads(file.read_text())
    declared["settings"]["threads"] = 64
    file.write_text(json.dumps(declared))
    assert toolkit("grid", path)[0] == code
    (file.parent / "result.json").unlink()
    (file.parent / "diverged.json").write_text('{"message": "diverged"}')
    assert toolkit("grid", path)[0] == 0
    assert ran == ([1, 1] if is_set else [1])


def test_failed_cells_stop_nothing_else_and_are_tried_again(tmp_path, toolkit, ran):
    path = write_grid(tmp_path, kinds=("sc", "tc"), rates=(1e-3,), seeds=(0,))
    training = tmp_path / "data" / "train.conll"
    whole = training.read_text()
    training.write_text("w1 PER\n")
    code, out, _ = toolkit("grid", path)
    assert code == 1
    cells = tmp_path / "out" / "cells" / "eurobert"
    assert (cells / "sc" / "lr-0.001" / "seed-0" / "result.json").exists()
    broken = (cells / "tc" / "lr-0.001" / "seed-0" / "error.txt").read_text()
    assert f"{training}" in broken
    assert broken.strip() in out
    assert "1 cell failed" in out
    assert json.loads((tmp_path / "out" / "selected.json").read_text())["eurobert"]["sc"]["learning_rate"] == 1e-3
    training.write_text(whole)
    code, out, _ = toolkit("grid", path)
    assert code == 0
    assert ran == [2, 1]
    assert not (cells / "tc" / "lr-0.001" / "seed-0" / "error.txt").exists()


def test_a_diverged_cell_is_an_outcome(tmp_path, toolkit, ran):
    path = write_grid(tmp_path, kinds=("sc",), rates=(1e-3, 1e30), seeds=(0,))
    code, out, _ = toolkit("grid", path)
    assert code == 0
    assert "lr 1e+30 seed 0 diverged: the weights have diverged" in out
    assert "eurobert sc lr 1e+30: not chosen, since it diverged: seed 0\n" in out
    cells = tmp_path / "out" / "cells" / "eurobert" / "sc"
    assert sorted(file.name for file in (cells / "lr-1e+30/seed-0").iterdir()) == ["declared.json", "diverged.json"]
    written = json.loads((cells / "lr-1e+30/seed-0/diverged.json").read_text())
    assert [*written.values()][:5] == ["eurobert", "sc", "sc", 0, 1e30]
    assert written["made_by"] == json.loads((cells / "lr-0.001/seed-0/result.json").read_text())["made_by"]
    assert json.loads((tmp_path / "out" / "selected.json").read_text())["eurobert"]["sc"]["learning_rate"] == 1e-3
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 1
    # It would diverge again.
    code, out, _ = toolkit("grid", path)
    assert (code, ran) == (0, [2])
    assert "2 cells, 2 done before" in out
    assert "not chosen, since it diverged: seed 0" in out


def test_cells_that_differ_in_their_test_data_alone_share_a_training(tmp_path, monkeypatch, ran):
    path = write_grid(tmp_path, kinds=("sc", "ir"), rates=(1e-3, 1e30), seeds=(1,))
    data = tmp_path / "data"
    shutil.copytree(data / "words", data / "others")
    path.write_text(
        path.read_text()
        + f"[[task]]\nname = 'sc-2'\nkind = 'sc'\nbatch_rows = 4\ntrain = '{data}/train.jsonl'\n"
        + f"validation = '{data}/test.jsonl'\ntest = '{data}/dev.jsonl'\n"
        + f"[[task]]\nname = 'ir-2'\nkind = 'ir'\nbatch_rows = 4\ntrain = '{data}/words'\n"
        + f"validation = '{data}/others'\ntest = '{data}/others'\n"
    )
    trained, train = [], Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self, **given: (trained.append(self), train(self, **given))[1])
    assert run(path, num_workers=2) == 0
    assert (ran, len(trained)) == ([8], 4)
    cells = tmp_path / "out" / "cells" / "eurobert"
    assert not (tmp_path / "out" / ".trainings").exists()
    assert [len(list(cells.rglob(name))) for name in ("result.json", "diverged.json")] == [4, 4]
    settings = get_task("sc").Settings(learning_rate=1e-3, seed=1, steps=2, batch_rows=4, threads=1)
    files = {"train": data / "train.jsonl", "validation": data / "test.jsonl", "test": data / "dev.jsonl"}
    finetune("sc", tmp_path / "eurobert", output=tmp_path / "alone", settings=settings, **files)
    for name in ("result.json", "predictions.jsonl"):
        assert (cells / "sc-2/lr-0.001/seed-1" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_what_else_made_finished_cells_is_said(tmp_path, toolkit, ran):
    path = write_grid(tmp_path, kinds=("sc",), rates=(1e-3,), seeds=(0,))
    run(path)
    file = tmp_path / "out" / "cells/eurobert/sc/lr-0.001/seed-0/result.json"
    result = json.loads(file.read_text())
    now = result["made_by"]["torch"]
    result["made_by"]["torch"] = "2.0.1"
    file.write_text(json.dumps(result))
    code, out, _ = toolkit("grid", path)
    assert (code, ran) == (0, [1])
    assert f"1 cell made with torch 2.0.1 (now {now}): kept as they are" in out
    row = json.loads((tmp_path / "out" / "results.jsonl").read_text())
    assert (row["made_by"]["torch"], row["majority"]) == ("2.0.1", result["majority"])


def test_the_device_of_this_machine_is_none_of_a_clusters_workers(tmp_path, capsys, ran):
    path = write_grid(tmp_path, kinds=("sc",), rates=(1e-3,))
    run(path)
    file = tmp_path / "out" / "cells/eurobert/sc/lr-0.001/seed-0/result.json"
    result = json.loads(file.read_text())
    here, result["made_by"]["device"] = result["made_by"]["device"], "NVIDIA H100"
    file.write_text(json.dumps(result))
    otherwise = f"1 cell made with device NVIDIA H100 (now {here}): kept as they are"
    for executor, is_said in ((ExecutorKind.LOCAL, True), (ExecutorKind.RAY, False)):
        capsys.readouterr()
        assert run(path, executor=executor) == 0
        printed = capsys.readouterr().out
        assert (otherwise in printed) == is_said
        assert f"made on 2 devices, for which scores may differ: NVIDIA H100 (1 cell), {here} (1 cell)" in printed


def test_a_broken_model_is_found_before_any_cell_runs(tmp_path, toolkit, ran):
    path = write_grid(tmp_path, kinds=("sc",), models=("bert", "eurobert"), rates=(1e-3,), seeds=(0,))
    weights = tmp_path / "eurobert" / "model.safetensors"
    whole = weights.read_bytes()
    for damage in (lambda: weights.write_bytes(whole[:-8]), weights.unlink):
        damage()
        for words in ((path,), (path, "--dry-run")):
            code, _, err = toolkit("grid", *words)
            assert code == 2
            assert f"could not load {tmp_path / 'eurobert'}" in err
    assert ran == []


def test_a_run_is_exported_once_and_named_as_declared(tmp_path, monkeypatch, ran):
    write_tiny_run(tmp_path)
    path = write_grid(tmp_path, kinds=("sc",), rates=(1e-3,))
    path.write_text(path.read_text().replace(str(tmp_path / "eurobert"), str(tmp_path / "run")))
    exported = []
    export = inputs.export_encoder
    monkeypatch.setattr(inputs, "export_encoder", lambda *given: (exported.append(given), export(*given)))
    assert run(path, num_workers=2) == 0
    assert len(exported) == 1
    assert not (tmp_path / "out" / ".encoders").exists()
    cell = tmp_path / "out" / "cells" / "eurobert" / "sc" / "lr-0.001" / "seed-1"
    expected = alone(tmp_path, "sc", tmp_path / "alone", model="run", rate=1e-3, seed=1)
    assert {name: (cell / name).read_bytes() for name in expected} == expected
    assert json.loads(expected["result.json"])["model"] == str(tmp_path / "run")


def test_a_twin_has_weights_of_each_seed_in_the_first_models_shape(tmp_path, toolkit, ran):
    """Each cell is what `toolkit finetune` gives from random weights; another model under its name is refused."""
    path = write_grid(tmp_path, kinds=("sc",), rates=(1e-3,))
    whole, twin = path.read_text(), "[[model]]\nname = 'twin'\npath = 'random'\n"
    path.write_text(whole.replace("[[model]]", f"{twin}[[model]]"))
    assert run(path) == 0
    assert ran == [4]
    for seed in (0, 1):
        cell, output = tmp_path / "out" / "cells" / "twin" / "sc" / "lr-0.001" / f"seed-{seed}", tmp_path / "alone"
        expected = json.loads(
            alone(tmp_path, "sc", output, rate=1e-3, seed=seed, initialization="random")["result.json"]
        )
        assert json.loads((cell / "result.json").read_text()) == {**expected, "model": "random"}
        assert (cell / "predictions.jsonl").read_bytes() == (output / "predictions.jsonl").read_bytes()
    path.write_text(whole.replace("[[model]]", twin.replace("random", str(tmp_path / "eurobert")) + "[[model]]"))
    code, _, err = toolkit("grid", path)
    assert (code, "model.weights is gone (2 cells" in err) == (2, True)


def test_models_are_kept_where_that_is_asked(tmp_path, toolkit, ran):
    given = {"kinds": ("sc",), "seeds": (0,)}
    for keep, kept in (("true", {"lr-0.001", "lr-0.01"}), ("'chosen'", {"chosen"})):
        toolkit("grid", write_grid(tmp_path, **given, options=f"keep_models = {keep}"))
        cells = tmp_path / "out" / "cells" / "eurobert" / "sc"
        chosen = json.loads((tmp_path / "out" / "selected.json").read_text())["eurobert"]["sc"]["learning_rate"]
        found = {path.parent.parent.parent.name for path in cells.glob("*/*/model/model.safetensors")}
        assert found == {name.replace("chosen", f"lr-{chosen!r}") for name in kept}
    shutil.rmtree(cells / f"lr-{chosen!r}" / "seed-0" / "model")
    _, out, _ = toolkit("grid", write_grid(tmp_path, **given, options="keep_models = 'chosen'"))
    missing = f"1 cell finished without keeping its model: eurobert/sc/lr-{chosen!r}/seed-0. Remove"
    assert f"keep_models = 'chosen', but {missing}" in out
    assert ran == [2]


def test_a_dry_run_shows_cells_and_writes_nothing(tmp_path, toolkit, capsys, ran):
    run(write_grid(tmp_path, kinds=("sc",), rates=(1e-3,), seeds=(1,)))
    capsys.readouterr()
    path = write_grid(tmp_path, kinds=("sc", "tc"), seeds=(0, 1))
    before = outputs(tmp_path / "out")
    code, out, err = toolkit("grid", path, "--dry-run")
    assert code == 0, err
    assert "eurobert sc (sc) lr 0.001 seeds 0, 1: 1 of 2 done, runs 0\n" in out
    assert "eurobert tc (tc) lr 0.01 seeds 0, 1: 0 of 2 done, runs 0, 1\n" in out
    assert "8 cells (1 model, 2 tasks), 1 done, 7 would run" in out
    assert outputs(tmp_path / "out") == before
    assert ran == [1]


def test_a_cell_that_a_process_of_an_earlier_command_is_at_is_left_to_it(tmp_path, ran):
    path = write_grid(tmp_path, kinds=("sc",), rates=(1e-3,), seeds=(0,))
    plan = GridPlan(load_grid(path))
    claims = Claims(plan.job(plan.cells))
    claims.claim()
    waiting = threading.Thread(target=lambda: run(path))
    waiting.start()
    waiting.join(5)
    cell = tmp_path / "out" / "cells" / "eurobert" / "sc" / "lr-0.001" / "seed-0"
    assert waiting.is_alive()
    assert not cell.exists()
    claims.release()
    waiting.join(60)
    assert (cell / "result.json").exists()
    assert not (tmp_path / "out" / ".work").exists()
