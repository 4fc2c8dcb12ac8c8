"""Tables of predictions: a CSV or Parquet file with a row per node, which begins with the node's key.

`gloader infer --out FILE.csv` writes such a table with `write_by_key`. A key is the value that identifies a node in the
source. Nodes without keys are identified by their ids in the source. Rows are in the order of the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gloader.core.ids import node_at_id
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from gloader.dataset.tables import NodeTable
    from gloader.ssd_store.os_io import OsIO

_ROWS: Final = 1 << 14  # rows per block. A block's keys are texts in memory, of about 100 bytes each


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
    # These imports are late, because the datasets load numba.
    from gloader.dataset.table_file import write_table
    from gloader.ssd_store.os_io import REAL_OS

    first = "key" if table.has_keys else "id"
    all_names = [first, *names, *(["name"] if class_names else [])]
    if len(set(all_names)) < len(all_names):
        raise ConfigError(
            f"two columns of {out} would have one name: {', '.join(all_names)}; write a .npy file"
        )
    write_table(out, _batches(table, chunks, all_names, class_names), os_io=os_io or REAL_OS)


def _batches(
    table: NodeTable, chunks: Iterable[NDArray[Any]], names: Sequence[str], class_names: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the table's rows in blocks."""
    import numpy as np
    import pyarrow as pa

    node_of = node_at_id(table.original_ids) if table.has_keys else None
    start = 0
    for chunk in chunks:
        for first in range(0, len(chunk), _ROWS):
            rows = chunk[first : first + _ROWS]
            ids = np.arange(start, start + len(rows))
            start += len(rows)
            keys = ids if not table.has_keys else table.keys_of(ids if node_of is None else node_of[ids])
            columns = [keys, *(rows.reshape(len(rows), -1).T if rows.ndim > 1 else [rows])]
            arrays = [pa.array(np.ascontiguousarray(column)) for column in columns]
            if class_names:
                arrays.append(pa.array(np.asarray(class_names, object)[columns[1]], pa.string()))
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))
