"""The tables of a dataset, each with its own arrays: of the nodes of a type, the edges of a relation, of links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gloader.core.near_names import missing_key
from gloader.dataset.edge_table import EdgeTable
from gloader.dataset.link_record import link_arrays
from gloader.dataset.link_table import LinkTable
from gloader.dataset.node_table import NodeTable
from gloader.dataset.open_links import LinkArrays
from gloader.dataset.record import edge_limits, link_limits, node_limits
from gloader.dataset.schema import relation_text
from gloader.dataset.table_arrays import TableArrays

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.dataset.schema import Schema
    from gloader.ssd_store.format.format import Manifest
    from gloader.ssd_store.os_io import OsIO
    from gloader.types import Relation


ONLY_EDGES: Final = "edges"  # what the features of the edges of a homogeneous dataset are called

K = TypeVar("K")
T = TypeVar("T")


class Tables(Mapping[K, T], Generic[K, T]):
    """The tables by type or relation, in the order of the record; cannot be changed.

    Parameters
    ----------
    tables : what is there
    what : what a key is, for people
    """

    def __init__(self, tables: dict[K, T], what: str) -> None:
        self._tables, self._what = tables, what

    def __getitem__(self, key: K) -> T:
        """Return the table of ``key``.

        Raises
        ------
        KeyError
            There is none; says which is near, or which there are.
        """
        try:
            return self._tables[key]
        except KeyError:
            raise missing_key(key, self._tables, f"no {self._what} of this dataset") from None

    def __iter__(self) -> Iterator[K]:
        """Return an iterator over the keys, in order."""
        return iter(self._tables)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._tables)

    def __repr__(self) -> str:
        """Return how many there are, and the first of their names."""
        names = [relation_text(key) if isinstance(key, tuple) else str(key) for key in islice(self, 3)]
        more = ", ..." if len(self) > len(names) else ""
        return f"{len(self)} x {self._what}: {', '.join(names)}{more}"


def open_node_tables(root: Path, manifest: Manifest, schema: Schema, os_io: OsIO) -> Mapping[str, NodeTable]:
    """Return the nodes of each type, in order. Pure: nothing is read.

    Parameters
    ----------
    root : the directory
    manifest : its commit record, which was checked
    schema : what it says of types and relations
    os_io : the system calls by which the arrays will be read
    """
    tables = {}
    for number, (name, count) in enumerate(schema.num_nodes.items()):
        limits = node_limits(manifest, schema, name)
        arrays = TableArrays(root, manifest, os_io, folder=schema.node_folder(name), limits=limits)
        tables[name] = NodeTable(name, number, count, arrays)
    return Tables(tables, "node type")


def open_edge_tables(
    root: Path, manifest: Manifest, schema: Schema, os_io: OsIO
) -> Mapping[Relation, EdgeTable]:
    """Return the edges of each relation, in order. Pure: nothing is read.

    Parameters
    ----------
    root, manifest, schema, os_io : as of `open_node_tables`
    """
    tables = {}
    for number, relation in enumerate(schema.relations):
        limits = edge_limits(manifest, schema, relation)
        arrays = TableArrays(root, manifest, os_io, folder=schema.edge_folder(relation), limits=limits)
        is_only = schema.kind == "homogeneous"
        name = ONLY_EDGES if is_only else relation_text(relation)
        tables[relation] = EdgeTable(relation, len(schema.num_nodes) + number, arrays, name=name)
    return Tables(tables, "relation")


def open_link_tables(root: Path, manifest: Manifest, schema: Schema, os_io: OsIO) -> Mapping[str, LinkTable]:
    """Return the link tables, in order. Pure: nothing is read.

    Parameters
    ----------
    root, manifest, schema, os_io : as of `open_node_tables`
    """
    tables = {}
    for table in schema.links:
        arrays = LinkArrays(
            root=root,
            manifest=manifest,
            os_io=os_io,
            table=table,
            records=link_arrays(manifest.arrays, table),
            limits=link_limits(manifest, schema, table),
        )
        tables[table.name] = LinkTable(arrays)
    return Tables(tables, "link table")
