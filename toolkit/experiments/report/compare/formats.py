"""Tables as Markdown, LaTeX (booktabs) and CSV: percent, two decimals."""

from collections.abc import Callable, Iterable, Sequence

from toolkit.experiments.report.compare.tables import MeanScore, Table, TableCell, csv_text

DASH = "\u2013"
_MOST_ROWS_ON_A_PAGE = 30
_TEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "{}$&#_%"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)
_MARKDOWN = {ord("|"): r"\|", ord("\n"): " ", ord("*"): r"\*", ord("`"): r"\`", ord("<"): "&lt;"}


def number_text(value: TableCell, decimals: int | None = None) -> str:
    """Text of a cell that is not a score; `decimals` apply to floats. p-values that would round to 0 are `< 0.0001`."""
    if value is None:
        return DASH
    if not isinstance(value, float):
        return str(value)
    if decimals is None:
        return f"{value:g}"
    smallest = 10.0**-decimals
    return f"< {smallest:.{decimals}f}" if decimals >= 4 and 0 <= value < smallest / 2 else f"{value:.{decimals}f}"


def score_text(score: MeanScore, table: Table) -> str:
    """Percent with its interval, `87.00 ± 0.21`, then the number of seeds, and marks."""
    parts = [f"{100 * score.estimate.mean:.2f}"]
    if (interval := score.estimate.interval) is not None:
        parts.append(f"± {50 * (interval.high - interval.low):.2f}")
    if seeds := table.seeds_text(score):
        parts.append(f"({seeds})")
    return " ".join([*parts, score.marks]).rstrip()


def markdown(table: Table) -> str:
    """A heading, the table and its note."""
    lines = [
        _markdown_row([_markdown(heading) for heading in table.head]),
        _markdown_row(["---" if index < table.num_names else "---:" for index in range(len(table.head))]),
    ]
    for row in table.rows:
        texts = enumerate(_texts(table, row, _markdown))
        lines.append(_markdown_row([f"**{text}**" if table.is_best(row, column) else text for column, text in texts]))
    return f"# {table.title}\n\n" + "\n".join(lines) + f"\n\n{_notes(table)}\n"


def latex(table: Table) -> str:
    r"""A `table` environment for `\input`, or a `longtable` if it spans several pages; needs booktabs."""
    import pandas as pd

    cells = pd.DataFrame([_texts(table, row, _tex) for row in table.rows])
    columns = range(len(table.head))
    marks = [["textbf:--rwrap" if table.is_best(row, column) else "" for column in columns] for row in table.rows]
    styled = cells.style.apply(lambda _: pd.DataFrame(marks), axis=None).hide(axis="index")
    is_long = len(table.rows) > _MOST_ROWS_ON_A_PAGE
    text: str = styled.relabel_index([_tex(heading) for heading in table.head], axis=1).to_latex(
        hrules=True,
        column_format="l" * table.num_names + "r" * (len(table.head) - table.num_names),
        # The caption of a longtable is repeated on each page.
        caption=_tex(table.title if is_long else f"{table.title}. {_notes(table)}"),
        label=f"tab:{table.name}",
        environment="longtable" if is_long else None,
        position=None if is_long else "htbp",
        position_float=None if is_long else "centering",
    )
    return f"{text}{_tex(_notes(table))}\n" if is_long else text


def latex_document(names: Iterable[str]) -> str:
    r"""A document that shows the tables with these names, whose files are beside it."""
    inputs = "\n".join(rf"\input{{{name}.tex}}" for name in names)
    return (
        "% Shows all tables, by XeLaTeX or LuaLaTeX; to use one, \\usepackage{booktabs,longtable} and \\input it.\n"
        "\\documentclass{article}\n\\usepackage[landscape,margin=1.5cm]{geometry}\n"
        "\\usepackage{booktabs,longtable}\n\\extrafloats{200}\n"
        f"\\begin{{document}}\\footnotesize\n{inputs}\n\\end{{document}}\n"
    )


def comma_separated(table: Table) -> str:
    """CSV; a column of scores becomes three: `X`, `X low`, `X high`, with empty limits for a single seed."""
    has_scores = [any(isinstance(row[column], MeanScore) for row in table.rows) for column in range(len(table.head))]
    head = list[str]()
    for heading, is_score in zip(table.head, has_scores, strict=True):
        head += [heading, f"{heading} low", f"{heading} high"] if is_score else [heading]
    lines = [head]
    for row in table.rows:
        cells = zip(table.head, row, has_scores, strict=True)
        lines.append([part for name, cell, is_score in cells for part in _csv_cells(table, name, cell, is_score)])
    return csv_text(lines)


def _csv_cells(table: Table, heading: str, cell: TableCell, is_score: bool) -> list[str]:
    if isinstance(cell, MeanScore):
        interval = cell.estimate.interval
        limits = ["", ""] if interval is None else [f"{100 * interval.low:.2f}", f"{100 * interval.high:.2f}"]
        return [f"{100 * cell.estimate.mean:.2f}", *limits]
    if cell is None:
        return ["", "", ""] if is_score else [""]
    decimals = table.decimals.get(heading)
    if isinstance(cell, float) and decimals is not None and decimals >= 4:
        # A p-value is not rounded to 0.
        return [f"{cell:.6g}"]
    return [number_text(cell, decimals)]


def _texts(table: Table, row: Sequence[TableCell], escape: Callable[[str], str]) -> list[str]:
    cells = zip(row, map(table.decimals.get, table.head), strict=True)
    return [
        escape(score_text(cell, table) if isinstance(cell, MeanScore) else number_text(cell, decimals))
        for cell, decimals in cells
    ]


def _notes(table: Table) -> str:
    return f"{table.note} {table.remarks}".rstrip()


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    return text.translate(_MARKDOWN)


def _tex(text: str) -> str:
    # After `\\`, LaTeX would take a bracket for the distance to the next row, and swallow a star.
    return ("{}" if text.startswith(("[", "*")) else "") + text.translate(_TEX)
