"""Lines of the receipt on the columns of a source's files, gathered while they are opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gloader.convert.readers.tables import TableFile


@dataclass(frozen=True, slots=True)
class Told:
    """Lines for the receipt: what columns became, and which no part of the source uses."""

    said: list[str] = field(default_factory=list)
    _used: set[tuple[Path, str]] = field(default_factory=set)
    _seen: dict[tuple[Path, str], str] = field(default_factory=dict)  # with what they hold

    @property
    def unused(self) -> tuple[str, ...]:
        """The columns that are not used, each with what it holds, and its file."""
        return tuple(text for column, text in self._seen.items() if column not in self._used)

    def say(self, line: str, table: TableFile, used: Iterable[str | None]) -> None:
        """Add what columns of ``table`` became: all those that are ``used``."""
        self.said.append(line)
        self._used.update((table.path, name) for name in used if name is not None)
        for name in table.names:
            # By the name that flags take too.
            text = name if table.has_names else f"{column_text(table, name)}, {name}"
            self._seen[table.path, name] = f"{text} ({table.kind(name)}) of {table.path.name}"


def column_text(table: TableFile, name: str) -> str:
    """Return a column as people know it: by its name, or by its number from 1 where the file has no names. Pure."""
    return name if table.has_names else f"column {table.names.index(name) + 1}"
