"""A table's columns as feature rows: one pass fits an encoder for each column, and a stream encodes the rows.

`encoded_features` reads the table once for the fit. The stream that it returns reads it again for every pass, and holds
only the encoders. Both passes are the same for a text file, a Parquet file and any other form of one table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.columns.fits import fit_of
from gloader.convert.columns.specs import kind_in
from gloader.convert.readers.table_streams import counted_batches
from gloader.convert.source import FeatureStream
from gloader.core.units import format_bytes
from gloader.dataset.column_values import Place
from gloader.dataset.encoders import CATEGORIES, Encoders
from gloader.errors import BudgetError, FeatureValueError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from gloader.convert.columns.specs import ColumnSpec
    from gloader.convert.readers.table_streams import ColumnNotes, NumberTable
    from gloader.dataset.encoders import Missing

# Most rows and most numbers in a block of the fit. Sums are rounded block by block, so the blocks must not depend on
# the batches of the file.
_BLOCK_ROWS: Final = 1 << 14
_BLOCK_NUMBERS: Final = 1 << 18
# The JSON form of all encoders of a table, which is stored in the commit record of at most 16 MiB.
_MOST_JSON_BYTES: Final = 8 << 20
# The widest features of a table: a row of 1 MiB. More columns are a wrong specification.
_MOST_COLUMNS: Final = 1 << 18
# The counts, samples and encoders of a fit take at most 1/2 of the memory budget. The rest is for reading.
_COUNTED_SHARE: Final = 2


def encoded_features(
    table: NumberTable,
    specs: Sequence[ColumnSpec],
    *,
    num_rows: int,
    train_rows: NDArray[np.bool_] | None,
    missing: Missing = "error",
    budget_bytes: int,
    notes: ColumnNotes,
    what: str = "features",
) -> tuple[FeatureStream, Encoders]:
    """Fit the encoders of a table's columns, and return its feature rows as a stream, with the encoders.

    The stream's chunks raise FeatureValueError for a whole number that float32 would round. Its ``rounded`` has the
    same rows with such numbers rounded.

    Parameters
    ----------
    table : the table, with a row per node or edge
    specs : the columns, in the order of their features
    num_rows : N, or E
    train_rows : (N,) mask of the rows to which encoders are fitted, or None for all rows
    missing : the rule for missing values in columns without a rule of their own
    budget_bytes : memory for the fit
    notes : receives the receipt's lines on the columns
    what : "features" or "edge features", for the notes

    Raises
    ------
    SourceError
        A column is missing, its type has no kind or several kinds, it has too many values, or no training row has one.
    FeatureValueError
        A value is missing, or is no number, truth value or time.
    ShapeError
        The table has other than ``num_rows`` rows, or a list has another length.
    BudgetError
        The counts of the columns' values, or the encoders, take more than half of ``budget_bytes``.
    """
    chosen = [kind_in(each, table) for each in specs]
    is_train = np.ones(num_rows, np.bool_) if train_rows is None else train_rows
    if len(is_train) != num_rows:
        raise ShapeError(f"{table.path}: a mask of {len(is_train)} training rows for {num_rows} rows")
    encoders = _fitted(
        table,
        chosen,
        is_train=is_train,
        missing=missing,
        budget_bytes=budget_bytes // _COUNTED_SHARE,
        notes=notes,
        what=what if train_rows is not None else f"{what} (fitted to all rows)",
    )
    return encoded_rows(table, encoders, num_rows=num_rows), encoders


def encoded_rows(
    table: NumberTable, encoders: Encoders, *, num_rows: int, may_round: bool = False
) -> FeatureStream:
    """Return the feature rows of a table under fitted encoders. Pure; its ``chunks`` raise as `Encoders.encode`."""
    columns = encoders.inputs

    def chunks(max_rows: int) -> Iterator[NDArray[np.float32]]:
        first = 0
        # Pieces are cut from the reader's batches and never joined, so that texts of few rows are in memory.
        step = min(max_rows, _BLOCK_ROWS)
        for batch in table.read_arrow(columns, error=SourceError):
            for start in range(0, batch.num_rows, step):
                piece = batch.slice(start, step)
                yield encoders.encode(piece, where=str(table.path), first=first + start, may_round=may_round)
            first += batch.num_rows

    return FeatureStream(
        chunks=chunks,
        num_rows=num_rows,
        dim=encoders.dim,
        dtype=np.dtype(np.float32),
        names=encoders.names,
        where=str(table.path),
        rounded=None if may_round else encoded_rows(table, encoders, num_rows=num_rows, may_round=True),
        held_bytes=sum(each.num_bytes for each in encoders.columns),
        reading_bytes=table.reading_bytes(columns),
    )


def row_blocks(batches: Iterable[pa.RecordBatch], num_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of ``batches`` in order, in blocks of ``num_rows``; the last block may be shorter.

    A block is a table whose columns may have several chunks. Batches are sliced and not copied.
    """
    import pyarrow as pa

    held: list[Any] = []
    count = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            taken = min(batch.num_rows - start, num_rows - count)
            held.append(batch.slice(start, taken))
            count += taken
            start += taken
            if count == num_rows:
                yield pa.Table.from_batches(held)
                held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _fitted(
    table: NumberTable,
    specs: Sequence[ColumnSpec],
    *,
    is_train: NDArray[np.bool_],
    missing: Missing,
    budget_bytes: int,
    notes: ColumnNotes,
    what: str,
) -> Encoders:
    """Return the encoders of the columns ``specs``, fitted to the rows of the mask ``is_train`` (N,)."""
    where, first = str(table.path), 0
    columns = tuple(dict.fromkeys(each.name for each in specs))
    widths = {name: table.width(name) for name in columns}
    # Columns of plain numbers hold nothing that grows; the memory is divided among the others.
    growing = [each for each in specs if each.kind in CATEGORIES or each.kind == "quantile"]
    fits = [
        fit_of(
            spec,
            missing=missing,
            width=widths[spec.name],
            num_train=int(np.count_nonzero(is_train)),
            budget_bytes=budget_bytes // max(1, len(growing)),
        )
        for spec in specs
    ]
    block_rows = max(1, min(_BLOCK_ROWS, _BLOCK_NUMBERS // sum(widths.values())))
    batches = (batch for _, batch in counted_batches(table, columns, len(is_train)))
    for block in row_blocks(batches, block_rows):
        chosen = is_train[first : first + block.num_rows]
        for fit in fits:
            place = Place(where=where, column=fit.spec.name, first=first, error=FeatureValueError)
            fit.add(block.column(fit.spec.name), chosen, place=place)
        first += block.num_rows
    encoders = Encoders(columns=tuple(fit.encoder(where) for fit in fits))
    _require_storable(encoders, where, budget_bytes)
    lines = [
        f"{fit.spec.name}: {fit.note(encoder)}" for fit, encoder in zip(fits, encoders.columns, strict=True)
    ]
    notes.add(f"{what} of {table.path.name}: {'; '.join(lines)}", table, columns)
    return encoders


def _require_storable(encoders: Encoders, where: str, budget_bytes: int) -> None:
    """Raise SourceError or BudgetError for encoders that are too large for a record or for memory."""
    if encoders.dim > _MOST_COLUMNS:
        raise SourceError(
            f"{where}: the columns make {encoders.dim:,} features, and at most {_MOST_COLUMNS:,} are allowed; take "
            "fewer categories with top:, or an index with as: index"
        )
    held = sum(each.num_bytes for each in encoders.columns)
    if held > budget_bytes:
        raise BudgetError(
            f"{where}: the encoders of its columns take {format_bytes(held)}, and {format_bytes(budget_bytes)} of the "
            "memory budget are for them. Raise --memory-budget",
            short_bytes=held - budget_bytes,
        )
    size = encoders.num_json_bytes
    if size > _MOST_JSON_BYTES:
        raise SourceError(
            f"{where}: the encoders of its columns have {format_bytes(size)} of text, and a dataset's record has room "
            f"for {format_bytes(_MOST_JSON_BYTES)}: take fewer values with top:, or fewer quantile columns"
        )
