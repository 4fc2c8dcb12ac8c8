"""A dataset directory with one or several node types: topology, features, labels and splits, committed together."""

from __future__ import annotations

import os
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gloader.config import ObjectSettings
from gloader.core.ids import RowRanges
from gloader.core.near_names import near_attributes, near_keywords
from gloader.core.paths import is_url, require_no_url
from gloader.dataset.mirrored import Mirrored, open_mirrored
from gloader.dataset.record import check_record, content_digest
from gloader.dataset.schema import Schema, checked_schema
from gloader.dataset.tables import open_edge_tables, open_link_tables, open_node_tables
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
    from gloader.dataset.link_table import LinkTable
    from gloader.dataset.schema import DatasetKind
    from gloader.dataset.tables import EdgeTable, FeatureRows, NodeTable
    from gloader.dataset.values import ValueLimits
    from gloader.samplers import CscGraph
    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.format.format import ArrayRecord, Manifest
    from gloader.types import IdArray, Relation


_Table = TypeVar("_Table")


@near_attributes
class Dataset:
    """A prepared graph on disk. Opening reads the commit record alone; arrays are read when first used.

    A dataset of one type is one table of nodes and one of edges, whose properties it has. One of several types has sums
    of numbers of nodes, edges and bytes, and the labels and splits of the type that has them, whose ids count within
    that type; features and topology are those of its tables.

    Thread-safe; reads only; holds no file open. Made by `open`.

    Parameters
    ----------
    root : the directory
    manifest : its commit record, which everything is opened with; another dataset that takes its place is refused
    os_io : the system calls by which the arrays are read
    mirrored : what fills the directory from a URL; None: nothing does

    Attributes
    ----------
    node_tables : the nodes of each type, in the order of the record
    edge_tables : the edges of each relation, in the order of the record
    link_tables : sets of edges to predict, by name; none where none were prepared

    Raises
    ------
    FormatError
        The record lacks an array, its shapes contradict each other, or it names a number of classes that cannot be.
    VersionError
        It lists its types in a way that this build does not know.
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
        self.node_tables: Mapping[str, NodeTable] = open_node_tables(root, manifest, schema, os_io)
        self.edge_tables: Mapping[Relation, EdgeTable] = open_edge_tables(root, manifest, schema, os_io)
        self.link_tables: Mapping[str, LinkTable] = open_link_tables(root, manifest, schema, os_io)

    def __repr__(self) -> str:
        """Return the sizes, and where it is."""
        if self.kind == "hetero":
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

        A dataset at a URL is opened as a mirror on this machine's SSD, whose files fill up as they are read; needs
        `obstore`. Credentials are those that obstore finds in the environment.

        Parameters
        ----------
        path : a directory, or a URL such as "s3://bucket/papers"; also gs, az, https and file
        mirror_dir, mirror_budget, object_limit, object_requests, object_price, object_redirects
            How a URL is mirrored, see `gloader.config.ObjectSettings`; of no use to a directory.
        os_io : the system calls by which a directory is read

        Raises
        ------
        StoreOpenError, NotAStoreError, IncompleteStoreError, TruncatedStoreError, FormatError, VersionError
            There is no complete dataset of a known version at ``path``.
        ConfigError
            A setting of the mirror cannot be read, or ``path`` was meant as a URL and is none.
        StoreReadError
            The store at the URL is not reached, or refuses.
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
        """Give back what a dataset at a URL holds: connections, threads and the lock of its mirror. Idempotent.

        A directory holds nothing. What was made of the dataset, such as a loader, is to be closed before.
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
        """Begin a dataset at ``path``; it appears there, whole, when the returned writer's block ends without error.

        See `DatasetWriter` for the parameters.
        """
        return DatasetWriter(
            path,
            schema=Schema.of_one_type(num_nodes),
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
        """Begin a dataset of several types at ``path``; it appears, whole, when the writer's block ends without error.

        See `DatasetWriter` for the parameters.

        Raises
        ------
        GraphError
            A name cannot be a folder's, is there twice, or a relation names a type that is not there.
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
        """Write a graph of several types as a dataset and open it; see `gloader.convert.in_memory.write_hetero`."""
        _conversions().write_hetero(path, **arrays)
        return Dataset.open(path)

    @staticmethod
    def from_pyg(data: Any, path: str | os.PathLike[str], **options: Any) -> Dataset:
        """Write a PyG ``Data`` or ``HeteroData`` and open it; see `gloader.convert.in_memory.write_pyg`."""
        _conversions().write_pyg(data, path, **options)
        return Dataset.open(path)

    @staticmethod
    def from_dgl(g: Any, path: str | os.PathLike[str], **options: Any) -> Dataset:
        """Write a DGL graph of one type or several and open it; see `gloader.convert.in_memory.write_dgl`."""
        _conversions().write_dgl(g, path, **options)
        return Dataset.open(path)

    def to_numpy(self) -> dict[str, Any]:
        """Return every array in memory, by name: what `from_numpy` takes, features as float32.

        Features, times and link tables of edges are among them where there are any.

        Of a dataset of several types: what `from_numpy_hetero` takes.
        """
        if self.kind == "hetero":
            return hetero_arrays(
                self.node_tables, self.edge_tables, self.link_tables, num_classes=self.num_classes
            )
        return homogeneous_arrays(self._nodes, self._edges, self.link_tables)

    def to_pyg(self) -> Any:
        """Return the dataset as a PyG ``Data`` in memory: x, edge_index, y, masks and perhaps edge_weight.

        Of a dataset of several types: as ``HeteroData``.
        """
        return _conversions().to_pyg(self.to_numpy())

    def to_dgl(self) -> Any:
        """Return the dataset as a DGL graph in memory: feat, label and masks, ids of int64 as DGL's own have.

        Of a dataset of several types: as a heterograph.
        """
        return _conversions().to_dgl(self.to_numpy())

    @property
    def location(self) -> str:
        """The place of the dataset, for messages and records: the directory, or the URL without anything secret."""
        return str(self.root) if self.mirrored is None else self.mirrored.url

    @property
    def os_io(self) -> OsIO:
        """The system calls by which the arrays are read."""
        return self._os_io

    @property
    def kind(self) -> DatasetKind:
        """The kind: "homogeneous" for one node type and one relation, "hetero" for types and relations with names."""
        return self._schema.kind

    @property
    def node_types(self) -> tuple[str, ...]:
        """The node types, in the order of the record; ("node",) of a homogeneous dataset."""
        return tuple(self._schema.num_nodes)

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations, in the order of the record; (("node", "to", "node"),) of a homogeneous dataset."""
        return self._schema.relations

    @property
    def type_starts(self) -> IdArray:
        """(T + 1,) int64: node v of type t has the number ``type_starts[t] + v``; as `HeteroGraph.type_starts`."""
        return self._schema.type_starts

    @cached_property
    def labelled(self) -> NodeTable:
        """The nodes of the one type that has labels and splits."""
        return next(table for table in self.node_tables.values() if table.has_labels)

    @property
    def is_for_links_alone(self) -> bool:
        """True if edges are all that is to be predicted: link tables, and no node in a split of one class."""
        sizes = self.labelled.split_sizes.values()
        return bool(self.link_tables) and self.num_classes == 1 and not any(sizes)

    def link_table(self, name: str) -> LinkTable:
        """Return the link table ``name``.

        Raises
        ------
        ConfigError
            There is none; says which there are.
        """
        there = ", ".join(map(repr, self.link_tables)) or "none; `gloader prepare --edge-split` makes some"
        try:
            return self.link_tables[name]
        except KeyError:
            raise ConfigError(f"{self.location} has no edges {name!r} to predict; it has {there}") from None
        except TypeError:  # an array
            raise ConfigError(
                f"edges are named by a link table, not by a {type(name).__name__}; there are {there}. Pairs become one "
                "when they are prepared: --edge-table NAME=FILE, or links={NAME: ...} in Python"
            ) from None

    def feature_rows(self, *, edges: bool) -> tuple[FeatureRows, ...]:
        """Return the matrices of features that there are, of types first, then, with ``edges``, of relations."""
        tables: list[NodeTable | EdgeTable] = [*self.node_tables.values()]
        tables += self.edge_tables.values() if edges else []
        return tuple(table.feature_rows for table in tables if table.feature_rows is not None)

    @cached_property
    def ranges(self) -> RowRanges | None:
        """The part of each table's rows that is stored here, by table name, or None if all rows are."""
        recorded = self._manifest.ranges
        if recorded is None:
            return None
        tables = {
            rows.name: rows.held.bounds for rows in self.feature_rows(edges=True) if rows.held is not None
        }
        return RowRanges(part=recorded.part, of=recorded.of, tables=tables)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """JSON values that the preparation noted: name, source, options."""
        return self._manifest.metadata

    @property
    def arrays(self) -> Mapping[str, ArrayRecord]:
        """The records of all arrays, by name; those of a type or a relation stand behind its folder."""
        return self._manifest.arrays

    @property
    def name(self) -> str:
        """A short name for people."""
        return str(self.metadata.get("name", Path(self.location).name))

    @property
    def num_nodes(self) -> int:
        """N; of all types."""
        return sum(self._schema.num_nodes.values())

    @property
    def num_edges(self) -> int:
        """E; of all relations."""
        return sum(table.num_edges for table in self.edge_tables.values())

    @property
    def num_classes(self) -> int:
        """Number of classes; labels are in 0..num_classes-1."""
        classes: int = self.metadata["num_classes"]
        return classes

    @property
    def feature_dim(self) -> int:
        """F; of a homogeneous dataset."""
        return self._nodes.feature_dim

    @property
    def feature_dtype(self) -> str:
        """The dtype of the stored features: float32, float16, bfloat16 or int8; of a homogeneous dataset."""
        return self._nodes.feature_dtype

    @property
    def has_self_loops(self) -> bool:
        """True if every node was given exactly one self loop."""
        return bool(self.metadata.get("has_self_loops", False))

    @property
    def topology_bytes(self) -> int:
        """Bytes of indptr, indices, edge weights and times; of all relations."""
        return sum(table.topology_bytes for table in self.edge_tables.values())

    @property
    def time_bytes(self) -> int:
        """Bytes of the times of edges; of all relations."""
        return sum(table.time_bytes for table in self.edge_tables.values())

    @property
    def feature_bytes(self) -> int:
        """Bytes of all feature rows as stored; of all types."""
        return sum(table.feature_bytes for table in self.node_tables.values())

    @property
    def features_path(self) -> Path:
        """The file of the feature rows; of a homogeneous dataset."""
        return self._nodes.features_path

    @property
    def limits(self) -> ValueLimits:
        """The bounds of the arrays' values, which are checked at every read; of a homogeneous dataset."""
        return self._edges.limits

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the content: equal for equal arrays, wherever they are stored."""
        return content_digest(self._manifest, self._schema)

    @property
    def labels(self) -> IdArray:
        """(N,) int64 class of each node of the labelled type, -1 where unlabelled; verified, read-only."""
        return self.labelled.labels

    def labels_of(self, nodes: IdArray) -> IdArray:
        """Return the class of each of ``nodes`` (n,) of the labelled type; see `NodeTable.labels_of`."""
        return self.labelled.labels_of(nodes)

    @property
    def train(self) -> IdArray:
        """(n,) int64 ids of the training nodes, of the labelled type; verified, read-only."""
        return self.labelled.train

    @property
    def valid(self) -> IdArray:
        """(n,) int64 ids of the validation nodes, of the labelled type; verified, read-only."""
        return self.labelled.valid

    @property
    def test(self) -> IdArray:
        """(n,) int64 ids of the test nodes, of the labelled type; verified, read-only."""
        return self.labelled.test

    @property
    def original_ids(self) -> IdArray | None:
        """(N,) int64 id that each node of the labelled type has in the source; None: nodes kept their ids."""
        return self.labelled.original_ids

    def in_original_order(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return ``values`` (N, ...), one per node of the labelled type; see `NodeTable.in_original_order`."""
        return self.labelled.in_original_order(values)

    def load_graph(self, *, times: bool = True) -> CscGraph:
        """Return the topology of a homogeneous dataset in memory; see `EdgeTable.load_graph`."""
        return self._edges.load_graph(times=times)

    def load_hetero_graph(self) -> HeteroGraph:
        """Return the topology of all relations, read into memory whole and verified; one relation if homogeneous.

        `gloader.dataset.topology.open_hetero_topology` reads what is larger page by page.

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
        """Open the feature rows of a homogeneous dataset; see `NodeTable.open_features`."""
        return self._nodes.open_features(io=io, verify=verify, **settings)

    def as_opened(self) -> AbstractContextManager[None]:
        """Tell another dataset at this path from damage, if files of this one are refused in the block.

        Raises
        ------
        StoreOpenError
            In place of the block's error: another dataset took the place of this one.
        """
        return detecting_replacement(self.root, self._manifest, os_io=self._os_io)

    @property
    def _nodes(self) -> NodeTable:
        return self._only(self.node_tables, "node_tables")

    @property
    def _edges(self) -> EdgeTable:
        return self._only(self.edge_tables, "edge_tables")

    def _only(self, tables: Mapping[Any, _Table], name: str) -> _Table:
        """Return the one table of a homogeneous dataset.

        Raises
        ------
        ConfigError
            The dataset is of several types.
        """
        if self.kind == "hetero":
            allowed = ", ".join(repr(key) for key in tables)
            raise ConfigError(
                f"{self.location} is of several types, each of which has its own: use Dataset.{name}[...] with one of "
                f"{allowed}"
            )
        return next(iter(tables.values()))


def _conversions() -> Any:
    # By name and late: they stand above this room, need torch, PyG or DGL, and never name `Dataset` themselves.
    return import_module("gloader.convert.in_memory")


def homogeneous_arrays(nodes: NodeTable, edges: EdgeTable, links: Mapping[str, LinkTable]) -> dict[str, Any]:
    """Return the arrays of a dataset of one type, as `Dataset.from_numpy` takes them."""
    graph = edges.load_graph()
    arrays: dict[str, Any] = {
        "features": nodes.all_features(),
        "labels": nodes.labels,
        "indptr": graph.indptr,
        "indices": graph.indices,
        **_splits(nodes),
    }
    columns = {
        "edge_weight": graph.edge_weight,
        "edge_features": None if edges.feature_rows is None else edges.feature_rows.all_rows(),
        "edge_time": graph.edge_time,
        "links": {name: _links(table) for name, table in links.items()} or None,
    }
    return arrays | {name: column for name, column in columns.items() if column is not None}


def hetero_arrays(
    nodes: Mapping[str, NodeTable],
    edges: Mapping[Relation, EdgeTable],
    links: Mapping[str, LinkTable],
    *,
    num_classes: int,
) -> dict[str, Any]:
    """Return the arrays of a dataset of several types, as `Dataset.from_numpy_hetero` takes them.

    The edges of a relation stand in the order of its lists: by destination. So do their weights, features and times.
    """
    graphs = {relation: table.load_graph() for relation, table in edges.items()}
    weights = {relation: graph.edge_weight for relation, graph in graphs.items()}
    labelled = next(table for table in nodes.values() if table.has_labels)
    features = {relation: table.feature_rows for relation, table in edges.items()}
    times = {relation: graph.edge_time for relation, graph in graphs.items()}
    columns: dict[str, dict[Any, Any]] = {
        "edge_features": {relation: rows.all_rows() for relation, rows in features.items() if rows},
        "edge_time": {relation: time for relation, time in times.items() if time is not None},
        "links": {
            name: {"relation": table.relation, "reverse": table.reverse_relation, **_links(table)}
            for name, table in links.items()
        },
    }
    return {
        "num_nodes": {name: table.num_nodes for name, table in nodes.items()},
        "features": {name: table.all_features() for name, table in nodes.items() if table.has_features},
        "edges": {relation: _edge_index(graph) for relation, graph in graphs.items()},
        "edge_weight": {relation: weight for relation, weight in weights.items() if weight is not None},
        "labels": {labelled.name: labelled.labels},
        "num_classes": num_classes,
        **_splits(labelled),
        **{name: column for name, column in columns.items() if column},
    }


def _splits(nodes: NodeTable) -> dict[str, IdArray]:
    return {"train": nodes.train, "valid": nodes.valid, "test": nodes.test}


def _links(table: LinkTable) -> dict[str, Any]:
    with table.open(max_bytes=table.num_bytes + table.negative_bytes) as links:
        rows = links.read(np.arange(table.num_rows))
    columns = {"labels": rows.labels, "times": rows.times, "negatives": rows.negatives}
    return {
        "edge_index": np.stack([rows.sources, rows.destinations]),
        **{name: column for name, column in columns.items() if column is not None},
    }


def _edge_index(graph: CscGraph) -> IdArray:
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return np.stack([graph.indices.astype(np.int64), destinations])
