"""The hop columns of the kept nodes as rows: propagated features, then propagated labels; and the rows as a table.

The columns are in groups: a group has the columns that one metapath and one statistic make. `write_hop_table` writes a
table for boosted trees, with the key, split and label of each node. `gloader.training.propagation.hop_dataset` writes a
dataset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.dataset.record import LABELS
from gloader.dataset.table_file import write_table
from gloader.errors import ConfigError
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.feature_column import cast_rows
from gloader.training.propagation.label_rows import without_own_fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.training.propagation.propagate_rows import Pieces
    from gloader.types import IdArray

TABLE_DTYPES: Final = ("float32", "float16")  # the dtypes that a column of a table can have
SPLITS: Final = LABELS[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class HopGroup:
    """The columns that one metapath and one statistic make."""

    name: str  # such as "in2.mean"
    columns: tuple[str, ...]  # the names of the columns within the group

    @property
    def full_names(self) -> list[str]:
        """The names of the columns, such as "in2.mean.age"."""
        return [f"{self.name}.{column}" for column in self.columns]


def spans(groups: Sequence[HopGroup]) -> list[list[Any]]:
    """Return the name, the first column and the column after the last one of each group. Pure."""
    ends = np.cumsum([0, *(len(group.columns) for group in groups)]).tolist()
    return [[group.name, ends[i], ends[i + 1]] for i, group in enumerate(groups)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HopRows:
    """The rows of all hop columns, read in the order of the kept nodes.

    Each group of propagated labels is read fold by fold, and becomes a sum over folds here.
    """

    nodes: IdArray | range  # (n,) the kept nodes, ascending
    groups: tuple[HopGroup, ...]  # of the features, then of the labels
    dtype: str  # the stored dtype
    features: Pieces  # (n, w)
    labels: Pieces | None  # (n, groups * NUM_FOLDS * w); None without propagated labels
    num_label_groups: int = 0
    on_rows: Callable[[int], None] = lambda _: None  # called with the number of rows so far

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(len(group.columns) for group in self.groups)

    def chunks(self, num_rows: int) -> Iterator[tuple[IdArray, NDArray[np.float32]]]:
        """Yield consecutive kept nodes (m,), at most ``num_rows``, and their rows (m, width)."""
        for start in range(0, len(self.nodes), num_rows):
            stop = min(start + num_rows, len(self.nodes))
            nodes = np.asarray(self.nodes[start:stop], np.int64)
            parts = [self.features.read(start, stop)]
            if self.labels is not None:
                # Each hop has its own sums.
                hops = np.split(self.labels.read(start, stop), self.num_label_groups, axis=1)
                parts += [without_own_fold(hop, nodes) for hop in hops]
            yield nodes, np.hstack(parts)
            self.on_rows(stop)


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


def _batches(dataset: Dataset, rows: HopRows, names: list[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the table's rows in blocks, in the order of the kept nodes."""
    import pyarrow as pa

    table = dataset.labelled
    splits = {name: np.unique(getattr(table, name)) for name in SPLITS}
    first_row = 0
    for nodes, columns in rows.chunks(chunk_rows):
        labels = table.labels_of(nodes)
        values = cast_rows(columns, rows.dtype, first_row)
        arrays = [
            pa.array(table.keys_of(nodes) if table.has_keys else table.original_ids_of(nodes)),
            pa.array(_split_texts(nodes, splits), pa.string()),
            *(_label_array(column) for column in np.atleast_2d(labels.T)),
            *(pa.array(np.ascontiguousarray(column)) for column in values.T),
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
