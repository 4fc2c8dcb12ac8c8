"""The writer for a dataset directory. All arrays are committed together, or none.

A dataset has a node table per type, an edge table per relation, link tables (edges to predict) and task tables (rows
to predict). `DatasetWriter` returns one writer per table, and a table's writer returns one writer per array. Large
arrays are streamed: their rows are appended in order. The commit writes the record ``dataset.json``, and makes the
complete directory appear under its final path. In a homogeneous dataset, the arrays are not in subfolders. A conversion
uses it, and `Dataset.create`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gloader.dataset.key_record import KEY_ARRAYS
from gloader.dataset.key_writer import KeysWriter
from gloader.dataset.link_record import METADATA_KEY, link_error, wrong_table
from gloader.dataset.record import EDGE_COLUMNS, EDGES, LABELS, REQUIRED_ARRAYS, ROW_TIME
from gloader.dataset.schema import TaskRecord, relation_text
from gloader.dataset.table_writers import LinkTableWriter, TaskTableWriter
from gloader.dataset.task_record import TASKS_ENTRY, task_error, wrong_task
from gloader.dataset.values import LABEL_VALUE_DTYPE
from gloader.errors import GraphError, ShapeError
from gloader.ssd_store.format.format import DATASET_MANIFEST
from gloader.ssd_store.format.manifest import (
    EDGE_COLUMNS_FEATURE,
    FREE_LINKS_FEATURE,
    KEYS_FEATURE,
    LABEL_VALUES_FEATURE,
    ROW_TIMES_FEATURE,
)
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.types import EDGE, NODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.core.ids import RangePart
    from gloader.core.keys import KeyKind
    from gloader.dataset.schema import DatasetSchema
    from gloader.dataset.values import LabelKind
    from gloader.ssd_store.format.manifest import ArrayRecord
    from gloader.ssd_store.write.array_writer import ArrayWriter
    from gloader.ssd_store.write.feature_column import FeatureColumnWriter
    from gloader.types import IdArray, Relation


class TableArraysWriter:
    """Starts one table's arrays in a new directory, and keeps their paths.

    Parameters
    ----------
    directory : the new directory, inside its ``with`` block
    folder : the table's folder, which precedes its array names
    """

    def __init__(self, directory: NewDirectory, folder: str) -> None:
        self.directory = directory
        self.folder = folder
        self.paths: dict[str, Path] = {}  # paths of the started arrays

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> ArrayWriter:
        """Start array ``name``. Raises as `NewDirectory.array`."""
        self._require(name)
        writer = self.directory.array(self.folder + name, dtype=dtype, shape=shape)
        self.paths[name] = writer.path
        return writer

    def features(
        self, name: str, *, num_rows: int, dim: int, dtype: str, check_finite: bool
    ) -> FeatureColumnWriter:
        """Start the matrix ``name``; see `NewDirectory.features`."""
        self._require(name)
        writer = self.directory.features(
            self.folder + name, num_rows=num_rows, dim=dim, dtype=dtype, check_finite=check_finite
        )
        self.paths[name] = writer.path
        return writer

    def _require(self, name: str) -> None:
        """Add the format feature that the array ``name`` needs, if any, to the commit record."""
        # This comes before the array starts, because the record lists format features in the order of these calls.
        if name in EDGE_COLUMNS:
            self.directory.require(EDGE_COLUMNS_FEATURE)
        if name in KEY_ARRAYS:
            self.directory.require(KEYS_FEATURE)
        if name == ROW_TIME:
            self.directory.require(ROW_TIMES_FEATURE)

    def whole(self, name: str, array: IdArray, shape: tuple[int, ...]) -> None:
        """Write a complete id array. Raises as `NewDirectory.array`; ShapeError if ``array`` has another shape."""
        if array.shape != shape:
            raise ShapeError(f"{self.folder}{name} has shape {array.shape}; it must be {shape}")
        with self.array(name, "int64", shape) as writer:
            writer.append(np.ascontiguousarray(array, dtype=np.int64))

    def values(self, name: str, array: NDArray[Any], *, num_rows: int) -> None:
        """Write complete label values (N, k), with their format feature. Raises as `whole`."""
        if array.shape[0] != num_rows or array.shape[1] < 1:
            raise ShapeError(
                f"{self.folder}{name} has shape {array.shape}; it must be ({num_rows}, k) with k of at least 1"
            )
        # The record lists format features in the order of these calls, so this comes before the array starts.
        self.directory.require(LABEL_VALUES_FEATURE)
        with self.array(name, LABEL_VALUE_DTYPE, array.shape) as writer:
            writer.append(np.ascontiguousarray(array, dtype=np.float32))


class EdgeTableWriter:
    """Writes one relation's edges, streamed in order through the returned writers. Made by a dataset's writer.

    Parameters
    ----------
    arrays : the relation's arrays
    num_nodes : number of destinations
    """

    def __init__(self, arrays: TableArraysWriter, num_nodes: int) -> None:
        self._arrays = arrays
        self._num_nodes = num_nodes

    @property
    def paths(self) -> Mapping[str, Path]:
        """The started arrays' paths before the commit, by plain name."""
        return self._arrays.paths

    def indptr(self) -> ArrayWriter:
        """Return the writer for the (N + 1,) int64 offsets."""
        return self._arrays.array("indptr", "int64", (self._num_nodes + 1,))

    def indices(self, num_edges: int, dtype: str) -> ArrayWriter:
        """Return the writer for the (E,) in-neighbour ids, ``dtype`` int32 or int64."""
        return self._arrays.array("indices", dtype, (num_edges,))

    def edge_weight(self, num_edges: int) -> ArrayWriter:
        """Return the writer for the (E,) float32 edge weights."""
        return self._arrays.array("edge_weight", "float32", (num_edges,))

    def edge_features(
        self, num_edges: int, dim: int, dtype: str, *, check_finite: bool = False
    ) -> FeatureColumnWriter:
        """Return the writer for the (E, F) edge features, in the order of ``indices``.

        Parameters
        ----------
        num_edges : E
        dim, dtype, check_finite : see `NodeTableWriter.features`

        Raises
        ------
        ConfigError, ShapeError, StoreWriteError
            As `NewDirectory.features`.
        """
        return self._arrays.features(
            "edge_features", num_rows=num_edges, dim=dim, dtype=dtype, check_finite=check_finite
        )

    def edge_time(self, num_edges: int) -> ArrayWriter:
        """Return the writer for the (E,) int64 edge times in seconds, which ascend within each list."""
        return self._arrays.array("edge_time", "int64", (num_edges,))


class NodeTableWriter:
    """Writes one type's features, labels, splits, original ids and keys. Made by a dataset's writer.

    Parameters
    ----------
    arrays : the type's arrays
    num_nodes : N
    """

    def __init__(self, arrays: TableArraysWriter, num_nodes: int) -> None:
        self._arrays = arrays
        self._num_nodes = num_nodes

    def features(self, dim: int, dtype: str, *, check_finite: bool = False) -> FeatureColumnWriter:
        """Return the writer for the (N, F) features.

        Parameters
        ----------
        dim : F
        dtype : the stored dtype: float32, float16, bfloat16 or int8
        check_finite : refuse NaN and infinity (int8 always does)

        Raises
        ------
        ConfigError, ShapeError, StoreWriteError
            As `NewDirectory.features`.
        """
        return self._arrays.features(
            "features", num_rows=self._num_nodes, dim=dim, dtype=dtype, check_finite=check_finite
        )

    def labels(self, labels: NDArray[Any]) -> None:
        """Write the labels: (N,) classes, -1 where unknown, or (N, k) float values, NaN where unknown.

        Raises
        ------
        ShapeError
            There is not one row per node.
        StoreWriteError
            The disk refuses the write.
        """
        if labels.ndim == 2 and labels.dtype.kind == "f":
            self._arrays.values("labels", labels, num_rows=self._num_nodes)
        else:
            self._arrays.whole("labels", labels, (self._num_nodes,))

    def original_ids(self, ids: IdArray) -> None:
        """Write the nodes' (N,) source ids. Omit this call if nodes kept their ids."""
        self._arrays.whole("original_ids", ids, (self._num_nodes,))

    def keys(self, kind: KeyKind) -> KeysWriter:
        """Return the writers for the nodes' keys. Omit this call if nodes have only ids."""
        return KeysWriter(self._arrays.array, self._num_nodes, kind)

    def row_time(self) -> ArrayWriter:
        """Return the writer for the (N,) int64 times of the nodes, in seconds, the least int64 where there is none."""
        return self._arrays.array(ROW_TIME, "int64", (self._num_nodes,))

    def splits(self, *, train: IdArray, valid: IdArray, test: IdArray) -> None:
        """Write the three splits.

        Parameters
        ----------
        train, valid, test : (n,) node ids; the sizes n may differ

        Raises
        ------
        StoreWriteError
            The disk refuses the write.
        """
        for name, ids in (("train", train), ("valid", valid), ("test", test)):
            self._arrays.whole(name, ids, (len(ids),))


class DatasetWriter:
    """Writes a new dataset's arrays. A context manager, which commits at a clean exit. An error leaves no dataset.

    Topology and features are streamed in order through the returned writers. Labels and splits are complete arrays. A
    type may have no features. Exactly one type has labels and splits. A type without nodes, or a relation without
    edges, is written like any other. With one type, there are short forms, such as `features` for
    ``nodes("node").features``.

    Parameters
    ----------
    path : the directory to create
    schema : the node types and relations, in the dataset's order
    name : a short display name
    num_classes : number of classes; labels are in 0..num_classes-1
    overwrite : replace a dataset or store at ``path``, atomically, at the commit
    part : this machine's share of a dataset that several machines divide: only these rows of every feature matrix are
        written. None writes all rows
    metadata : additional JSON values for the commit record
    os_io : system calls for writing

    Raises
    ------
    StoreExistsError, StoreLockedError, StoreWriteError
        On entry: the target exists, another process creates it, or the disk refuses.
    ShapeError
        On exit: an array is missing, or two types have labels.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        schema: DatasetSchema,
        name: str,
        num_classes: int,
        overwrite: bool = False,
        part: RangePart | None = None,
        metadata: Mapping[str, Any] | None = None,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self.schema = schema
        self._directory = NewDirectory(
            path, manifest_name=DATASET_MANIFEST, overwrite=overwrite, part=part, os_io=os_io
        )
        self._metadata = {**(metadata or {}), "name": name, "num_classes": num_classes}
        self._types = {
            node_type: TableArraysWriter(self._directory, schema.node_folder(node_type))
            for node_type in schema.num_nodes
        }
        self._relations = {
            relation: TableArraysWriter(self._directory, schema.edge_folder(relation))
            for relation in schema.relations
        }
        self._links: dict[str, LinkTableWriter] = {}
        self._copied: set[str] = set()  # names of arrays from other datasets
        self._tasks: dict[str, TaskTableWriter] = {}

    def __enter__(self) -> Self:
        self._directory.__enter__()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is None:
            # The commit is inside __exit__, so that a failed commit is discarded like a failed block.
            try:
                self._commit()
            except BaseException as failure:
                self._directory.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._directory.__exit__(exc_type, exc, traceback)

    @property
    def scratch(self) -> Path:
        """A folder for temporary files on the target's file system. It is removed when the block ends."""
        return self._directory.scratch()

    def nodes(self, node_type: str = NODE) -> NodeTableWriter:
        """Return the writer for a type's nodes.

        Raises
        ------
        GraphError
            There is no such type.
        """
        if node_type not in self._types:
            raise GraphError(
                f"there is no node type {node_type!r}; there are {', '.join(map(repr, self._types))}"
            )
        return NodeTableWriter(self._types[node_type], self.schema.num_nodes[node_type])

    def edges(self, relation: Relation = EDGE) -> EdgeTableWriter:
        """Return the writer for a relation's edges.

        Raises
        ------
        GraphError
            There is no such relation.
        """
        if relation not in self._relations:
            allowed = ", ".join(map(relation_text, self._relations)) or "none"
            raise GraphError(f"there is no relation {relation_text(relation)}; there are {allowed}")
        return EdgeTableWriter(self._relations[relation], self.schema.num_nodes[relation[2]])

    def links(
        self,
        name: str,
        *,
        relation: Relation | None = None,
        reverse: Relation | None = None,
        free: bool = False,
    ) -> LinkTableWriter:
        """Return the writer for a link table.

        Parameters
        ----------
        name : the table's name, such as "train"
        relation : the edges' relation. By default, the dataset's only relation
        reverse : the relation with the reverse edges, or None. A homogeneous dataset always uses its only relation
        free : allow a relation between two named types that the graph does not have; then all positions must be -1

        Raises
        ------
        GraphError
            The name is invalid or taken, a relation is unknown, or the reverse does not connect the same types.
        """
        if relation is None:
            if len(self.schema.relations) != 1:
                allowed = ", ".join(map(relation_text, self.schema.relations)) or "none"
                raise GraphError(f"links {name!r} need a relation; there are {allowed}")
            (relation,) = self.schema.relations
        if reverse is None and not self.schema.has_names:
            reverse = relation
        wrong = wrong_table(name, relation, reverse, self.schema, may_be_free=free)
        taken = _taken(name, self._links)
        if wrong is None and taken is not None:
            wrong = link_error(name, f"the dataset has the link table {taken!r} already")
        if wrong is not None:
            raise GraphError(wrong)
        if relation not in self.schema.relations:
            self._directory.require(FREE_LINKS_FEATURE)
        self._links[name] = LinkTableWriter(self._directory, name, relation=relation, reverse=reverse)
        return self._links[name]

    def table(
        self,
        name: str,
        *,
        node_type: str = NODE,
        label_kind: LabelKind | None = None,
        num_classes: int = 0,
        label_names: Sequence[str] | None = None,
    ) -> TaskTableWriter:
        """Return the writer for a task table.

        Parameters
        ----------
        name : the table's name, such as "churn.train"
        node_type : the type of the rows' nodes
        label_kind : "classes" for int64 labels, or "binary", "multilabel" or "values"; None without labels
        num_classes : number of classes, or of columns k
        label_names : the names of the classes or of the columns

        Raises
        ------
        GraphError
            The name is invalid or taken, the type is unknown, or the kind of the labels is not allowed.
        """
        record = TaskRecord(
            name=name,
            node_type=node_type,
            label_kind=label_kind,
            label_names=None if label_names is None else tuple(label_names),
            num_classes=num_classes,
        )
        wrong, taken = wrong_task(record, self.schema), _taken(name, self._tasks)
        if wrong is None and taken is not None:
            wrong = task_error(name, f"the dataset has the table {taken!r} already")
        if wrong is not None:
            raise GraphError(wrong)
        self._tasks[name] = TaskTableWriter(self._directory, record)
        return self._tasks[name]

    def indptr(self) -> ArrayWriter:
        """Return the writer for the (N + 1,) int64 offsets."""
        return self.edges().indptr()

    def indices(self, num_edges: int, dtype: str) -> ArrayWriter:
        """Return the writer for the (E,) in-neighbour ids, ``dtype`` int32 or int64."""
        return self.edges().indices(num_edges, dtype)

    def edge_weight(self, num_edges: int) -> ArrayWriter:
        """Return the writer for the (E,) float32 edge weights."""
        return self.edges().edge_weight(num_edges)

    def edge_features(
        self, num_edges: int, dim: int, dtype: str, *, check_finite: bool = False
    ) -> FeatureColumnWriter:
        """Return the writer for the (E, F) edge features; see `EdgeTableWriter.edge_features`."""
        return self.edges().edge_features(num_edges, dim, dtype, check_finite=check_finite)

    def edge_time(self, num_edges: int) -> ArrayWriter:
        """Return the writer for the (E,) int64 edge times; see `EdgeTableWriter.edge_time`."""
        return self.edges().edge_time(num_edges)

    def features(self, dim: int, dtype: str, *, check_finite: bool = False) -> FeatureColumnWriter:
        """Return the writer for the (N, F) features; see `NodeTableWriter.features`."""
        return self.nodes().features(dim, dtype, check_finite=check_finite)

    def labels(self, labels: NDArray[Any]) -> None:
        """Write the labels; see `NodeTableWriter.labels`."""
        self.nodes().labels(labels)

    def original_ids(self, ids: IdArray) -> None:
        """Write the nodes' (N,) source ids. Omit this call if nodes kept their ids."""
        self.nodes().original_ids(ids)

    def splits(self, *, train: IdArray, valid: IdArray, test: IdArray) -> None:
        """Write the three splits, each with (n,) node ids; see `NodeTableWriter.splits`."""
        self.nodes().splits(train=train, valid=valid, test=test)

    def copied(
        self,
        arrays: Mapping[str, ArrayRecord],
        root: Path,
        *,
        required_features: Iterable[str],
        source_io: OsIO = REAL_OS,
    ) -> None:
        """Take over arrays of another dataset; see `NewDirectory.copied`.

        Parameters
        ----------
        arrays : the other dataset's array records, by the arrays' names here
        root : the other dataset's directory
        required_features : the format features that these arrays need
        source_io : system calls for reading the other dataset
        """
        # The record lists format features in the order of these calls.
        for feature in required_features:
            self._directory.require(feature)
        for name, record in arrays.items():
            self._directory.copied(name, record, root, source_io=source_io)
            self._copied.add(name)

    def annotate(self, **metadata: Any) -> None:
        """Add JSON values to the commit record."""
        self._metadata.update(metadata)

    def _commit(self) -> None:
        """Check that no array is missing, and commit the directory."""
        if self.schema.has_names:
            self._require_named_tables()
        else:
            self._require_arrays()
        metadata = {**self._metadata, **self.schema.to_metadata()}
        tables: tuple[tuple[str, Mapping[str, LinkTableWriter | TaskTableWriter]], ...] = (
            (METADATA_KEY, self._links),
            (TASKS_ENTRY, self._tasks),
        )
        for entry, writers in tables:
            for table in writers.values():
                table.check_complete()
            if writers:
                metadata[entry] = {name: table.record.to_metadata() for name, table in writers.items()}
        self._directory.commit(self.schema.record_kind, metadata)

    def _require_arrays(self) -> None:
        """Raise ShapeError if a homogeneous dataset lacks an array."""
        written = self._types[NODE].paths.keys() | self._relations[EDGE].paths.keys() | self._copied
        missing = [name for name in REQUIRED_ARRAYS if name not in written]
        if missing:
            raise ShapeError(
                f"a dataset needs {', '.join(REQUIRED_ARRAYS)}; not written: {', '.join(missing)}"
            )

    def _require_named_tables(self) -> None:
        """Raise ShapeError if not exactly one type has labels, or a split or a relation's edges are missing."""
        labelled = [name for name, arrays in self._types.items() if arrays.paths.keys() & set(LABELS)]
        if len(labelled) != 1:
            names = ", ".join(map(repr, labelled)) or "none"
            raise ShapeError(
                f"exactly one node type must have labels and splits; they were written for: {names}"
            )
        needed = [
            (self._types[labelled[0]], LABELS),
            *((arrays, EDGES) for arrays in self._relations.values()),
        ]
        missing = [
            arrays.folder + name for arrays, names in needed for name in names if name not in arrays.paths
        ]
        if missing:
            raise ShapeError(
                f"a dataset needs {', '.join(LABELS)} of one node type, and {' and '.join(EDGES)} of every relation; "
                f"not written: {', '.join(missing)}"
            )


def _taken(name: str, tables: Mapping[str, Any]) -> str | None:
    """Return the table in ``tables`` whose folder would be the folder of ``name``, or None."""
    # Some file systems ignore case. On these, folders whose names differ only in case would be one.
    return next((other for other in tables if other.casefold() == name.casefold()), None)
