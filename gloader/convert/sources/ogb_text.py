"""Readers of OGB's text layout, where a data set's folder ``raw`` has gzipped CSV files.

`OgbEdgeFiles` finds edge times and edge features: files with one row per edge, next to ``edge.csv.gz``. A graph with
several node types, such as ``ogb:ogbn-mag``, has subfolders for its types and relations. `open_ogb_hetero` opens such a
graph. The other functions also serve the modules `ogb` and `ogb_links`, whose graphs have one type.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.options import USUAL_NAMES
from gloader.convert.readers.arrays import paired_rows
from gloader.convert.readers.csv_table import CsvTable, read_column
from gloader.convert.readers.edge_columns import EdgeColumn, timed_edges
from gloader.convert.readers.node_arrays import count_classes, require_node_memory, to_labels, to_split
from gloader.convert.readers.table_streams import TableEdges, table_features
from gloader.convert.source import (
    GraphSource,
    NodeSource,
    RelationSource,
    Splits,
    doubled_edges,
    only_labelled,
)
from gloader.core.malformed import MALFORMED, shown
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.options import EdgeNames
    from gloader.convert.readers.table_streams import Number
    from gloader.convert.source import EdgeStream, FeatureStream
    from gloader.types import IdArray, Relation


def raw_table(path: Path) -> CsvTable:
    """Open one of OGB's tables. Raises SourceError if the file is missing."""
    if not path.is_file():
        raise SourceError(f"{path} is missing; unpack OGB's archive anew")
    return CsvTable.open(path)


def table_column(table: CsvTable, number: Number) -> EdgeColumn:
    """Return a table's first column, with one number per edge. ``number`` is the dtype, or "time". Pure."""

    def pieces(_max_values: int) -> Iterator[NDArray[Any]]:
        for (values,) in table.read(dict.fromkeys(table.names[:1], number), error=SourceError):
            yield values

    return EdgeColumn(pieces=pieces, where=str(table.path))


def read_count(path: Path) -> int:
    """Return the number of nodes or edges from a file with one number. Raises SourceError for any other content."""
    try:
        (count,) = read_column(path, "int64", max_rows=1).tolist()
    except (ShapeError, ValueError) as error:
        raise SourceError(f"{path} must hold 1 number, as a data set of one graph does: {error}") from error
    return plausible(count, path)


def plausible(count: int, path: Path) -> int:
    """Return ``count``. Raises SourceError if it is not a valid number of nodes or edges."""
    if not 1 <= count < 2**62:
        raise SourceError(f"{path} counts {count}; it must be a number of nodes or edges, at least 1")
    return count


_SUFFIX: Final = ".csv.gz"  # of all files in ``raw``
_FEATURES: Final = "edge-feat"  # OGB's name for the file of edge features
# The beginnings of the names of files with one row per edge. ``edge.csv.gz``, which has the edges, is not among them.
_PREFIXES: Final = ("edge-", "edge_")


@dataclass(frozen=True, slots=True, kw_only=True)
class OgbEdgeFiles:
    """The files with edge times and edge features of a graph or a relation, in one folder."""

    folder: Path  # the folder with ``edge.csv.gz``
    names: EdgeNames  # the user's names of edge times and edge features: file names without .csv.gz

    def there(self) -> set[str]:
        """Return the names of the existing files with one row per edge, without .csv.gz."""
        names = {path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"edge*{_SUFFIX}")}
        return {name for name in names if name.startswith(_PREFIXES)}

    def time_name(self) -> str | None:
        """Return the name of the file of edge times, or None without times."""
        return self.names.pick_time(self.there())

    def timed(self, edges: EdgeStream, *, add_inverse: bool = False) -> EdgeStream:
        """Return ``edges`` with their times, if there are any, and with reverse edges on request.

        Parameters
        ----------
        edges : the edges in file order
        add_inverse : True to add each edge's reverse directly after it

        Raises
        ------
        SourceError
            The file of times is malformed.
        ShapeError
            The file of times has several columns.
        """
        if (name := self.time_name()) is not None:
            table = self._table(name)
            if len(table.names) != 1:
                raise ShapeError(
                    f"{table.path} has {len(table.names)} columns; times are one number for each edge"
                )
            edges = timed_edges(edges, table_column(table, "time"))
        return doubled_edges(edges) if add_inverse else edges

    def features(self, num_edges: int | None, *, add_inverse: bool = False) -> FeatureStream | None:
        """Return the edge features, or None without features.

        Parameters
        ----------
        num_edges : number of rows, from another file; None to count the rows
        add_inverse : True to repeat each edge's row for its reverse edge

        Raises
        ------
        SourceError
            The file is malformed.
        """
        name = self.names.pick_features(self.there(), (_FEATURES,))
        if name is None:
            return None
        table = self._table(name)
        rows = table_features(table, table.count_rows() if num_edges is None else num_edges)
        return paired_rows(rows) if add_inverse else rows

    def _table(self, name: str) -> CsvTable:
        return CsvTable.open(self.folder / (name + _SUFFIX))


RELATION_FILE = "triplet-type-list.csv.gz"  # the list of relations
_NODE_FILE = "num-node-dict.csv.gz"  # the numbers of nodes by type
_MAX_TEXT = 1 << 16  # number of characters to read from the list of relations; real lists have hundreds
_MAX_COUNT = 2**48  # bound for the number of a type's nodes or a relation's edges, far above real numbers


def has_types(folder: Path) -> bool:
    """True if a folder in OGB's layout has several node types."""
    return (folder / "raw" / RELATION_FILE).is_file()


def open_ogb_hetero(
    folder: Path,
    *,
    name: str,
    origin: str,
    num_classes: int | None,
    split: str | None,
    budget_bytes: int,
    edge_names: EdgeNames = USUAL_NAMES,
) -> GraphSource:
    """Return the source for a data set with several node types. Types and relations are in the order of OGB's loader.

    Parameters
    ----------
    folder : a folder with ``raw`` and ``split``
    name, origin : the source's display name, and the source as the user wrote it
    num_classes : number of classes, or None to count the classes in the labels
    split : the name of the split's folder below ``split``, or None for the only one
    budget_bytes : memory for the labels
    edge_names : names of edge times and edge features

    Raises
    ------
    SourceError
        A file is missing or malformed, or not exactly one type has labels.
    ShapeError
        A table has too many rows or columns.
    ConfigError
        No relation has a file with a requested name of edge times or edge features.
    BudgetError
        The labels are larger than the memory budget.
    """
    layout = _TypedLayout(raw=folder / "raw")
    counts = layout.num_nodes()
    labelled = only_labelled(
        [node_type for node_type in counts if layout.label_file(node_type).is_file()], where=str(layout.raw)
    )
    require_node_memory(counts[labelled], budget_bytes, str(layout.label_file(labelled)))
    labels = to_labels(
        read_column(layout.label_file(labelled), max_rows=counts[labelled]),
        where=str(layout.label_file(labelled)),
        labels_as="classes",
    )
    relations = tuple(layout.edges(relation, edge_names) for relation in layout.relations())
    edge_names.require(
        has_times=any(each.edges.has_times for each in relations),
        has_features=any(each.edge_features is not None for each in relations),
        there=set().union(*(layout.edge_files(each.relation, edge_names).there() for each in relations)),
        where=str(layout.raw),
    )
    return GraphSource(
        name=name,
        origin=origin,
        nodes=tuple(
            NodeSource(name=node_type, num_nodes=count, features=layout.features(node_type, count))
            for node_type, count in counts.items()
        ),
        relations=relations,
        labelled=labelled,
        num_classes=count_classes(labels) if num_classes is None else num_classes,
        labels=labels,
        splits=read_splits(folder / "split", split, num_nodes=counts[labelled], node_type=labelled),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TypedLayout:
    """The folder ``raw`` of a data set with several types, with subfolders for relations, features and labels."""

    raw: Path  # the folder ``raw``

    def num_nodes(self) -> dict[str, int]:
        """Return the number of nodes by type, sorted by name. The file has one column per type."""
        path = self.raw / _NODE_FILE
        if not path.is_file():
            raise SourceError(f"{path} is missing; unpack OGB's archive anew")
        table = CsvTable.open(path)
        rows = list(table.read(dict.fromkeys(table.names, "int64"), error=SourceError))
        if not table.has_names or len(rows) != 1 or any(column.shape != (1,) for column in rows[0]):
            raise SourceError(
                f"{path} must name the node types in its first row and count them in its second, of one graph"
            )
        counts = {name: int(column[0]) for name, column in zip(table.names, rows[0], strict=True)}
        for name, count in counts.items():
            if not 0 <= count < _MAX_COUNT:
                raise SourceError(f"{path} counts {count} nodes of type {shown(name)}; it must be 0 or more")
        return dict(sorted(counts.items()))

    def relations(self) -> list[Relation]:
        """Return the relations, sorted. The file has one line with three names per relation."""
        path = self.raw / RELATION_FILE
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                lines = file.read(_MAX_TEXT).splitlines()
        except (OSError, *MALFORMED) as error:
            raise SourceError(f"{path} is truncated or corrupt: {error}") from error
        relations: list[Relation] = []
        for number, line in enumerate(filter(None, map(str.strip, lines)), 1):
            names = line.split(",")
            if len(names) != 3:
                raise SourceError(
                    f"{path}: line {number} is {shown(line)}; it must be source type, relation and destination type"
                )
            relations.append((names[0], names[1], names[2]))
        return sorted(relations)

    def edge_files(self, relation: Relation, names: EdgeNames) -> OgbEdgeFiles:
        """Return the files with a relation's edge columns."""
        return OgbEdgeFiles(folder=self.raw / "relations" / "___".join(relation), names=names)

    def edges(self, relation: Relation, names: EdgeNames) -> RelationSource:
        """Return a relation's edges, with times and features."""
        files = self.edge_files(relation, names)
        path = files.folder / "edge.csv.gz"
        if not path.is_file():
            raise SourceError(f"{path} is missing; unpack OGB's archive anew")
        num_edges = _count(files.folder / "num-edge-list.csv.gz")
        return RelationSource(
            relation=relation,
            edges=files.timed(TableEdges.open(CsvTable.open(path), num_edges=num_edges).stream()),
            edge_features=files.features(num_edges),
            edge_file=path,
        )

    def features(self, node_type: str, num_nodes: int) -> FeatureStream | None:
        """Return a type's features, or None without features."""
        path = self.raw / "node-feat" / node_type / "node-feat.csv.gz"
        return table_features(CsvTable.open(path), num_nodes) if path.is_file() else None

    def label_file(self, node_type: str) -> Path:
        """Return the path for a type's labels."""
        return self.raw / "node-label" / node_type / "node-label.csv.gz"


def _count(path: Path) -> int | None:
    """Return the number of edges in a file with one number, or None without such a file."""
    if not path.is_file():
        return None
    values: IdArray = np.asarray(read_column(path, "int64", max_rows=1), np.int64)
    if values.shape != (1,) or not 0 <= values[0] < _MAX_COUNT:
        raise SourceError(f"{path} must hold 1 number of edges")
    return int(values[0])


def read_splits(base: Path, name: str | None, *, num_nodes: int, node_type: str = "") -> Splits:
    """Return the splits in OGB's text files. Raises SourceError for a missing split, and the errors of `to_split`.

    Parameters
    ----------
    base : the folder ``split``
    name : the name of the split's folder in ``base``, or None for the only one
    num_nodes : N
    node_type : the type's folder below ``name``, or "" if the files are directly in ``name``
    """
    names = sorted(entry.name for entry in base.iterdir() if entry.is_dir()) if base.is_dir() else []
    if name is None and len(names) != 1:
        raise SourceError(f"{base} holds {len(names)} splits ({', '.join(names)}); exactly 1 was expected")
    paths = {
        part: base / (name or names[0]) / node_type / f"{part}.csv.gz" for part in ("train", "valid", "test")
    }
    return Splits(
        **{
            part: to_split(
                read_column(path, "int64", max_rows=num_nodes), num_nodes=num_nodes, where=str(path)
            )
            for part, path in paths.items()
        }
    )
