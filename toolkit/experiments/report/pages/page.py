"""The report as one self-contained HTML file: sortable, filterable tables, figures, and the runs of each mean."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path

from toolkit.core.text import counted, first_few
from toolkit.experiments.report.compare.formats import number_text
from toolkit.experiments.report.compare.levels import Level
from toolkit.experiments.report.compare.tables import MeanScore, Table, TableCell
from toolkit.experiments.report.pages.html import Figure, pairs_table
from toolkit.experiments.report.pages.runs_section import Anchors, row_anchors, runs_section
from toolkit.experiments.report.read.completeness import missing_summary
from toolkit.experiments.report.read.results import Results
from toolkit.experiments.report.read.runs import RunCurves

_MOST_TESTS = 1000


@dataclass(frozen=True)
class StudySection:
    """A study: its tree, and its models as a table."""

    name: str
    figure: Figure
    table: Table


@dataclass(frozen=True)
class Introduction:
    """HTML text of a page about one job: its head, and the beginnings of its sections."""

    title: str
    head: str
    before: Mapping[str, tuple[str, str]]
    """Title and first paragraphs of each section, by anchor."""
    sections: tuple[tuple[str, str, str], ...]
    """Further sections: anchor, title, body."""
    order: tuple[str, ...]
    """Anchors of the sections that come first."""
    unigram: Mapping[str, float]
    """Cross-entropy of a unigram model on the held-out targets of the runs, by objective."""
    command: str
    """The command that writes the page."""


@dataclass(frozen=True)
class Contents:
    """Contents of the page."""

    results: Results | None
    levels: tuple[Level, ...]
    tables: tuple[Table, ...]
    """Tables of scores."""
    tests: tuple[Table, ...]
    rates: Table | None
    missing: Table | None
    figures: tuple[Figure, ...]
    studies: tuple[StudySection, ...]
    runs: tuple[RunCurves, ...]
    written: tuple[str, ...]
    """Paths of the other files, relative to the page."""
    machine: Mapping[str, str]
    date: str
    switches: tuple[str, ...]
    """Lines on the runs' switches of objective."""
    introduction: Introduction | None
    command: str = ""
    remarks: tuple[str, ...] = ()
    """Sentences on runs without a curve, scores without a model, labels that no model has, and corpora that differ."""


def render(contents: Contents, *, output: Path) -> str:
    """Return the page; links to the cells' files are relative to `output`, its folder."""
    results = contents.results
    configurations = [row for level in contents.levels[:-1] for row in level.rows if row.models != (row.name,)]
    anchors = {} if results is None else row_anchors(results, configurations)
    # Empty sections are left out.
    sections = [
        ("study", "Study", _studies(contents, anchors)),
        ("tables", "Scores", _tables(contents, anchors)),
        ("figures", "Figures", _figures(contents)),
        ("tests", "Paired tests", _tests(contents)),
        ("rates", "Chosen learning rates", _with_note(contents.rates)),
        ("missing", "Runs without a result", _with_note(contents.missing)),
        ("runs", "Runs of each score", results and runs_section(results, configurations, anchors, output=output)),
        ("settings", "Settings and machine", _settings(contents)),
        ("files", "Files", _files(contents)),
    ]
    title, head = "Report: " + first_few(_names(contents)), _head(contents)
    if (introduction := contents.introduction) is not None:
        title, head = introduction.title, introduction.head
        for number, (anchor, name, body) in enumerate(sections):
            name, before = introduction.before.get(anchor, (name, ""))
            sections[number] = (anchor, name, before + (body or ""))
        rank = {anchor: number for number, anchor in enumerate(introduction.order)}
        sections = sorted([*sections, *introduction.sections], key=lambda section: rank.get(section[0], len(rank)))
    shown = [section for section in sections if section[2]]
    links = "".join(f'<li><a href="#{anchor}">{escape(title)}</a></li>' for anchor, title, _ in shown)
    bodies = (f'<h2 id="{anchor}">{escape(title)}</h2>\n{body}' for anchor, title, body in shown)
    body = "\n".join([head, f"<nav><ul>{links}</ul></nav>", *bodies])
    # A page with an introduction is mostly prose, which needs shorter lines.
    return _document(title, body, more_style="" if introduction is None else "main { max-width: 900px; }\n")


def _document(title: str, body: str, *, more_style: str) -> str:
    """The file: readable without others, on a phone and on paper; its script runs once the page is loaded."""
    package = files("toolkit.experiments.report.pages")
    style, script = (package.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}{more_style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _names(contents: Contents) -> list[str]:
    if contents.studies:
        return [study.name for study in contents.studies]
    folders = [] if contents.results is None else [folder.resolve().name for folder in contents.results.folders]
    return [*folders, *(run.name for run in contents.runs)]


def _head(contents: Contents) -> str:
    results = contents.results
    parts = [f"a study of {counted(len(study.table.rows), 'model')}" for study in contents.studies]
    if results is not None:
        models = counted(len(contents.levels[-1].rows), "model")
        parts = [models, counted(len(results.tasks), "data set"), results.completeness]
    if contents.runs:
        parts.append(counted(len(contents.runs), "pretraining run"))
    sentences = () if results is None else (missing_summary(results.missing), results.omission)
    told = filter(None, (*sentences, *contents.remarks))
    lacking = "".join(f"<p><strong>{escape(f'{text[0].upper()}{text[1:]}.')}</strong></p>" for text in told)
    return f"""
<h1>{escape(first_few(_names(contents)))}</h1>
<p class="lead">{escape(", ".join(parts))}.</p>{lacking}"""


def _studies(contents: Contents, anchors: Anchors) -> str:
    losses = ' Their losses are below, in <a href="#figures">Figures</a>.' if contents.runs else ""
    return "".join(
        f"<h3>{escape(study.name)}</h3>{study.figure.html()}"
        f"<p>{escape(study.table.note)}{losses}</p>{_table(study.table, anchors)}"
        for study in contents.studies
    )


def _tables(contents: Contents, anchors: Anchors) -> str:
    parts = []
    for level in contents.levels:
        tables = [table for table in contents.tables if table.name.startswith(f"{level.name}-")]
        if not tables:
            continue
        shown = [f"<p>{escape(tables[0].note)} Each score links to its runs.</p>"]
        for table in tables:
            # The note below the first heading holds for all tables of scores.
            own = table.remarks if table.note == tables[0].note else f"{table.note} {table.remarks}"
            title = f"{table.title}, by {'model' if level.name == 'models' else 'configuration'}"
            fine = f'<p class="fine">{escape(own)}</p>' if own else ""
            shown.append(f"<h3>{escape(title)}</h3>{_table(table, anchors)}{fine}")
        parts.append(_folded(f"Scores by {level.name.removesuffix('s')}", shown, is_open=level is contents.levels[0]))
    return "\n".join(parts)


def _folded(title: str, parts: Sequence[str], *, is_open: bool) -> str:
    """A part of the page, folded unless it is needed at first glance (`is_open`)."""
    body = "\n".join(parts)
    return body if is_open else f"<details><summary>{escape(title)}</summary>\n{body}</details>"


def _table(table: Table, anchors: Anchors) -> str:
    # Names of labels may wrap after an underscore, to leave room for scores.
    head = "".join(
        f"<th{'' if index < table.num_names else ' class=right'}>{escape(heading).replace('_', '_<wbr>')}</th>"
        for index, heading in enumerate(table.head)
    )
    rows = "".join(f"<tr>{''.join(_cells(table, row, anchors))}</tr>" for row in table.rows)
    return (
        f'<div class="scroll"><table class="data filterable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(table: Table, row: Sequence[TableCell], anchors: Anchors) -> Iterator[str]:
    for index, (heading, cell) in enumerate(zip(table.head, row, strict=True)):
        if isinstance(cell, MeanScore):
            css = "right best" if table.is_best(row, index) else "right"
            yield _score_cell(cell, table, anchors, css=css)
            continue
        tag = "th" if index == 0 else "td"
        css = "" if index < table.num_names else ' class="right"'
        value = "" if cell is None else str(cell)
        text = number_text(cell, table.decimals.get(heading))
        yield f'<{tag}{css} data-value="{escape(value)}">{escape(text)}</{tag}>'


def _score_cell(score: MeanScore, table: Table, anchors: Anchors, *, css: str) -> str:
    mean, target = f"{100 * score.estimate.mean:.2f}", anchors.get((score.row, score.task))
    shown = mean if target is None else f'<a href="#{target}">{mean}</a>'
    if (interval := score.estimate.interval) is not None:
        shown += f" ± {50 * (interval.high - interval.low):.2f}"
    shown += f" {score.marks}" if score.marks else ""
    below = table.seeds_text(score)
    shown += f'<span class="interval">{below}</span>' if below else ""
    return f'<td class="{css}" data-value="{score.estimate.mean!r}">{shown}</td>'


def _figures(contents: Contents) -> str:
    parts = [f"<div><h3>{escape(figure.picture.title)}</h3>{figure.html()}</div>" for figure in contents.figures]
    parts = [f'<div class="figures">{"".join(parts)}</div>'] * bool(parts)
    if contents.switches:
        lines = "".join(f"<li>{escape(line)}</li>" for line in contents.switches)
        parts.append(f"<h3>Switches of objective</h3><ul>{lines}</ul>")
    return "".join(parts)


def _tests(contents: Contents) -> str:
    parts = []
    for table in contents.tests:
        shown, note = table, table.note
        if len(table.rows) > _MOST_TESTS:
            shown = replace(table, rows=tuple(row for row in table.rows if row[1] == "average")[:_MOST_TESTS])
            note += f" Here: averages, at most {_MOST_TESTS:,}; all {len(table.rows):,} are in tables/{table.name}.csv."
        level = table.name.partition("-")[0]
        body = [f"<h3>Between {escape(level)}</h3><p>{escape(note)}</p>{_table(shown, {})}"]
        parts.append(_folded(f"Tests between {level}", body, is_open=table is contents.tests[0]))
    return "\n".join(parts)


def _with_note(table: Table | None) -> str:
    return "" if table is None else f"<p>{escape(table.note)}</p>{_table(table, {})}"


def _settings(contents: Contents) -> str:
    grids = {} if contents.results is None else contents.results.declarations
    texts = {str(path): text for path, text in grids.items()}
    texts |= {str(run.folder): run.settings for run in contents.runs if run.settings is not None}
    details = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>" for name, text in texts.items()
    )
    makers = {} if contents.results is None else contents.results.makers
    made_by = pairs_table({maker: counted(number, "run") for maker, number in makers.items()})
    return f"""
{details}
{f"<p>Versions and devices of the runs:</p>{made_by}" if makers else ""}
<p>Written {escape(contents.date)} by <code>{escape(contents.command)}</code>, on this machine
(training may have run elsewhere):</p>
{pairs_table(contents.machine)}"""


def _files(contents: Contents) -> str:
    items = "".join(f'<li><a href="{escape(name)}">{escape(name)}</a></li>' for name in contents.written)
    return f"""
<p><code>tables/scores.csv</code> has every score with its interval, <code>tables/long.csv</code> every score
of every run; <code>tables/tables.tex</code> is a document of all tables, each a file for <code>\\input</code>.</p>
<details><summary>{counted(len(contents.written), "file")}</summary><ul>{items}</ul></details>"""
