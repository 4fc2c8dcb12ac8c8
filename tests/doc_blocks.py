"""The fenced blocks of README and docs: what each is, why it is not run if it is not, and how it is run.

A comment directly above a block says what a reader need not know:

    <!-- not run: needs 56 GB from OGB -->      code or commands that no test runs, and why
    <!-- not code: what the commands print -->  text that nobody could run
    <!-- run by tests/unit/x/test_y.py -->      another test runs it, and names the page
    <!-- run with the long tests -->            it takes long

Every other block is run: Python in the names of its page, `gloader` commands in this process, YAML and JSON by their
readers. Sybil would run them too, and has no word for a block that nobody runs: the guard would be ours all the same.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from gloader.cli.main import main

ROOT = Path(__file__).parents[1]
_NOTE = re.compile(r"<!-- (not run|not code|run by|run with the long tests)(.*?)-->", re.DOTALL)
_READERS = {"yaml": yaml.safe_load, "json": json.loads}
_COMMANDS = {"", "sh", "bash", "console"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DocBlock:
    """A fenced block of a page."""

    page: Path
    line: int  # of its first line, from 1
    heading: str  # that it stands below
    language: str
    text: str
    note: str  # the comment's first words; "": there is none
    reason: str

    @property
    def where(self) -> str:
        """File and line, for people."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run_here(self) -> bool:
        """Whether `run` runs it."""
        return self.is_long or not self.note

    @property
    def is_long(self) -> bool:
        """Whether it takes too long for `make test`."""
        return self.note == "run with the long tests"

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the block's comment, or with there being none."""
        if self.note in ("not run", "not code") and not re.match(r": \S", self.reason):
            yield f"{self.where}: {self.note!r} gives no reason"
        if self.note in ("not run", "not code") and self.language in _READERS:
            yield f"{self.where}: {self.language} is read by its reader and needs no excuse"
        if self.note == "not code" and self.language:
            yield f"{self.where}: {self.language} is code"
        if self.note == "run by" and not _names(ROOT / self.reason.strip(), self.page.name):
            yield f"{self.where}: {self.reason.strip()} is no test that names {self.page.name}"
        if not self.is_run_here or self.language in ("python", *_READERS):
            return
        if self.language not in _COMMANDS:
            yield f"{self.where}: nothing runs {self.language}; say '<!-- not run: REASON -->' above it"
            return
        for words in commands(self.text):
            if words[0] != "gloader":
                yield f"{self.where}: {words[0]!r} is not run here; say '<!-- not run: REASON -->' above the block"

    def run(self, names: dict[str, Any]) -> None:
        """Run it; Python in ``names``, commands in the working directory."""
        if self.language in _READERS:
            _READERS[self.language](self.text)
        elif self.language == "python":
            # Lines are those of the page, for whoever reads a traceback.
            code = compile("\n" * self.line + self.text, str(self.page), "exec")
            exec(code, names)  # noqa: S102 - the text of this repository
        else:
            for words in commands(self.text):
                assert main(words[1:]) == 0, f"{self.where}: {shlex.join(words)}"


def commands(text: str) -> list[list[str]]:
    """Return the words of each command of a shell block."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks_of(page: Path) -> list[DocBlock]:
    """Return the blocks of a page in order; directives of the site are none."""
    found, heading, above = [], "", ""
    tokens = MarkdownIt().parse(page.read_text())
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            heading = following.content
        if token.type in ("fence", "code_block") and not token.info.startswith("{"):
            note = _NOTE.search(above)
            assert token.map is not None
            found.append(
                DocBlock(
                    page=page,
                    line=token.map[0] + 1,
                    heading=heading,
                    language=token.info.strip(),
                    text=token.content,
                    note=note[1] if note else "",
                    reason=note[2].rstrip() if note else "",
                )
            )
        above = token.content if token.type == "html_block" else ""
    return found


def notes_of(page: Path) -> int:
    """Return how many comments of a page speak of a block."""
    return len(_NOTE.findall(page.read_text()))


def _names(test: Path, page: str) -> bool:
    return test.name.startswith("test_") and test.is_file() and page in test.read_text()
