"""Graphs whose nodes have keys: node and edge tables that become a `GraphSource` once all keys are numbered.

A *key* is a value that identifies a node, such as an account's name. `KeyedGraph` describes the tables. A conversion
enters `KeyedGraph.numbered` with a folder for temporary files. It numbers the keys within the memory budget, reads
labels and splits, fits the encoders of columns to the training rows, and yields the graph with plain ids. The temporary
files hold the ids of all edges, so they stay until the conversion ends.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.keyed_edges import KeyedTable, NumberedEdges, column_where
from gloader.convert.keys.numbering import Numbering
from gloader.convert.keys.values import key_chunk
from gloader.convert.readers.node_arrays import (
    no_labels,
    random_splits,
    require_node_memory,
)
from gloader.convert.source import GraphSource, NodeSource, RelationSource, only_labelled
from gloader.core.malformed import shown
from gloader.dataset.schema import MAX_NODES, relation_text
from gloader.errors import BudgetError, ConfigError, SourceError
from gloader.types import EDGE, NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.keys.numbering import NumberingReport
    from gloader.convert.keys.values import KeyKind
    from gloader.convert.options import PrepareOptions
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.readers.table_streams import ColumnNotes, NumberTable
    from gloader.convert.source import EdgeStream, FeatureStream, Splits
    from gloader.convert.sources.graph_yaml import Dangling
    from gloader.types import IdArray, Relation

_DEFAULT_DANGLING: Final[Dangling] = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChoice:
    """The columns of a node table with the labels."""

    columns: tuple[str, ...]
    as_: str | None = None  # "classes" or "values"; None means that the columns' values decide


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedNodes:
    """A node type of a graph with keys.

    The nodes are the rows of a table, or the keys of the edges, or they are numbered as in a graph without keys.
    """

    name: str
    table: NumberTable | None = None  # the table with a row per node
    key: str | None = None  # the table's column of keys. None means that row i is node i
    kind: KeyKind | None = None  # the kind of the keys. None means that edges have plain node ids
    columns: tuple[ColumnSpec, ...] = ()  # the table's columns that become features
    missing: str | None = None  # what missing values in ``columns`` become. None means that the conversion decides
    # Feature rows in the order of the nodes, and each row's node or None.
    features: FeatureStream | None = None
    row_ids: IdArray | None = None
    labels: LabelChoice | None = None  # columns of ``table``
    label_file: Callable[[int], NDArray[Any]] | None = None  # function of N that reads the labels from another file
    split: object = None  # columns of ``table``, as in a ``graph.yaml``
    split_file: Callable[[int], Splits] | None = None  # function of N that reads the splits from another file
    num_nodes: int | None = None  # the number of nodes without keys; None means that it follows from the edges
    num_classes: int | None = None  # None means that it follows from the labels

    @property
    def is_labelled(self) -> bool:
        """True if the type has labels."""
        return self.labels is not None or self.label_file is not None

    @property
    def has_features(self) -> bool:
        """True if the type has features."""
        return bool(self.columns) or self.features is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRelation:
    """A relation of a graph with keys."""

    relation: Relation
    table: KeyedTable | None = None  # the edges' table; None if neither end has keys
    plain: EdgeStream | None = None  # the edges with plain node ids; None with keys
    features: FeatureStream | None = None  # one row for each row of the table
    columns: tuple[ColumnSpec, ...] = ()  # the table's columns that become features
    missing: str | None = None  # what missing values in ``columns`` become
    edge_file: Path | None = None  # the edges' file, for messages
