"""The table of an embedding on a rank that does not load: its form, without its rows.

The ranks of a machine share one table, which the rank that loads for the machine opens. The other ranks know the
table's form alone, so that all ranks can check that they train the same embedding. `gloader.NodeEmbedding` uses
`AbsentTable` there in place of an `EmbeddingTable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never, Self

from gloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gloader.ssd_store.embedding.embedding_table import EmbeddingTable
    from gloader.ssd_store.embedding.initial_rows import InitialRows


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentTable:
    """The form of a table that another rank has opened. Everything that needs its files raises StateError."""

    num_rows: int  # N
    initial: InitialRows
    facts: Mapping[str, Any]
    folder: Path | None  # None if the table is temporary
    num_steps: int = 0  # of the record that was opened

    @classmethod
    def of(cls, table: EmbeddingTable) -> Self:
        """Return the form of ``table``."""
        return cls(
            num_rows=table.num_rows,
            initial=table.initial,
            facts=table.facts,
            folder=table.folder,
            num_steps=table.num_steps,
        )

    @property
    def width(self) -> int:
        """Values of a row."""
        return self.initial.width

    def read_into(self, *_: object, **__: object) -> Never:
        """Raise StateError."""
        raise elsewhere("rows() without a loader")

    def pieces(self, *_: object) -> Never:
        """Raise StateError."""
        raise elsewhere("pieces() and export()")

    def forget(self, *_: object) -> Never:
        """Raise StateError."""
        raise elsewhere("forget()")

    def close(self) -> None:
        """Do nothing: the other rank closes the table."""


def elsewhere(what: str) -> StateError:
    """Return the error of ``what``, which only the rank with the table can do. Pure."""
    return StateError(
        f"rank 0 has the table of this embedding, which the ranks of a machine share: call {what} there "
        '("if rank == 0:")'
    )
