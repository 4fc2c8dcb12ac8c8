"""A dataset in the form of a graph for DGL's loops, with feature rows on the SSD in place of tensors.

This module works without DGL. A `DGLGraph` has the sizes, types and data of a `gloader.Dataset`. Its features are
`StoredRows`: they look like a tensor and read only the rows that are indexed. `load_graphs` converts a file from
``dgl.save_graphs`` into a dataset at the first call ("prepares" it), and opens this dataset from then on.
"""

from __future__ import annotations

import logging
import shlex
import weakref
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Never, NoReturn

import numpy as np
import torch

from gloader.bridges.cached_rows import CachedRows
from gloader.bridges.dgl_api.edge_list import EdgeList
from gloader.bridges.dgl_api.frame import Frame, NodesView, RelationData, data_of, forgetting
from gloader.bridges.dgl_api.names import (
    FEATURE,
    LABEL,
    NODE,
    RELATION,
    WEIGHT,
    missing,
    missing_of_graph,
    only,
    relation_of,
)
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import DATASET_MANIFEST, ensure_dataset, prepared_path
from gloader.convert.readers.dgl_file import DglFile
from gloader.core.near_names import missing_attribute, near_options
from gloader.core.paths import file_slug
from gloader.dataset import Dataset
from gloader.errors import SourceError
from gloader.models.adjacency import Adjacency

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from gloader.bridges.dgl_api.frame import TypedColumns
    from gloader.convert.readers.npy_file import StoredArray
    from gloader.dataset.tables import EdgeTable, FeatureRows, NodeTable
    from gloader.types import Relation


# The advice for tensor methods that `StoredRows` lacks.
_IN_BATCHES: Final = (
    "the features stay on the SSD; index the rows that you need, or change those of a batch in the loop"
)


class StoredRows:
    """A feature matrix on the SSD, which is indexed by rows like a tensor and reads only these rows.

    The loader has already read the rows of its last batch. They are returned without a read if the index is this
    batch's tensor of input nodes.

    Parameters
    ----------
    rows : the dataset's feature rows
    """

    def __init__(self, rows: FeatureRows) -> None:
        self._source = _Source(rows)
        self.device = torch.device("cpu")
        self.shape = torch.Size((rows.num_rows, rows.feature_dim))
        self.dtype = torch.float32
        self.ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or its entry ``dim``."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return 2."""
        return self.ndim

    def numel(self) -> int:
        """Return the number of values."""
        return self.shape.numel()

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Return the rows for ``index`` (ids, a slice, a mask or one id) as float32, on the device of `to`.

        Raises
        ------
        SeedError
            An id is not a row.
        ForkError
            In a forked worker process.
        StoreError
            Reading failed.
        """
        rows = self._source.ready_rows(index)
        if rows is None:
            ids = torch.as_tensor(range(*index.indices(len(self))) if isinstance(index, slice) else index)
            if ids.dtype == torch.bool:
                ids = ids.nonzero().squeeze(1)
            rows = self._source.read(ids.reshape(-1)).view(*ids.shape, self.shape[1])
        return rows.to(self.device)

    def to(self, device: Any = None, *_args: Any, **_how: Any) -> StoredRows:
        """Return the same rows; requested rows are copied to ``device``."""
        moved = copy(self)
        if isinstance(device, (str, int, torch.device)):
            moved.device = torch.empty(0, device=device).device
        return moved

    def cpu(self) -> StoredRows:
        """Return the rows; requested rows are copied to the CPU."""
        return self.to("cpu")

    def float(self) -> StoredRows:
        """Return the rows unchanged: they are already float32."""
        return self

    def keep_ready(self, nodes: torch.Tensor, rows: torch.Tensor) -> None:
        """Return ``rows`` from now on if the index is the tensor ``nodes``, as long as the batch keeps the rows."""
        self._source.ready = (nodes, weakref.ref(rows))

    def __repr__(self) -> str:
        return f"StoredRows({self.shape[0]:,} x {self.shape[1]}, on the SSD)"

    def __getattr__(self, name: str) -> Never:
        advice = {} if name.startswith("_") or not hasattr(torch.Tensor, name) else {name: _IN_BATCHES}
        raise missing_attribute("a StoredRows", name, dir(self), advice)


class _Source:
    """The opened file and the last batch's rows, which a `StoredRows` shares with its copies for other devices."""

    def __init__(self, rows: FeatureRows) -> None:
        self._rows = rows
        # The last batch's input nodes, and its rows.
        self.ready: tuple[torch.Tensor, weakref.ref[torch.Tensor]] | None = None

    def ready_rows(self, index: Any) -> torch.Tensor | None:
        """Return the last batch's rows if ``index`` is its tensor of input nodes, else None."""
        ready = self.ready  # read once: a loop in another thread may be one batch further
        return ready[1]() if ready is not None and index is ready[0] else None

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows for ``ids`` (n,)."""
        return torch.from_numpy(self._store.gather(ids.cpu().numpy()))

    @cached_property
    def _store(self) -> CachedRows:
        """The feature file, opened at the first read and closed when this object is garbage."""
        store = self._rows.open_features()
        rows = CachedRows(store)
        weakref.finalize(rows, store.close)
        return rows


_NAME: Final = "DGLGraph"  # the class's name in errors
# DGL's name for the mask of each of a dataset's splits.
_SPLITS: Final = {
    "train": "train_mask",
    "valid": "val_mask",
    "test": "test_mask",
}


class DGLGraph(RelationData):
    """A `gloader.Dataset` in the form of a DGL graph: sizes, types and data; it never changes or computes anything.

    Features are `StoredRows`; labels and masks are tensors. Assigned data stays in memory.

    Parameters
    ----------
    dataset : a dataset with one type or several

    Raises
    ------
    DglFeatureError
        Another object is given: this class builds no graphs.
    """

    def __init__(self, dataset: Any = None, *_others: Any) -> None:
        if not isinstance(dataset, Dataset):
            raise missing(f"dgl.{_NAME}({'' if dataset is None else type(dataset).__name__})")
        self.dataset = dataset
        self.device = torch.device("cpu")
        self.is_block = False
        tables, nodes = dataset.edge_tables, dataset.node_tables
        if self.is_homogeneous:  # DGL has names for the only type and relation
            tables, nodes = {RELATION: only(tables.values())}, {NODE: only(nodes.values())}
        self._tables: dict[Relation, EdgeTable] = dict(tables)
        self._node_data = {name: _node_frame(table) for name, table in nodes.items()}
        super().__init__(
            _ReadEdges(self._tables),
            {relation: _edge_frame(table) for relation, table in self._tables.items()},
        )
        self._features = {name: frame[FEATURE] for name, frame in self._node_data.items() if FEATURE in frame}

    def __getattr__(self, name: str) -> Any:
        raise missing_of_graph(_NAME, name, dir(type(self)))

    # --- sizes and types ---------------------------------------------------------------------------

    @property
    def ntypes(self) -> list[str]:
        """The node types."""
        return list(self._node_data)

    def num_nodes(self, ntype: str | None = None) -> int:
        """Return the number of nodes, with one type or in total."""
        return self.dataset.num_nodes if ntype is None else self._node_data[ntype].num_rows

    def num_edges(self, etype: Any = None) -> int:
        """Return the number of edges, in one relation or in total."""
        if etype is None:
            return self.dataset.num_edges
        return self._tables[relation_of(self._tables, etype)].num_edges

    number_of_nodes = num_nodes
    number_of_edges = num_edges

    # --- data ----------------------------------------------------------------------------------------

    @property
    def ndata(self) -> Frame | TypedColumns:
        """Node data: "feat", "label", "train_mask", "val_mask", "test_mask"; with several types, by type."""
        return data_of(self._node_data)

    @property
    def nodes(self) -> NodesView:
        """The nodes: ``nodes(type)`` returns their ids, and ``nodes[type].data`` their data."""
        return NodesView(self._node_data, self.device)

    def node_frame(self, ntype: str) -> Frame:
        """Return a type's node data; with one type any name is accepted."""
        return only(self._node_data.values()) if self.is_homogeneous else self._node_data[ntype]

    def edge_frame(self, relation: Relation) -> Frame:
        """Return a relation's edge data; with one relation any name is accepted."""
        return only(self._edge_data.values()) if self.is_homogeneous else self._edge_data[relation]

    def stored_features(self, ntype: str) -> StoredRows | None:
        """Return a type's stored features, or None if they were replaced."""
        rows = self._features[ntype]
        return rows if isinstance(self._node_data[ntype].columns().get(FEATURE, rows), StoredRows) else None

    @property
    def is_homogeneous(self) -> bool:
        """True if the graph has one node type and one edge type."""
        return self.dataset.kind != "hetero"

    def edge_list(self) -> NoReturn:
        """Refuse: layers need a block's edges.

        Raises
        ------
        DglFeatureError
            Always.
        """
        raise missing(
            "layers over a whole graph",
            "they take blocks; evaluate layer by layer with MultiLayerFullNeighborSampler(1)",
        )

    def local_scope(self) -> AbstractContextManager[None]:
        """Return a context that undoes changes to the data at its end."""
        return forgetting([*self._node_data.values(), *self._edge_data.values()])

    def to(self, device: Any, **_how: Any) -> DGLGraph:
        """Return the graph with ``device`` as its loaders' device; data on the SSD stays there."""
        moved = copy(self)
        place = moved.device = torch.empty(0, device=device).device
        moved._node_data = {name: frame.to(place) for name, frame in self._node_data.items()}  # noqa: SLF001
        moved._edge_data = {relation: frame.to(place) for relation, frame in self._edge_data.items()}  # noqa: SLF001
        return moved

    def int(self, *_formats: Any) -> DGLGraph:
        """Return the graph unchanged."""
        return self

    # These methods have no effect on a dataset: its format is fixed, and the loader pins memory itself.
    long = formats = create_formats_ = pin_memory_ = unpin_memory_ = int  # noqa: A003 - the method above

    def __repr__(self) -> str:
        return f"DGLGraph({self.num_nodes():,} nodes, {self.num_edges():,} edges, of {self.dataset.location})"


class _ReadEdges(dict[Any, EdgeList]):
    """Each relation's edges. A relation's edges are read into memory when they are first requested."""

    def __init__(self, tables: Mapping[Relation, EdgeTable]) -> None:
        super().__init__()
        self._tables = tables

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tables)

    def __missing__(self, relation: Relation) -> EdgeList:
        graph = self._tables[relation].load_graph(times=False)
        sources = self._tables[relation].num_sources
        # The arrays are copied, since a dataset's arrays are read-only, which tensors cannot be.
        indptr, indices = graph.indptr.astype(np.int64), graph.indices.astype(np.int64)
        edges = Adjacency(torch.from_numpy(indptr), torch.from_numpy(indices), num_src=sources)
        return self.setdefault(relation, EdgeList.of(edges))


def _node_frame(table: NodeTable) -> Frame:
    """Return a type's node data. Labels and masks are read at their first use."""
    columns: dict[str, Any] = {}
    if table.feature_rows is not None:
        columns[FEATURE] = StoredRows(table.feature_rows)
    if table.has_labels:
        columns[LABEL] = lambda: torch.from_numpy(table.labels.copy())
        columns |= {mask: _mask(table, split) for split, mask in _SPLITS.items()}
    return Frame(table.num_nodes, columns)


def _mask(table: NodeTable, split: str) -> Callable[[], torch.Tensor]:
    """Return a function that makes the bool mask (N,) of a split's nodes. A function delays reading the split."""

    def mask() -> torch.Tensor:
        mask_values = torch.zeros(table.num_nodes, dtype=torch.bool)
        mask_values[torch.from_numpy(getattr(table, split).copy())] = True
        return mask_values

    return mask


def _edge_frame(table: EdgeTable) -> Frame:
    """Return a relation's edge data. Weights are read at their first use."""
    columns: dict[str, Any] = {}
    if table.feature_rows is not None:
        columns[FEATURE] = StoredRows(table.feature_rows)
    if table.has_weights:
        columns[WEIGHT] = lambda: torch.from_numpy(table.load_graph(times=False).edge_weight.copy())  # type: ignore[union-attr]
    return Frame(table.num_edges, columns)


_LOG = logging.getLogger(__name__)
# Names in the file for features and weights, which are renamed in a dataset; see `gloader.convert.sources.dgl`.
_FEATURES: Final = ("features", "x")
_WEIGHTS: Final = ("edge_weight", "w")
# Edge data that a dataset takes from the file.
_EDGES_IN_DATASET: Final = frozenset({FEATURE, WEIGHT, *_WEIGHTS, "edge_time"})


@near_options("load_graphs", PrepareOptions.__dataclass_fields__)
def load_graphs(
    filename: str | os.PathLike[str], idx_list: list[int] | None = None, **changes: Any
) -> tuple[list[DGLGraph], dict[str, torch.Tensor]]:
    """Return the graph from a ``dgl.save_graphs`` file, or from a dataset, and the file's graph labels.

    A file is prepared the first time, as by ``gloader prepare dgl:FILE``, into gloader's folder for datasets
    (``$GLOADER_HOME``), with a warning. Its features then lie on the SSD. Node data with other names is read from the
    file on request. Edge data with other names is not available, since a dataset has its own edge order.

    Parameters
    ----------
    filename : a file with one graph (of one type or several); or a dataset's folder
    idx_list : only None or [0], for the file's first graph
    changes : edge changes during preparation: ``self_loops=True``, ``symmetrize=True``, ``deduplicate=True``
        and others in `gloader.convert.options.PrepareOptions`

    Raises
    ------
    DglFeatureError
        Graphs other than the first are requested.
    SourceError
        The path does not exist; the error names the command that creates it.
    GloaderError
        The file cannot be read or prepared.
    """
    if idx_list not in (None, [0]):
        raise missing(
            "load_graphs(idx_list=...) of other graphs than the first", "save one graph in each file"
        )
    path = Path(filename)
    if not path.exists():
        raise SourceError(_absent(path))
    if path.is_dir():
        return [DGLGraph(Dataset.open(path))], {}
    # Graphs for link prediction have no labels, and need none.
    source, options = SourceOptions(needs_labels=False), PrepareOptions(**changes)
    target = prepared_path(f"dgl:{path}", source, options)
    if not (target / DATASET_MANIFEST).is_file():
        _LOG.warning("%s: prepared into %s, once%s", path, target, _same_by_command(path, changes))
    graph = DGLGraph(Dataset.open(ensure_dataset(f"dgl:{path}", source, options)))
    file = DglFile.open(path)
    _add_columns(graph, file)
    return [graph], {name: torch.from_numpy(column.load()) for name, column in file.graph_labels.items()}


def _same_by_command(path: Path, changes: Mapping[str, Any]) -> str:
    """Return text with the command that prepares the same dataset; "" if a change needs more than a flag. Pure."""
    if any(value is not True for value in changes.values()):
        return ""
    flags = "".join(f" --{name.replace('_', '-')}" for name in changes)
    source = shlex.quote(f"dgl:{path}")
    return f"; the same by a command: gloader prepare {source} data/{file_slug(path.stem)}{flags}"


def _absent(path: Path) -> str:
    """Return the message for a missing file, or for a missing folder if ``path`` has no suffix."""
    if path.suffix:
        return f"{path} does not exist; make it with DGL: dgl.save_graphs({str(path)!r}, [g])"
    return f"{path} does not exist; make it once: gloader prepare dgl:FILE {path}, with a FILE from dgl.save_graphs"


def _add_columns(graph: DGLGraph, file: DglFile) -> None:
    """Add the file's columns to the graph's data, under the file's names."""
    for ntype, columns in zip(file.node_types, file.node_columns, strict=True):
        nodes = graph.node_frame(ntype)
        for name, column in columns.items():
            if name not in nodes:
                # A column "features" or "x" became the dataset's features, unless there is a column "feat".
                is_feature = name in _FEATURES and FEATURE not in columns
                nodes.add(name, nodes[FEATURE] if is_feature else partial(_loaded, column))
    not_taken = set()
    for relation, columns in zip(file.edge_types, file.edge_columns, strict=True):
        edges = graph.edge_frame(relation)
        for name in _WEIGHTS:
            if name in columns and WEIGHT in edges:
                edges.add(name, partial(edges.__getitem__, WEIGHT))
        not_taken |= columns.keys() - _EDGES_IN_DATASET
    if not_taken:
        _LOG.warning(
            "%s: edge data %s not taken: a dataset has its edges in another order, that of g.edges(); write the data "
            "to g.edata in this order",
            file.path,
            ", ".join(map(repr, sorted(not_taken))),
        )


def _loaded(column: StoredArray) -> torch.Tensor:
    """Read a column of the file."""
    return torch.from_numpy(column.load())
