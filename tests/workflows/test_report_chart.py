import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from toolkit.workflows.report.chart import Band, Level, Series, line_chart, responsive


def _chart(series, *, size=(780, 380), **more):
    return ET.fromstring(line_chart(series, x_label="step", title="a < b", size=size, **more))


def _points(element):
    return [tuple(map(float, pair.split(","))) for pair in element.get("points").split()]


def test_points_lie_where_their_numbers_say():
    """From 0 to 100 across 780 - 44 - 48 pixels; the scale ends 6 % above the highest value."""
    chart = _chart([Series("line", ((0, 10.0), (50, 8.0), (100, 6.0)), "clm")])
    (line,) = chart.iter("polyline")
    left, middle, right = _points(line)
    assert (left[0], middle[0], right[0]) == (44, 388, 732)
    assert middle[1] - left[1] == pytest.approx(right[1] - middle[1], abs=0.11)
    low, high = 6.0, 10.0 + 0.06 * 4
    assert right[1] == 340
    assert left[1] == pytest.approx(340 - (10 - low) / (high - low) * 310, abs=0.06)


def test_ticks_are_round_and_inside():
    chart = _chart([Series("line", ((0, 9.04), (900, 5.83)), "clm")])
    ticks = [text.text for text in chart.iter("text") if text.get("class") == "tick"]
    assert ticks == ["5", "6", "7", "8", "9", "0", "100", "200", "300", "400", "500", "600", "700", "800", "900"]


def test_end_values_do_not_cover_one_another():
    series = [Series(str(y), ((0, 9.0), (10, y)), "clm", ends_with_value=True) for y in (6.0, 6.01, 6.02)]
    chart = _chart(series)
    heights = sorted(float(text.get("y")) for text in chart.iter("text") if text.get("class").startswith("value"))
    assert len(heights) == 3
    assert min(after - before for before, after in pairwise(heights)) >= 14


def test_dots_tell_their_value():
    chart = _chart([Series("CLM, held out", ((100, 6.5),), "clm", has_dots=True)])
    assert [title.text for dot in chart.iter("circle") for title in dot] == ["CLM, held out, step 100: 6.500"]


def test_bands_and_levels_are_named_and_shorter_in_a_narrow_window():
    bands = [Band(0, 50, "phase 1 & more", "CLM", "clm"), Band(50, 100, "phase 2", "MLM", "mlm")]
    levels = [
        Level(0, 50, 7.2, "token frequencies", "frequencies"),
        Level(50, 100, 7.3, "token frequencies", "frequencies"),
    ]

    def texts(size):
        chart = _chart([Series("line", ((0, 9.0), (100, 6.0)), "clm")], size=size, bands=bands, levels=levels)
        return [text.text for text in chart.iter("text")]

    wide, narrow = texts((780, 380)), texts((360, 300))
    assert {"phase 1 & more", "phase 2", "token frequencies 7.30"} <= set(wide)
    assert {"CLM", "MLM", "frequencies 7.30"} <= set(narrow)
    assert "token frequencies 7.20" not in wide


def test_a_flat_line_has_a_scale():
    (line,) = _chart([Series("line", ((0, 7.0), (10, 7.0)), "clm")]).iter("polyline")
    assert all(0 <= y <= 380 for _, y in _points(line))


def test_both_windows_get_a_chart():
    html = responsive(lambda width, height: f"<svg>{width}x{height}</svg>")
    assert re.findall(r'<div class="(\w+)"><svg>(\d+)x', html) == [("wide", "780"), ("narrow", "360")]
