"""A dataset whose features are hop columns, written from the columns and the dataset that they were made from.

Labels, splits, keys and, for all nodes of a graph of one type, the edges are those of the given dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.keys.stored_keys import write_keys
from gloader.core.dtypes import SCALE_SUFFIX
from gloader.core.keys import as_key_chunk
from gloader.dataset import Dataset
from gloader.dataset.encoders import METADATA_KEY as ENCODERS_ENTRY
from gloader.dataset.key_record import KEY_ARRAYS
from gloader.dataset.record import LABELS, LABELS_ENTRY
from gloader.ssd_store.format.manifest import KEYS_FEATURE, LABEL_VALUES_FEATURE
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.feature_column import INT8_FEATURE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gloader.core.keys import KeyChunk
    from gloader.dataset.writer import DatasetWriter
    from gloader.ssd_store.format.manifest import ArrayRecord
    from gloader.training.propagation.hop_rows import HopRows
    from gloader.types import IdArray

_FEATURES: Final = ("features", f"features{SCALE_SUFFIX}")
_STEP: Final = 1 << 16  # nodes whose keys, or whose list starts, are written at a time


def write_hop_dataset(
    out: Path,
    dataset: Dataset,
    rows: HopRows,
    metadata: Mapping[str, Any],
    *,
    overwrite: bool,
    chunk_rows: int,
    budget_bytes: int,
    os_io: OsIO = REAL_OS,
) -> None:
    """Write the dataset, which is complete or absent.

    Parameters
    ----------
    out : the folder to make
    dataset : the dataset that the columns were made from
    rows : the hop columns
    metadata : additional entries for the commit record
    overwrite : replace the dataset at ``out``
    chunk_rows : rows that are joined at a time
    budget_bytes : memory for sorting keys
    os_io : the system calls

    Raises
    ------
    BudgetError
        The keys do not fit. The message has a sufficient budget.
    FeatureValueError
        A value does not fit the stored dtype.
    StoreExistsError, StoreLockedError, StoreWriteError
        See `DatasetWriter`.
    ChecksumError, StoreOpenError, StoreReadError
        An array of ``dataset`` is damaged, or cannot be read.
    """
    has_edges = keeps_edges(dataset, rows.nodes)
    entries = {name: each for name, each in dataset.metadata.items() if has_edges or name == LABELS_ENTRY}
    # The encoders of nodes say how columns become the features of `dataset`. They do not make hop columns.
    encoders = {**entries.pop(ENCODERS_ENTRY, {})}
    encoders.pop(dataset.labelled.name, None)
    if encoders:
        entries[ENCODERS_ENTRY] = encoders  # those of edge features
    writer = Dataset.create(
        out,
        name=out.name,
        num_nodes=len(rows.nodes),
        num_classes=dataset.num_classes,
        overwrite=overwrite,
        metadata={**entries, **metadata},
        os_io=os_io,
    )
    with writer:
        if isinstance(rows.nodes, range):
            copied = copied_arrays(dataset, has_edges=has_edges)
            needed = (
                each for each in dataset.required_features if _is_needed(each, copied, has_edges=has_edges)
            )
            writer.copied(copied, dataset.root, required_features=needed, source_io=dataset.os_io)
        else:
            _write_nodes(writer, dataset, rows.nodes, budget_bytes)
        if not has_edges:
            _write_no_edges(writer, len(rows.nodes))
        with writer.features(rows.width, rows.dtype) as column:
            for _, chunk in rows.chunks(chunk_rows):
                column.append(chunk)


def keeps_edges(dataset: Dataset, nodes: IdArray | range) -> bool:
    """Return True if the new dataset has the edges: for all nodes of a graph of one type. Pure."""
    return isinstance(nodes, range) and dataset.kind == "homogeneous"


def copied_arrays(dataset: Dataset, *, has_edges: bool) -> dict[str, ArrayRecord]:
    """Return the arrays that stay as they are if all nodes are kept, by their names in the new dataset. Pure.

    Without edges these are the labels, splits, ids and keys of the labelled type.
    """
    if has_edges:
        return {name: record for name, record in dataset.arrays.items() if name not in _FEATURES}
    records = dataset.labelled.arrays
    names = (*LABELS, "original_ids", *KEY_ARRAYS)
    return {name: records[name] for name in names if name in records}


def _is_needed(feature: str, copied: Mapping[str, ArrayRecord], *, has_edges: bool) -> bool:
    """Return True if the copied arrays need a format feature of their dataset. Pure."""
    if feature == INT8_FEATURE:  # the new features bring it if they need it
        return any(name.endswith(SCALE_SUFFIX) for name in copied)
    return has_edges or feature in {KEYS_FEATURE, LABEL_VALUES_FEATURE}


def _write_nodes(writer: DatasetWriter, dataset: Dataset, nodes: IdArray, budget_bytes: int) -> None:
    """Write labels, splits and keys of some nodes. Nodes without keys get their ids in the source as keys."""
    table = dataset.labelled
    to = writer.nodes()
    to.labels(table.labels_of(nodes))
    splits = {name: np.searchsorted(nodes, getattr(table, name)) for name in LABELS[1:]}
    to.splits(**splits)
    kind = table.key_kind or "int64"

    def chunks() -> Iterator[KeyChunk]:
        for start in range(0, len(nodes), _STEP):
            some = nodes[start : start + _STEP]
            yield as_key_chunk(table.keys_of(some) if table.has_keys else table.original_ids_of(some), kind)

    # The keys are read twice, because the writer is told their bytes first.
    num_bytes = sum(chunk.num_bytes for chunk in chunks())
    write_keys(to.keys(kind), chunks(), num_bytes=num_bytes, folder=writer.scratch, budget_bytes=budget_bytes)


def _write_no_edges(writer: DatasetWriter, num_nodes: int) -> None:
    """Write a graph without edges."""
    with writer.indptr() as indptr:
        for start in range(0, num_nodes + 1, _STEP):
            indptr.append(np.zeros(min(_STEP, num_nodes + 1 - start), np.int64))
    writer.indices(0, "int32").close()
