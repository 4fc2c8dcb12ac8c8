"""OGB's text layout: the files of its folder ``raw``, times and features of edges, and graphs of several types.

Times and features of edges are files with one row per edge, next to ``edge.csv.gz``. A graph of several types, such as
``ogb:ogbn-mag``, has folders for its node types and relations.
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
    """Open a table; raises SourceError if it is missing."""
    if not path.is_file():
        raise SourceError(f"{path} is missing; unpack OGB's archive anew")
    return CsvTable.open(path)


def table_column(table: CsvTable, number: Number) -> EdgeColumn:
    """Return the first column of a table, with a number for each edge. Pure."""

    def pieces(_max_values: int) -> Iterator[NDArray[Any]]:
        for (values,) in table.read(dict.fromkeys(table.names[:1], number), error=SourceError):
            yield values

    return EdgeColumn(pieces=pieces, where=str(table.path))


def read_count(path: Path) -> int:
    """Return the number of nodes or edges in a file of one number; raises SourceError if it is none."""
    try:
        (count,) = read_column(path, "int64", max_rows=1).tolist()
    except (ShapeError, ValueError) as error:
        raise SourceError(f"{path} must hold 1 number, as a data set of one graph does: {error}") from error
    return plausible(count, path)


def plausible(count: int, path: Path) -> int:
    """Return a number of nodes or edges; raises SourceError if it cannot be one."""
    if not 1 <= count < 2**62:
        raise SourceError(f"{path} counts {count}; it must be a number of nodes or edges, at least 1")
    return count


_SUFFIX: Final = ".csv.gz"
_FEATURES: Final = "edge-feat"
# What begins so in ``raw`` is of edges; the edges themselves are not.
_PREFIXES: Final = ("edge-", "edge_")


@dataclass(frozen=True, slots=True, kw_only=True)
class OgbEdgeFiles:
    """The files of a graph's edges, or of a relation's, in one folder."""

    folder: Path
    names: EdgeNames

    def there(self) -> set[str]:
        """Return the names of the files that have a row for each edge, without their suffix."""
        found = {path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"edge*{_SUFFIX}")}
        return {name for name in found if name.startswith(_PREFIXES)}

    def time_name(self) -> str | None:
        """Return the name of the file that has their times; None: they have none."""
        return self.names.pick_time(self.there())

    def timed(self, edges: EdgeStream, *, add_inverse: bool = False) -> EdgeStream:
        """Return ``edges`` with their times, if there are any, and perhaps with reverse edges.

        Parameters
        ----------
        edges : as they lie in their file
        add_inverse : stream the reverse of each edge right behind it

        Raises
        ------
        SourceError
            The file is malformed.
        ShapeError
            It has several columns.
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
        """Return the features of the edges; None: there are none.

        Parameters
        ----------
        num_edges : rows, from another file; None means that they are counted
        add_inverse : whether the reverse of each is streamed right behind it

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


RELATION_FILE = "triplet-type-list.csv.gz"
_NODE_FILE = "num-node-dict.csv.gz"
_MAX_TEXT = 1 << 16  # characters of the list of relations, which has some hundreds
_MAX_COUNT = 2**48


def has_types(folder: Path) -> bool:
    """True if a folder of OGB's layout has several node types."""
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
    """Return the source over a folder; types and relations are in the order in which OGB's loader has them.

    Parameters
    ----------
    folder : with ``raw`` and ``split``
    name, origin : of the source
    num_classes : None: as the labels say
    split : the folder below ``split``; None: the only one there
    budget_bytes : memory that the labels may take
    edge_names : of times and features of edges

    Raises
    ------
    SourceError
        A file is missing or malformed, or labels are on no type, or on several.
    ShapeError
        A table has too many rows or columns.
    ConfigError
        No relation has a file of ``edge_names``.
    BudgetError
        The labels of the labelled type alone are larger than the memory budget.
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
    """``raw/*.csv.gz`` with a folder for each relation and for the features and labels of each type."""

    raw: Path

    def num_nodes(self) -> dict[str, int]:
        """Return the number of nodes of each type; the file has a column for each."""
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
        """Return the relations, each a line of three names."""
        path = self.raw / RELATION_FILE
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                lines = file.read(_MAX_TEXT).splitlines()
        except (OSError, *MALFORMED) as error:
            raise SourceError(f"{path} is truncated or corrupt: {error}") from error
        found: list[Relation] = []
        for number, line in enumerate(filter(None, map(str.strip, lines)), 1):
            names = line.split(",")
            if len(names) != 3:
                raise SourceError(
                    f"{path}: line {number} is {shown(line)}; it must be source type, relation and destination type"
                )
            found.append((names[0], names[1], names[2]))
        return sorted(found)

    def edge_files(self, relation: Relation, names: EdgeNames) -> OgbEdgeFiles:
        """Return the files of the edges of a relation."""
        return OgbEdgeFiles(folder=self.raw / "relations" / "___".join(relation), names=names)

    def edges(self, relation: Relation, names: EdgeNames) -> RelationSource:
        """Return the edges of a relation."""
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
        """Return the features of a type; None: it has none."""
        path = self.raw / "node-feat" / node_type / "node-feat.csv.gz"
        return table_features(CsvTable.open(path), num_nodes) if path.is_file() else None

    def label_file(self, node_type: str) -> Path:
        """Return the path for a type's labels."""
        return self.raw / "node-label" / node_type / "node-label.csv.gz"


def _count(path: Path) -> int | None:
    """Return the number in a file of one; None: there is no such file, and reading the edges tells."""
    if not path.is_file():
        return None
    values: IdArray = np.asarray(read_column(path, "int64", max_rows=1), np.int64)
    if values.shape != (1,) or not 0 <= values[0] < _MAX_COUNT:
        raise SourceError(f"{path} must hold 1 number of edges")
    return int(values[0])


def read_splits(base: Path, name: str | None, *, num_nodes: int, node_type: str = "") -> Splits:
    """Return the splits in OGB's text files; raises SourceError, and ShapeError as `to_split`.

    Parameters
    ----------
    base : the folder ``split``
    name : of the folder in it; None: the only one there
    num_nodes : N
    node_type : the folder in that; "": files lie there themselves
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
