from __future__ import annotations

from html.parser import HTMLParser

from gloader.report.build_page import name_pictures
from gloader.report.page import Picture, Section, beside, render_page
from gloader.report.text_table import TextTable

PNG = b"\x89PNG not really"


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
        pictures=(Picture(name="a", caption='what "it" shows', png=PNG),),
        tables=(TextTable(header=("h",), rows=(("<script>alert(1)</script>",),)),),
        notes=("https://example.org is a text",),
    )


def test_a_page_loads_nothing_from_outside_and_runs_nothing() -> None:
    page = _Links()
    page.feed(render_page("T", [_section()]))
    assert page.loads
    assert all(link.startswith("data:image/png;base64,") for link in page.loads)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)


def test_texts_are_escaped() -> None:
    text = render_page("<T>", [_section()])
    assert "<title>&lt;T&gt;</title>" in text
    assert "A &amp; &lt;B&gt;" in text
    assert "<script>" not in text
    assert 'alt="what &quot;it&quot; shows"' in text


def test_pictures_of_one_name_are_numbered() -> None:
    assert list(name_pictures([_section(), _section(), _section()])) == ["a", "a-2", "a-3"]


def test_two_runs_stand_beside_each_other_and_one_alone() -> None:
    first, second = (
        Section(title=name, source=name, column=name, facts=(("loss", name),)) for name in ("a", "b")
    )
    assert beside([first]) == [first]
    together, *own = beside([first, second])
    assert together.tables[0].rows == (("loss", "a", "b"),)
    assert [section.facts for section in own] == [(), ()]
