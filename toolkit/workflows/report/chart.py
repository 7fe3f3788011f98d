"""Line charts as SVG text: no fonts, scripts or files from elsewhere; colours come from the page's style sheet."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 48, 30, 40
_LABEL_HEIGHT = 14
_WIDE, _NARROW = (780, 380), (360, 300)


@dataclass(frozen=True)
class Series:
    """One line."""

    label: str
    """What a reader sees when pointing at it."""
    points: tuple[Point, ...]
    css: str
    """Classes that colour it: `clm`, `mlm`, `faint`, `dashed`, ..."""
    has_dots: bool = False
    """Whether each point gets a dot that tells its value."""
    ends_with_value: bool = False
    """Whether the last value stands behind its end."""


@dataclass(frozen=True)
class Band:
    """A stretch of the horizontal axis with a heading."""

    start: float
    stop: float
    label: str
    short_label: str
    css: str


@dataclass(frozen=True)
class Level:
    """A horizontal line over a stretch; only the last one of a chart is labelled."""

    start: float
    stop: float
    value: float
    label: str
    short_label: str


@dataclass(frozen=True)
class _Frame:
    """Where numbers are on the page."""

    width: int
    height: int
    x_span: Point
    y_span: Point

    def x(self, value: float) -> float:
        low, high = self.x_span
        return _LEFT + (value - low) / (high - low) * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_span
        return self.height - _BOTTOM - (value - low) / (high - low) * (self.height - _TOP - _BOTTOM)


def responsive(draw: Callable[[int, int], str]) -> str:
    """The same chart for a wide and for a narrow window; the style sheet shows one of the two."""
    wide, narrow = draw(*_WIDE), draw(*_NARROW)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def line_chart(
    series: Sequence[Series],
    *,
    bands: Sequence[Band] = (),
    levels: Sequence[Level] = (),
    x_label: str,
    title: str,
    size: tuple[int, int],
) -> str:
    """A chart of lines over bands, as an `<svg>` element.

    Args:
        series: at least one with at least one point.
        bands: stretches with a heading, from left to right.
        levels: dashed horizontal lines.
        x_label: below the axis.
        title: what the chart is called for those who cannot see it.
        size: width and height in pixels.
    """
    values = [y for line in series for _, y in line.points] + [level.value for level in levels]
    steps = [x for line in series for x, _ in line.points]
    height = max(max(values) - min(values), 1e-6)
    y_step = _tick_step(height, most=6)
    # The scale starts at a tick below all values, and ends a little above them.
    y_span = (math.floor(min(values) / y_step) * y_step, max(values) + 0.06 * height)
    frame = _Frame(*size, x_span=(0.0, max(*steps, 1.0)), y_span=y_span)
    is_narrow = frame.width < _WIDE[0]
    parts = [
        *(_band(band, frame, is_narrow=is_narrow) for band in bands),
        *_axes(frame, y_step=y_step, x_step=_tick_step(frame.x_span[1], most=4 if is_narrow else 10)),
        _text("axis", frame.width - _RIGHT, frame.height - 6, x_label, anchor="end"),
        *_levels(levels, frame, is_narrow=is_narrow),
        *(_line(line, frame) for line in series),
        *_end_values(series, frame),
    ]
    return (
        f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _text(css: str, x: float, y: float, text: str, *, anchor: str) -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _band(band: Band, frame: _Frame, *, is_narrow: bool) -> str:
    left, width = frame.x(band.start), frame.x(band.stop) - frame.x(band.start)
    label = band.short_label if is_narrow else band.label
    body = frame.height - _TOP - _BOTTOM
    return (
        f'<rect class="band {band.css}" x="{left:.1f}" y="{_TOP}" width="{width:.1f}" height="{body}"/>'
        f'<rect class="heading {band.css}" x="{left + 1:.1f}" y="4" width="{width - 2:.1f}" height="20" rx="3"/>'
        + _text("heading", left + width / 2, 18, label, anchor="middle")
    )


def _axes(frame: _Frame, *, x_step: float, y_step: float) -> list[str]:
    right, bottom = frame.width - _RIGHT, frame.height - _BOTTOM
    parts = []
    decimals = max(0, -math.floor(math.log10(y_step) + 1e-9))
    for value in _ticks(*frame.y_span, y_step):
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text("tick", _LEFT - 6, y + 4, f"{value:.{decimals}f}", anchor="end"))
    for value in _ticks(*frame.x_span, x_step):
        x = frame.x(value)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(_text("tick", x, bottom + 17, f"{value:,.0f}", anchor="middle"))
    return parts


def _levels(levels: Sequence[Level], frame: _Frame, *, is_narrow: bool) -> list[str]:
    parts = []
    for level in levels:
        y, left, right = frame.y(level.value), frame.x(level.start), frame.x(level.stop)
        parts.append(f'<line class="level" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
    if levels:
        label = levels[-1].short_label if is_narrow else levels[-1].label
        parts.append(_text("level", right - 4, y - 6, f"{label} {levels[-1].value:.2f}", anchor="end"))
    return parts


def _line(line: Series, frame: _Frame) -> str:
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)
    drawn = f'<polyline class="line {line.css}" points="{path}"><title>{escape(line.label)}</title></polyline>'
    if not line.has_dots:
        return drawn
    dots = "".join(
        f'<circle class="dot {line.css}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.2">'
        f"<title>{escape(line.label)}, step {x:,.0f}: {y:.3f}</title></circle>"
        for x, y in line.points
    )
    return drawn + dots


def _end_values(series: Sequence[Series], frame: _Frame) -> list[str]:
    """Last values behind the lines, pushed apart where they would cover one another."""
    ends = sorted(
        ((frame.y(line.points[-1][1]), frame.x(line.points[-1][0]), line) for line in series if line.ends_with_value),
        key=lambda end: end[0],
    )
    parts, lowest = [], -math.inf
    for y, x, line in ends:
        lowest = max(y + 4, lowest + _LABEL_HEIGHT)
        parts.append(_text(f"value {line.css}", x + 8, lowest, f"{line.points[-1][1]:.2f}", anchor="start"))
    return parts


def _tick_step(span: float, *, most: int) -> float:
    """The smallest of 1, 2, 3, 5 x 10^k that needs at most so many ticks."""
    rough = max(span, 1e-9) / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 3, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _ticks(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]
