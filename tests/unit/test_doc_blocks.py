"""Every fenced block of README and docs is run by a test, or says why not."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from doc_blocks import ROOT, DocBlock, blocks_of, notes_of
from doc_world import enter

from gloader.errors import MissingDependencyError

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def _run(page: Path, blocks: list[DocBlock], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    heading = ""
    try:
        enter(page.name, heading, names)  # what is there from the first line on
        for block in blocks:
            if block.heading != heading:
                heading = block.heading
                enter(page.name, heading, names)
            block.run(names)
    except (ModuleNotFoundError, MissingDependencyError) as error:
        if "dgl" not in str(error):
            raise
        pytest.skip(f"{page.name}: {error}")  # it has no wheel for this Python
    finally:
        for value in names.values():
            if hasattr(value, "close") and not isinstance(value, type):
                value.close()
        names.clear()
        gc.collect()


def _blocks(page: Path, *, are_long: bool) -> list[DocBlock]:
    return [block for block in blocks_of(page) if block.is_run_here and (are_long or not block.is_long)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    blocks = blocks_of(page)
    assert [fault for block in blocks for fault in block.faults()] == []
    assert notes_of(page) == sum(block.note != "" for block in blocks), "a comment that stands above no block"


@pytest.mark.filterwarnings("ignore:`torch.jit")  # PyG, when it is imported
@pytest.mark.parametrize(
    "page", [page for page in PAGES if _blocks(page, are_long=False)], ids=lambda page: page.stem
)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(page, _blocks(page, are_long=False), tmp_path, monkeypatch)


LONG = [page for page in PAGES if any(block.is_long for block in blocks_of(page))]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("page", LONG, ids=lambda page: page.stem)
def test_all_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(page, _blocks(page, are_long=True), tmp_path, monkeypatch)


def _only_block(tmp_path: Path, text: str) -> DocBlock:
    page = ROOT / "docs" / "made-up.md"
    (tmp_path / "page.md").write_text(text)
    (block,) = blocks_of(tmp_path / "page.md")
    return DocBlock(**{name: getattr(block, name) for name in DocBlock.__slots__} | {"page": page})


@pytest.mark.parametrize(
    ("above", "language", "text", "fault"),
    [
        ("", "", "torchrun x", "'torchrun' is not run here"),
        ("", "diff", "+ a", "nothing runs diff"),
        ("<!-- not run: -->", "", "make train", "gives no reason"),
        ("<!-- not code: a table -->", "python", "1", "python is code"),
        ("<!-- not run: why -->", "yaml", "a: 1", "needs no excuse"),
        ("<!-- run by tests/unit/test_types.py -->", "python", "1", "is no test that names made-up.md"),
        ("<!-- not run: words\n\nbetween -->\n\nMore.", "diff", "1", "nothing runs diff"),
    ],
)
def test_a_block_without_a_run_or_a_reason_is_found(
    tmp_path: Path, above: str, language: str, text: str, fault: str
) -> None:
    block = _only_block(tmp_path, f"{above}\n\n```{language}\n{text}\n```\n")
    (found,) = block.faults()
    assert fault in found
    assert found.startswith("docs/made-up.md:")


@pytest.mark.parametrize(
    ("above", "language", "text"),
    [
        ("<!-- not run: needs a cluster -->", "sh", "torchrun x"),
        ("<!-- not code: a table -->", "", "a  b"),
        ("", "python", "1"),
        ("", "", "gloader info data/x  # and so on"),
    ],
)
def test_a_block_that_is_run_or_excused_is_right(
    tmp_path: Path, above: str, language: str, text: str
) -> None:
    assert list(_only_block(tmp_path, f"{above}\n```{language}\n{text}\n```\n").faults()) == []


def test_a_failing_block_names_its_line(tmp_path: Path) -> None:
    block = _only_block(tmp_path, "Words.\n\n```python\nx = 1\nx / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as error:
        block.run({})
    assert error.traceback[-1].lineno == 4  # of the page, from 0
