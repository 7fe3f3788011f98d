"""`toolkit report`: read grids and runs -> tables, tests, figures -> one page."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from toolkit.core.console import console
from toolkit.core.errors import SettingsError, UserError
from toolkit.core.machine import machine_facts
from toolkit.core.text import counted, first_few, home_hint, quoted
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.report.compare.comparisons import comparison_table, difference_tables
from toolkit.experiments.report.compare.formats import comma_separated, latex, latex_document, markdown
from toolkit.experiments.report.compare.levels import Level, configuration_level, model_level
from toolkit.experiments.report.compare.score_tables import score_tables, study_table
from toolkit.experiments.report.compare.tables import (
    Table,
    distinct_names,
    long_csv,
    missing_table,
    rates_table,
    scores_csv,
)
from toolkit.experiments.report.figures.drawing import draw
from toolkit.experiments.report.figures.label_pictures import label_pictures
from toolkit.experiments.report.figures.pictures import loss_picture, study_picture
from toolkit.experiments.report.figures.rate_pictures import rate_pictures
from toolkit.experiments.report.output_folder import PAGE, check_output_folder, replace_report
from toolkit.experiments.report.pages.html import Figure
from toolkit.experiments.report.pages.page import Contents, Introduction, StudySection, render
from toolkit.experiments.report.read.completeness import missing_summary
from toolkit.experiments.report.read.elsewhere import with_scores_made_elsewhere
from toolkit.experiments.report.read.manifests import other_corpora, with_manifest_labels
from toolkit.experiments.report.read.results import Results, read_results
from toolkit.experiments.report.read.runs import RunCurves, is_run, read_runs
from toolkit.experiments.report.read.study import is_study, read_study
from toolkit.experiments.study.folder import StudyFolder
from toolkit.run.folder import RunFolder
from toolkit.run.switches import switches_of_runs

_PACKAGES = ("torch", "transformers", "numpy", "scipy", "matplotlib")
_DEFAULT_OUTPUT = "report"


def write_report(
    folders: Sequence[Path],
    *,
    output: Path | None = None,
    baseline: str | None = None,
    scores: Path | None = None,
    introduction: Introduction | None = None,
) -> Path:
    """Write `report.html`, `tables/` and `figures/`; return their folder.

    An earlier report there is replaced.

    Args:
        folders: at least one folder of a grid, a run or a study; a study stands for its grid and its runs.
        output: folder to write to; None: `report` in the first of `folders`. Nothing else is written.
        baseline: name of a model, or of a configuration, to compare all others with.
        scores: folder with MTEB or EuroEval scores of models of the grids, or of the runs.
        introduction: text of a job that writes its report into its own folder, beside other files.

    Raises:
        UserError: a folder is none of these, a file is missing or damaged, there is no such baseline, or the output
            folder cannot be written.
    """
    studies = [folder for folder in folders if is_study(folder)]
    grids, run_folders = _sorted_folders([part for folder in folders for part in _parts(folder)])
    output = folders[0] / _DEFAULT_OUTPUT if output is None else output
    if introduction is None:
        check_output_folder(output)
    results, unmatched = read_results(grids) if grids else None, ""
    if scores is not None:
        results, unmatched = with_scores_made_elsewhere(results, scores, run_folders)
    results = results and with_manifest_labels(results)
    runs, left_out = _curves(run_folders, are_all=not (results or studies))
    told = () if results is None else (results.unknown_labels, other_corpora(results))
    remarks = tuple(filter(None, (left_out, unmatched, *told)))
    levels = _levels(results)
    names = [row.name for level in levels for row in level.rows]
    if baseline is not None and baseline not in names:
        available = ", ".join(dict.fromkeys(names)) or "none, as there are no scores"
        raise SettingsError(f"--baseline {baseline!r} is not in the report. Available: {available}.")
    words = ["toolkit", "report", *map(str, folders), "--output", str(output)]
    words += [] if baseline is None else ["--baseline", baseline]
    command = shlex.join([*words, *([] if scores is None else ["--scores", str(scores)])])
    if introduction is not None:
        command = introduction.command
    texts, contents = _compose(results, runs, levels, studies, baseline=baseline, introduction=introduction)
    contents = replace(contents, command=command, remarks=remarks)
    replace_report(output, {**texts, PAGE: render(contents, output=output)})
    for line in remarks:
        console().print(line)
    _say(results, output)
    return output


def _curves(folders: Sequence[Path], *, are_all: bool) -> tuple[tuple[RunCurves, ...], str]:
    """Curves of runs, and a sentence on runs without any; `are_all`: the report has nothing else."""
    runs = tuple(read_runs(folders))
    left_out = [RunFolder(folder) for folder in folders if folder not in {run.folder for run in runs}]
    if not left_out:
        return runs, ""
    if are_all and not runs:
        raise UserError(
            f"{left_out[0].metrics_file} has no logged step, so there is no loss curve to draw. Train the run further "
            f"(toolkit train {quoted(left_out[0].settings_file)}), or leave it out."
        )
    return runs, f"no loss curve, as no step is logged: {first_few([run.path.name for run in left_out])}"


def _parts(folder: Path) -> list[Path]:
    """The folder itself; for a study, its grid, if there is one, and its runs."""
    if not is_study(folder):
        return [folder]
    study = StudyFolder(folder)
    found = [study.grid, *(study.runs / model.name for model in read_study(folder))]
    return [part for part in found if GridFolder(part).is_grid() or is_run(part)]


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
                "folder that `toolkit grid`, `toolkit train` or `toolkit study` wrote."
            )
    return grids, runs


def _compose(
    results: Results | None,
    runs: tuple[RunCurves, ...],
    levels: tuple[Level, ...],
    studies: Sequence[Path],
    *,
    baseline: str | None,
    introduction: Introduction | None,
) -> tuple[dict[str, str | bytes], Contents]:
    texts: dict[str, str | bytes] = {}
    scores = [table for level in levels for table in (*score_tables(level), *difference_tables(level, baseline))]
    names = distinct_names(table.name for table in scores)
    scores = [replace(table, name=name) for table, name in zip(scores, names, strict=True)]
    tests = tuple(table for level in levels if (table := comparison_table(level, baseline)) is not None)
    rates = None if results is None else rates_table(results, levels[-1])
    missing = None if results is None else missing_table(results)
    sections = tuple(_study_section(folder, number, levels) for number, folder in enumerate(studies))
    tables = [*scores, *tests, *(table for table in (rates, missing) if table is not None)]
    tables += [section.table for section in sections]
    if results is not None:
        texts |= {"tables/scores.csv": scores_csv(results), "tables/long.csv": long_csv(results)}
    if tables:
        texts |= _table_files(tables)
    pictures = [] if results is None else [*label_pictures(levels[0]), *rate_pictures(results, levels[0])]
    losses = loss_picture(runs, unigram={} if introduction is None else introduction.unigram)
    pictures += [] if losses is None else [losses]
    names = distinct_names(picture.name for picture in pictures)
    figures = [Figure.of(replace(picture, name=name)) for picture, name in zip(pictures, names, strict=True)]
    for figure in (*figures, *(section.figure for section in sections)):
        texts[f"figures/{figure.picture.name}.svg"] = figure.svg
        texts[f"figures/{figure.picture.name}.pdf"] = draw(figure.picture, "pdf")
    contents = Contents(
        results=results,
        levels=levels,
        tables=tuple(scores),
        tests=tests,
        rates=rates,
        missing=missing,
        figures=tuple(figures),
        studies=sections,
        runs=runs,
        switches=tuple(switches_of_runs([RunFolder(run.folder) for run in runs])),
        written=tuple(texts),
        machine=machine_facts(_PACKAGES),
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        introduction=introduction,
    )
    return texts, contents


def _study_section(folder: Path, number: int, levels: Sequence[Level]) -> StudySection:
    models, name = read_study(folder), f"study-{number + 1}" if number else "study"
    title = f"Study {folder.resolve().name}"
    picture = study_picture(models, name=name, title=title)
    table = study_table(models, levels[-1] if levels else None, name=name, title=title)
    return StudySection(folder.resolve().name, Figure.of(picture), table)


def _levels(results: Results | None) -> tuple[Level, ...]:
    if results is None:
        return ()
    models = model_level(results)
    configurations = configuration_level(models)
    return (models,) if configurations is None else (configurations, models)


def _table_files(tables: Sequence[Table]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for table in tables:
        texts[f"tables/{table.name}.md"] = markdown(table)
        texts[f"tables/{table.name}.tex"] = latex(table)
        texts[f"tables/{table.name}.csv"] = comma_separated(table)
    texts["tables/tables.tex"] = latex_document(table.name for table in tables)
    return texts


def _say(results: Results | None, output: Path) -> None:
    if results is not None:
        if results.omission:
            console().print(results.omission)
        if results.most_makers > 1:
            console().print(
                f"runs of one task were made by {results.most_makers} combinations of versions, device and dtype: "
                f"their scores may differ for that; {PAGE} lists them under Settings and machine"
            )
        if missing := missing_summary(results.missing):
            console().print(f"{missing}, see tables/missing-runs.md")
        console().print(f"{results.completeness} of {counted(len(results.models), 'model')}")
    console().print(f"wrote {output}: {PAGE}, tables/, figures/")
