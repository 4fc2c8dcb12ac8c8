"""What became of the columns of a source's files, gathered while they are opened, for the receipt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.convert.readers.tables import TableFile


@dataclass(frozen=True, slots=True)
class Told:
    """Lines for the receipt: what columns became, and which are not used."""

    said: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Add what columns became."""
        self.said.append(line)

    def leave(self, table: TableFile, columns: Iterable[str]) -> None:
        """Add columns of ``table`` that are not used, each with what it holds."""
        for name in columns:
            self.unused.append(f"{column_text(table, name)} ({table.kind(name)}) of {table.path.name}")


def column_text(table: TableFile, name: str) -> str:
    """Return a column as people know it: by its name, or by its number from 1 where the file has no names. Pure."""
    return name if table.has_names else f"column {table.names.index(name) + 1}"
