"""The writer of a dataset of several types: a folder for each node type and each relation, committed as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gloader.dataset.link_writers import LinkTablesWriter
from gloader.dataset.record import EDGES, LABELS
from gloader.dataset.schema import HETERO_KIND, checked_schema, relation_text
from gloader.dataset.table_writers import EdgeTableWriter, NodeTableWriter, TableArraysWriter
from gloader.dataset.writer import commit_or_discard
from gloader.errors import GraphError, ShapeError
from gloader.ssd_store.format.format import DATASET_MANIFEST
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath
from gloader.ssd_store.write.new_directory import NewDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from gloader.core.row_ranges import RangePart
    from gloader.dataset.link_writers import LinkTableWriter
    from gloader.types import Relation


class HeteroDatasetWriter:
    """Writes a dataset of several types; a context manager that commits at a clean exit and else leaves nothing.

    What a type or a relation has is streamed in order, or given whole, as with `DatasetWriter`. A type may have no
    features; exactly one has labels and splits. A type of no nodes and a relation of no edges are written like others.

    Parameters
    ----------
    path : the directory to create
    name : a short name for people
    num_nodes : of each type, in the order that is the dataset's
    relations : (source type, name, destination type) of each, in the order that is the dataset's
    num_classes : number of classes; labels are in 0..num_classes-1
    overwrite : replace a dataset or store at ``path``, atomically, at the commit
    part : of the rows of every matrix of features; the pages of the others are not written. None: all are
    metadata : more JSON values for the commit record

    Raises
    ------
    GraphError
        A name cannot be a folder's, is there twice, or a relation names a type that is not there.
    StoreExistsError, StoreLockedError, StoreWriteError
        On entering: the target exists, somebody else is creating it, or the disk refuses.
    ShapeError
        On leaving: an array is missing, or there are labels of two types.
    """

    def __init__(  # noqa: PLR0913 - what there is to say of a dataset, each a keyword
        self,
        path: StrPath,
        *,
        name: str,
        num_nodes: Mapping[str, int],
        relations: Sequence[Relation],
        num_classes: int,
        overwrite: bool = False,
        part: RangePart | None = None,
        metadata: Mapping[str, Any] | None = None,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self.schema = checked_schema(num_nodes, relations)
        self._directory = NewDirectory(
            path, manifest_name=DATASET_MANIFEST, overwrite=overwrite, part=part, os_io=os_io
        )
        self._metadata = {**(metadata or {}), "name": name, "num_classes": num_classes}
        self._types = {
            node_type: TableArraysWriter(self._directory, self.schema.node_folder(node_type))
            for node_type in self.schema.num_nodes
        }
        self._relations = {
            relation: TableArraysWriter(self._directory, self.schema.edge_folder(relation))
            for relation in self.schema.relations
        }
        self._links = LinkTablesWriter(self._directory, self.schema)

    def __enter__(self) -> Self:
        self._directory.__enter__()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        commit_or_discard(self._directory, self._commit, exc)

    @property
    def scratch(self) -> Path:
        """A folder on the target's file system for temporary files; gone when the block ends."""
        return self._directory.scratch()

    def nodes(self, node_type: str) -> NodeTableWriter:
        """Return the writer of the nodes of a type.

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

    def edges(self, relation: Relation) -> EdgeTableWriter:
        """Return the writer of the edges of a relation.

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
        self, name: str, *, relation: Relation | None = None, reverse: Relation | None = None
    ) -> LinkTableWriter:
        """Return the writer of a link table.

        Parameters
        ----------
        name : of the table, such as "train"
        relation : whose edges they are; may be left out where there is one alone
        reverse : whose edges lead back; None: none do

        Raises
        ------
        GraphError
            The name cannot be a folder's or is taken, or there is no such relation; the reverse does not lead back.
        """
        if relation is None:
            if len(self.schema.relations) != 1:
                allowed = ", ".join(map(relation_text, self.schema.relations)) or "none"
                raise GraphError(f"links {name!r} need the relation that they are of; there are {allowed}")
            (relation,) = self.schema.relations
        return self._links.start(name, relation=relation, reverse=reverse)

    def annotate(self, **metadata: Any) -> None:
        """Add JSON values to the commit record."""
        self._metadata.update(metadata)

    def _commit(self) -> None:
        labelled = [name for name, arrays in self._types.items() if arrays.written.intersection(LABELS)]
        if len(labelled) != 1:
            said = ", ".join(map(repr, labelled)) or "none"
            raise ShapeError(f"exactly one node type has labels and splits; written were those of: {said}")
        needed = [
            (self._types[labelled[0]], LABELS),
            *((arrays, EDGES) for arrays in self._relations.values()),
        ]
        missing = [
            arrays.folder + name for arrays, names in needed for name in names if name not in arrays.written
        ]
        if missing:
            raise ShapeError(
                f"a dataset needs {', '.join(LABELS)} of one node type, and {' and '.join(EDGES)} of every relation; "
                f"not written: {', '.join(missing)}"
            )
        metadata = {**self._metadata, **self.schema.to_metadata(), **self._links.to_metadata()}
        self._directory.commit(HETERO_KIND, metadata)
