"""The fine-tuning runs of a report's scores, as HTML: a folded table for each model and task."""

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from toolkit.core.text import counted
from toolkit.experiments.grid.cells import Score
from toolkit.experiments.report.compare.formats import DASH, number_text
from toolkit.experiments.report.compare.levels import ScoreRow
from toolkit.experiments.report.read.results import Results

Anchors = Mapping[tuple[str, str | None], str]
"""Ids on the page, by row name and task; for a whole row, the task is None."""


def row_anchors(results: Results, configurations: Sequence[ScoreRow]) -> Anchors:
    """Ids of configurations, of models, and of the runs of a model on a task."""
    anchors: dict[tuple[str, str | None], str] = {
        (row.name, None): f"configuration-{index}" for index, row in enumerate(configurations)
    }
    for index, model in enumerate(results.models):
        anchors[model.name, None] = f"model-{index}"
        for number, task in enumerate(results.tasks):
            anchors[model.name, task.name] = f"model-{index}-task-{number}"
    return anchors


def runs_section(results: Results, configurations: Sequence[ScoreRow], anchors: Anchors, *, output: Path) -> str:
    """All runs by model and task, folded, below the models of each configuration; links are relative to `output`."""
    parts = ['<div class="runs"><p>Test scores are means of the runs at the chosen learning rate, in bold.</p>']
    for row in configurations:
        links = ", ".join(f'<a href="#{anchors[model, None]}">{escape(model)}</a>' for model in row.models)
        parts.append(f'<h3 id="{anchors[row.name, None]}">{escape(row.name)}</h3><p>Models: {links}</p>')
    for model in results.models:
        where = "" if model.path is None else f'<p class="fine">Weights: <code>{escape(model.path)}</code></p>'
        parts.append(f'<section><h3 id="{anchors[model.name, None]}">{escape(model.name)}</h3>{where}')
        labels = ", ".join(f"{name} {number_text(value)}" for name, value in (model.labels or {}).items())
        parts.append(f'<p class="fine">{escape(labels)}</p>' if labels else "")
        for task in results.tasks:
            cells = results.of(model.name, task.name)
            if cells:
                anchor = anchors[model.name, task.name]
                parts.append(_run_table(f"{task.name} ({counted(len(cells), 'run')})", anchor, cells, results, output))
        parts.append("</section>")
    return "\n".join([*parts, "</div>"])


def _run_table(title: str, anchor: str, cells: Sequence[Score], results: Results, output: Path) -> str:
    rate = results.rates.get((cells[0].model, cells[0].task))
    metrics = list(dict.fromkeys([cells[0].metric, *(name for cell in cells for name in cell.test)]))
    names = ["learning rate", "seed", "validation", *(f"test {name}" for name in metrics), "files"]
    head = "".join(f'<th class="right">{escape(name)}</th>' for name in names)
    rows = ""
    for cell in cells:
        css = " class=chosen" if cell.learning_rate == rate else ""
        file = results.place(cell).result_file
        place = escape(quote(os.path.relpath(file, output)))
        link = f'<a href="{place}">{file.name}</a>' if file.is_file() else DASH
        scores = [(cell.validation or {}).get(cell.metric), *(cell.test.get(name) for name in metrics)]
        rows += (
            f'<tr{css}><td class="right" data-value="{cell.learning_rate}">{cell.learning_rate:g}</td>'
            f'<td class="right">{cell.seed}</td>{"".join(map(_number, scores))}'
            f'<td class="right">{link}</td></tr>'
        )
    return (
        f"<details><summary>{escape(title)}</summary>"
        f'<div class="scroll"><table class="data" id="{anchor}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _number(score: float | None) -> str:
    value, text = ("", DASH) if score is None else (f"{score!r}", f"{score:.4f}")
    return f'<td class="right" data-value="{value}">{text}</td>'
