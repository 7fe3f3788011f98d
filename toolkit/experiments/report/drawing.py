"""Pictures as SVG and PDF by matplotlib: wide for papers and screens, narrow for phones. Equal input, equal bytes."""

import io
import math
import textwrap
from enum import Enum
from typing import TYPE_CHECKING, Any

from toolkit.experiments.report.pictures import Panel, Picture, Series, Ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
_PANEL_HEIGHT, _LEGEND_LINE, _MARGIN = 2.5, 0.2, 0.35
_LONGEST_AXIS_LIST = 6
_SIGNS_ON_AN_AXIS = 42


class Shape(Enum):
    """Width in inches, and how many panels stand side by side at most."""

    WIDE = (7.6, 2)
    NARROW = (3.7, 1)


def draw(picture: Picture, file_format: str, shape: Shape = Shape.WIDE) -> bytes:
    """A file of a picture.

    Args:
        picture: with at least one panel.
        file_format: `svg` or `pdf`.
        shape: for which width of the page.
    """
    import matplotlib
    from matplotlib.figure import Figure

    width, most = shape.value
    columns = min(most, len(picture.panels))
    lines = math.ceil(len(picture.panels) / columns)
    labels = list(dict.fromkeys(series.label for panel in picture.panels for series in panel.series if series.label))
    legend_columns = _legend_columns(labels, width)
    legend = _LEGEND_LINE * math.ceil(len(labels) / legend_columns) + 0.1 if labels != [] and len(labels) > 1 else 0.0
    height = lines * _PANEL_HEIGHT + legend + _MARGIN
    # The salt makes the ids in the file depend on nothing but the picture.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": f"{picture.name}-{shape.name}"}):
        figure = Figure(figsize=(width if columns > 1 or most == 1 else 0.72 * width, height), layout="constrained")
        grid = figure.subplots(lines, columns, squeeze=False)
        for index, axes in enumerate(grid.flat):
            if index < len(picture.panels):
                _draw_panel(axes, picture, picture.panels[index])
            else:
                axes.set_visible(False)
        if legend:
            handles = _handles(grid.flat)
            figure.legend(
                [handles[label] for label in labels], labels, loc="outside lower center", ncols=legend_columns
            )
        file = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else {"CreationDate": None}
        figure.savefig(file, format=file_format, metadata=metadata)
    return file.getvalue()


def _draw_panel(axes: "Axes", picture: Picture, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", color="#1c2430")
    axes.set_xlabel(picture.x_label)
    axes.set_ylabel(panel.y_label)
    if picture.is_log:
        axes.set_xscale("log")
    for mark in panel.marks:
        axes.axvline(mark, color="#3d4652", linewidth=0.9, linestyle=(0, (4, 3)))
    for series in panel.series:
        _draw_series(axes, picture, series)
    values = sorted({point.x for series in panel.series for point in series.points})
    if picture.ticks is not None:
        _name_ticks(axes, picture.ticks)
    elif picture.has_points and len(values) <= _LONGEST_AXIS_LIST:
        axes.set_xticks(values, [_tick(value) for value in values])
        axes.minorticks_off()
        axes.margins(x=0.08)


def _name_ticks(axes: "Axes", ticks: Ticks) -> None:
    longest = max(_SIGNS_ON_AN_AXIS // max(len(ticks), 1), 6)
    axes.set_xticks([place for place, _ in ticks], ["\n".join(textwrap.wrap(name, longest)) for _, name in ticks])
    axes.minorticks_off()
    axes.margins(x=0.12)


def _draw_series(axes: "Axes", picture: Picture, series: Series) -> None:
    color = _COLORS[series.color % len(_COLORS)]
    # Past the palette, another line style tells lines of one colour apart.
    style = ("-", "--", ":", "-.")[series.color // len(_COLORS) % 4] if series.is_line else "none"
    marker = _MARKERS[(series.color + series.color // len(_COLORS)) % len(_MARKERS)] if picture.has_points else None
    xs, ys = [point.x for point in series.points], [point.y for point in series.points]
    axes.plot(xs, ys, color=color, linestyle=style, marker=marker, label=series.label or "_")
    bars = [point for point in series.points if point.low is not None and point.high is not None]
    if bars:
        below = [point.y - (point.low or 0.0) for point in bars]
        above = [(point.high or 0.0) - point.y for point in bars]
        xs, ys = [point.x for point in bars], [point.y for point in bars]
        axes.errorbar(xs, ys, yerr=[below, above], fmt="none", ecolor=color, elinewidth=1.0, capsize=2.5, alpha=0.75)


def _handles(panels: Any) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    return handles


def _legend_columns(labels: list[str], width: float) -> int:
    """As many as fit: a letter is about 0.065 inches wide, a line's sample 0.5."""
    longest = max((len(label) for label in labels), default=1)
    return max(1, min(len(labels) or 1, int(width / (0.5 + 0.065 * longest))))


def _tick(value: float) -> str:
    if value >= 1e6 or 0 < value < 1e-3:
        digits, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:,.6g}" if value < 1e4 else f"{value:,.0f}"
