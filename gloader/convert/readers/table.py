"""What a table of numbers in a file looks like to its readers, whatever its format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from gloader.errors import GraphError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gloader.convert.readers.regroup import Columns

Number: TypeAlias = Literal["int64", "float32", "float64"]
TableError: TypeAlias = type[GraphError] | type[SourceError]


class Table(Protocol):
    """Named columns of numbers, read as a stream. Every call of a method starts again at the first row."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names; c0, c1, ... where the file has none."""
        ...

    @property
    def has_names(self) -> bool:
        """Whether the names are the file's."""
        ...

    @property
    def num_rows(self) -> int | None:
        """Number of rows, or None where only reading tells."""
        ...

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns`` as arrays of the dtypes given, some thousands of rows at a time.

        Raises
        ------
        error
            A value is missing or is no such number; names the file, the row and the value.
        SourceError
            The file is truncated or corrupt.
        """
        ...
