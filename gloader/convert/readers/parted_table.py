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
    # The columns that are read, which all parts have. None means those of the first part: `of` compares the others.
    chosen: tuple[str, ...] | None = None
    row_ids: None = field(default=None, init=False)  # `of` refuses parts with row ids

    @classmethod
    def of(cls, path: Path, parts: Sequence[NumberTable], *, has_types: bool) -> PartedTable:
        """Return the table over the parts, without empty files, after a check of their columns.

        Parameters
        ----------
        path : the folder or pattern
        parts : the files, at least one
        has_types : True if one of the files stores its columns' types

        Raises
        ------
        SourceError
            A part has other columns than the first, or a pandas index that is no column. Or a part with stored types
            has other kinds of values. The message names the part.
        """
        filled = [part for part in parts if part.names] or list(parts[:1])
        first = filled[0]
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
        table = cls(path=path, parts=tuple(filled))
        # Text has no types: keys may look like numbers in one file only. A column that is read as numbers is checked
        # by `read`.
        if has_types:
            table.require_one_kind(first.names, SourceError)
        return table

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return self.parts[0].names if self.chosen is None else self.chosen

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
        """Return the kind of a column's values in all parts; see `NumberTable.kind`."""
        known = {part.kind(column) for part in self.parts} - {"empty"}
        if len(known) > 1:
            # As in a single file: if some values are numbers, the others are fractions or mistakes.
            return "number" if known & {"integer", "number"} else "string"
        return next(iter(known), "empty")

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
        self.require_one_kind(columns, error)
        for part in self.parts:
            yield from part.read(columns, error=error)

    def require_one_kind(self, columns: Iterable[str], error: TableError) -> None:
        """Raise ``error`` if parts have different kinds of values in one of ``columns``. The message names the part."""
        for name in columns:
            first_kind = where = ""
            for part in self.parts:
                kind = part.kind(name)
                if kind == "empty":
                    continue
                if first_kind and first_kind != kind and {first_kind, kind} != {"integer", "number"}:
                    raise error(
                        f"{part.path} holds {kind}s in column {name!r}, and {where} {first_kind}s; a column is one "
                        "kind in all files of a table"
                    )
                first_kind, where = first_kind or kind, where or part.path.name

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
