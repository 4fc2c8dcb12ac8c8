"""Hop columns as a table, for boosted trees: key, split and label of each kept node beside its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.dataset.table_file import write_table
from gloader.errors import ConfigError
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.feature_column import cast_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.training.propagation.hop_rows import HopRows
    from gloader.types import IdArray

TABLE_DTYPES = ("float32", "float16")  # the dtypes that a column of a table can have


def column_names(dataset: Dataset, rows: HopRows) -> list[str]:
    """Return the names of a table's columns: key or id, split, labels, hop columns. Pure.

    Raises
    ------
    ConfigError
        Two columns have one name.
    """
    first = "key" if dataset.labelled.has_keys else "id"
    labels = ["label"]
    if dataset.label_kind != "classes" and dataset.label_width > 1:
        labels = [f"label.{name}" for name in dataset.label_names or range(dataset.label_width)]
    names = [first, "split", *labels, *(name for group in rows.groups for name in group.full_names)]
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(
                f"two columns of the table would have the name {name!r}; give one of the dataset's columns another "
                "name, or write a dataset"
            )
        seen.add(name)
    return names


def write_hop_table(
    out: Path, dataset: Dataset, rows: HopRows, *, chunk_rows: int, os_io: OsIO = REAL_OS
) -> None:
    """Write the table, which is complete or absent. A row group of Parquet has ``chunk_rows`` rows.

    Raises
    ------
    ConfigError
        See `column_names`.
    FeatureValueError
        A value is too large for the dtype.
    StoreExistsError, StoreWriteError
        See `write_table`.
    """
    names = column_names(dataset, rows)
    batches = _batches(dataset, rows, names, chunk_rows)
    # Hop columns have no values that come often.
    write_table(out, batches, coded=names[: len(names) - rows.width], os_io=os_io)


def _batches(dataset: Dataset, rows: HopRows, names: list[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the table's rows in blocks, in the order of the kept nodes."""
    import pyarrow as pa

    table = dataset.labelled
    splits = {name: np.unique(getattr(table, name)) for name in ("train", "valid", "test")}
    first_row = 0
    for nodes, columns in rows.chunks(chunk_rows):
        keys = table.keys_of(nodes) if table.has_keys else table.original_ids_of(nodes)
        labels = table.labels_of(nodes)
        arrays = [
            pa.array(keys),
            pa.array(_split_texts(nodes, splits), pa.string()),
            *(_label_array(column) for column in (labels.T if labels.ndim > 1 else [labels])),
            *(
                pa.array(np.ascontiguousarray(column))
                for column in cast_rows(columns, rows.dtype, first_row).T
            ),
        ]
        first_row += len(nodes)
        yield pa.RecordBatch.from_arrays(arrays, names=names)


def _label_array(labels: NDArray[Any]) -> pa.Array[Any]:
    """Return labels (n,) as a column, with a null for each unknown label."""
    import pyarrow as pa

    return pa.array(labels, mask=labels < 0 if labels.dtype.kind == "i" else np.isnan(labels))


def _split_texts(nodes: IdArray, splits: dict[str, IdArray]) -> NDArray[np.object_]:
    """Return the name of each node's split (n,), or None for a node without one. Pure.

    Parameters
    ----------
    nodes : (n,) ascending ids, at least one
    splits : the ascending ids of each split, by name
    """
    texts: NDArray[np.object_] = np.full(len(nodes), None, object)
    for name, ids in splits.items():
        first, past = np.searchsorted(ids, [nodes[0], nodes[-1] + 1])
        texts[np.isin(nodes, ids[first:past])] = name
    return texts
