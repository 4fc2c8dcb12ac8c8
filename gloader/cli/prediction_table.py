"""Tables of predictions: a CSV or Parquet file with a row per node, which begins with the node's key.

`gloader infer --out FILE.csv` writes such a table with `write_by_key`. A key is the value that identifies a node in the
source. Nodes without keys are identified by their ids in the source. Rows are in the order of the source.
"""

from __future__ import annotations

from io import BytesIO
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any, Final, cast

from gloader.core.ids import node_at_id
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from gloader.dataset.tables import NodeTable
    from gloader.dataset.task_table import TaskTable
    from gloader.ssd_store.os_io import OsIO

TABLE_SUFFIXES: Final = frozenset({".csv", ".parquet"})
_ROWS: Final = 1 << 14  # rows per block. A block's keys are texts in memory, of about 100 bytes each


def is_prediction_table(out: Path) -> bool:
    """True if a file's name asks for a table instead of an array. Pure."""
    return out.suffix.lower() in TABLE_SUFFIXES


def import_writers() -> None:
    """Import the libraries that write tables, 40 MB."""
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401 - only loaded


def write_by_key(
    out: Path,
    table: NodeTable,
    chunks: Iterable[NDArray[Any]],
    names: Sequence[str],
    *,
    class_names: Sequence[str] | None = None,
    os_io: OsIO | None = None,
) -> None:
    """Write predictions as a table, which is complete or absent.

    The first column is "key", or "id" for nodes without keys. Then follow the columns of ``names``, and the name of the
    predicted class, if classes have names.

    Parameters
    ----------
    out : the file, .csv or .parquet
    table : the nodes
    chunks : consecutive rows (n, k) for all nodes, in the order of the source; (n,) is one column
    names : the k columns
    class_names : a name for each class, if the first column has classes
    os_io : system calls; tests give others

    Raises
    ------
    ConfigError
        The file has another suffix, or two columns have one name.
    StoreExistsError, StoreWriteError
        See `write_chunks_atomically`.
    """
    first = "key" if table.has_keys else "id"
    all_names = [first, *names, *(["name"] if class_names else [])]
    if len(set(all_names)) < len(all_names):
        raise ConfigError(
            f"two columns of {out} would have one name: {', '.join(all_names)}; write a .npy file"
        )
    node_of = node_at_id(table.original_ids) if table.has_keys else None

    def columns(ids: NDArray[Any]) -> list[NDArray[Any]]:
        return [table.keys_of(ids if node_of is None else node_of[ids]) if table.has_keys else ids]

    write_table(out, _batches(columns, chunks, all_names, class_names), os_io=os_io)


def write_rows(
    out: Path,
    nodes: NodeTable,
    table: TaskTable,
    chunks: Iterable[NDArray[Any]],
    names: Sequence[str],
    *,
    class_names: Sequence[str] | None = None,
    os_io: OsIO | None = None,
) -> None:
    """Write predictions of a task table's rows as a table, which is complete or absent.

    The columns are those of `write_by_key`, with the row's time, in seconds, behind the key.

    Parameters
    ----------
    nodes : the nodes of the rows' type
    table : the rows
    chunks : consecutive rows (n, k), in the order of ``table``
    out, names, class_names, os_io : see `write_by_key`

    Raises
    ------
    ConfigError, StoreExistsError, StoreWriteError
        See `write_by_key`.
    """
    all_names = [
        "key" if nodes.has_keys else "id",
        *(["time"] if table.has_times else []),
        *names,
        *(["name"] if class_names else []),
    ]
    if len(set(all_names)) < len(all_names):
        raise ConfigError(
            f"two columns of {out} would have one name: {', '.join(all_names)}; write a .npy file"
        )
    with table.open(max_bytes=0) as rows:

        def columns(ids: NDArray[Any]) -> list[NDArray[Any]]:
            read = rows.read(ids)
            original = nodes.original_ids
            keys = nodes.keys_of(read.nodes) if nodes.has_keys else read.nodes
            if not nodes.has_keys and original is not None:
                keys = original[read.nodes]
            return [keys, *([] if read.times is None else [read.times])]

        write_table(out, _batches(columns, chunks, all_names, class_names), os_io=os_io)


def write_table(out: Path, batches: Iterator[pa.RecordBatch], *, os_io: OsIO | None = None) -> None:
    """Write ``batches`` as a .csv or .parquet file, which is complete or absent.

    Raises
    ------
    ConfigError
        The file has another suffix.
    StoreExistsError, StoreWriteError
        See `write_chunks_atomically`.
    """
    from gloader.ssd_store.os_io import REAL_OS, write_errors
    from gloader.ssd_store.write.atomic_file import make_output_folder, write_chunks_atomically

    if not is_prediction_table(out):
        raise ConfigError(f"{out} is no .csv and no .parquet file")
    # The first rows are computed before a file is made: a computation that does not fit in memory fails with these.
    ready = list(islice(batches, 1))
    pieces_of = _csv_pieces if out.suffix.lower() == ".csv" else _parquet_pieces
    make_output_folder(out.parent, os_io=os_io or REAL_OS)
    with write_errors(out, "writing", os_io=os_io or REAL_OS):
        write_chunks_atomically(out, pieces_of(chain(ready, batches)), os_io=os_io or REAL_OS)


def _batches(
    columns_of: Callable[[NDArray[Any]], list[NDArray[Any]]],
    chunks: Iterable[NDArray[Any]],
    names: Sequence[str],
    class_names: Sequence[str] | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the table's rows in blocks.

    ``columns_of`` returns the columns before the predictions, from the numbers of rows.
    """
    import numpy as np
    import pyarrow as pa

    start = 0
    for chunk in chunks:
        for first in range(0, len(chunk), _ROWS):
            rows = chunk[first : first + _ROWS]
            ids = np.arange(start, start + len(rows))
            start += len(rows)
            predicted = list(rows.reshape(len(rows), -1).T) if rows.ndim > 1 else [rows]
            arrays = [pa.array(np.ascontiguousarray(column)) for column in [*columns_of(ids), *predicted]]
            if class_names:
                arrays.append(pa.array(np.asarray(class_names, object)[predicted[0]], pa.string()))
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))


class _Sink:
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


def _parquet_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[memoryview]:
    """Yield the bytes of a Parquet file with a row group for each block."""
    import pyarrow.parquet as pq

    first = next(batches)
    sink = _Sink()
    with pq.ParquetWriter(cast("IO[bytes]", sink), first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()
