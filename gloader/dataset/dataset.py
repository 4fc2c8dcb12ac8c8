"""A dataset directory with one or several node types: topology, features, labels and splits, committed together.

The commit record ``dataset.json`` is written last. It lists all arrays with their checksums. A table has the arrays of
one node type, one relation (edge type), one link table (edges to predict) or one task table (rows to predict). A
homogeneous dataset has one node type and one relation, without names. The labelled type is the one node type with
labels and splits. The *mirror* of a dataset at a URL is a partial copy on the local disk. Most properties of `Dataset`
return those of its tables.
"""

from __future__ import annotations

import os
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gloader.config import ObjectSettings
from gloader.core.ids import RowRanges
from gloader.core.near_names import near_advice, near_attributes, near_keywords
from gloader.core.paths import is_url, require_no_url
from gloader.dataset.encoders import recorded_encoders
from gloader.dataset.mirrored import Mirrored, open_mirrored
from gloader.dataset.record import check_record, content_digest
from gloader.dataset.schema import DatasetSchema, checked_schema, relation_text
from gloader.dataset.tables import open_tables
from gloader.dataset.writer import DatasetWriter
from gloader.errors import ConfigError
from gloader.samplers.graph import HeteroGraph
from gloader.ssd_store.format.format import DATASET_MANIFEST, detecting_replacement, load_manifest
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from gloader.config import IoMode, Verify
    from gloader.dataset.encoders import Encoders
    from gloader.dataset.keys import Missing
    from gloader.dataset.link_table import LinkTable
    from gloader.dataset.schema import DatasetKind
    from gloader.dataset.tables import EdgeTable, FeatureRows, NodeTable
    from gloader.dataset.task_table import TaskTable
    from gloader.dataset.values import LabelKind, ValueLimits
    from gloader.samplers import CscGraph
    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.format.format import ArrayRecord, Manifest
    from gloader.types import IdArray, Relation


_Table = TypeVar("_Table")


@near_attributes
class Dataset:
    """A prepared graph on disk. Opening reads only the commit record. Arrays are read at their first use.

    A homogeneous dataset has the properties of its one node table and its one edge table, such as `feature_dim`. With
    several types, sizes are sums over the tables. Labels and splits are those of the labelled type, and their node ids
    begin at 0 within this type. Features and topology must be read from `node_tables` and `edge_tables`.

    Thread-safe and read-only, without open files. Made by `open`.

    Parameters
    ----------
    root : the directory
    manifest : the directory's commit record. If another dataset replaces the directory later, reads raise an error
    os_io : system calls for reading arrays
    mirrored : the mirror that fills the directory from a URL, or None

    Attributes
    ----------
    node_tables : each type's nodes, in record order
    edge_tables : each relation's edges, in record order
    link_tables : the sets of edges to predict, by name
    task_tables : the sets of rows to predict, by name

    Raises
    ------
    FormatError
        The record lacks an array, its shapes contradict each other, or its number of classes is invalid.
    VersionError
        This version of gloader cannot read the record's version.
    """

    def __init__(
        self, root: Path, manifest: Manifest, os_io: OsIO = REAL_OS, *, mirrored: Mirrored | None = None
    ) -> None:
        schema = check_record(root, manifest)
        self.root = root
        self.mirrored = mirrored
        self._manifest = manifest
        self._os_io = os_io
        self._schema = schema
        self.node_tables: Mapping[str, NodeTable]
        self.edge_tables: Mapping[Relation, EdgeTable]
        self.link_tables: Mapping[str, LinkTable]
        self.task_tables: Mapping[str, TaskTable]
        self.node_tables, self.edge_tables, self.link_tables, self.task_tables = open_tables(
            root, manifest, schema, os_io
        )

    def __repr__(self) -> str:
        """Return the sizes and the location as text."""
        if self._schema.has_names:
            sizes = f"{len(self.node_types)} types, {len(self.relations)} relations"
        else:
            sizes = f"feature_dim={self.feature_dim}, num_classes={self.num_classes}"
        return f"Dataset({str(self.location)!r}, num_nodes={self.num_nodes}, num_edges={self.num_edges}, {sizes})"

    @classmethod
    @near_keywords
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        mirror_dir: str | os.PathLike[str] | None = None,
        mirror_budget: str | int | None = None,
        object_limit: str | None = None,
        object_requests: int = 64,
        object_price: str | None = None,
        object_redirects: bool = False,
        os_io: OsIO = REAL_OS,
    ) -> Dataset:
        """Open the dataset directory at ``path``, or the dataset at a URL.

        A dataset at a URL has a mirror, which is a partial copy on this machine's SSD. Reads fetch missing parts into
        the mirror. This needs `obstore`, which takes credentials from the environment.

        Parameters
        ----------
        path : a directory, or a URL such as "s3://bucket/papers"; also gs, az, https and file
        mirror_dir, mirror_budget, object_limit, object_requests, object_price, object_redirects
            The mirror's settings; see `gloader.config.ObjectSettings`. A directory ignores them.
        os_io : system calls for reading a directory

        Raises
        ------
        StoreOpenError, NotAStoreError, IncompleteStoreError, TruncatedStoreError, FormatError, VersionError
            There is no complete dataset with a known version at ``path``.
        ConfigError
            A mirror setting or the URL is malformed.
        StoreReadError
            The store at the URL cannot be reached, or refuses.
        MissingDependencyError
            ``path`` is a URL, and obstore is not installed.
        """
        if is_url(text := os.fspath(path)):
            settings = ObjectSettings.of(
                mirror_dir=mirror_dir,
                mirror_budget=mirror_budget,
                object_limit=object_limit,
                object_requests=object_requests,
                object_price=object_price,
                object_redirects=object_redirects,
            )
            root, mirrored = open_mirrored(text, settings)
            try:
                manifest = load_manifest(root, DATASET_MANIFEST, os_io=mirrored.os_io)
                return cls(root, manifest, mirrored.os_io, mirrored=mirrored)
            except BaseException:
                mirrored.close()
                raise
        require_no_url(text)
        root = Path(path)
        return cls(root, load_manifest(root, DATASET_MANIFEST, os_io=os_io), os_io)

    def close(self) -> None:
        """Release a URL's connections, threads and mirror lock. Idempotent.

        For a directory, this does nothing. Close loaders and other users first.
        """
        if self.mirrored is not None:
            self.mirrored.close()

    @classmethod
    @near_keywords
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str,
        num_nodes: int,
        num_classes: int,
        overwrite: bool = False,
        metadata: Mapping[str, Any] | None = None,
        os_io: OsIO = REAL_OS,
    ) -> DatasetWriter:
        """Begin a dataset at ``path``. The complete dataset appears when the writer's block ends without error.

        See `DatasetWriter` for the parameters.
        """
        return DatasetWriter(
            path,
            schema=DatasetSchema.of_one_type(num_nodes),
            name=name,
            num_classes=num_classes,
            overwrite=overwrite,
            metadata=metadata,
            os_io=os_io,
        )

    @classmethod
    @near_keywords
    def create_hetero(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str,
        num_nodes: Mapping[str, int],
        relations: Sequence[Relation],
        num_classes: int,
        overwrite: bool = False,
        metadata: Mapping[str, Any] | None = None,
        os_io: OsIO = REAL_OS,
    ) -> DatasetWriter:
        """Begin a dataset with several types at ``path``. It appears when the writer's block ends without error.

        See `DatasetWriter` for the parameters.

        Raises
        ------
        GraphError
            A name is not valid as a folder name or occurs twice, or a relation names an unknown type.
        """
        return DatasetWriter(
            path,
            schema=checked_schema(num_nodes, relations),
            name=name,
            num_classes=num_classes,
            overwrite=overwrite,
            metadata=metadata,
            os_io=os_io,
        )

    @staticmethod
    def from_numpy(path: str | os.PathLike[str], **arrays: Any) -> Dataset:
        """Write arrays as a dataset at ``path`` and open it; see `gloader.convert.in_memory.write_numpy`."""
        _conversions().write_numpy(path, **arrays)
        return Dataset.open(path)

    @staticmethod
    def from_numpy_hetero(path: str | os.PathLike[str], **arrays: Any) -> Dataset:
        """Write a graph with several types as a dataset and open it; see `gloader.convert.in_memory.write_hetero`."""
        _conversions().write_hetero(path, **arrays)
        return Dataset.open(path)

    @staticmethod
    def from_pyg(data: Any, path: str | os.PathLike[str], **options: Any) -> Dataset:
        """Write a PyG ``Data`` or ``HeteroData`` and open it; see `gloader.convert.in_memory.write_pyg`."""
        _conversions().write_pyg(data, path, **options)
        return Dataset.open(path)

    @staticmethod
    def from_dgl(g: Any, path: str | os.PathLike[str], **options: Any) -> Dataset:
        """Write a DGL graph as a dataset and open it; see `gloader.convert.in_memory.write_dgl`."""
        _conversions().write_dgl(g, path, **options)
        return Dataset.open(path)

    def to_numpy(self) -> dict[str, Any]:
        """Return all arrays in memory, in the form that `from_numpy` takes. Features are float32.

        Edge features, times, link tables and task tables are included if they exist. With several types, the arrays
        have the form that `from_numpy_hetero` takes.
        """
        return arrays_of(self)

    def to_pyg(self) -> Any:
        """Return the dataset as a PyG ``Data`` in memory: x, edge_index, y, masks and optional edge_weight.

        A dataset with several types becomes a ``HeteroData``.
        """
        return _conversions().to_pyg(self.to_numpy())

    def to_dgl(self) -> Any:
        """Return the dataset as a DGL graph in memory: feat, label and masks, int64 ids as in DGL's own graphs.

        A dataset with several types becomes a heterograph.
        """
        return _conversions().to_dgl(self.to_numpy())

    @property
    def location(self) -> str:
        """The directory, or the URL without secrets, for messages and records."""
        return str(self.root) if self.mirrored is None else self.mirrored.url

    @property
    def os_io(self) -> OsIO:
        """The system calls for reading arrays."""
        return self._os_io

    @property
    def kind(self) -> DatasetKind:
        """The kind: "homogeneous" for one node type and one relation, "hetero" for types and relations with names."""
        return self._schema.kind

    @property
    def node_types(self) -> tuple[str, ...]:
        """The node types, in record order; ("node",) if homogeneous."""
        return tuple(self._schema.num_nodes)

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations, in record order; (("node", "to", "node"),) if homogeneous."""
        return self._schema.relations

    @property
    def type_starts(self) -> IdArray:
        """(T + 1,) int64 starts of the T types in one numbering: node v of type t has number ``type_starts[t] + v``."""
        return self._schema.type_starts

    @cached_property
    def labelled(self) -> NodeTable:
        """The one node table with labels and splits."""
        return next(table for table in self.node_tables.values() if table.has_labels)

    @property
    def is_for_tables_alone(self) -> bool:
        """True if only the rows of tables are predicted: tables exist, there is one class, and the splits are empty."""
        sizes = self.labelled.split_sizes.values()
        return bool(self.link_tables or self.task_tables) and self.num_classes == 1 and not any(sizes)

    def link_table(self, name: str) -> LinkTable:
        """Return the link table ``name``.

        Raises
        ------
        ConfigError
            There is no such table. The message lists all tables.
        """
        available = (
            ", ".join(map(repr, self.link_tables)) or "none; `gloader prepare --edge-split` makes some"
        )
        try:
            return self.link_tables[name]
        except KeyError:
            raise ConfigError(
                f"{self.location} has no edges {name!r} to predict; it has {available}"
            ) from None
        except TypeError:  # an array
            raise ConfigError(
                f"edges to predict are given by the name of a link table, not by a {type(name).__name__}; there are "
                f"{available}. `gloader prepare --edge-table NAME=FILE` makes a link table of pairs, and so does "
                "links={NAME: ...} in Python"
            ) from None

    def task_table(self, name: str) -> TaskTable:
        """Return the task table ``name``, or the table ``name`` + ".train", in which a task's model learns.

        Raises
        ------
        ConfigError
            There is no such table. The message lists all tables.
        """
        if not isinstance(name, str):
            raise ConfigError(
                f"rows to predict are given by the name of a task table, not by a {type(name).__name__}"
            )
        for full in (name, f"{name}.train"):
            if full in self.task_tables:
                return self.task_tables[full]
        available = ", ".join(map(repr, self.task_tables)) or (
            "none; `tables:` of graph.yaml, relbench:DIR and tables={NAME: ...} in Python make some"
        )
        raise ConfigError(f"{self.location} has no table {name!r} of rows to predict; it has {available}")

    def feature_rows(self, *, edges: bool) -> tuple[FeatureRows, ...]:
        """Return the feature matrices of all node types. With ``edges``, the relations' matrices follow."""
        tables: list[NodeTable | EdgeTable] = [*self.node_tables.values()]
        tables += self.edge_tables.values() if edges else []
        return tuple(table.feature_rows for table in tables if table.feature_rows is not None)

    @cached_property
    def ranges(self) -> RowRanges | None:
        """The range of each feature table's rows on this machine, by table name, or None if all rows are here."""
        recorded = self._manifest.ranges
        if recorded is None:
            return None
        tables = {
            rows.name: rows.held.bounds for rows in self.feature_rows(edges=True) if rows.held is not None
        }
        return RowRanges(part=recorded.part, of=recorded.of, tables=tables)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """JSON values from the preparation, such as name, source and options."""
        return self._manifest.metadata

    @property
    def arrays(self) -> Mapping[str, ArrayRecord]:
        """All array records, by name. A named type's or relation's array names begin with its folder."""
        return self._manifest.arrays

    @property
    def required_features(self) -> tuple[str, ...]:
        """The format features that a version of gloader must know to read the dataset."""
        return self._manifest.required_features

    @property
    def name(self) -> str:
        """A short display name."""
        return str(self.metadata.get("name", Path(self.location).name))

    @property
    def num_nodes(self) -> int:
        """N, over all types."""
        return sum(self._schema.num_nodes.values())

    @property
    def num_edges(self) -> int:
        """E, over all relations."""
        return sum(table.num_edges for table in self.edge_tables.values())

    @property
    def num_classes(self) -> int:
        """Number of classes, which are 0..num_classes-1. For labels that are values, the number of columns k."""
        classes: int = self.metadata["num_classes"]
        return classes

    @property
    def feature_dim(self) -> int:
        """F, the number of features per node, if homogeneous."""
        return self._nodes.feature_dim

    @property
    def feature_dtype(self) -> str:
        """The stored feature dtype, if homogeneous: float32, float16, bfloat16 or int8."""
        return self._nodes.feature_dtype

    @property
    def has_self_loops(self) -> bool:
        """True if the preparation gave every node exactly one self loop."""
        return bool(self.metadata.get("has_self_loops", False))

    @property
    def topology_bytes(self) -> int:
        """Bytes for indptr, indices and edge weights, over all relations. `time_bytes` are not included."""
        return sum(table.topology_bytes for table in self.edge_tables.values())

    @property
    def time_bytes(self) -> int:
        """Bytes for edge times, over all relations."""
        return sum(table.time_bytes for table in self.edge_tables.values())

    @property
    def feature_bytes(self) -> int:
        """Bytes for stored feature rows, over all types."""
        return sum(table.feature_bytes for table in self.node_tables.values())

    @property
    def features_path(self) -> Path:
        """The feature rows' file, if homogeneous."""
        return self._nodes.features_path

    @property
    def limits(self) -> ValueLimits:
        """Bounds for array values, checked at every read, if homogeneous."""
        return self._edges.limits

    @cached_property
    def fingerprint(self) -> str:
        """The content's digest. Datasets with equal arrays have equal digests, also in a directory and at a URL."""
        return content_digest(self._manifest, self._schema)

    @property
    def labels(self) -> NDArray[Any]:
        """The labelled type's labels: (N,) int64 classes, or (N, k) float32 values; see `NodeTable.labels`."""
        return self.labelled.labels

    def encoders(self, name: str | None = None) -> Encoders | None:
        """Return the encoders that made a type's features from a table's columns, or None without such columns.

        ``encoders().encode(batch)`` gives new rows of the same table their features.

        Parameters
        ----------
        name : a node type, or a relation "source:name:destination" for edge features; None means the labelled type

        Raises
        ------
        ConfigError
            There is no such type or relation.
        FormatError
            The commit record's entry is malformed.
        """
        names = [*self.node_types, *map(relation_text, self.relations)]
        chosen = self.labelled.name if name is None else name
        if chosen not in names:
            raise ConfigError(
                f"{self.location} has no type or relation {chosen!r} with encoders; {near_advice(chosen, names)}"
            )
        return recorded_encoders(self.metadata, chosen, where=str(self.location))

    @property
    def label_kind(self) -> LabelKind:
        """The kind of the labels: "classes" (int64), or "binary", "multilabel" or "values" (float32)."""
        return self.labelled.label_kind

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The names of the classes, or of the k label columns; None without names."""
        return self.labelled.label_names

    @property
    def label_width(self) -> int:
        """k, the number of label columns; 1 for classes."""
        return self.labelled.label_width

    def labels_of(self, nodes: IdArray) -> NDArray[Any]:
        """Return the labels of the labelled type's ``nodes`` (n,); see `NodeTable.labels_of`."""
        return self.labelled.labels_of(nodes)

    @property
    def train(self) -> IdArray:
        """(n,) int64 training nodes within the labelled type; verified, read-only."""
        return self.labelled.train

    @property
    def valid(self) -> IdArray:
        """(n,) int64 validation nodes within the labelled type; verified, read-only."""
        return self.labelled.valid

    @property
    def test(self) -> IdArray:
        """(n,) int64 test nodes within the labelled type; verified, read-only."""
        return self.labelled.test

    @property
    def original_ids(self) -> IdArray | None:
        """(N,) int64 ids that the labelled type's nodes had before the preparation; None if nodes kept their ids."""
        return self.labelled.original_ids

    def keys_of(self, ids: Any, node_type: str | None = None) -> NDArray[Any]:
        """Return the keys (n,) of the nodes ``ids`` (n,): int64, uint64, or an object array of str.

        A key is the name of a node in the source. By default, ``node_type`` is the labelled type. Raises as
        `NodeKeys.keys_of`; KeyError for an unknown type.
        """
        return self._keyed(node_type).keys_of(ids)

    def ids_of(self, keys: Any, node_type: str | None = None, *, missing: Missing = "error") -> IdArray:
        """Return the nodes (n,) int64 with the keys ``keys`` (n,).

        Parameters
        ----------
        keys : array, list or other sequence of int or str
        node_type : the nodes' type; by default, the labelled type
        missing : what happens to a key that no node has: "error" raises an error, "-1" gives -1

        Raises
        ------
        UnknownKeyError, ConfigError, ShapeError, ChecksumError, StoreOpenError, StoreReadError, FormatError
            As `NodeKeys.ids_of`.
        KeyError
            There is no such type.
        """
        return self._keyed(node_type).ids_of(keys, missing=missing)

    def _keyed(self, node_type: str | None) -> NodeTable:
        """Return the table of a node type; None means the labelled type. Raises KeyError for an unknown type."""
        return self.labelled if node_type is None else self.node_tables[node_type]

    def in_original_order(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return ``values`` (N, ...), one per node of the labelled type; see `NodeTable.in_original_order`."""
        return self.labelled.in_original_order(values)

    def load_graph(self, *, times: bool = True) -> CscGraph:
        """Return the homogeneous topology in memory; see `EdgeTable.load_graph`."""
        return self._edges.load_graph(times=times)

    def load_hetero_graph(self) -> HeteroGraph:
        """Return all relations' topologies in memory, verified. A homogeneous dataset has one relation.

        `gloader.dataset.topology.open_hetero_topology` reads a larger topology page by page.

        Raises
        ------
        ChecksumError, StoreReadError, StoreOpenError, GraphError
            As `EdgeTable.load_graph`.
        """
        return HeteroGraph(
            num_nodes=dict(self._schema.num_nodes),
            relations={relation: table.load_graph() for relation, table in self.edge_tables.items()},
        )

    def open_features(self, *, io: IoMode = "auto", verify: Verify = "read", **settings: Any) -> FeatureStore:
        """Open the homogeneous feature rows; see `NodeTable.open_features`."""
        return self._nodes.open_features(io=io, verify=verify, **settings)

    def as_opened(self) -> AbstractContextManager[None]:
        """Return a context manager that checks, after a read error in its block, whether the dataset was replaced.

        If so, the error reports the replacement instead of damaged files.

        Raises
        ------
        StoreOpenError
            The block failed, and another dataset has taken this path.
        """
        return detecting_replacement(self.root, self._manifest, os_io=self._os_io)

    @property
    def _nodes(self) -> NodeTable:
        """The homogeneous dataset's node table. Raises ConfigError if there are several types."""
        return self._only(self.node_tables, "node_tables")

    @property
    def _edges(self) -> EdgeTable:
        """The homogeneous dataset's edge table. Raises ConfigError if there are several types."""
        return self._only(self.edge_tables, "edge_tables")

    def _only(self, tables: Mapping[Any, _Table], name: str) -> _Table:
        """Return the only table in ``tables``, the attribute ``name`` of this class.

        Raises
        ------
        ConfigError
            The dataset has several types.
        """
        if self._schema.has_names:
            allowed = ", ".join(repr(key) for key in tables)
            raise ConfigError(
                f"{self.location} has several types, each with its own table; use Dataset.{name}[...] with one of "
                f"{allowed}"
            )
        return next(iter(tables.values()))


def _conversions() -> Any:
    """Return the module that writes arrays and graphs of other libraries as datasets."""
    # The import is late and by name, because the conversions are in a higher layer, and need torch, PyG or DGL.
    return import_module("gloader.convert.in_memory")


def arrays_of(dataset: Dataset) -> dict[str, Any]:
    """Return a dataset's arrays in the form that `Dataset.from_numpy` takes.

    A dataset with named types gives the form that `Dataset.from_numpy_hetero` takes. There, a relation's edges are
    sorted by destination, and so are their weights, features and times.
    """
    nodes, labelled = dataset.node_tables, dataset.labelled
    graphs = {relation: table.load_graph() for relation, table in dataset.edge_tables.items()}
    # Each relation's edge features, or None.
    rows = {relation: table.feature_rows for relation, table in dataset.edge_tables.items()}
    features = {name: table.all_features() for name, table in nodes.items() if table.has_features}
    # Arrays with one row per edge: by name, then by relation. Missing ones are dropped below.
    columns: dict[str, dict[Any, Any]] = {
        "edge_weight": {relation: graph.edge_weight for relation, graph in graphs.items()},
        "edge_features": {relation: each.all_rows() for relation, each in rows.items() if each},
        "edge_time": {relation: graph.edge_time for relation, graph in graphs.items()},
    }
    columns = {
        name: {relation: array for relation, array in arrays.items() if array is not None}
        for name, arrays in columns.items()
    }
    links = {name: _links(table) for name, table in dataset.link_tables.items()}
    tasks = {name: _tasks(table, dataset.kind) for name, table in dataset.task_tables.items()}
    times = {name: table.row_times for name, table in nodes.items() if table.has_row_times}
    # One column of whole numbers would become classes again, so the arrays say that the labels are values.
    of_labels: dict[str, Any] = {} if dataset.label_kind == "classes" else {"labels_as": "values"}
    of_labels |= {} if dataset.label_names is None else {"label_names": dataset.label_names}
    splits = {"train": labelled.train, "valid": labelled.valid, "test": labelled.test}
    if dataset.kind == "homogeneous":
        (graph,), (table,) = graphs.values(), nodes.values()
        edge_columns = {name: array for name, arrays in columns.items() for array in arrays.values()}
        return {
            "features": features[table.name],
            "labels": table.labels,
            "indptr": graph.indptr,
            "indices": graph.indices,
            **splits,
            **edge_columns,
            **of_labels,
            **({"links": links} if links else {}),
            **({"tables": tasks} if tasks else {}),
            **({"row_time": times[table.name]} if times else {}),
        }
    for name, each in dataset.link_tables.items():
        links[name] |= {"relation": each.relation, "reverse": each.reverse_relation}
        links[name] |= {} if each.relation in graphs else {"free": True}
    return {
        "num_nodes": {name: table.num_nodes for name, table in nodes.items()},
        "features": features,
        "edges": {relation: _edge_index(graph) for relation, graph in graphs.items()},
        "edge_weight": columns.pop("edge_weight"),
        "labels": {labelled.name: labelled.labels},
        "num_classes": dataset.num_classes,
        **splits,
        **of_labels,
        **{
            name: column
            for name, column in {**columns, "links": links, "tables": tasks, "row_time": times}.items()
            if column
        },
    }


def _links(table: LinkTable) -> dict[str, Any]:
    """Return a link table's arrays by the names that `Dataset.from_numpy` takes."""
    with table.open(max_bytes=table.num_bytes + table.negative_bytes) as links:
        rows = links.read(np.arange(table.num_rows))
    columns = {"labels": rows.labels, "times": rows.times, "negatives": rows.negatives}
    return {
        "edge_index": np.stack([rows.sources, rows.destinations]),
        **{name: column for name, column in columns.items() if column is not None},
    }


def _tasks(table: TaskTable, kind: DatasetKind) -> dict[str, Any]:
    """Return a task table's arrays and its kind of labels by the names that `Dataset.from_numpy` takes."""
    with table.open(max_bytes=table.num_bytes) as opened:
        rows = opened.read(np.arange(table.num_rows))
    of_labels = {
        "type": table.node_type if kind == "hetero" else None,
        "kind": table.label_kind,
        "names": table.label_names,
        "num_classes": table.num_classes or None,
    }
    return rows | {name: value for name, value in of_labels.items() if value is not None}


def _edge_index(graph: CscGraph) -> IdArray:
    """Return the edges of ``graph`` (2, E), sources and destinations, as PyG's ``edge_index``."""
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return np.stack([graph.indices.astype(np.int64), destinations])
