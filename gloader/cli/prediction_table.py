"""Tables of predictions: a CSV or Parquet file with a row per node, or per row of a task table.

`gloader infer --out FILE.csv` writes such a table with `write_by_key`. A row begins with the key of its node: the value
that identifies the node in the source. Nodes without keys are identified by their ids in the source. Rows are in the
order of the source, or of the task table.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gloader.core.ids import node_at_id
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from gloader.dataset.row_columns import OpenColumns
    from gloader.dataset.tables import NodeTable
    from gloader.dataset.task_table import TaskTable
    from gloader.ssd_store.os_io import OsIO
    from gloader.types import IdArray

_ROWS: Final = 1 << 14  # rows per block. A block's keys are texts in memory, of about 100 bytes each


def write_by_key(
    out: Path,
    nodes: NodeTable,
    chunks: Iterable[NDArray[Any]],
    names: Sequence[str],
    *,
    table: TaskTable | None = None,
    class_names: Sequence[str] | None = None,
    os_io: OsIO | None = None,
) -> None:
    """Write predictions as a table, which is complete or absent.

    The first column is "key", or "id" for nodes without keys. For rows of a task table with times, the time in seconds
    is next. Then follow the columns of ``names``, and the name of the predicted class, if classes have names.

    Parameters
    ----------
    out : the file, .csv or .parquet
    nodes : the nodes of the predicted type
    chunks : consecutive rows (n, k) for all nodes in the order of the source, or for all rows of ``table``; (n,) is one
        column
    names : the k columns
    table : the task table whose rows are predicted; None for nodes
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

    times = ["time"] if table is not None and table.has_times else []
    all_names = ["key" if nodes.has_keys else "id", *times, *names, *(["name"] if class_names else [])]
    if len(set(all_names)) < len(all_names):
        raise ConfigError(
            f"two columns of {out} would have one name: {', '.join(all_names)}; write a .npy file"
        )
    with nullcontext() if table is None else table.open(max_bytes=0) as rows:
        leading = _of_source(nodes) if rows is None else partial(_of_rows, nodes, rows)
        write_table(out, _batches(leading, chunks, all_names, class_names), os_io=os_io or REAL_OS)


def _of_source(nodes: NodeTable) -> Callable[[IdArray], list[NDArray[Any]]]:
    """Return a function that gives the keys, or else the ids, of nodes by their ids (n,) in the source."""
    if not nodes.has_keys:
        return lambda ids: [ids]
    node_of = node_at_id(nodes.original_ids)
    return lambda ids: [nodes.keys_of(ids if node_of is None else node_of[ids])]


def _of_rows(nodes: NodeTable, rows: OpenColumns, numbers: IdArray) -> list[NDArray[Any]]:
    """Return the keys, or else the ids in the source, of the rows ``numbers`` (n,), and the rows' times if any."""
    node, *times = rows.read(numbers, names=("nodes", "times")).values()
    return [nodes.keys_of(node) if nodes.has_keys else nodes.original_ids_of(node), *times]


def _batches(
    leading: Callable[[IdArray], list[NDArray[Any]]],
    chunks: Iterable[NDArray[Any]],
    names: Sequence[str],
    class_names: Sequence[str] | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the table's rows in blocks.

    ``leading`` returns the columns before the predictions, from the numbers (n,) of rows.
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
            arrays = [pa.array(np.ascontiguousarray(column)) for column in [*leading(ids), *predicted]]
            if class_names:
                arrays.append(pa.array(np.asarray(class_names, object)[predicted[0]], pa.string()))
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))
