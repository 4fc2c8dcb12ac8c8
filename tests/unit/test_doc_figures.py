"""Tables and sentences of README and docs say what the result files say."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_figures import (
    COMMENT,
    ROOT,
    contradictions,
    links_of,
    numbers_in,
    tables_without_links,
)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [page for page in PAGES if COMMENT.search(page.read_text())]
RESULTS = ROOT / "experiments" / "results"


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_figures_are_those_of_their_files(page: Path) -> None:
    assert contradictions(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_of_figures_names_its_file(page: Path) -> None:
    assert tables_without_links(page.read_text()) == []


def _with_other_figures(document: str) -> Iterator[str]:
    """Yield ``document`` with one figure of a linked row or sentence changed in its last digit."""
    for file, lines, block in links_of(document):
        quoted = re.findall(r'text "(.*?)":', lines)
        rows = [row for row in block.split("\n")[2:] if row[:1] == "|"] if "row" in lines else []
        for words in (*quoted, *rows):
            numbers = list(re.finditer(r"\d+\.\d+", words))
            for number in numbers[-1:]:
                last = str((int(number[0][-1]) + 2) % 10)
                changed = words[: number.end() - 1] + last + words[number.end() :]
                if words in block:
                    assert file
                    yield document.replace(block, block.replace(words, changed), 1)


def test_a_changed_figure_is_found() -> None:
    document = (ROOT / "docs" / "benchmarks.md").read_text()
    others = list(_with_other_figures(document))
    assert len(others) > 20
    for other in others:
        assert contradictions(other), next(
            pair for pair in zip(document.split("\n"), other.split("\n"), strict=True) if pair[0] != pair[1]
        )


def test_numbers_are_compared_to_the_rounding_of_their_digits() -> None:
    (number,) = numbers_in("an epoch takes **3.4 s** on")
    assert number.is_rounded(3.449)
    assert not number.is_rounded(3.46)
    assert [found.value for found in numbers_in("1 min 28 s, 814 MB, 1,033 k rows/s, 39.1%, float16")] == [
        88.0,
        814e6,
        1033e3,
        0.391,
    ]


def test_words_that_are_gone_and_missing_rows_are_found() -> None:
    comment = "<!-- figures of experiments/results/2026-11-20-packs.json\n{}\n-->\n| a | b |\n|---|---|\n| x | 64 |\n"
    assert contradictions(comment.format("row x: results[0].superbatch")) == []
    for line in (
        'text "65": results[0].superbatch',
        "row y: results[0].superbatch",
        "row x: rounds, rounds",
        "row x: rounds",
    ):
        assert len(contradictions(comment.format(line))) == 1


def test_every_result_file_names_command_and_commit() -> None:
    listed = (RESULTS / "README.md").read_text()
    for path in RESULTS.glob("*.json"):
        values = json.loads(path.read_text())
        has_both = isinstance(values, dict) and {"command", "commit"} <= values.keys()
        stem = path.name.removesuffix(".json")
        assert has_both or f"| {path.name}" in listed or stem.endswith("-int8"), path.name
