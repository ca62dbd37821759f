"""The chart of bench/shared.py: a file that stands by itself, with a point for each figure."""

from __future__ import annotations

from xml.etree import ElementTree

from bench.shared_svg import chart

SPACE = "{http://www.w3.org/2000/svg}"


def test_each_figure_is_a_point_of_its_line_and_more_is_higher() -> None:
    figures = [
        {"line": name, "clients": count, "rate": rate} for name, count, rate in (("a <b>", 1, 10), ("a <b>", 64, 1_000), ("c", 1, 0.2))
    ]
    root = ElementTree.fromstring(chart(figures, "2026, load 3 & more"))
    points = [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in root.iter(f"{SPACE}circle")]
    assert len(points) == 3
    assert len(list(root.iter(f"{SPACE}polyline"))) == 2
    assert points[1][0] > points[0][0] and points[1][1] < points[0][1] < points[2][1]
    assert [one.text for one in root.iter(f"{SPACE}text")][:2] == [
        "Messages taken a second from one queue, against the number of clients",
        "2026, load 3 & more",
    ]


def test_one_figure_is_a_chart() -> None:
    assert len(list(ElementTree.fromstring(chart([{"line": "a", "clients": 4, "rate": 7}], "")).iter(f"{SPACE}circle"))) == 1
