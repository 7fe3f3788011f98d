"""What the documentation says is so: snippets load and run, commands and links exist, tables equal the classes."""

import importlib
import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import typer
from typer.main import get_command

from tests.docs.memory_table import PAGE, with_table
from tests.docs.pages import PAGES, ROOT, Page, Snippet
from tests.docs.settings_tables import TABLES, filled, keys
from tests.support.checkpoints import model_states, write_checkpoint
from tests.support.forked import run_python
from tests.support.packages import lay_down_entry_points
from tests.support.retrieval import word_collection
from tests.support.text import sample_documents, tiny_tokenizer
from toolkit.conversion import to_hf
from toolkit.data import CorpusManifest
from toolkit.engine.ds_config import read_ds_config, resolve_ds_config
from toolkit.experiments.finetune import finetune
from toolkit.experiments.grid.cells import grid_cells, grid_counts
from toolkit.experiments.grid.declaration import ReportSettings, load_grid
from toolkit.experiments.study.declaration import load_study
from toolkit.experiments.study.models import models_of
from toolkit.experiments.study.program import grid_of
from toolkit.experiments.study.tree import Tree
from toolkit.finetuning import FinetuningResult, get_task
from toolkit.model import model_settings
from toolkit.model.encoder import Encoder
from toolkit.model.initialization import initialize_
from toolkit.parallel.topology import batch_plan
from toolkit.preprocess.program import preprocess
from toolkit.preprocess.readers import Reason
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.run import load_run
from toolkit.run.settings import RunSettings
from toolkit.testing.models import MODEL_OPTIONS

_COMMANDS = importlib.import_module("toolkit.cli.main")._COMMANDS
# Options of the launcher, of the batch system and of scripts, which the text names beside our own.
_OTHERS_OPTIONS = {
    "--split-sentences", "--num_gpus", "--local-rank", "--master_port", "--rdzv_backend", "--standalone",
    "--master_addr", "--hostfile", "--node_rank", "--launcher", "--requeue", "--partition=gpu", "--signal",
    "--ds_config", "--config", "--doctor", "--check", "--editable", "--call", "--started", "--jobs", "--minutes",
    "--out", "--build-arg", "--isolation", "--toy", "--nanobeir",
    "--use-pep517",
}  # fmt: skip
_FAMILIES: dict[str, dict[str, Any]] = {"eurobert": {}, "modernbert": MODEL_OPTIONS["modernbert"]}
_LABELLED = "text\tlabel\nThe old miller counts.\tyes\nA young fox paints.\tno\nNobody in the village counts.\tyes\n"
_ANSWERED = {"id": "1", "question": "Who counts?", "answers": [{"text": "The old miller", "answer_start": 0}]}
_QUESTIONS = {"data": [{"paragraphs": [{"context": "The old miller counts.", "qas": [_ANSWERED]}]}]}
_TAGGED = "Nobody O\nin O\nNew B-LOC\nYorkshire I-LOC\ncounts O\n. O\n"
_PATH = re.compile(r"(?:toolkit|tokenization|tests|ds_configs|launchers|benchmarks)/[\w./-]*")

by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


WHOLE = {
    "model": {"preset": "test"},
    "data": {"train": "data/corpus"},
    "schedule": [{"objective": "clm", "steps": 1}],
}
"""A run file."""


def _page(name: str) -> Page:
    return next(page for page in PAGES if page.name == name)


def _all(language: str) -> list[Snippet]:
    return [snippet for page in PAGES for snippet in page.snippets(language)]


@pytest.mark.parametrize("snippet", _all("toml"), ids=lambda snippet: snippet.name)
def test_run_files_load(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run file as it stands; a fragment together with the groups that it lacks."""
    raw = tomllib.loads(snippet.text)
    # Those of docs/new-data.md are trained by a test of their own.
    if "pyproject" in snippet.marks or "continued" in snippet.marks:
        return
    if "grid" in snippet.marks:
        path = tmp_path / "grid.toml"
        path.write_text(snippet.text)
        assert len(grid_cells(load_grid(path))) == {"docs/grids.md": 9, "docs/minimal-pairs.md": 1}[snippet.page]
        return
    if "report" in snippet.marks:
        assert ReportSettings.model_validate(raw["report"]).order[0] == "random"
        return
    if "study" in snippet.marks:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "shares.toml").write_text(snippet.text)
        (tmp_path / "pretrain.toml").write_text(tomli_w.dumps(WHOLE | {"lr": {"peak": 1e-3}}))
        tree = Tree(models_of(load_study("shares.toml")))
        assert (len(tree.leaves), tree.alone, tree.shared) == (15, 30_000, 21_000)
        return
    if "plugin" in snippet.marks:
        _lay_down_plugin(_page(snippet.page), tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
    if "fragment" in snippet.marks:
        raw = WHOLE | raw
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(raw))
    settings = load_run(str(path))
    scheduled = ["+".join(entry["objective"] for entry in phase.get("mix", [phase])) for phase in raw["schedule"]]
    scheduler = raw.get("scheduler", {})
    times = scheduler.get("cycles", scheduler.get("rounds", 1))
    assert [phase.name for phase in settings.schedule] == scheduled * times


def test_the_study_in_miniature_has_the_models_and_the_data_that_its_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "docs/examples/clm-share"
    monkeypatch.chdir(folder)
    study = load_study("study.toml")
    tree = Tree(models_of(study))
    assert (len(tree.leaves), tree.alone, tree.shared) == (15, 11_250, 7_875)
    # Where the switch is; 0.25 of 750 steps is rounded up, 0.75 down.
    switches = {leaf.model.run.plan.schedule.phases[0].stop for leaf in tree.leaves.values()}
    assert switches == {188, 375, 562, 750}
    page = (folder / "README.md").read_text()
    assert all(figure in page for figure in ("15 models", "7,875", "11,250", "`clm-0.25-seed-0`"))
    assert "clm-0.25-seed-0" in tree.leaves
    grid, script = grid_of(study, tree), (folder / "run.sh").read_text()
    assert grid is not None
    assert (len(grid.model), len(grid.task)) == (15, 4)
    for name in {file.parts[1] for task in grid.task for file in task.files.values()}:
        assert re.search(rf"\b{name}\b", script), name
    settings = load_run("pretrain.toml")
    assert settings.train.steps == settings.checkpoint.every == 750


def test_the_studies_of_the_results_are_declared_as_their_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "docs/examples/studies"
    monkeypatch.chdir(folder)
    page = _page("docs/results.md").text
    for path in folder.glob("*.toml"):
        if path.stem == "finetuning-rate":
            assert grid_counts(load_grid(path)) == {"models": 6, "tasks": 1, "cells": 30, "trainings": 30}
        elif path.stem not in ("nano", "small"):
            base = "small.toml" if path.stem in ("question", "trunk") else "nano.toml"
            assert load_study(path.name).study.base == base
        assert path.stem in ("nano", "small") or f"`{path.name}`" in page
    study = load_study("steps.toml")
    tree = Tree(models_of(study))
    assert (len(tree.leaves), tree.shared) == (6, 3_600)
    assert (grid := grid_of(study, tree)) is not None
    assert grid_counts(grid) == {"models": 30, "tasks": 2, "cells": 60, "trainings": 60}
    study = load_study("embedding.toml")
    assert (grid := grid_of(study, Tree(models_of(study)))) is not None
    assert grid_counts(grid) == {"models": 15, "tasks": 4, "cells": 60, "trainings": 15}
    for name, alone, shared in (("shares", 45_000, 28_620), ("question", 38_400, 34_560)):
        tree = Tree(models_of(load_study(f"{name}.toml")))
        assert (len(tree.leaves), tree.alone, tree.shared) == (30, alone, shared)
        assert f"30 models, {shared:,} steps instead of {alone:,}" in page


def test_the_context_extension_is_declared_as_its_script_runs_it() -> None:
    folder = ROOT / "docs/examples/context-extension"
    short, tail = load_run(str(folder / "short.toml")), tomllib.loads((folder / "long.toml").read_text())
    assert re.findall(r"--step (\d+)", (folder / "run.sh").read_text()) == [str(short.checkpoint.every)] * 2
    longest = tail["data"]["sequence_length"]
    assert tail["model"]["max_position_embeddings"] == longest == 4 * short.data.sequence_length
    # As many positions in a step.
    assert tail["train"]["global_batch_rows"] * 4 == short.train.global_batch_rows


def test_the_modernbert_in_miniature_is_declared_as_its_page_says() -> None:
    folder = ROOT / "docs/examples/modernbert"
    base, more = load_run(str(folder / "base.toml")), tomllib.loads((folder / "continued.toml").read_text())
    assert (base.model.family, base.schedule[0].steps, more["schedule"][0]["steps"]) == ("modernbert", 1500, 330)
    assert more["init"]["from"].endswith(f"step-{base.schedule[0].steps:08d}")
    lengths = re.findall(r"steps=(\d+)", (folder / "run.sh").read_text())
    assert lengths == ["330", "165", "165", "300", "30"]


def test_the_continued_decoder_is_declared_as_its_page_says() -> None:
    folder = ROOT / "docs/examples/smollm2"
    base, study, grid = (tomllib.loads((folder / f"{name}.toml").read_text()) for name in ("pretrain", "study", "grid"))
    starts, script = study["models"][0]["axes"]["start"], (folder / "run.sh").read_text()
    total = base["schedule"][0]["steps"]
    assert ([*starts], total) == (["decoder", "random"], 2 * base["lr"]["decay_steps"])
    assert max(study["study"]["keep"]) + base["lr"]["decay_steps"] <= total
    assert all(f"{step}" in script for step in (study["study"]["keep"][0], total))
    trained = {f"study/runs/{start}-seed-0" for start in starts}
    assert trained < {model["path"] for model in grid["model"]}


def test_the_readme_shows_a_preset_of_the_size_it_says() -> None:
    sizes = model_settings("nano", vocab_size=8192)
    assert sum(parameter.numel() for parameter in Encoder(sizes).parameters()) // 10**5 == 31


def test_json_examples_are_what_they_show() -> None:
    examples = {
        page: [json.loads(snippet.text) for snippet in _all("json") if snippet.page == f"docs/{page}.md"]
        for page in ("data", "configuration", "finetuning", "near-duplicates")
    }
    assert sum(map(len, examples.values())) == len(_all("json"))
    (corpus,), (ds_config, metrics), (result,), dropped = examples.values()
    assert CorpusManifest.model_validate_json(json.dumps(corpus)).documents == 2
    assert [line["reason"] for line in dropped] == [Reason.NEAR_DUPLICATE, Reason.TEST_TEXT]
    FinetuningResult.model_validate(result)
    table = _page("docs/configuration.md").text.partition("### metrics.jsonl")[2].partition("###")[0]
    # The example is of a step of one objective.
    assert set(metrics) | {"losses"} == set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    path = ROOT / "ds_configs" / "zero1.json"
    assert ds_config.keys() == read_ds_config(str(path)).keys()
    batch = batch_plan(8, 4, data_parallel=1)
    resolved = resolve_ds_config(
        ds_config, batch=batch, grad_clip=1.0, precision="bf16", source="docs", largest_parameter=8
    )
    assert "auto" not in str(resolved)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the first family, for all pages."""
    return _lay_down_workplace(tmp_path_factory.mktemp("workplace"), "eurobert")


def _lay_down_workplace(folder: Path, family: str) -> Path:
    """A folder with all that the Python snippets name: a corpus, a run of a family, its encoder, labelled files."""
    text, tokenizer = folder / "text.jsonl", tiny_tokenizer(folder / "tokenizer")
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in sample_documents(200)))
    preprocess([str(text)], folder / "data/corpus", settings=PreprocessSettings(tokenizer=str(tokenizer)))
    settings = model_settings("test", vocab_size=384, **_FAMILIES[family])
    encoder = Encoder(settings)
    initialize_(encoder, seed=0)
    states = model_states(encoder)
    write_checkpoint(folder / "runs/first/checkpoints", 20, states=states, tokenizer_folder=tokenizer, model=settings)
    to_hf(folder / "runs/first", folder / "hf-encoder", form="bidirectional", dtype="fp32")
    to_hf(folder / "runs/first", folder / "my-embedder", sentence_transformers=True)
    for name in ("train.tsv", "test.tsv"):
        (folder / name).write_text(_LABELLED)
    collection = word_collection(folder / "scifact", num_documents=12, num_queries=9)
    few = get_task("ir").Settings(steps=1, batch_rows=2)
    finetune(
        "ir", folder / "hf-encoder", train=collection, test=collection, output=folder / "runs/scifact", settings=few
    )
    for name in ("train.json", "test.json"):
        (folder / name).write_text(json.dumps(_QUESTIONS))
    (folder / "train.conll").write_text(_TAGGED)
    one_step = get_task("tc").Settings(steps=1)
    tagged = {"train": folder / "train.conll", "test": folder / "train.conll"}
    finetune("tc", folder / "hf-encoder", **tagged, output=folder / "runs/ner", settings=one_step)
    return folder


def _run(code: list[str], folder: Path) -> None:
    ended = run_python(code, folder=folder)
    assert ended.code == 0, ended.output


def _run_snippets(pages: list[Page], workplace: Path) -> None:
    """Those of each page one after another, all in one process of their own."""
    names = []
    for page in pages:
        prefix = re.sub(r"\W", "_", f"snippet {page.name}")
        for number, snippet in enumerate(page.snippets("python")):
            marked = next((mark.removeprefix("file=") for mark in snippet.marks if mark.startswith("file=")), None)
            name = f"{prefix}_{number}"
            names += [] if marked else [name]
            (workplace / (marked or f"{name}.py")).write_text(snippet.text)
    _run(["-c", "\n".join(f"import {name}" for name in names) or "pass"], workplace)


@pytest.mark.parametrize("page", [page for page in PAGES if page.snippets("python")], ids=lambda page: page.name)
def test_python_snippets_run(page: Page, workplace: Path) -> None:
    _run_snippets([page], workplace)


@pytest.mark.costs(10)
def test_python_snippets_run_with_a_model_of_another_family(tmp_path: Path) -> None:
    """Those that name a model; a page without other pages' imports is tested above."""
    pages = [page for page in PAGES if any(re.search("hf-|my-|runs/", one.text) for one in page.snippets("python"))]
    assert len(pages) > 5
    _run_snippets(pages, _lay_down_workplace(tmp_path, "modernbert"))


def _lay_down_plugin(page: Page, folder: Path) -> dict[str, dict[str, str]]:
    """The package of a page, as an installer lays it down, with its tests; returns its entry points."""
    for snippet in page.snippets("python"):
        for mark in snippet.marks:
            (folder / mark.removeprefix("file=")).write_text(snippet.text)
    (project,) = (tomllib.loads(toml.text)["project"] for toml in page.snippets("toml") if "pyproject" in toml.marks)
    points: dict[str, dict[str, str]] = project["entry-points"]
    lay_down_entry_points(folder, project["name"], points)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return points


def test_the_scheduler_keeps_the_contract_and_makes_the_phases_that_the_page_says(tmp_path: Path) -> None:
    page = _page("docs/schedulers.md")
    _lay_down_plugin(page, tmp_path)
    (raw,) = (tomllib.loads(toml.text) for toml in page.snippets("toml") if "plugin" in toml.marks)
    (tmp_path / "run.toml").write_text(
        tomli_w.dumps({**raw, "model": {"preset": "test"}, "data": {"train": "data/corpus"}})
    )
    _run(["-m", "pytest", "-q", "test_gradual_switch.py"], tmp_path)
    code = (
        "from toolkit.run import load_run\n"
        "from toolkit.run.step_plan import schedule_of\n"
        "found = [(p.objective, p.stop - p.start) for p in schedule_of(load_run('run.toml')).phases]\n"
        "assert found[::2] == [('clm', steps) for steps in (2500, 1500, 500)], found\n"
        "assert found[1::2] == [('mlm', steps) for steps in (500, 1500, 2500)], found\n"
    )
    _run(["-c", code], tmp_path)


def test_the_plugin_keeps_the_contract(tmp_path: Path) -> None:
    """Laid down as an installer does, with the entry point of its pyproject, and tested by its own test file."""
    page = _page("docs/objectives.md")
    points = _lay_down_plugin(page, tmp_path)["toolkit.objectives"]
    (run,) = (tomllib.loads(toml.text) for toml in page.snippets("toml") if "plugin" in toml.marks)
    assert points.keys() == run["objectives"].keys()
    _run(["-m", "pytest", "-q", "test_ending_masking.py"], tmp_path)
    code = (
        "import numpy as np\n"
        "from toolkit.objectives import Draws, Vocabulary, build\n"
        "words = Vocabulary(size=9000, mask_id=2, pad_id=1, bos_id=None, eos_id=0, special_ids=(0, 1, 2))\n"
        f"objective = build('ending-mlm', {run['objectives']['ending-mlm']}, words)\n"
        "tokens = np.arange(40 * 200).reshape(40, 200) % 8000 + 3\n"
        "found = objective.build(tokens, np.ones_like(tokens), Draws(0, np.arange(40), num_columns=200))\n"
        "assert (found.positions_N % 200).min() == 200 - 64\n"
        "assert 0.46 < found.positions_N.size / (40 * 64) < 0.54\n"
    )
    _run(["-c", code], tmp_path)


def _options(command: str) -> dict[str, bool]:
    """Options of a command, and whether its help shows them."""
    app = typer.Typer(add_completion=False)
    app.command(command)(importlib.import_module(f"toolkit.cli.{command}").command)
    parameters: list[Any] = get_command(app).params
    return {option: not getattr(parameter, "hidden", False) for parameter in parameters for option in parameter.opts}


def _wrong_options(command: str, words: str, around: str) -> list[str]:
    """Options that the command does not show; one that is not built yet may be named where the text says so."""
    options = {"--help": True, **_options(command)}
    named = re.findall(r"(?<!\S)--[\w-]+", words)
    is_announced = "not yet" in around
    return [option for option in named if not (options.get(option) or (is_announced and option in options))]


@by_name
def test_commands_and_their_options_exist(page: Page) -> None:
    wrong = []
    for code, around in page.code():
        for command, words in re.findall(r"(?:^|\s)toolkit (?:--debug )?([a-z]+)\b(.*)", code):
            if command in _COMMANDS:
                wrong += [f"toolkit {command} {option}" for option in _wrong_options(command, words, around)]
            else:
                wrong.append(f"toolkit {command}")
    assert wrong == []


@by_name
def test_options_named_alone_exist(page: Page) -> None:
    every = dict.fromkeys(_OTHERS_OPTIONS, True)
    for command in _COMMANDS:
        for option, is_shown in _options(command).items():
            every[option] = every.get(option, False) or is_shown
    lone = [(code.split()[0], around) for code, around in page.code() if code.startswith("--") and len(code) > 2]
    wrong = [option for option, around in lone if not (every.get(option) or ("not yet" in around and option in every))]
    assert wrong == []


def test_the_launchers_options_exist() -> None:
    source = (ROOT / "launchers/pretrain.py").read_text()
    commands = [code for page in PAGES for code, _ in page.code() if "launchers/pretrain.py --" in code]
    assert len(commands) >= 2
    for code in commands:
        for option in re.findall(r"--[\w-]+", code.partition("launchers/pretrain.py")[2]):
            assert f'"{option}"' in source, option


@by_name
def test_make_targets_and_paths_exist(page: Page) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong = []
    for code, _ in page.code():
        wrong += [f"make {target}" for target in re.findall(r"(?:^|\s)make ([a-z-]+)", code) if target not in targets]
        if _PATH.fullmatch(code) and not (ROOT / code).exists():
            wrong.append(code)
    assert wrong == []


@by_name
def test_links_resolve(page: Page) -> None:
    wrong = []
    for link in page.links():
        if link.startswith("https://"):
            continue
        place, _, anchor = link.partition("#")
        target = (page.path.parent / place).resolve() if place else page.path
        other = next((found for found in PAGES if found.path == target), None)
        # A folder has no page on the site.
        if not target.is_file() or (anchor and (other is None or anchor not in other.anchors())):
            wrong.append(link)
    assert wrong == []


@by_name
def test_tables_are_those_of_the_settings_classes(page: Page) -> None:
    """If this fails: python -m tests.docs.settings_tables."""
    assert page.text == filled(page.text)


def test_the_table_of_memory_is_that_of_the_formula() -> None:
    """If this fails: python -m tests.docs.memory_table."""
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_table(text)
    assert text.count("| dp 8, `zero1` |") == 1


def test_every_setting_is_in_a_table() -> None:
    text = _page("docs/configuration.md").text
    documented = set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE))
    named = {key for key, _ in keys(RunSettings)}
    assert named <= documented
    assert {key.split(".")[0] for key in named} == set(RunSettings.model_fields)
    placed = {name for page in PAGES for name in re.findall(r"<!-- settings: (\w+) -->", page.text)}
    assert placed == set(TABLES)


def test_the_index_lists_every_page_once() -> None:
    """If this fails for a new page: give it a row in a table of docs/index.md, which are the site's navigation."""
    sections = runpy.run_path(str(ROOT / "docs/site/conf.py"))["sections"](_page("docs/index.md").text)
    listed = [f"docs/{path}.md" for pages in sections.values() for _, path in pages]
    assert sorted(listed) == sorted({page.name for page in PAGES} - {"README.md", "CHANGELOG.md", "docs/index.md"})
    assert "docs/index.md" in _page("README.md").links()


def test_the_pages_can_still_be_read() -> None:
    """At most 40,000 words in docs, rules of tables not counted, and 700 in README."""
    words = {page.name: sum(bool(re.search(r"\w", word)) for word in page.text.split()) for page in PAGES}
    assert sum(number for name, number in words.items() if name.startswith("docs/")) <= 40_000
    assert words["README.md"] <= 700
