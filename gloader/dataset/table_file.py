"""Tables as files: rows, written piece by piece to a CSV, Parquet or .npy file that is complete or absent.

`gloader infer`, `gloader propagate` and `NodeEmbedding.export` write batches of Arrow rows with `write_table`, and
arrays with `write_rows`. pyarrow makes each table piece by piece in memory, and `gloader.ssd_store.write.atomic_file`
writes the pieces.
"""

from __future__ import annotations

import math
from io import BytesIO
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any, Final, cast

import numpy as np

from gloader.errors import ConfigError
from gloader.ssd_store.os_io import REAL_OS, OsIO, write_errors
from gloader.ssd_store.write.atomic_file import make_output_folder, write_chunks_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

TABLE_SUFFIXES: Final = frozenset({".csv", ".parquet"})


def is_table_file(out: Path) -> bool:
    """True if a file's name asks for a table instead of an array. Pure."""
    return out.suffix.lower() in TABLE_SUFFIXES


def import_writers() -> None:
    """Import the libraries that write tables, 40 MB."""
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401 - only loaded


def write_table(
    out: Path,
    batches: Iterator[pa.RecordBatch],
    *,
    coded: Sequence[str] | None = None,
    os_io: OsIO = REAL_OS,
) -> None:
    """Write ``batches`` as a .csv or .parquet file, which is complete or absent.

    Parameters
    ----------
    out : the file
    batches : the rows. A batch is a row group of Parquet
    coded : the columns that Parquet may store as codes, with the least and the largest value of each row group. For
        thousands of columns of numbers these would take more time and memory than the numbers. None means all columns
    os_io : the system calls

    Raises
    ------
    ConfigError
        The file has another suffix.
    StoreExistsError, StoreWriteError
        See `write_chunks_atomically`.
    """
    if not is_table_file(out):
        raise ConfigError(f"{out} is no .csv and no .parquet file")
    # The first rows are computed before a file is made: a computation that does not fit in memory fails with these.
    ready = list(islice(batches, 1))
    rows = chain(ready, batches)
    pieces = _csv_pieces(rows) if out.suffix.lower() == ".csv" else _parquet_pieces(rows, coded)
    make_output_folder(out.parent, os_io=os_io)
    with write_errors(out, "writing", os_io=os_io):
        write_chunks_atomically(out, pieces, os_io=os_io)


def write_rows(
    out: Path,
    chunks: Iterator[NDArray[Any]],
    shape: tuple[int, ...],
    descr: str,
    *,
    os_io: OsIO = REAL_OS,
) -> None:
    """Write rows as an array to the .npy file ``out``, which is complete or absent.

    Parameters
    ----------
    out : the file
    chunks : consecutive rows, C-contiguous and of the dtype ``descr``
    shape : shape of the array, which has the rows of all chunks
    descr : numpy's name of the dtype, such as "<f4"
    os_io : the system calls

    Raises
    ------
    StoreExistsError, StoreWriteError
        See `write_chunks_atomically`.
    """
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    num_bytes = header.tell() + np.dtype(descr).itemsize * math.prod(shape)
    # The first rows are computed before a folder or a file is made: a computation that does not fit in memory fails
    # with these.
    first = list(islice(chunks, 1))

    def content() -> Iterator[memoryview]:
        """Yield the file's bytes: the .npy header, then the rows."""
        yield header.getbuffer()
        for rows in chain(first, chunks):
            yield rows.data.cast("B")

    make_output_folder(out.parent, os_io=os_io)
    with write_errors(out, "writing", needed_bytes=num_bytes, os_io=os_io):
        write_chunks_atomically(out, content(), os_io=os_io)


class _PieceBuffer:
    """A file in memory that pyarrow writes to, emptied piece by piece."""

    def __init__(self) -> None:
        self._buffer = BytesIO()
        self._done = 0  # bytes that were taken
        self.closed = False

    def write(self, data: Any) -> int:
        """Append bytes."""
        return self._buffer.write(data)

    def tell(self) -> int:
        """Return the number of all bytes so far."""
        return self._done + self._buffer.tell()

    def flush(self) -> None:
        """Do nothing: the bytes are in memory."""

    def close(self) -> None:
        """Do nothing: the last bytes are taken after this call."""

    def take(self) -> memoryview:
        """Return the bytes since the last call."""
        taken = self._buffer.getbuffer()
        self._done += len(taken)
        self._buffer = BytesIO()
        return taken


def _csv_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[memoryview]:
    """Yield the bytes of a text file with a header."""
    from pyarrow import csv

    header = True
    for batch in batches:
        sink = BytesIO()
        csv.write_csv(batch, sink, csv.WriteOptions(include_header=header, quoting_style="needed"))
        header = False
        yield sink.getbuffer()


def _parquet_pieces(batches: Iterator[pa.RecordBatch], coded: Sequence[str] | None) -> Iterator[memoryview]:
    """Yield the bytes of a Parquet file with a row group for each block."""
    import pyarrow.parquet as pq

    first = next(batches)
    sink = _PieceBuffer()
    names: Any = True if coded is None else list(coded)  # pyarrow's stubs know no names here
    with pq.ParquetWriter(
        cast("IO[bytes]", sink), first.schema, use_dictionary=names, write_statistics=names
    ) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()
