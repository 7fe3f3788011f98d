"""`toolkit report`: read grids and runs -> tables, tests, figures, results for model cards -> one page."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from toolkit.core.console import console
from toolkit.core.errors import SettingsError
from toolkit.core.machine import machine_facts
from toolkit.core.text import counted, home_hint
from toolkit.experiments.grid.folder import GridFolder
from toolkit.report.compare.comparisons import comparison_table, difference_tables
from toolkit.report.compare.formats import comma_separated, latex, latex_document, markdown
from toolkit.report.compare.levels import Level, configuration_level, configuration_members, model_level
from toolkit.report.compare.score_tables import score_tables
from toolkit.report.compare.tables import IntervalKind, Table, missing_table, rates_table, scores_csv
from toolkit.report.figures.drawing import draw
from toolkit.report.figures.label_pictures import label_pictures
from toolkit.report.figures.pictures import Picture, loss_picture
from toolkit.report.figures.rate_pictures import rate_pictures
from toolkit.report.output_folder import check_output_folder, replace_report
from toolkit.report.pages.figure import Figure
from toolkit.report.pages.model_index import model_indexes, mteb_results
from toolkit.report.pages.page import Contents, render
from toolkit.report.read.completeness import missing_summary
from toolkit.report.read.manifests import with_manifest_labels
from toolkit.report.read.results import Results, read_results
from toolkit.report.read.runs import RunCurves, is_run, read_runs

PAGE = "report.html"
_PACKAGES = ("torch", "transformers", "numpy", "scipy", "matplotlib")
_DEFAULT_OUTPUT = "report"
Members = Mapping[str, Mapping[str, Sequence[str]]]
"""Of each level, names of the models of each row."""


def write_report(folders: Sequence[Path], *, output: Path | None = None, baseline: str | None = None) -> Path:
    """Write `report.html`, `tables/`, `figures/`, `model-index/` and `mteb/`; returns their folder.

    What an earlier report wrote there, and this one does not, is removed.

    Args:
        folders: of grids and of runs, at least one.
        output: folder to write to; None: `report` in the first of `folders`. Nothing else is written.
        baseline: name of a model, or of a configuration, to compare all others with.

    Raises:
        UserError: a folder is neither, a file is missing or damaged, there is no such baseline, or the output folder
            cannot be written.
    """
    grids, run_folders = _sorted_folders(folders)
    output = folders[0] / _DEFAULT_OUTPUT if output is None else output
    check_output_folder(output)
    results = with_manifest_labels(read_results(grids)) if grids else None
    runs = tuple(read_runs(run_folders))
    levels, members = _levels(results)
    names = [row.name for level in levels for row in level.rows]
    if baseline is not None and baseline not in names:
        available = ", ".join(dict.fromkeys(names)) or "none, as there are no scores"
        raise SettingsError(f"--baseline {baseline!r} is not in the report. Available: {available}.")
    words = ["toolkit", "report", *map(str, folders), "--output", str(output)]
    command = shlex.join([*words, *([] if baseline is None else ["--baseline", baseline])])
    texts, contents = _compose(results, runs, levels, members, baseline=baseline, command=command)
    replace_report(output, {**texts, PAGE: render(contents, output=output)})
    _say(results, output)
    return output


def _sorted_folders(folders: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    grids: list[Path] = []
    runs: list[Path] = []
    seen: set[Path] = set()
    for folder in folders:
        if not folder.exists():
            raise SettingsError(
                f"{str(folder)!r} does not exist.{home_hint(folder)} Give the folder of a grid or of a run."
            )
        if not folder.is_dir():
            raise SettingsError(f"{folder} is not a directory. Give the folder of a grid or of a run.")
        if folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        if GridFolder(folder).is_grid():
            grids.append(folder)
        elif is_run(folder):
            runs.append(folder)
        else:
            raise SettingsError(
                f"{folder} is neither a grid (it has no results.jsonl) nor a run (it has no metrics.jsonl). Give a "
                "folder that `toolkit grid` or `toolkit train` wrote."
            )
    return grids, runs


def _compose(
    results: Results | None,
    runs: tuple[RunCurves, ...],
    levels: tuple[Level, ...],
    members: Members,
    *,
    baseline: str | None,
    command: str,
) -> tuple[dict[str, str | bytes], Contents]:
    texts: dict[str, str | bytes] = {}
    scores = [table for level in levels for table in (*score_tables(level), *difference_tables(level, baseline))]
    tests = tuple(table for level in levels if (table := comparison_table(level, baseline)) is not None)
    rates = None if results is None else rates_table(results, levels[-1])
    missing = None if results is None else missing_table(results)
    tables = [*scores, *tests, *(table for table in (rates, missing) if table is not None)]
    if results is not None:
        texts["tables/scores.csv"] = scores_csv(results)
        texts |= _table_files(tables)
        texts |= {f"model-index/{name}": text for name, text in model_indexes(results).items()}
        texts |= {f"mteb/{name}": text for name, text in mteb_results(results).items()}
    figures = []
    for picture in _pictures(results, levels, members, runs):
        figures.append(Figure.of(picture))
        texts[f"figures/{picture.name}.svg"] = figures[-1].wide
        texts[f"figures/{picture.name}.pdf"] = draw(picture, "pdf")
    contents = Contents(
        results=results,
        levels=levels,
        members={
            name: models
            for level in levels[:-1]
            for name, models in members[level.name].items()
            if list(models) != [name]
        },
        tables=tuple(table for table in scores if table.intervals is IntervalKind.T),
        tests=tests,
        rates=rates,
        missing=missing,
        figures=tuple(figures),
        runs=runs,
        written=tuple(texts),
        machine=machine_facts(_PACKAGES),
        command=command,
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    )
    return texts, contents


def _levels(results: Results | None) -> tuple[tuple[Level, ...], Members]:
    if results is None:
        return (), {}
    models = model_level(results)
    alone = {row.name: [row.name] for row in models.rows}
    configurations = configuration_level(models)
    if configurations is None:
        return (models,), {models.name: alone}
    members = configuration_members(models)
    return (configurations, models), {models.name: alone, configurations.name: members}


def _table_files(tables: Sequence[Table]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for table in tables:
        texts[f"tables/{table.name}.md"] = markdown(table)
        texts[f"tables/{table.name}.tex"] = latex(table)
        texts[f"tables/{table.name}.csv"] = comma_separated(table)
    texts["tables/tables.tex"] = latex_document({table.name: texts[f"tables/{table.name}.tex"] for table in tables})
    return texts


def _pictures(
    results: Results | None, levels: Sequence[Level], members: Members, runs: Sequence[RunCurves]
) -> Iterator[Picture]:
    if results is not None:
        yield from label_pictures(levels[0])
        yield from rate_pictures(results, levels[0], members[levels[0].name])
    if (losses := loss_picture(runs)) is not None:
        yield losses


def _say(results: Results | None, output: Path) -> None:
    if results is not None:
        if results.omission:
            console().print(results.omission)
        if len(results.makers) > 1:
            console().print(
                f"runs were made by {len(results.makers)} combinations of versions, device and dtype: their scores may "
                f"differ for that; {PAGE} lists them under Settings and machine"
            )
        if missing := missing_summary(results.missing):
            console().print(f"{missing}, see tables/missing-runs.md")
        console().print(f"{results.completeness} of {counted(len(results.models), 'model')}")
    console().print(f"written to {output}: {PAGE}, tables/, figures/")
