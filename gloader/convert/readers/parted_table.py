"""A table in several files: a folder of part files, or the matches of a pattern such as ``edges-*.csv``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gloader.convert.readers.column_names import listed
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from gloader.convert.readers.table_streams import Columns, Number, NumberTable, TableError


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedTable:
    """A table in several files with the same columns. Rows are in the order of the file names."""

    path: Path  # the folder or pattern
    parts: tuple[NumberTable, ...]  # the files, at least one
    row_ids: None = field(default=None, init=False)  # `of` refuses parts with row ids

    @classmethod
    def of(cls, path: Path, parts: Sequence[NumberTable]) -> PartedTable:
        """Return the table over the parts, without empty files, after a check of their columns.

        Raises
        ------
        SourceError
            A part has other columns or other kinds of values than the first, or a pandas index that is no
            column. The message names the part.
        """
        filled = [part for part in parts if part.names] or list(parts[:1])
        # ``kinds`` has each column's kind in the first file with values, and the name of this file.
        first, kinds = filled[0], dict[str, tuple[str, str]]()
        for part in filled:
            if (part.names, part.has_names) != (first.names, first.has_names):
                raise SourceError(
                    f"{part.path} has {_columns(part)}; {first.path.name} has {_columns(first)}, and all files of a "
                    "table must have the same columns"
                )
            if part.row_ids is not None:
                raise SourceError(
                    f"{part.path} has a pandas index of {part.row_ids}; write it as a column named id, or without index"
                )
            for name in part.names:
                kind = part.kind(name)
                first_kind, where = (
                    (kind, "") if kind == "empty" else kinds.setdefault(name, (kind, part.path.name))
                )
                if first_kind != kind and {first_kind, kind} != {"integer", "number"}:
                    raise SourceError(
                        f"{part.path} holds {kind}s in column {name!r}, and {where} {first_kind}s; a column is one "
                        "kind in all files of a table"
                    )
        return cls(path=path, parts=tuple(filled))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return self.parts[0].names

    @property
    def has_names(self) -> bool:
        """True if the files have the names."""
        return self.parts[0].has_names

    @property
    def index(self) -> tuple[str, ...]:
        """The columns that number the rows, such as a pandas index."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.index))

    @property
    def counts_columns(self) -> bool:
        """True if the first row of a part is 0, 1, 2 and so on."""
        return any(part.counts_columns for part in self.parts)

    @property
    def remark(self) -> str:
        """The remark on the first part's format; see `NumberTable.remark`."""
        return self.parts[0].remark

    @property
    def num_rows(self) -> int | None:
        """Number of rows, or None if unknown until they are read."""
        counts = [part.num_rows for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)

    def kind(self, column: str) -> str:
        """Return a column's kind in the first part with values; see `NumberTable.kind`."""
        kinds = [part.kind(column) for part in self.parts]
        known = [kind for kind in kinds if kind != "empty"]
        # A column with whole numbers in some parts and fractions in others has the kind "number".
        return "number" if set(known) == {"integer", "number"} else next(iter(known), "empty")

    def width(self, column: str) -> int:
        """Return a column's numbers per row, from the first part with values."""
        return next((part.width(column) for part in self.parts if part.kind(column) != "empty"), 1)

    def reading_bytes(self, columns: Iterable[str]) -> int:
        """Return the memory to read ``columns`` in the largest part, without the results."""
        names = tuple(columns)
        return max(part.reading_bytes(names) for part in self.parts)

    def count_rows(self) -> int:
        """Return the number of rows. Files that do not store it are read."""
        return sum(part.count_rows() for part in self.parts)

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns``, part by part; see `NumberTable.read`."""
        for part in self.parts:
            yield from part.read(columns, error=error)

    def arrow_type(self, column: str) -> pa.DataType:
        """Return the type that holds a column's values in all parts; see `NumberTable.arrow_type`."""
        import pyarrow as pa

        common = self.parts[0].arrow_type(column)
        for part in self.parts[1:]:
            kind = part.arrow_type(column)
            fields = [pa.schema([pa.field(column, each)]) for each in (common, kind)]
            try:
                # Permissive means that int32 and int64 become int64, and that null becomes any type.
                common = pa.unify_schemas(fields, promote_options="permissive").field(0).type
            except pa.ArrowException as error:
                raise SourceError(
                    f"{part.path} stores the column {column!r} as {kind}, and files before it as {common}; write the "
                    "column with one type in all files of a table"
                ) from error
        return common

    def read_arrow(self, columns: Sequence[str], *, error: TableError) -> Iterator[pa.RecordBatch]:
        """Yield the named ``columns``, part by part; see `NumberTable.read_arrow`."""
        import pyarrow as pa

        schema = pa.schema([pa.field(name, self.arrow_type(name)) for name in columns])
        for part in self.parts:
            for batch in part.read_arrow(columns, error=error):
                try:
                    yield batch.cast(schema)
                except pa.ArrowInvalid as failure:
                    raise SourceError(
                        f"{part.path}: {failure}; write each column with one type in all files of a table"
                    ) from failure


def _columns(table: NumberTable) -> str:
    """Return a table's columns, for messages."""
    return listed(table.names) if table.has_names else f"{len(table.names)} columns without names"
