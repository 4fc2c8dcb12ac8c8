"""A dataset's tables for node types, relations and links, each with its arrays.

`open_tables` makes all tables of a dataset, for `Dataset`. A node table has feature rows (N, F), labels and splits. An
edge table has each destination node's in-neighbours, and feature rows (E, F_e) if the relation has them. The array
``indices`` lists the in-neighbours of one node after the other; ``indptr`` has the start of each node's list. An edge's
position is its index in ``indices``.

The commit record ``dataset.json`` has one array record per file, with name, dtype, shape and checksums. A table's
arrays have a plain name, such as "labels". In the record, the table's folder precedes it. An array is verified (its
checksums match) and checked (its values are valid) when it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

from gloader.core.near_names import missing_key, near_attributes
from gloader.dataset.keys import NodeKeys
from gloader.dataset.link_record import LinkCheck, link_arrays
from gloader.dataset.link_table import LinkTable
from gloader.dataset.record import (
    ROW_TIME,
    edge_limits,
    link_limits,
    node_limits,
    read_label_kind,
    read_label_names,
    task_limits,
)
from gloader.dataset.row_columns import OpenColumns, RowArrays
from gloader.dataset.schema import relation_text
from gloader.dataset.task_record import task_arrays
from gloader.dataset.task_table import TaskTable
from gloader.dataset.values import DTYPES, ValueCheck, check_array, wrong_value
from gloader.errors import ConfigError, ShapeError
from gloader.samplers import CscGraph
from gloader.samplers.graph import describe_unsorted_time
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.format.array_reader import load_array, load_elements
from gloader.ssd_store.format.format import DATA_OFFSET, PAGE_BYTES, detecting_replacement

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.config import IoMode, Verify
    from gloader.core.ids import HeldRows
    from gloader.core.keys import KeyKind
    from gloader.dataset.keys import Missing
    from gloader.dataset.schema import DatasetSchema
    from gloader.dataset.values import LabelKind, ValueLimits
    from gloader.ssd_store.format.format import ArrayRecord, Manifest
    from gloader.ssd_store.os_io import OsIO
    from gloader.types import IdArray, Relation


class TableArrays:
    """A type's or relation's arrays. Thread-safe and read-only, without open files.

    Parameters
    ----------
    root : the dataset's directory
    manifest : the dataset's commit record
    os_io : system calls for reading arrays
    folder : the table's folder, which precedes its array names in the record; "" in a homogeneous dataset
    limits : bounds for the values, checked at every read

    Attributes
    ----------
    records : the table's array records, by plain name
    """

    def __init__(
        self, root: Path, manifest: Manifest, os_io: OsIO, *, folder: str, limits: ValueLimits
    ) -> None:
        self.root = root
        self.manifest = manifest
        self.os_io = os_io
        self.folder = folder
        self.limits = limits
        self.records: Mapping[str, ArrayRecord] = {
            name: manifest.arrays[folder + name] for name in DTYPES if folder + name in manifest.arrays
        }

    def path(self, name: str) -> Path:
        """Return array ``name``'s file."""
        return self.root / self.records[name].file

    def load(self, name: str) -> NDArray[Any]:
        """Return array ``name`` in memory, verified, checked and read-only.

        Raises
        ------
        ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError
            The bytes differ from the written bytes, or cannot be read.
        GraphError, FormatError
            A value is invalid.
        """
        with self.as_opened():
            array = load_array(self.root, self.records[name], os_io=self.os_io)
        check_array(self.path(name), name, array, self.limits)
        return array

    def load_at(self, name: str, positions: IdArray) -> NDArray[Any]:
        """Return array ``name``'s elements or rows at ``positions`` (n,). Raises as `load`.

        Raises ShapeError for a wrong position.
        """
        with self.as_opened():
            values = load_elements(self.root, self.records[name], positions, os_io=self.os_io)
        wrong_index = self.limits.first_wrong(name, values)
        if wrong_index >= 0:
            # Rows count as their elements, one row after the other.
            row, column = divmod(wrong_index, values[0].size)
            position = int(positions[row]) * values[0].size + column
            message = self.limits.describe(name, position, values.reshape(-1)[wrong_index])
            raise wrong_value(self.path(name), name, message)
        return values

    def rows(self, name: str, *, noun: str) -> RowArrays:
        """Return the array ``name`` as a table of one column, which `OpenColumns` reads; messages call it ``noun``."""
        return RowArrays(
            root=self.root,
            manifest=self.manifest,
            os_io=self.os_io,
            noun=noun,
            records={name: self.records[name]},
            limits=self.limits,
            check=partial(ValueCheck, limits=self.limits),
        )

    @contextmanager
    def as_opened(self) -> Iterator[None]:
        """Run a block that reads the files. If it fails, check whether another dataset has replaced this one.

        If so, the error reports the replacement instead of damaged files.

        Raises
        ------
        StoreOpenError
            The block failed, and another dataset has taken this path.
        """
        with detecting_replacement(self.root, self.manifest, os_io=self.os_io):
            yield


_CHUNK_ROWS: Final = 1 << 16  # rows that `FeatureRows.all_rows` reads per request


class FeatureRows:
    """A table's feature matrix (N, F), for loaders. Thread-safe and read-only, without open files. Made by its table.

    Parameters
    ----------
    name : the node type, or a relation such as "a:writes:b", or "edges" for a homogeneous dataset's relation
    number : the table's number in the dataset: t for node type t, and T + k for relation k, with T types
    arrays : the table's arrays
    column : the matrix's plain name, "features" or "edge_features"
    """

    def __init__(self, name: str, number: int, arrays: TableArrays, column: str) -> None:
        self.name = name
        self.number = number
        self._arrays = arrays
        self._record = arrays.records[column]

    @property
    def num_rows(self) -> int:
        """The number of nodes or edges. Row i of a relation belongs to the edge at position i."""
        return self._record.shape[0]

    @property
    def feature_dim(self) -> int:
        """F, the number of features per row."""
        return self._record.shape[1]

    @property
    def feature_dtype(self) -> str:
        """The stored dtype: float32, float16, bfloat16 or int8."""
        return self._record.dtype

    @property
    def feature_bytes(self) -> int:
        """Bytes of all N rows in the stored dtype, on this machine or on others."""
        return self._record.num_bytes

    @property
    def features_path(self) -> Path:
        """The rows' file."""
        return self._arrays.root / self._record.file

    @property
    def held(self) -> HeldRows | None:
        """The range of rows stored on this machine; None means all. The dataset may be divided over machines."""
        return self._arrays.manifest.held_rows(self._record.name)

    @property
    def held_span(self) -> tuple[int, int]:
        """The byte range (begin, end) of this machine's rows in the file, extended to complete pages."""
        pages = (0, self._record.num_pages)  # first page with a local row, and the page after the last
        if self.held is not None:
            pages = self.held.span(self._record.row_bytes, PAGE_BYTES)
        return DATA_OFFSET + pages[0] * PAGE_BYTES, DATA_OFFSET + pages[1] * PAGE_BYTES

    @property
    def held_bytes(self) -> int:
        """Bytes of the rows stored on this machine."""
        held = self.held
        return self.feature_bytes if held is None else (held.past - held.first) * self._record.row_bytes

    def open_features(self, *, io: IoMode = "auto", verify: Verify = "read", **settings: Any) -> FeatureStore:
        """Open the rows for reading in any order; see `FeatureStore.open` for the settings.

        Raises
        ------
        StoreOpenError
            The dataset was replaced, or the file cannot be opened.
        ConfigError, ChecksumError, FormatError, StoreReadError
            As `FeatureStore.open`.
        """
        return FeatureStore.open(
            self._arrays.root,
            column=self._record.name,
            manifest=self._arrays.manifest,
            io=io,
            verify=verify,
            os_io=self._arrays.os_io,
            **settings,
        )

    def all_rows(self) -> NDArray[np.float32]:
        """Return all rows (N, F) as float32, in memory.

        Raises
        ------
        RowNotHereError
            Some rows are stored only on other machines.
        StoreOpenError, ConfigError, ChecksumError, FormatError, StoreReadError
            As `open_features`.
        """
        with self.open_features() as store:
            store.require_here(0, self.num_rows)
            rows = np.empty((self.num_rows, self.feature_dim), dtype=np.float32)
            # Rows are read in chunks, so that a request's ids take little memory compared with the rows.
            for start in range(0, len(rows), _CHUNK_ROWS):
                chunk = rows[start : start + _CHUNK_ROWS]
                store.read_into(np.arange(start, start + len(chunk)), chunk)
        return rows


@near_attributes
class NodeTable:
    """The nodes in one type. Thread-safe and read-only, without open files. Made by `Dataset`.

    Parameters
    ----------
    name : the type's name
    number : the type's number, in the order of the commit record
    num_nodes : N
    arrays : features, labels, splits and original ids, if they exist
    """

    def __init__(self, name: str, number: int, num_nodes: int, arrays: TableArrays) -> None:
        self.name = name
        self.number = number
        self.num_nodes = num_nodes
        self._arrays = arrays

    def __repr__(self) -> str:
        """Return the sizes."""
        return f"NodeTable({self.name!r}, num_nodes={self.num_nodes}, feature_dim={self.feature_dim})"

    @property
    def arrays(self) -> Mapping[str, ArrayRecord]:
        """The array records, by plain name."""
        return self._arrays.records

    @property
    def has_features(self) -> bool:
        """True if the nodes have feature rows."""
        return "features" in self._arrays.records

    @cached_property
    def feature_rows(self) -> FeatureRows | None:
        """The nodes' feature rows, or None."""
        return FeatureRows(self.name, self.number, self._arrays, "features") if self.has_features else None

    @property
    def feature_dim(self) -> int:
        """F, or 0 without features."""
        return self._features().feature_dim if self.has_features else 0

    @property
    def feature_dtype(self) -> str:
        """The stored feature dtype (float32, float16, bfloat16 or int8), or float32 without features."""
        return self._features().feature_dtype if self.has_features else "float32"

    @property
    def feature_bytes(self) -> int:
        """Bytes for stored feature rows, or 0 without features."""
        return self._features().feature_bytes if self.has_features else 0

    @property
    def features_path(self) -> Path:
        """The feature rows' file.

        Raises
        ------
        ConfigError
            The type has no features.
        """
        return self._features().features_path

    def open_features(self, *, io: IoMode = "auto", verify: Verify = "read", **settings: Any) -> FeatureStore:
        """Open the feature rows for reading in any order; see `FeatureStore.open` for the settings.

        Raises
        ------
        StoreOpenError
            The dataset was replaced, or the file cannot be opened.
        ConfigError
            The type has no features, or as `FeatureStore.open`.
        ChecksumError, FormatError, StoreReadError
            As `FeatureStore.open`.
        """
        return self._features().open_features(io=io, verify=verify, **settings)

    def all_features(self) -> NDArray[np.float32]:
        """Return all feature rows (N, F) as float32, in memory. Raises as `open_features`."""
        return self._features().all_rows()

    @property
    def has_labels(self) -> bool:
        """True if the nodes have labels and splits. Exactly one type has them."""
        return "labels" in self._arrays.records

    @property
    def label_kind(self) -> LabelKind:
        """The kind of the labels: "classes", "binary", "multilabel" or "values".

        Raises
        ------
        ConfigError
            The type has no labels.
        """
        self._require_labels()
        return read_label_kind(
            self._arrays.manifest, are_values=len(self._arrays.records["labels"].shape) == 2
        )

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The names of the classes, or of the k label columns; None without names. Raises as `label_kind`."""
        self._require_labels()
        return read_label_names(self._arrays.manifest)

    @property
    def label_width(self) -> int:
        """k, the number of label columns; 1 for classes. Raises as `label_kind`."""
        self._require_labels()
        return math.prod(self._arrays.records["labels"].shape[1:])

    @property
    def num_classes(self) -> int:
        """C, the number of classes; for labels that are values, the number of columns."""
        return self._arrays.limits.num_classes

    @cached_property
    def labels(self) -> NDArray[Any]:
        """The labels, verified and read-only.

        (N,) int64 classes, -1 where unknown, or (N, k) float32 values, NaN where unknown: see `label_kind`.
        """
        return self._load("labels")

    def labels_of(self, nodes: IdArray) -> NDArray[Any]:
        """Return the verified labels of ``nodes`` (n,), as in `labels`: (n,) int64 classes, or (n, k) float32 values.

        Only these labels are held in memory, while `labels` holds all N. Call this once for all seeds, not per batch.

        Raises
        ------
        ConfigError
            The type has no labels.
        ShapeError
            An id is not a node.
        ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError
            The bytes differ from the written bytes, or cannot be read.
        FormatError
            A label is not a class, or is infinite.
        """
        self._require_labels()
        return self._arrays.load_at("labels", nodes)

    @cached_property
    def train(self) -> IdArray:
        """(n,) int64 training nodes; verified, read-only."""
        return self._load("train")

    @cached_property
    def valid(self) -> IdArray:
        """(n,) int64 validation nodes; verified, read-only."""
        return self._load("valid")

    @cached_property
    def test(self) -> IdArray:
        """(n,) int64 test nodes; verified, read-only."""
        return self._load("test")

    @property
    def split_sizes(self) -> dict[str, int]:
        """Each split's number of nodes by name, from the record. Empty without labels."""
        names = ("train", "valid", "test")
        return {name: self._arrays.records[name].shape[0] for name in names if name in self._arrays.records}

    @cached_property
    def original_ids(self) -> IdArray | None:
        """(N,) int64 ids of the nodes before the preparation, verified and read-only; None if nodes kept their ids.

        All other members use the stored node ids.
        """
        return self._arrays.load("original_ids") if "original_ids" in self._arrays.records else None

    def original_ids_of(self, nodes: IdArray) -> IdArray:
        """Return the ids (n,) int64 that ``nodes`` (n,) had before the preparation. Raises as `labels_of`."""
        if "original_ids" not in self._arrays.records:
            return nodes
        return self._arrays.load_at("original_ids", nodes)

    def in_original_order(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return ``values`` (N, ...), one per stored node, in the order of original ids.

        Raises
        ------
        ShapeError
            There is not one value per node.
        """
        if values.shape[:1] != (self.num_nodes,):
            raise ShapeError(
                f"{self._arrays.root}: values have shape {values.shape}; there are {self.num_nodes} nodes"
            )
        if self.original_ids is None:
            return values
        # Stored node i had the id original_ids[i] in the source.
        ordered = np.empty_like(values)
        ordered[self.original_ids] = values
        return ordered

    @property
    def has_row_times(self) -> bool:
        """True if the nodes are rows with a time, as those of a database table."""
        return ROW_TIME in self._arrays.records

    @property
    def row_time_bytes(self) -> int:
        """Bytes of the row times; 0 without row times."""
        return self._arrays.records[ROW_TIME].num_bytes if self.has_row_times else 0

    @cached_property
    def row_times(self) -> IdArray | None:
        """(N,) int64 seconds, verified and read-only, the least int64 where a row has no time; None without times."""
        return self._arrays.load(ROW_TIME) if self.has_row_times else None

    def open_row_times(self, *, max_bytes: int, io: IoMode = "auto") -> OpenColumns:
        """Open the row times, whose column is "row_time", for reading in any order; see `OpenColumns`.

        Raises
        ------
        ConfigError
            The nodes have no row times. Also, as all other errors, as `OpenColumns`.
        """
        if not self.has_row_times:
            raise ConfigError(f"{self._arrays.root}: nodes of type {self.name!r} have no row times")
        return OpenColumns(
            self._arrays.rows(ROW_TIME, noun=f"nodes {self.name!r}"), max_bytes=max_bytes, io=io
        )

    @property
    def has_keys(self) -> bool:
        """True if the nodes have keys, the names of nodes in the source."""
        return "keys" in self._arrays.records

    @property
    def key_kind(self) -> KeyKind | None:
        """The kind of the keys: int64, uint64, text or uuid. None without keys."""
        return self._keys.kind if self.has_keys else None

    def keys_of(self, ids: Any) -> NDArray[Any]:
        """Return the keys (n,) of the nodes ``ids`` (n,); see `NodeKeys.keys_of`."""
        return self._keys.keys_of(ids)

    def ids_of(self, keys: Any, *, missing: Missing = "error") -> IdArray:
        """Return the nodes (n,) int64 with the keys ``keys`` (n,); see `NodeKeys.ids_of`."""
        return self._keys.ids_of(keys, missing=missing)

    @cached_property
    def _keys(self) -> NodeKeys:
        """The reader of the keys, also for nodes without keys, whose requests it refuses."""
        return NodeKeys(self._arrays, self.name, self.num_nodes)

    def _features(self) -> FeatureRows:
        """Return the feature rows. Raises ConfigError if there are none."""
        if self.feature_rows is None:
            raise ConfigError(f"{self._arrays.root}: nodes of type {self.name!r} have no features")
        return self.feature_rows

    def _load(self, name: str) -> NDArray[Any]:
        """Return the labels or a split in memory, verified and checked."""
        self._require_labels()
        return self._arrays.load(name)

    def _require_labels(self) -> None:
        """Raise ConfigError if this is not the labelled type."""
        if not self.has_labels:
            raise ConfigError(
                f"{self._arrays.root}: nodes of type {self.name!r} have no labels and splits; "
                "Dataset.labelled is the one type that has them"
            )


@near_attributes
class EdgeTable:
    """The edges in one relation. Thread-safe and read-only, without open files. Made by `Dataset`.

    It has the same members as `Dataset` for the topology, so that readers take either one.

    Parameters
    ----------
    relation : (source type, name, destination type)
    number : the table's number in the dataset, T + k for relation k with T node types
    arrays : indptr, indices, and optional edge_weight, edge_features and edge_time
    name : the edge features' name, as in `FeatureRows`
    """

    def __init__(self, relation: Relation, number: int, arrays: TableArrays, *, name: str) -> None:
        self.relation = relation
        self._number = number
        self._name = name
        self._arrays = arrays

    def __repr__(self) -> str:
        """Return the sizes."""
        return f"EdgeTable({':'.join(self.relation)!r}, num_edges={self.num_edges})"

    @property
    def root(self) -> Path:
        """The dataset's directory."""
        return self._arrays.root

    @property
    def os_io(self) -> OsIO:
        """The system calls for reading arrays."""
        return self._arrays.os_io

    @property
    def limits(self) -> ValueLimits:
        """Bounds for the array values."""
        return self._arrays.limits

    @property
    def arrays(self) -> Mapping[str, ArrayRecord]:
        """The array records, by plain name."""
        return self._arrays.records

    @property
    def num_nodes(self) -> int:
        """N, the number of destination nodes."""
        return self.limits.num_nodes

    @property
    def num_sources(self) -> int:
        """The source type's number of nodes."""
        return self.limits.num_sources

    @property
    def num_edges(self) -> int:
        """E, the number of edges."""
        return self.limits.num_edges

    @property
    def topology_bytes(self) -> int:
        """Bytes for indptr, indices and edge weights."""
        names = ("indptr", "indices", "edge_weight")
        return sum(self.arrays[name].num_bytes for name in names if name in self.arrays)

    @property
    def time_bytes(self) -> int:
        """Bytes for edge times, which are not part of `topology_bytes`."""
        return self.arrays["edge_time"].num_bytes if self.has_times else 0

    @property
    def has_weights(self) -> bool:
        """True if edges have weights."""
        return "edge_weight" in self.arrays

    @property
    def has_times(self) -> bool:
        """True if edges have times."""
        return "edge_time" in self.arrays

    @property
    def has_edge_features(self) -> bool:
        """True if edges have feature rows."""
        return "edge_features" in self.arrays

    @cached_property
    def feature_rows(self) -> FeatureRows | None:
        """The edges' feature rows, in position order, or None."""
        if not self.has_edge_features:
            return None
        return FeatureRows(self._name, self._number, self._arrays, "edge_features")

    def load_times(self, indptr: IdArray) -> IdArray | None:
        """Return the edge times (E,) int64 seconds in memory, verified and sorted, or None without times.

        Parameters
        ----------
        indptr : (N + 1,) start of each node's list in ``indices``, already checked

        Raises
        ------
        ChecksumError, StoreReadError, StoreOpenError
            As `load_graph`.
        GraphError
            The times do not ascend within a node's list. The message names file and edge.
        """
        if not self.has_times:
            return None
        times = self._arrays.load("edge_time")
        if (message := describe_unsorted_time(indptr, times)) is not None:
            raise wrong_value(self._arrays.path("edge_time"), "edge_time", message)
        return times

    def load_graph(self, *, times: bool = True) -> CscGraph:
        """Return the verified edges in memory. `open_topology` reads a larger topology page by page.

        Parameters
        ----------
        times : load edge times too, if they exist

        Raises
        ------
        ChecksumError, StoreReadError
            The bytes differ from the written bytes, or cannot be read.
        StoreOpenError
            Another dataset has taken this path.
        GraphError
            An id is no node, offsets do not ascend, a weight is negative or not finite, or times do not ascend within
            a node's list.
        """
        weight = self._arrays.load("edge_weight") if self.has_weights else None
        indptr = self._arrays.load("indptr")
        return CscGraph(
            indptr=indptr,
            indices=self._arrays.load("indices"),
            edge_weight=weight,
            edge_time=self.load_times(indptr) if times else None,
            num_sources=self.num_sources,
            validate=False,
        )

    def as_opened(self) -> AbstractContextManager[None]:
        """Return a context manager that reports a replaced dataset; see `TableArrays.as_opened`."""
        return self._arrays.as_opened()


ONLY_EDGES: Final = "edges"  # the name of a homogeneous dataset's edge features

K = TypeVar("K")
T = TypeVar("T")


class Tables(Mapping[K, T], Generic[K, T]):
    """A read-only mapping with the tables by type or relation, in record order.

    Parameters
    ----------
    tables : the tables by key
    noun : the noun for a key, for messages
    """

    def __init__(self, tables: dict[K, T], noun: str) -> None:
        self._tables, self._noun = tables, noun

    def __getitem__(self, key: K) -> T:
        """Return ``key``'s table.

        Raises
        ------
        KeyError
            There is no such table. The message suggests a similar key, or lists all keys.
        """
        try:
            return self._tables[key]
        except KeyError:
            raise missing_key(key, self._tables, f"no {self._noun} of this dataset") from None

    def __iter__(self) -> Iterator[K]:
        """Return an iterator over the keys, in order."""
        return iter(self._tables)

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self._tables)

    def __repr__(self) -> str:
        """Return the number of tables, and the first names."""
        names = [relation_text(key) if isinstance(key, tuple) else str(key) for key in islice(self, 3)]
        more = ", ..." if len(self) > len(names) else ""
        return f"{len(self)} x {self._noun}: {', '.join(names)}{more}"


def open_tables(
    root: Path, manifest: Manifest, schema: DatasetSchema, os_io: OsIO
) -> tuple[
    Mapping[str, NodeTable], Mapping[Relation, EdgeTable], Mapping[str, LinkTable], Mapping[str, TaskTable]
]:
    """Return the node, edge, link and task tables, each in record order. Nothing is read. Pure.

    Parameters
    ----------
    root : the dataset's directory
    manifest : the checked commit record
    schema : the types, relations, link tables and task tables
    os_io : system calls for reading arrays
    """

    def arrays(folder: str, limits: ValueLimits) -> TableArrays:
        return TableArrays(root, manifest, os_io, folder=folder, limits=limits)

    nodes = {
        name: NodeTable(
            name, number, count, arrays(schema.node_folder(name), node_limits(manifest, schema, name))
        )
        for number, (name, count) in enumerate(schema.num_nodes.items())
    }
    edges = {
        relation: EdgeTable(
            relation,
            number,
            arrays(schema.edge_folder(relation), edge_limits(manifest, schema, relation)),
            name=relation_text(relation) if schema.has_names else ONLY_EDGES,
        )
        for number, relation in enumerate(schema.relations, len(nodes))
    }
    of_rows = partial(RowArrays, root=root, manifest=manifest, os_io=os_io)
    links = {}
    for table in schema.links:
        bounds = link_limits(manifest, schema, table)
        links[table.name] = LinkTable(
            table,
            of_rows(
                noun=f"links {table.name!r}",
                records=link_arrays(manifest.arrays, table),
                limits=bounds,
                check=partial(LinkCheck, limits=bounds, in_graph=table.in_graph),
            ),
        )
    tasks = {}
    for task in schema.tasks:
        limits = task_limits(schema, task)
        tasks[task.name] = TaskTable(
            task,
            of_rows(
                noun=f"table {task.name!r}",
                records=task_arrays(manifest.arrays, task),
                limits=limits,
                check=partial(ValueCheck, limits=limits),
            ),
        )
    return (
        Tables(nodes, "node type"),
        Tables(edges, "relation"),
        Tables(links, "link table"),
        Tables(tasks, "task table"),
    )
