"""The writer of a dataset directory: it knows which arrays there must be, and commits all of them or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gloader.dataset.link_writers import LinkTablesWriter
from gloader.dataset.record import REQUIRED_ARRAYS
from gloader.dataset.schema import EDGE, KIND, NODE, Schema
from gloader.dataset.table_writers import EdgeTableWriter, NodeTableWriter, TableArraysWriter
from gloader.errors import ShapeError
from gloader.ssd_store.format.format import DATASET_MANIFEST
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath
from gloader.ssd_store.write.new_directory import NewDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from gloader.core.row_ranges import RangePart
    from gloader.dataset.link_writers import LinkTableWriter
    from gloader.ssd_store.write.array_writer import ArrayWriter
    from gloader.ssd_store.write.feature_column import FeatureColumnWriter
    from gloader.types import IdArray, Relation


class DatasetWriter:
    """Writes the arrays of a new dataset; a context manager that commits at a clean exit and else leaves nothing.

    Topology and features are streamed in order through the returned writers; labels and splits are given whole.

    Parameters
    ----------
    path : the directory to create
    name : a short name for people
    num_nodes : N
    num_classes : number of classes; labels are in 0..num_classes-1
    overwrite : replace a dataset or store at ``path``, atomically, at the commit
    part : of the rows of every matrix of features; the pages of the others are not written. None: all are
    metadata : more JSON values for the commit record

    Raises
    ------
    StoreExistsError, StoreLockedError, StoreWriteError
        On entering: the target exists, somebody else is creating it, or the disk refuses.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        name: str,
        num_nodes: int,
        num_classes: int,
        overwrite: bool = False,
        part: RangePart | None = None,
        metadata: Mapping[str, Any] | None = None,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self._directory = NewDirectory(
            path, manifest_name=DATASET_MANIFEST, overwrite=overwrite, part=part, os_io=os_io
        )
        self._metadata = {**(metadata or {}), "name": name, "num_classes": num_classes}
        self._arrays = TableArraysWriter(self._directory, "")
        self._nodes = NodeTableWriter(self._arrays, num_nodes)
        self._edges = EdgeTableWriter(self._arrays, num_nodes)
        schema = Schema(num_nodes={NODE: num_nodes}, relations=(EDGE,), kind="homogeneous")
        self._links = LinkTablesWriter(self._directory, schema)

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

    def indptr(self) -> ArrayWriter:
        """Return the writer of the (N + 1,) int64 offsets."""
        return self._edges.indptr()

    def indices(self, num_edges: int, dtype: str) -> ArrayWriter:
        """Return the writer of the (E,) in-neighbour ids, ``dtype`` int32 or int64."""
        return self._edges.indices(num_edges, dtype)

    def edge_weight(self, num_edges: int) -> ArrayWriter:
        """Return the writer of the (E,) float32 edge weights."""
        return self._edges.edge_weight(num_edges)

    def edge_features(
        self, num_edges: int, dim: int, dtype: str, *, check_finite: bool = False
    ) -> FeatureColumnWriter:
        """Return the writer of the (E, F) features of the edges; see `EdgeTableWriter.edge_features`."""
        return self._edges.edge_features(num_edges, dim, dtype, check_finite=check_finite)

    def edge_time(self, num_edges: int) -> ArrayWriter:
        """Return the writer of the (E,) int64 times of the edges; see `EdgeTableWriter.edge_time`."""
        return self._edges.edge_time(num_edges)

    def links(
        self, name: str, *, relation: Relation | None = None, reverse: Relation | None = None
    ) -> LinkTableWriter:
        """Return the writer of a link table, of the one relation that there is, which leads back, too.

        Parameters
        ----------
        name : of the table, such as "train"
        relation, reverse : ("node", "to", "node"), or left out

        Raises
        ------
        GraphError
            The name cannot be a folder's or is taken, or there is no such relation.
        """
        return self._links.start(name, relation=relation or EDGE, reverse=reverse or EDGE)

    def features(self, dim: int, dtype: str, *, check_finite: bool = False) -> FeatureColumnWriter:
        """Return the writer of the (N, F) features; see `NodeTableWriter.features`."""
        return self._nodes.features(dim, dtype, check_finite=check_finite)

    def labels(self, labels: IdArray) -> None:
        """Write the (N,) labels, -1 where unlabelled."""
        self._nodes.labels(labels)

    def original_ids(self, ids: IdArray) -> None:
        """Write the (N,) ids that the nodes have in the source; left out if they kept their ids."""
        self._nodes.original_ids(ids)

    def splits(self, *, train: IdArray, valid: IdArray, test: IdArray) -> None:
        """Write the node ids of the three splits, (n,) each; see `NodeTableWriter.splits`."""
        self._nodes.splits(train=train, valid=valid, test=test)

    def annotate(self, **metadata: Any) -> None:
        """Add JSON values to the commit record."""
        self._metadata.update(metadata)

    def _commit(self) -> None:
        missing = [name for name in REQUIRED_ARRAYS if name not in self._arrays.written]
        if missing:
            raise ShapeError(
                f"a dataset needs {', '.join(REQUIRED_ARRAYS)}; not written: {', '.join(missing)}"
            )
        self._directory.commit(KIND, {**self._metadata, **self._links.to_metadata()})


def commit_or_discard(
    directory: NewDirectory, commit: Callable[[], None], error: BaseException | None
) -> None:
    """End the block of a writer: ``commit`` what it wrote, or discard it if the block, or the commit, failed.

    Parameters
    ----------
    directory : entered; left when this returns
    commit : commits it, or raises
    error : of the block
    """
    if error is None:
        # Inside __exit__, so that a commit that fails is discarded like a block that failed.
        try:
            commit()
        except BaseException as failure:
            directory.__exit__(type(failure), failure, failure.__traceback__)
            raise
    directory.__exit__(
        None if error is None else type(error), error, None if error is None else error.__traceback__
    )
