"""Tables as Markdown, LaTeX (booktabs) and CSV: percent, two decimals."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence

from toolkit.report.compare.tables import IntervalKind, MeanScore, Table, TableCell

DASH = "\u2013"
_MOST_ROWS_ON_A_PAGE = 30
_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "→": r"$\to$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    DASH: "--",
    "±": r"$\pm$",
    "\u2020": r"$\dagger$",
    "\u2021": r"$\ddagger$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
_PDFLATEX = r"""\ifdefined\DeclareUnicodeCharacter
\usepackage[T1]{fontenc}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\newcommand{\declared}[2]{\ifcsname u8:\detokenize{#1}\endcsname\else\DeclareUnicodeCharacter{#2}{[U+#2]}\fi}
"""
_LETTERS = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma varsigma tau upsilon phi "
    "chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_TEX |= {
    letter: rf"$\{name}$" for letter, name in zip("αβγδεζηθικλμνξπρσςτυφχψωΓΔΘΛΞΠΣΦΨΩ", _LETTERS.split(), strict=True)
}
# Up to these Latin letters, and among punctuation, currencies and arrows, pdfLaTeX knows most signs.
_LATIN_END, _PUNCTUATION, _ARROWS_END = 0x180, 0x2010, 0x2194
_MARKDOWN = {ord("|"): r"\|", ord("\n"): " ", ord("*"): r"\*", ord("`"): r"\`", ord("<"): "&lt;"}


def number_text(value: TableCell, decimals: int | None = None) -> str:
    """A plain cell as text; `decimals` are for floats. p-values that would round to 0 are told as below the last."""
    if value is None:
        return DASH
    if not isinstance(value, float):
        return str(value)
    if decimals is None:
        return f"{value:g}"
    smallest = 10.0**-decimals
    return f"< {smallest:.{decimals}f}" if decimals >= 4 and 0 <= value < smallest / 2 else f"{value:.{decimals}f}"


def score_text(score: MeanScore, table: Table) -> str:
    """Percent with its interval, `87.00 ± 0.21` or `87.00 [86.80, 87.19]`, then how many seeds, and marks."""
    mean, interval = 100 * score.estimate.mean, score.interval(table.intervals)
    parts = [f"{mean:.2f}"]
    if interval is not None:
        low, high = 100 * interval.low, 100 * interval.high
        is_t = table.intervals is IntervalKind.T
        parts.append(f"± {(high - low) / 2:.2f}" if is_t else f"[{low:.2f}, {high:.2f}]")
    if seeds := table.seeds_text(score):
        parts.append(f"({seeds})")
    return " ".join([*parts, score.marks]).rstrip()


def markdown(table: Table) -> str:
    """A heading, the table and its note."""
    lines = [
        _markdown_row([_markdown(heading) for heading in table.head]),
        _markdown_row(["---" if index < table.num_names else "---:" for index in range(len(table.head))]),
    ]
    lines += [_markdown_row(_texts(table, row, _markdown, best="**{}**")) for row in table.rows]
    return f"# {table.title}\n\n" + "\n".join(lines) + f"\n\n{_notes(table)}\n"


def latex(table: Table) -> str:
    r"""A `table` environment for `\input`, or a `longtable` where it needs several pages; needs booktabs."""
    text = _environment(table)
    common = {*range(_LATIN_END), *range(_PUNCTUATION, _ARROWS_END)}
    if signs := "".join(sign for sign in _foreign_signs(text) if ord(sign) not in common):
        return (
            f"% pdfLaTeX may not know these signs: {signs}\n% Use XeLaTeX or LuaLaTeX with a font that has them, or "
            f"declare each, as tables.tex does.\n{text}"
        )
    return text


def _environment(table: Table) -> str:
    columns = "l" * table.num_names + "r" * (len(table.head) - table.num_names)
    body = [_latex_row(_texts(table, row, _tex, best=r"\textbf{{{}}}")) for row in table.rows]
    head = f"\\toprule\n{_latex_row([_tex(heading) for heading in table.head])}\n\\midrule\n"
    lines = "\n".join([*body, r"\bottomrule"])
    caption = f"\\caption{{{_tex(f'{table.title}. {_notes(table)}')}}}\\label{{tab:{table.name}}}"
    if len(table.rows) > _MOST_ROWS_ON_A_PAGE:
        return (
            f"{{\\footnotesize\n\\begin{{longtable}}{{{columns}}}\n{caption}\\\\\n{head}\\endfirsthead\n{head}\\endhead\n"
            f"{lines}\n\\end{{longtable}}}}\n"
        )
    return (
        f"\\begin{{table}}[htbp]\n\\centering\n\\footnotesize\n\\begin{{tabular}}{{{columns}}}\n{head}{lines}\n"
        f"\\end{{tabular}}\n{caption}\n\\end{{table}}\n"
    )


def latex_document(tables: Mapping[str, str]) -> str:
    r"""A document that shows tables, LaTeX by name, which lie beside it.

    Signs that pdfLaTeX does not know would stop it; there they become their code points.
    """
    inputs = "\n".join(rf"\input{{{name}.tex}}" for name in tables)
    signs = "".join(f"\\declared{{{sign}}}{{{ord(sign):04X}}}\n" for sign in _foreign_signs("".join(tables.values())))
    declared = f"{_PDFLATEX}{signs}\\fi\n" if signs else ""
    return (
        "% Shows all tables; to use one in a paper, \\usepackage{booktabs,longtable} and \\input it.\n"
        "\\documentclass{article}\n\\usepackage[utf8]{inputenc}\n\\usepackage[landscape,margin=1.5cm]{geometry}\n"
        f"\\usepackage{{booktabs,longtable}}\n\\extrafloats{{200}}\n{declared}"
        f"\\begin{{document}}\n{inputs}\n\\end{{document}}\n"
    )


def _foreign_signs(text: str) -> list[str]:
    return sorted({sign for sign in text if not sign.isascii()})


def comma_separated(table: Table) -> str:
    """CSV; a column of scores is three: `X`, `X low`, `X high`, the limits empty for a single seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    has_scores = [any(isinstance(row[column], MeanScore) for row in table.rows) for column in range(len(table.head))]
    writer.writerow(
        part
        for heading, is_score in zip(table.head, has_scores, strict=True)
        for part in ([heading, f"{heading} low", f"{heading} high"] if is_score else [heading])
    )
    for row in table.rows:
        cells = zip(table.head, row, has_scores, strict=True)
        writer.writerow(part for name, cell, is_score in cells for part in _csv_cells(table, name, cell, is_score))
    return text.getvalue()


def _csv_cells(table: Table, heading: str, cell: TableCell, is_score: bool) -> list[str]:
    if isinstance(cell, MeanScore):
        interval = cell.interval(table.intervals)
        limits = ["", ""] if interval is None else [f"{100 * interval.low:.2f}", f"{100 * interval.high:.2f}"]
        return [f"{100 * cell.estimate.mean:.2f}", *limits]
    if cell is None:
        return ["", "", ""] if is_score else [""]
    decimals = table.decimals.get(heading)
    if isinstance(cell, float) and decimals is not None and decimals >= 4:
        # A p-value is not rounded to 0.
        return [f"{cell:.6g}"]
    return [number_text(cell, decimals)]


def _texts(table: Table, row: Sequence[TableCell], escape: Callable[[str], str], *, best: str) -> list[str]:
    texts = []
    for column, (heading, cell) in enumerate(zip(table.head, row, strict=True)):
        decimals = table.decimals.get(heading)
        text = escape(score_text(cell, table) if isinstance(cell, MeanScore) else number_text(cell, decimals))
        texts.append(best.format(text) if table.is_best(cell, column) else text)
    return texts


def _notes(table: Table) -> str:
    return f"{table.note} {table.remarks}".rstrip()


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    return text.translate(_MARKDOWN)


def _latex_row(cells: Sequence[str]) -> str:
    # After the end of a row, a bracket would be its distance to the next, and a star would be lost.
    cells = [f"{{}}{cells[0]}" if cells[0].startswith(("[", "*")) else cells[0], *cells[1:]]
    return " & ".join(cells) + r" \\"


def _tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in text)
