"""Sources over a graph that PyG or DGL made: its named arrays become features, labels, splits and edge columns.

A source is the graph in the form that a conversion reads (`gloader.convert.source`): streams of edges and feature rows.
The readers of PyG's and DGL's files, and of their objects in memory, make a store for each node type (`NodeStore`) and
each relation (`EdgeStore`). `one_type_source` and `stored_source` make a source from these stores. `Attributes` finds
each array by the names that the libraries use, and records its role for the receipt. The receipt lists the data that a
conversion found and used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gloader.convert.options import USUAL_NAMES, EdgeNames
from gloader.convert.readers.arrays import array_features
from gloader.convert.readers.node_arrays import (
    count_classes,
    no_labels,
    random_splits,
    to_labels,
    to_split,
)
from gloader.convert.source import (
    OR_EDGES,
    GraphSource,
    NodeSource,
    RelationSource,
    Source,
    Splits,
    only_labelled,
)
from gloader.dataset.schema import relation_text
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.convert.options import LabelsAs, SourceOptions
    from gloader.convert.source import EdgeStream, FeatureStream
    from gloader.types import IdArray, Relation


# The usual array names for each part of a split. PyG's data sets have masks, and OGB's splits are ids.
_PARTS = {
    "train": ("train_mask", "train_idx"),
    "valid": ("val_mask", "valid_mask", "val_idx", "valid_idx"),
    "test": ("test_mask", "test_idx"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """The named arrays of a node type or a relation."""

    arrays: Mapping[str, NDArray[np.generic]]  # by name
    where: str  # the file or array, for messages
    # The Python types of the entries that are not arrays, such as {"title": "str"}.
    others: Mapping[str, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)  # each used array's role, such as {"x": "features"}

    @property
    def num_bytes(self) -> int:
        """Bytes in all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def find(self, *names: str) -> str | None:
        """Return the first name with an array, or None."""
        return next((name for name in names if name in self.arrays), None)

    def require(self, *names: str, what: str, instead: str = "") -> str:
        """Return the first of ``names`` with an array.

        Parameters
        ----------
        names : usual names, in order of preference
        what : the arrays' role, for the message
        instead : end of the message, with a remedy

        Raises
        ------
        SourceError
            No name has an array. The message lists all names.
        """
        name = self.find(*names)
        if name is None:
            existing = ", ".join(sorted(self.arrays)) or "nothing"
            raise SourceError(
                f"{self.where} has no {what} ({' or '.join(names)}); it has {existing}{instead}"
            )
        return name

    def features(self, *names: str) -> NDArray[np.generic]:
        """Return the features (N, F) under the first of ``names`` with an array.

        Raises
        ------
        SourceError
            No name has an array.
        ShapeError
            The array is not two-dimensional, or does not have real numbers.
        """
        name = self.require(*names, what="features")
        rows = self.arrays[name]
        self.used[name] = "features"
        if rows.ndim != 2 or rows.dtype.kind not in "fiub":
            raise ShapeError(
                f"{self.where}: {name} has shape {rows.shape} and dtype {rows.dtype}; "
                "features are an (N, F) array of real numbers"
            )
        return rows

    def labels(
        self, *names: str, num_nodes: int, needs_labels: bool, labels_as: LabelsAs | None = None
    ) -> NDArray[Any]:
        """Return the labels under the first of ``names`` with an array: classes or values, see `to_labels`.

        If no name has an array, the labels are -1 for all nodes, or an error if ``needs_labels``. Raises as `to_labels`
        and `require`. The error also names the alternative to labels, `OR_EDGES`: a dataset to predict edges.
        """
        if not needs_labels and self.find(*names) is None:
            return no_labels(num_nodes)
        name = self.require(*names, what="labels", instead=f"; add some, {OR_EDGES}")
        self.used[name] = "labels"
        return to_labels(self.arrays[name], where=f"{self.where}: {name}", labels_as=labels_as)

    def splits(self, num_nodes: int) -> Splits | None:
        """Return the splits, or None if there is no array for any part.

        A missing valid or test part is empty. Masks (N, k) have k splits, and the first is used.

        Raises
        ------
        SourceError
            There is a part, but no train part.
        ShapeError, GraphError
            As `to_split`.
        """
        names = {part: self.find(*candidates) for part, candidates in _PARTS.items()}
        if all(name is None for name in names.values()):
            return None
        self.require(*_PARTS["train"], what="train split")
        self.used.update({name: part for part, name in names.items() if name is not None})
        return Splits(
            **{
                part: np.empty(0, np.int64) if name is None else self._part(name, num_nodes)
                for part, name in names.items()
            }
        )

    def weights(self, *names: str, num_edges: int) -> NDArray[np.generic] | None:
        """Return the edge weights (E,) under the first of ``names`` with an array.

        Return None if there is no array, or if it does not have exactly one real number per edge.
        """
        name = self.find(*names)
        if name is None:
            return None
        raw = self.arrays[name]
        # PyG also keeps edge features (E, k) under these names. They are not weights, but no error either.
        if raw.dtype.kind not in "fiub" or raw.size != num_edges:
            return None
        self.used[name] = "edge weights"
        return raw.reshape(-1)

    def edge_features(
        self, names: EdgeNames, usual: tuple[str, ...], *, num_edges: int
    ) -> NDArray[np.generic] | None:
        """Return the edge features (E, F_e), or None without such an array.

        Parameters
        ----------
        names : the user's names
        usual : the library's names, if the user gave none
        num_edges : E

        Raises
        ------
        ShapeError
            There is not one row per edge, or the requested array does not have real numbers.
        """
        name = names.pick_features(self.arrays, usual)
        if name is None:
            return None
        rows = self.arrays[name]
        is_requested = name == names.features
        if rows.ndim == 1 and is_requested:
            rows = rows.reshape(-1, 1)
        if rows.ndim != 2 or rows.dtype.kind not in "fiub":
            # An array of another form under a usual name may have another meaning, so it is no error, unless the user
            # requested it.
            if not is_requested:
                return None
            raise ShapeError(
                f"{self.where}: {name} has shape {rows.shape} and dtype {rows.dtype}; features of edges are an (E, F) "
                "array of real numbers"
            )
        # A matrix of numbers with a usual name certainly has edge features, so that a wrong number of rows is an error.
        if rows.shape[0] != num_edges:
            raise ShapeError(f"{self.where}: {name} has {rows.shape[0]} rows for {num_edges} edges")
        self.used[name] = "edge features"
        return rows

    def edge_times(self, names: EdgeNames, *, num_edges: int) -> NDArray[np.generic] | None:
        """Return the edge times (E,) under the user's name, or else ``edge_time``. Return None without such an array.

        The dtype is not checked here: `timed_edges`, which adds the times to the edges, checks it.

        Raises
        ------
        ShapeError
            There is not one time per edge.
        """
        name = names.pick_time(self.arrays)
        if name is None:
            return None
        if self.arrays[name].size != num_edges:
            raise ShapeError(
                f"{self.where}: {name} has shape {self.arrays[name].shape}; times are one for each of {num_edges} edges"
            )
        self.used[name] = "edge times"
        return self.arrays[name].reshape(-1)

    def of_edges(self, num_edges: int) -> list[str]:
        """Return the names of the arrays with one entry per edge. Pure."""
        return [name for name, array in self.arrays.items() if array.shape[:1] == (num_edges,)]

    def column_notes(self) -> tuple[str, ...]:
        """Return the arrays' roles as one line for the receipt, or no line. Pure.

        The line omits ``edge_index``, the usual name of PyG's edges. The reader of the edges adds it to ``used``.
        """
        roles = {name: role for name, role in self.used.items() if name != "edge_index"}
        text = ", ".join(f"{name}: {role}" for name, role in roles.items())
        return (f"{self.where}: {text}",) if text else ()

    def unused(self, *, num_nodes: int | None = None, num_edges: int | None = None) -> list[str]:
        """Return the unused arrays with their shapes, such as ``pos (N, 3)``. Pure.

        Parameters
        ----------
        num_nodes, num_edges : N and E, or None if no array here has one entry per node or edge
        """

        def shape(name: str, array: NDArray[np.generic]) -> str:
            """Return the array's shape as text, with the letter E or N for the first dimension if it fits."""
            letters = [("E", num_edges), ("N", num_nodes)]
            sizes = list(map(str, array.shape))
            # In a graph with equally many nodes and edges, the array's name decides between E and N.
            for letter, count in letters if "edge" in name else letters[::-1]:
                if array.ndim and array.shape[0] == count:
                    sizes[0] = letter
                    break
            return f"({', '.join(sizes)}{',' * (array.ndim == 1)})"

        left = [
            f"{name} {shape(name, array)}" for name, array in self.arrays.items() if name not in self.used
        ]
        # Masks may have several splits, and only the first is used.
        left += [
            f"{name} [:, 1:] ({self.arrays[name].shape[1] - 1} more splits)"
            for name, role in self.used.items()
            if role in _PARTS and self.arrays[name].ndim == 2 and self.arrays[name].shape[1] > 1
        ]
        return left + [f"{name} ({kind})" for name, kind in self.others.items() if name not in self.used]

    def _part(self, name: str, num_nodes: int) -> IdArray:
        """Return the node ids of the split part in array ``name``."""
        values = self.arrays[name]
        if values.ndim == 2:
            values = values[:, 0]
        # Masks from before torch had bools are bytes.
        if values.dtype == np.uint8 and name.endswith("_mask"):
            values = values.astype(np.bool_)
        return to_split(values, num_nodes=num_nodes, where=f"{self.where}: {name}")


class StoreNames(NamedTuple):
    """A library's names for features and labels: first the usual name, then other accepted names."""

    features: tuple[str, ...]
    labels: tuple[str, ...]


PYG_NAMES: Final = StoreNames(("x", "feat", "features"), ("y", "label", "labels"))
DGL_NAMES: Final = StoreNames(("feat", "features", "x"), ("label", "labels", "y"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGraph:
    """A library's graph, in a file or in memory: its name, and the options for a source over its arrays."""

    name: str  # a short display name
    origin: str  # the source as the user wrote it
    where: Path | str  # the arrays' file; for arrays in memory, a text for messages
    seed: int = 0  # seed of the random split without masks
    edge_names: EdgeNames = USUAL_NAMES  # names of edge times and edge features
    # If False, labels are optional: without any, the first type with nodes gets labels of -1.
    needs_labels: bool = True
    labels_as: LabelsAs | None = None  # the user's choice of classes or values; see `to_labels`

    @classmethod
    def in_file(cls, path: Path, origin: str, options: SourceOptions) -> SavedGraph:
        """Return the graph in the file at ``path``."""
        return cls(
            name=path.stem,
            origin=origin,
            where=path,
            seed=options.seed,
            edge_names=options.edge_names,
            needs_labels=options.needs_labels,
            labels_as=options.labels_as,
        )

    @property
    def file(self) -> Path | None:
        """The arrays' file, or None for arrays in memory."""
        return self.where if isinstance(self.where, Path) else None

    def require_columns(self, edges: Sequence[EdgeStore]) -> None:
        """Raise ConfigError if the user names edge times or edge features that no relation has."""
        self.edge_names.require(
            has_times=any(each.edges.has_times for each in edges),
            has_features=any(each.features is not None for each in edges),
            there={name for each in edges for name in each.names},
            where=str(self.where),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStore:
    """One node type's arrays."""

    num_nodes: int
    arrays: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeStore:
    """One relation's edges."""

    relation: Relation
    edges: EdgeStream
    features: FeatureStream | None = None  # edge features, in edge order
    # The edge arrays, for the receipt. None means that the receipt needs none, for example because the node type's
    # `Attributes` include them, as in PyG's `Data`.
    arrays: Attributes | None = None
    names: Collection[str] = ()  # names of arrays that may be times or features, for messages


def one_type_source(
    nodes: Attributes,
    edges: EdgeStore,
    saved: SavedGraph,
    *,
    names: StoreNames,
    num_nodes: int | None = None,
    resident_bytes: int = 0,
) -> Source:
    """Return the source for a graph with one node type and one relation.

    Parameters
    ----------
    nodes : the node arrays, with features
    edges : the relation
    saved : the graph's name and options
    names : names of features and labels
    num_nodes : number of nodes. By default, the number of feature rows
    resident_bytes : memory that the source keeps; 0 if the arrays are mapped from a file or belong to the caller

    Raises
    ------
    SourceError, ShapeError, ConfigError
        As `stored_source`. SourceError also without features.
    """
    rows = nodes.features(*names.features)
    count = len(rows) if num_nodes is None else num_nodes
    labels = nodes.labels(
        *names.labels, num_nodes=count, needs_labels=saved.needs_labels, labels_as=saved.labels_as
    )
    saved.require_columns([edges])
    num_edges = edges.edges.num_edges or 0
    num_classes, features = count_classes(labels), array_features(rows)
    splits = nodes.splits(count) or random_splits(labels, seed=saved.seed)
    # Each search above records its array as used, so the notes come last.
    notes, unused = nodes.column_notes(), nodes.unused(num_nodes=count, num_edges=num_edges)
    if edges.arrays is not None:
        notes += edges.arrays.column_notes()
        unused += [f"{left}, edge data" for left in edges.arrays.unused(num_edges=num_edges)]
    return Source(
        name=saved.name,
        origin=saved.origin,
        num_nodes=count,
        num_classes=num_classes,
        edges=edges.edges,
        features=features,
        labels=labels,
        splits=splits,
        edge_features=edges.features,
        edge_file=saved.file,
        resident_bytes=resident_bytes,
        column_notes=notes,
        unused=tuple(unused),
    )


def stored_source(
    nodes: Mapping[str, NodeStore],
    edges: Sequence[EdgeStore],
    saved: SavedGraph,
    *,
    names: StoreNames = PYG_NAMES,
    resident_bytes: int = 0,
) -> GraphSource:
    """Return the source for a graph with several node types or relations.

    Parameters
    ----------
    nodes : each type's arrays, in order; the labelled type may have split masks or ids
    edges : each relation's edges, in order
    saved : the graph's name and options
    names : names of features and labels
    resident_bytes : memory that the source keeps; 0 if the arrays are mapped from a file or belong to the caller

    Raises
    ------
    SourceError
        Not exactly one type has labels, or there are splits without a train part.
    ShapeError
        An array has the wrong shape or dtype.
    ConfigError
        No relation has a column named in ``saved.edge_names``.
    """
    saved.require_columns(edges)
    with_nodes = next((name for name, store in nodes.items() if store.num_nodes), None)
    # Without labels, the first type with nodes is labelled with -1, if labels are optional.
    labelled = only_labelled(
        [node_type for node_type, store in nodes.items() if store.arrays.find(*names.labels)],
        otherwise=None if saved.needs_labels else with_nodes,
        where=str(saved.where),
    )
    store = nodes[labelled]
    labels = store.arrays.labels(
        *names.labels, num_nodes=store.num_nodes, needs_labels=saved.needs_labels, labels_as=saved.labels_as
    )
    splits = store.arrays.splits(store.num_nodes) or random_splits(labels, seed=saved.seed)
    features = {
        name: array_features(each.arrays.features(*names.features))
        for name, each in nodes.items()
        if each.arrays.find(*names.features)
    }
    # Each relation's name, edges and arrays, for the receipt.
    columns = [(relation_text(each.relation), each, each.arrays) for each in edges if each.arrays is not None]
    notes = [each.arrays.column_notes() for each in nodes.values()] + [
        arrays.column_notes() for _, _, arrays in columns
    ]
    return GraphSource(
        name=saved.name,
        origin=saved.origin,
        nodes=tuple(
            NodeSource(name=name, num_nodes=each.num_nodes, features=features.get(name))
            for name, each in nodes.items()
        ),
        relations=tuple(
            RelationSource(
                relation=each.relation,
                edges=each.edges,
                edge_features=each.features,
                edge_file=saved.file,
            )
            for each in edges
        ),
        labelled=labelled,
        num_classes=count_classes(labels),
        labels=labels,
        splits=splits,
        resident_bytes=resident_bytes,
        column_notes=tuple(line for lines in notes for line in lines),
        unused=(
            *(
                f"{left} of {name}"
                for name, each in nodes.items()
                for left in each.arrays.unused(num_nodes=each.num_nodes)
            ),
            *(
                f"{left} of {name}"
                for name, each, arrays in columns
                for left in arrays.unused(num_edges=each.edges.num_edges)
            ),
        ),
    )
