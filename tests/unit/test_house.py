"""The text of the source keeps its form: a docstring says what a thing is or does, and no thing is a person."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "house.py"


@pytest.fixture(scope="module")
def house() -> Any:
    spec = importlib.util.spec_from_file_location("house", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module  # where its dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def complaints(house: Any, path: Path, text: str) -> list[str]:
    tree = ast.parse(text)
    found = []
    for node, doc in house.docstring_nodes(tree):
        words = doc.value.value
        name = getattr(node, "name", "module")
        if house.QUESTION.match(words):
            found.append(f"{path}: the docstring of {name} begins with {words.split()[0]!r}")
        if person := house.PERSON.search(words):
            found.append(f"{path}: the docstring of {name} says {person[0]!r}")
    return found


def test_no_docstring_begins_with_a_question_or_speaks_of_persons(house: Any) -> None:
    found = [
        line for path in house.source_files() for line in complaints(house, path, path.read_text("utf-8"))
    ]
    assert found == []


def test_the_rule_can_fail(house: Any) -> None:
    text = '"""What a file holds."""\n\ndef f():\n    """Return rows; nobody needs them."""\n'
    assert complaints(house, Path("a.py"), text) == [
        "a.py: the docstring of module begins with 'What'",
        "a.py: the docstring of f says 'nobody'",
    ]


def test_files_stay_within_a_room_of_500_lines(house: Any) -> None:
    most = house.GOALS[house.LARGEST]
    texts = {path: path.read_text("utf-8") for path in house.source_files()}
    long = {path: text for path, text in texts.items() if text.count("\n") > most}
    assert long  # else nothing is counted
    lines = {path: len(house.code_lines(text, ast.parse(text))) for path, text in long.items()}
    assert {path: number for path, number in lines.items() if number > most} == {}


def missing_names(page: str, words: set[str]) -> list[str]:
    """Return the private names in backticks on ``page`` that are not among ``words``. Pure."""
    quoted = " ".join(re.findall(r"`([^`\n]+)`", page))
    return sorted(set(re.findall(r"(?<![\w.*])_[A-Za-z]\w+", quoted)) - words)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "ARCHITECTURE.md", "docs/extending.md"])
def test_the_recipes_name_what_there_is(house: Any, page: str) -> None:
    paths = [*house.source_files(), *(ROOT / "tests").rglob("*.py")]
    words = {word for path in paths for word in re.findall(r"\w+", path.read_text("utf-8"))}
    assert missing_names((ROOT / page).read_text("utf-8"), words) == []


def test_a_name_that_is_gone_is_found() -> None:
    assert missing_names("A line in `_NEW` and `f(_OLD)`, not `numpy._core`.", {"_NEW"}) == ["_OLD"]
