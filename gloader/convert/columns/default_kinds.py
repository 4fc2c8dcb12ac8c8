"""Kinds of features for the columns of a table without a description, from the types and values of the columns.

`default_columns` reads the columns once. Numbers, and lists of numbers of one length, are ``standard``; truth values
are ``bool``, dates and timestamps ``time``. A column of texts is a ``category`` if it has at most 64 different values,
and an ``index`` if it has at most 10,000. It is left out, as free text, if it has more, or less than 4 rows for each.
Only the rows count to which the encoders will be fitted. A column without a value in these rows is left out too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gloader.convert.columns.specs import MAX_CATEGORIES, ColumnSpec
from gloader.convert.readers.column_names import LISTS
from gloader.convert.readers.table_streams import NUMBER_KINDS, counted_batches
from gloader.dataset.column_values import is_list, is_text, plain_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from gloader.convert.readers.table_streams import NumberTable
    from gloader.dataset.encoders import EncoderKind

# An index has its values in the commit record of at most 16 MiB, which the columns of all tables share.
_MOST_VALUES: Final = 10_000
# Mean number of rows for each value. With fewer, values are names rather than categories. torch_frame, whose kinds
# RelBench takes, asks for 5 rows of the rarest value.
_LEAST_ROWS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultColumns:
    """The columns that become features, and the others."""

    specs: tuple[ColumnSpec, ...]
    left_out: tuple[str, ...]  # a text on each column that is left out, such as "notes (type binary)"


def default_columns(
    table: NumberTable, names: Sequence[str], *, num_rows: int, is_fitted: NDArray[np.bool_] | None
) -> DefaultColumns:
    """Return the kinds of the columns ``names`` by the rules of this module. Missing values get a flag.

    Parameters
    ----------
    table : the table, with a row per node
    names : the columns that may become features
    num_rows : N
    is_fitted : (N,) mask of the rows to which encoders will be fitted; None means all rows

    Raises
    ------
    ShapeError, SourceError
        As `counted_batches`.
    """
    looks = [_Look(name=name, kind=_kind(table, name)) for name in names]
    read = [each for each in looks if each.kind is not None]
    for first, batch in counted_batches(table, [each.name for each in read], num_rows) if read else ():
        chosen = None if is_fitted is None else is_fitted[first : first + batch.num_rows]
        for each, column in zip(read, batch.columns, strict=True):
            each.add(plain_column(column), chosen)
    kinds = [(each, each.decided()) for each in looks]
    return DefaultColumns(
        specs=tuple(
            ColumnSpec(
                name=each.name,
                kind=kind,
                max_values=_MOST_VALUES if kind == "index" else None,
                missing="flag",
            )
            for each, kind in kinds
            if kind is not None
        ),
        left_out=tuple(f"{each.name} ({each.reason(table)})" for each, kind in kinds if kind is None),
    )


def _kind(table: NumberTable, name: str) -> EncoderKind | None:
    """Return the kind of a column by its type, "category" for texts, or None for types that are left out."""
    import pyarrow as pa

    kind, arrow = table.kind(name), table.arrow_type(name)
    if kind == "bool":
        return "bool"
    if pa.types.is_timestamp(arrow) or pa.types.is_date(arrow):
        return "time"
    if is_text(arrow):
        return "category"
    return "standard" if kind in NUMBER_KINDS - {"empty"} or kind.startswith(LISTS) else None


@dataclass(slots=True, kw_only=True)
class _Look:
    """A look at one column: its values in the fitted rows are counted."""

    name: str
    kind: EncoderKind | None  # by the column's type
    num_values: int = 0  # values in the fitted rows, without missing ones
    different: set[Any] = field(default_factory=set)  # the values of texts, or the lengths of lists

    def add(self, column: pa.Array[Any], chosen: NDArray[np.bool_] | None) -> None:
        """Add a block: pyarrow's array (n,), and a mask (n,) of the fitted rows, or None for all."""
        import pyarrow as pa
        import pyarrow.compute as pc

        # Every row has a list of one length, or the encoder would refuse it later.
        if is_list(column.type):
            self.different.update(pc.unique(pc.list_value_length(column)).to_pylist())
        fitted: Any = column if chosen is None else column.filter(pa.array(chosen))
        self.num_values += len(fitted) - fitted.is_null(nan_is_null=True).sum().as_py() if len(fitted) else 0
        if self.kind == "category" and len(self.different) <= _MOST_VALUES:
            self.different.update(fitted.unique().drop_null().to_pylist())

    def decided(self) -> EncoderKind | None:
        """Return the column's kind, or None if it is left out."""
        count = len(self.different)
        if not self.num_values:
            return None
        if self.kind != "category":
            return self.kind if count <= 1 else None
        if count > _MOST_VALUES or self.num_values < _LEAST_ROWS * count:
            return None
        return "category" if count <= MAX_CATEGORIES else "index"

    def reason(self, table: NumberTable) -> str:
        """Return the reason for which the column is left out."""
        if self.kind is None:
            return f"type {table.arrow_type(self.name)}"
        if not self.num_values:
            return "no value in the rows that features are fitted to"
        if self.kind != "category":
            return "lists of several lengths"
        more = "more than " if len(self.different) > _MOST_VALUES else ""
        return f"text: {more}{min(len(self.different), _MOST_VALUES):,} different values in {self.num_values:,} rows"
