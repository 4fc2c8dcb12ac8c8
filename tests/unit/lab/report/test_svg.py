from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from training_runs import drawn, texts

from gloader.lab.report.svg import LINE, NUM_STYLES, WIDTH, chart_of, legend_of, mark, shortened, text_at


def test_a_file_is_a_drawing_of_its_own_that_loads_nothing() -> None:
    chart = chart_of("a", "what it shows", [text_at(1, 2, "x")], height=50)
    root = ET.fromstring(chart.as_file())  # noqa: S314 - our own
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.attrib["aria-label"] == "what it shows"
    assert b"url(" not in chart.as_file()
    assert b"--s0:" in chart.as_file()  # its colours are those of no page


def test_texts_of_data_are_texts() -> None:
    chart = chart_of("a", "<b>&\"'", [text_at(0, 0, "</svg><script>\x1b[2J")], height=50)
    (text,) = texts(chart)
    assert text.startswith("</svg><script>")
    assert "\x1b" not in text


def test_each_style_has_a_mark_that_no_other_has() -> None:
    shapes = [
        mark(style, 0, 0).replace(f"s{style}", "").replace(f"f{style}", "") for style in range(NUM_STYLES)
    ]
    assert len(set(shapes)) == NUM_STYLES


def test_a_legend_takes_as_many_lines_as_it_needs_and_stays_inside() -> None:
    _, below_one = legend_of([("short", "")])
    parts, below = legend_of([("a name of thirty characters ...", "")] * 4)
    moves = re.findall(r"translate\((\S+) (\S+)\)", "".join(parts))
    places = [(float(x), float(y)) for x, y in moves]
    assert below == below_one + LINE  # two in a line
    assert [y for _, y in places] == [places[0][1]] * 2 + [places[0][1] + LINE] * 2
    assert max(x for x, _ in places) < WIDTH / 2 + 10
    chart = chart_of("a", "", parts, height=50)
    assert len(texts(chart)) == 4
    assert drawn(chart, "line") == []


def test_long_names_are_cut_so_that_they_still_differ() -> None:
    names = [f"a name of many words with the rate {rate}" for rate in ("0.1", "0.2")]
    cut = [shortened(name) for name in names]
    assert cut[0].endswith("the rate 0.1")
    assert cut[0].startswith("a name of")
    assert cut[0] != cut[1]
    assert len(cut[0]) == 34
    assert shortened("x" * 34) == "x" * 34
