from __future__ import annotations

from html.parser import HTMLParser

from gloader.lab.report.build_page import name_pictures
from gloader.lab.report.page import Section, TextTable, render_page
from gloader.lab.report.svg import chart_of, text_at


class _Links(HTMLParser):
    """Collects the tags, and every attribute that a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")
        ]


def _section(title: str = "A & <B>") -> Section:
    return Section(
        title=title,
        source="runs/<x>",
        facts=(("machine", "2 cores"),),
        charts=(chart_of("a", 'what "it" shows', [], height=10),),
        tables=(TextTable(header=("h",), rows=(("<script>alert(1)</script>",),)),),
        notes=("https://example.org is a text",),
    )


def test_a_page_loads_nothing_from_outside_and_runs_nothing() -> None:
    page = _Links()
    page.feed(render_page("T", [_section()]))
    assert page.loads == []
    assert not {"script", "link", "iframe", "object", "img", "image"} & set(page.tags)


def test_texts_are_escaped() -> None:
    text = render_page("<T>", [_section()])
    assert "<title>&lt;T&gt;</title>" in text
    assert "A &amp; &lt;B&gt;" in text
    assert "<script>" not in text
    assert 'aria-label="what &quot;it&quot; shows"' in text


def test_pictures_of_one_name_are_numbered() -> None:
    pages = [_section(), _section(), _section()]
    assert list(name_pictures(pages)) == ["a.svg", "a-2.svg", "a-3.svg"]
    charts = [chart_of("x/y", "c", [], height=10)] * 2
    named = name_pictures([Section(title="t", source="s", charts=(*charts,)), _section()])
    assert list(named) == ["x-y.svg", "x-y-2.svg", "a.svg"]
    assert named["x-y.svg"].startswith(b"<svg")


def test_charts_and_tables_are_in_the_page_itself() -> None:
    table = TextTable(header=("h",), rows=(("<x>",),) * 13)
    section = Section(
        title="t", source="s", charts=(chart_of("a", "what <it> shows", [text_at(0, 0, "<x>")], height=10),),
        named_tables=(("Of <these>", table),), folded_tables=(("Long <one>", table), ("Short", table.columns(0))),
    )  # fmt: skip
    page = _Links()
    text = render_page("T", [section])
    page.feed(text)
    assert page.loads == []
    assert page.tags.count("svg") == 1
    assert page.tags.count("table") == 3
    assert "<x>" not in text
    assert "<it>" not in text
    for told in ("what &lt;it&gt; shows", "Of &lt;these&gt;", "Long &lt;one&gt;"):
        assert told in text


def test_a_long_table_is_folded_when_the_page_opens() -> None:
    def is_open(num_rows: int) -> bool:
        table = TextTable(header=("h",), rows=(("x",),) * num_rows)
        return "<details open>" in render_page(
            "T", [Section(title="t", source="s", folded_tables=(("n", table),))]
        )

    assert [is_open(12), is_open(13)] == [True, False]


def test_a_table_of_some_columns() -> None:
    table = TextTable(header=("a", "b", "c"), rows=(("1", "2", "3"),))
    assert table.columns(2, 0) == TextTable(header=("c", "a"), rows=(("3", "1"),))
