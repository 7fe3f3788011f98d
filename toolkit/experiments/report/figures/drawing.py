"""Pictures as SVG and PDF, drawn with matplotlib, one paper column wide. Equal input gives equal bytes."""

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from toolkit.experiments.report.figures.pictures import Panel, Picture, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe-Ito palette, safe for colour-blind readers, with grey and brown in place of black and yellow.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#4d4d4d", "#56b4e9", "#7a3e00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_LINES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
# Keys typed as Any: the types of newer matplotlib enumerate its keys, those of older take any string.
_STYLE: dict[Any, Any] = {
    "font.size": 7.5,
    "font.family": "sans-serif",
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "axes.edgecolor": "#98a2b0",
    "axes.labelcolor": "#3d4652",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlepad": 4,
    "axes.labelpad": 2,
    "grid.color": "#e3e7ec",
    "grid.linewidth": 0.6,
    "xtick.color": "#5b6675",
    "ytick.color": "#5b6675",
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.handlelength": 2.4,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "lines.scale_dashes": False,
    "lines.solid_capstyle": "butt",
    # Text stays text in SVG: searchable, and small.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
# In inches. A letter is about 0.055 wide, a line sample in a legend 0.45.
_WIDTH, _ONE_PANEL, _PANEL, _ROW, _LEGEND_LINE, _MARGIN = 3.35, 1.85, 1.3, 0.145, 0.15, 0.4
_LETTER, _SAMPLE = 0.055, 0.45
# In points: between neighbouring marks at one place on the axis, and at most between the first and the last.
_ASIDE, _MOST_ASIDE = 4.0, 24.0
_LONGEST_AXIS_LIST = 6
_SIGNS_ON_AN_AXIS = 44


def draw(picture: Picture, file_format: str) -> bytes:
    """Draw a picture with at least one panel as SVG or PDF; panels are stacked and share the x axis."""
    import matplotlib
    from matplotlib.figure import Figure

    given = dict.fromkeys(series.label for panel in picture.panels for series in panel.series)
    labels = [label for label in given if label]
    longest = max((len(label) for label in labels), default=1)
    columns = max(1, min(len(labels), int(_WIDTH / (_SAMPLE + _LETTER * longest))))
    legend = _LEGEND_LINE * math.ceil(len(labels) / columns) + 0.05 if len(given) > 1 else 0.0
    rows, num = max(len(panel.rows or ()) for panel in picture.panels), len(picture.panels)
    height = num * ((rows + 1) * _ROW if rows else _PANEL if num > 1 else _ONE_PANEL) + legend + _MARGIN
    # The salt makes the ids in the file depend only on the picture.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": picture.name}):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        grid = figure.subplots(num, sharex=True, squeeze=False)[:, 0]
        handles: dict[str, Any] = {}
        for axes, panel in zip(grid, picture.panels, strict=True):
            handles = _draw_panel(axes, picture, panel) | handles
        grid[-1].set_xlabel(picture.x_label, parse_math=False)
        if legend:
            _add_legend(figure, {label: handles[label] for label in labels}, columns)
        file = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else {"CreationDate": None}
        with warnings.catch_warnings():
            # About a glyph that the font lacks: an SVG viewer has another font, the PDF shows a box.
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
    from matplotlib.transforms import ScaledTranslation

    # Labels are user-chosen: text between dollar signs is not a formula.
    axes.set_title(panel.title, loc="left", color="#1c2430", parse_math=False)
    axes.set_ylabel(panel.y_label, parse_math=False)
    if picture.is_log:
        axes.set_xscale("log")
    for mark in panel.marks:
        axes.axvline(mark, color="#3d4652", linewidth=0.7, linestyle=(0, (4, 3)))
    handles: dict[str, Any] = {}
    # Points at one place are drawn side by side, unless lines show which series they belong to.
    is_aside = picture.has_points and any(not series.is_line or len(series.points) == 1 for series in panel.series)
    step = min(_ASIDE, _MOST_ASIDE / len(panel.series)) if is_aside else 0.0
    for index, series in enumerate(panel.series):
        before = set(axes.get_children())
        handles.setdefault(series.label, _draw_series(axes, picture, series))
        aside = ScaledTranslation(step * (index - (len(panel.series) - 1) / 2) / 72, 0, axes.figure.dpi_scale_trans)
        for artist in set(axes.get_children()) - before:
            artist.set_transform(axes.transData + aside)
    bottom, top = axes.get_ylim()
    # A floor further below would leave less than half of the height to the scores.
    if panel.floor is not None and panel.floor >= bottom - (top - bottom):
        axes.axhline(panel.floor, color="#5b6675", linewidth=0.7, linestyle=(0, (5, 3)))
    if panel.rows is not None:
        axes.margins(y=0.6 / len(panel.rows))
        axes.set_yticks([place for place, _ in panel.rows], [name for _, name in panel.rows], parse_math=False)
    values = sorted({point.x for panel in picture.panels for series in panel.series for point in series.points})
    if picture.ticks is not None:
        longest = max(_SIGNS_ON_AN_AXIS // max(len(picture.ticks), 1), 6)
        names = ["\n".join(textwrap.wrap(name, longest)) for _, name in picture.ticks]
        axes.set_xticks([place for place, _ in picture.ticks], names, parse_math=False)
        axes.minorticks_off()
        axes.margins(x=0.12)
    elif picture.has_points and _have_room(values, names := [_tick(value) for value in values], picture.is_log):
        axes.set_xticks(values, names)
        axes.minorticks_off()
        axes.margins(x=0.08)
    return handles


def _have_room(values: Sequence[float], names: Sequence[str], is_log: bool) -> bool:
    """True if each value can have its name on the axis: they are few, and far enough apart for their names."""
    places = [math.log(value) for value in values] if is_log else values
    gaps = [after - before for before, after in pairwise(places)]
    wanted = [(len(before) + len(after)) / 2 + 1 for before, after in pairwise(names)]
    return len(values) <= _LONGEST_AXIS_LIST and all(
        gap * _SIGNS_ON_AN_AXIS >= signs * (places[-1] - places[0]) for gap, signs in zip(gaps, wanted, strict=True)
    )


def _draw_series(axes: "Axes", picture: Picture, series: Series) -> Any:
    color = _COLORS[series.color % len(_COLORS)]
    # In addition to colour, which greyscale loses; the ninth line differs from the first in its style.
    is_line = series.is_line and len(series.points) > 1
    style = _LINES[(series.color + series.color // len(_COLORS)) % len(_LINES)] if is_line else "none"
    marker = _MARKERS[(series.color + series.color // len(_COLORS)) % len(_MARKERS)] if picture.has_points else None
    marker = marker if is_line else marker or "."
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
        axes.errorbar(xs, ys, yerr=[below, above], fmt="none", ecolor=color, elinewidth=0.8, capsize=1.8, alpha=0.75)
    return line


def _tick(value: float) -> str:
    if value >= 1e6 or 0 < value < 1e-3:
        digits, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:,.6g}" if value < 1e4 else f"{value:,.0f}"
