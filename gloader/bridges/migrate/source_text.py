"""The text of a script, edits to this text, and the unified diff of the text before and after the edits.

`migration` reads and parses a script with `read_script` and `parse_script`. The drafts for DGL and PyG make their edits
with `Edits`. Positions are byte offsets into the text. An edit replaces a range of bytes.
"""

from __future__ import annotations

import ast
import difflib
import re
import warnings
from typing import TYPE_CHECKING, Final

from gloader.core.malformed import printable, printable_line
from gloader.core.units import format_bytes
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path


MAX_SCRIPT_BYTES: Final = 1_000_000  # far more than any script needs
_BOM: Final = "\ufeff"  # the byte order mark, which the syntax tree's positions do not count
_ONLY_SPACE: Final = re.compile(rb"[ \t]*(#[^\r\n]*)?")  # spaces and a comment
_REST: Final = re.compile(rb"[ \t]*,[ \t]*(#[^\r\n]*)?\r?\n")  # the rest of a line that has only one item


def read_script(path: Path) -> str:
    """Return the text of the script at ``path``.

    Raises
    ------
    ConfigError
        The script is missing, not a file, larger than `MAX_SCRIPT_BYTES`, a notebook, or not UTF-8.
    """
    if path.suffix == ".ipynb":
        raise ConfigError(
            f"{path} is a notebook: write it as a script with: jupyter nbconvert --to script {path}"
        )
    try:
        if not path.is_file():
            raise ConfigError(f"{path} is {'no file' if path.exists() else 'missing'}; give a Python script")
        with path.open("rb") as file:
            content = file.read(MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_SCRIPT_BYTES:
        raise ConfigError(f"{path} has more than {format_bytes(MAX_SCRIPT_BYTES)}; give a Python script")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path} is not UTF-8: line {line} has the byte {content[error.start]:#04x}"
        ) from error


def parse_script(text: str, name: str) -> ast.Module:
    """Return the syntax tree of a script without executing it.

    Raises
    ------
    ConfigError
        The script is not Python; the message names the line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as a warning about "\d" in the script
            return ast.parse(text.removeprefix(_BOM))
    except SyntaxError as error:
        where = f"line {error.lineno}" if error.lineno else "somewhere"
        raise ConfigError(f"{name} is no Python of this version, {where}: {error.msg}") from error
    # Raised for null bytes, and for too deeply nested brackets.
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{name} cannot be parsed as Python: {printable(str(error))}") from error


class Edits:
    """Edits to a text. They may come in any order; an edit that overlaps an earlier one is refused."""

    def __init__(self, text: str) -> None:
        # Positions are byte offsets, as in the syntax tree. Bytes are split into lines where Python ends a line. A str
        # is also split at other Unicode characters.
        self._mark = _BOM if text.startswith(_BOM) else ""
        self._bytes = text.removeprefix(_BOM).encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._pieces: list[tuple[int, int, bytes]] = []  # edits: start, end, and new bytes
        self.is_frozen = False  # set to refuse every further edit

    def start(self, node: ast.AST) -> int:
        """Return the position of the first byte of ``node``."""
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        """Return the position after the last byte of ``node``."""
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def text(self, start: int, end: int) -> str:
        """Return the text between two positions."""
        return self._bytes[start:end].decode(errors="replace")

    def of(self, node: ast.AST) -> str:
        """Return the text of ``node``, unchanged."""
        return self.text(self.start(node), self.end(node))

    def replace(self, start: int, end: int, text: str) -> bool:
        """Replace the text between two positions by ``text``; return False if another edit overlaps."""
        if self.is_frozen or any(start < last and first < end for first, last, _ in self._pieces):
            return False
        self._pieces.append((start, end, text.encode()))
        return True

    def replace_node(self, node: ast.AST, text: str) -> bool:
        """Replace ``node``; see `replace`."""
        return self.replace(self.start(node), self.end(node), text)

    def delete_statement(self, node: ast.stmt, body: Sequence[ast.stmt]) -> bool:
        """Remove the statement ``node`` of the block ``body``; return False if it shares a line with other code.

        The only statement of a block becomes ``pass``.
        """
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before = self._bytes[self._starts[first] : self.start(node)]
        after = self._bytes[self.end(node) : self._starts[last + 1]].rstrip(b"\r\n")
        if before.strip() or not _ONLY_SPACE.fullmatch(after):
            return False
        if len(body) == 1:
            return self._swallow(self.start(node), self.end(node), b"pass")
        return self._swallow(self._starts[first], self._starts[last + 1], b"")

    def is_replaced(self, start: int, end: int) -> bool:
        """Return True if one edit covers all text between two positions, and edits are not frozen."""
        return not self.is_frozen and any(first <= start and end <= last for first, last, _ in self._pieces)

    def insert_line(self, before: int, text: str) -> None:
        """Insert a line before line number ``before``, counted from 1, or after the last line."""
        position = self._starts[min(before - 1, len(self._starts) - 1)]
        needs_end = position == len(self._bytes) and position > 0 and not self._bytes.endswith((b"\n", b"\r"))
        self._pieces.append((position, position, ("\n" * needs_end + text).encode() + self._line_end()))

    def delete_items(
        self, items: Sequence[tuple[ast.AST, ast.AST]], numbers: Collection[int], end: int
    ) -> bool:
        """Remove some items of a list with commas. Each item is given by its first and its last node.

        Parameters
        ----------
        items : all items, in order
        numbers : indices of the removed items
        end : the position of the closing bracket

        Returns
        -------
        bool
            False if there is other text between the items, such as a bracket; then nothing is removed.
        """
        kept = [number for number in range(len(items)) if number not in numbers]
        ranges = [self._own_lines(*items[number]) for number in numbers]
        if None in ranges:
            ranges = [self._between(items, number, kept, end) for number in numbers]
        found = {each for each in ranges if each is not None and self._is_free(*each)}
        if len(found) < len(set(ranges)):
            return False
        return all(self._swallow(*each, b"") for each in found)

    def _own_lines(self, first: ast.AST, last: ast.AST) -> tuple[int, int] | None:
        """Return the range of lines with only this item, or None if another item is on these lines."""
        start, end = self.start(first), self.end(last)
        begin = max(self._bytes.rfind(b"\n", 0, start) + 1, 0)
        stop = self._bytes.find(b"\n", end) + 1 or len(self._bytes)
        is_alone = not self._bytes[begin:start].strip() and _REST.fullmatch(self._bytes[end:stop])
        return (begin, stop) if is_alone else None

    def _between(
        self, items: Sequence[tuple[ast.AST, ast.AST]], number: int, kept: Sequence[int], end: int
    ) -> tuple[int, int] | None:
        """Return the range to remove for item ``number``: the item and one comma.

        If no kept item precedes it, the range has all items up to the first kept one. None means that there is other
        text in the range.
        """
        starts = [*(self.start(first) for first, _ in items), end]
        ends = [self.end(last) for _, last in items]
        # The text after each item, up to the next item or the bracket.
        gaps = [self._bytes[before:behind].strip() for before, behind in zip(ends, starts[1:], strict=True)]
        if not kept:
            first, last, found = 0, len(items), (starts[0], end)
        elif number < kept[0]:
            first, last, found = 0, kept[0], (starts[0], starts[kept[0]])
        else:
            first, last, found = number - 1, number + 1, (ends[number - 1], ends[number])
        is_plain = all(
            gap == b"," or (gap == b"" and behind == end)
            for gap, behind in zip(gaps[first:last], starts[first + 1 :], strict=False)
        )
        return found if is_plain else None

    def changed(self) -> str:
        """Return the text with every change applied."""
        parts, position = [], 0
        for start, end, new in sorted(self._pieces, key=lambda piece: piece[:2]):
            parts += [self._bytes[position:start], new]
            position = end
        return self._mark + b"".join([*parts, self._bytes[position:]]).decode()

    def _swallow(self, start: int, end: int, new: bytes) -> bool:
        """Replace a range, and drop the earlier edits inside it; return False if an edit crosses its ends."""
        if not self._is_free(start, end):
            return False
        kept = [piece for piece in self._pieces if not (start <= piece[0] and piece[1] <= end)]
        self._pieces = [*kept, (start, end, new)]
        return True

    def _is_free(self, start: int, end: int) -> bool:
        """Return whether every earlier edit is completely inside or completely outside a range."""
        return not self.is_frozen and not any(
            first < end and start < last and not (start <= first and last <= end)
            for first, last, _ in self._pieces
        )

    def _line_end(self) -> bytes:
        """Return the line end of the text's first line."""
        first = self._bytes.splitlines(keepends=True)[:1]
        return b"\r\n" if first and first[0].endswith(b"\r\n") else b"\n"


def unified_diff(before: str, after: str, name: str) -> str:
    """Return the diff from ``before`` to ``after``, for `patch`; empty without changes. Pure."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    lines = []
    # A tab ends a name with spaces. Both names are equal, because different names mean a renamed file to `git apply`.
    name = printable_line(name) + ("\t" if " " in name else "")
    for line in difflib.unified_diff(old, new, name, name):
        # `patch` expects this note after a last line without a line end.
        lines += [line] if line.endswith("\n") else [line, "\n\\ No newline at end of file\n"]
    return "".join(lines)
