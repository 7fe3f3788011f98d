"""Pictures as SVG and PDF by matplotlib: wide for papers and screens, narrow for phones. Equal input, equal bytes."""

import io
import math
import textwrap
import warnings
from enum import Enum
from typing import TYPE_CHECKING, Any

from toolkit.experiments.report.figures.pictures import Panel, Picture, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = ("#2563b0", "#b4540a", "#3f7d5a", "#8a3f8f", "#b8860b", "#3d4652", "#c2405a", "#2a9d9d")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# Keys of any type: newer matplotlib lists its keys one by one in its types, older takes any text.
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.titlesize": 9.5,
    "axes.edgecolor": "#b8c0ca",
    "axes.labelcolor": "#3d4652",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e3e7ec",
    "xtick.color": "#5b6675",
    "ytick.color": "#5b6675",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    # Text stays text in SVG: searchable, and small.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
_PANEL_HEIGHT, _ROW_HEIGHT, _LEGEND_LINE, _MARGIN = 2.5, 0.17, 0.2, 0.35
_LONGEST_AXIS_LIST = 6
_SIGNS_ON_AN_AXIS = 42


class Shape(Enum):
    """Width in inches, and how many panels stand side by side at most."""

    WIDE = (7.6, 2)
    NARROW = (3.7, 1)


def draw(picture: Picture, file_format: str, shape: Shape = Shape.WIDE) -> bytes:
    """An SVG or PDF file of a picture with at least one panel."""
    import matplotlib
    from matplotlib.figure import Figure

    width, most = shape.value
    columns = min(most, len(picture.panels))
    lines = math.ceil(len(picture.panels) / columns)
    labels = list(dict.fromkeys(series.label for panel in picture.panels for series in panel.series if series.label))
    # As many as fit: a letter is about 0.065 inches wide, a line's sample 0.5.
    longest = max((len(label) for label in labels), default=1)
    legend_columns = max(1, min(len(labels) or 1, int(width / (0.5 + 0.065 * longest))))
    legend = _LEGEND_LINE * math.ceil(len(labels) / legend_columns) + 0.1 if labels != [] and len(labels) > 1 else 0.0
    rows = max(len(panel.rows or ()) for panel in picture.panels)
    height = lines * ((rows + 3) * _ROW_HEIGHT if rows else _PANEL_HEIGHT) + legend + _MARGIN
    # The salt makes the ids in the file depend on nothing but the picture.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": f"{picture.name}-{shape.name}"}):
        figure = Figure(
            figsize=(width if columns > 1 or most == 1 or rows else 0.72 * width, height), layout="constrained"
        )
        grid = figure.subplots(lines, columns, squeeze=False)
        handles: dict[str, Any] = {}
        for index, axes in enumerate(grid.flat):
            if index < len(picture.panels):
                handles = _draw_panel(axes, picture, picture.panels[index]) | handles
            else:
                axes.set_visible(False)
        if legend:
            _add_legend(figure, {label: handles[label] for label in labels}, legend_columns)
        file = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else {"CreationDate": None}
        with warnings.catch_warnings():
            # Of a sign that the font lacks: a viewer of the SVG has another font, the PDF shows a box.
            warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
            figure.savefig(file, format=file_format, metadata=metadata)
    return file.getvalue()


def _add_legend(figure: "Figure", handles: dict[str, Any], columns: int) -> None:
    # matplotlib leaves out labels that begin with an underscore, as names of models may.
    places = [str(number) for number in range(len(handles))]
    legend = figure.legend(list(handles.values()), places, loc="outside lower center", ncols=columns)
    for text, label in zip(legend.get_texts(), handles, strict=True):
        text.set_text(label)
        text.set_parse_math(False)


def _draw_panel(axes: "Axes", picture: Picture, panel: Panel) -> dict[str, Any]:
    """Draw a panel, and return the first line of each label."""
    # Labels are anybody's: what stands between dollar signs is no formula.
    axes.set_title(panel.title, loc="left", color="#1c2430", parse_math=False)
    axes.set_xlabel(picture.x_label, parse_math=False)
    axes.set_ylabel(panel.y_label, parse_math=False)
    if picture.is_log:
        axes.set_xscale("log")
    for mark in panel.marks:
        axes.axvline(mark, color="#3d4652", linewidth=0.9, linestyle=(0, (4, 3)))
    handles: dict[str, Any] = {}
    for series in panel.series:
        handles.setdefault(series.label, _draw_series(axes, picture, series))
    bottom, top = axes.get_ylim()
    # Farther below it would leave less than half of the height to the scores.
    if panel.floor is not None and panel.floor >= bottom - (top - bottom):
        axes.axhline(panel.floor, color="#5b6675", linewidth=1.0, linestyle=(0, (5, 3)))
    if panel.rows is not None:
        axes.set_yticks(
            [place for place, _ in panel.rows], [name for _, name in panel.rows], fontsize=8, parse_math=False
        )
    values = sorted({point.x for series in panel.series for point in series.points})
    if picture.ticks is not None:
        longest = max(_SIGNS_ON_AN_AXIS // max(len(picture.ticks), 1), 6)
        names = ["\n".join(textwrap.wrap(name, longest)) for _, name in picture.ticks]
        axes.set_xticks([place for place, _ in picture.ticks], names, parse_math=False)
        axes.minorticks_off()
        axes.margins(x=0.12)
    elif picture.has_points and len(values) <= _LONGEST_AXIS_LIST:
        axes.set_xticks(values, [_tick(value) for value in values])
        axes.minorticks_off()
        axes.margins(x=0.08)
    return handles


def _draw_series(axes: "Axes", picture: Picture, series: Series) -> Any:
    color = _COLORS[series.color % len(_COLORS)]
    # Past the palette, another line style tells lines of one colour apart.
    style = ("-", "--", ":", "-.")[series.color // len(_COLORS) % 4] if series.is_line else "none"
    marker = _MARKERS[(series.color + series.color // len(_COLORS)) % len(_MARKERS)] if picture.has_points else None
    marker = marker if series.is_line else marker or "."
    xs, ys = [point.x for point in series.points], [point.y for point in series.points]
    (line,) = axes.plot(xs, ys, color=color, linestyle=style, marker=marker, linewidth=series.width)
    bars = [point for point in series.points if point.low is not None and point.high is not None]
    if bars:
        below = [point.y - (point.low or 0.0) for point in bars]
        above = [(point.high or 0.0) - point.y for point in bars]
        xs, ys = [point.x for point in bars], [point.y for point in bars]
        if not picture.has_points:
            limits = [point.low or 0.0 for point in bars], [point.high or 0.0 for point in bars]
            axes.fill_between(xs, *limits, color=color, alpha=0.18, linewidth=0)
            return line
        axes.errorbar(xs, ys, yerr=[below, above], fmt="none", ecolor=color, elinewidth=1.0, capsize=2.5, alpha=0.75)
    return line


def _tick(value: float) -> str:
    if value >= 1e6 or 0 < value < 1e-3:
        digits, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:,.6g}" if value < 1e4 else f"{value:,.0f}"
