"""Graphs whose nodes have keys: node and edge tables that become a `GraphSource` once all keys are numbered.

A *key* is a value that identifies a node, such as an account's name. `KeyedGraph` describes the tables. A conversion
enters `KeyedGraph.numbered` with a folder for temporary files. It numbers the keys within the memory budget, reads
labels and splits, fits the encoders of columns to the training rows, and yields the graph with plain ids. The temporary
files hold the ids of all edges, so they stay until the conversion ends.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gloader.convert.keyed_edges import column_where
from gloader.convert.keys.numbering import MIN_BUDGET_BYTES, Numbering
from gloader.convert.keys.values import key_chunk
from gloader.convert.numbered_graph import NumberedGraph
from gloader.core.paths import nearest_existing
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError, SourceError
from gloader.plan.available import default_budget_bytes
from gloader.plan.too_small import advice, rounded_up
from gloader.ssd_store.os_io import require_free_space
from gloader.ssd_store.spill.claim import SPILL_DIR_VARIABLE, scratch_folder
from gloader.ssd_store.write.new_directory import exists_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.columns.specs import ColumnSpec
    from gloader.convert.columns.split_column import SplitSpec
    from gloader.convert.keyed_edges import KeyedTable
    from gloader.convert.keys.numbering import Dangling
    from gloader.convert.options import Fill, LabelsAs, PrepareOptions
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.readers.table_streams import ColumnNotes, NumberTable
    from gloader.convert.source import AnySource, EdgeStream, FeatureStream, GraphSource, Splits
    from gloader.core.keys import KeyChunk, KeyKind
    from gloader.types import IdArray, Relation

# Memory for the batches of keys that are read and numbered at a time, besides the readers' own buffers.
_BATCH_BYTES: Final = 8 << 20
_ID_BYTES: Final = 8  # bytes of an edge's end in the temporary files
_FOLDER_PREFIX: Final = "gloader-keys-"  # beginning of the temporary folder's name


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChoice:
    """The columns of a table of nodes that hold the labels."""

    columns: tuple[str, ...]
    as_: LabelsAs | None = None  # None means that the columns' values decide


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedNodes:
    """A node type of a graph with keys.

    Its nodes are the rows of a table, or the keys of the edges, or plain numbers as in a graph without keys.
    """

    name: str
    table: NumberTable | None = None  # the table with a row per node
    key: str | None = None  # the table's column of keys. None means that row i is node i
    kind: KeyKind | None = None  # the kind of the keys. None means that edges have plain node ids
    columns: tuple[ColumnSpec, ...] = ()  # the table's columns that become features
    missing: Fill | None = (
        None  # what becomes of missing values in ``columns``. None means the conversion's option
    )
    # Feature rows in the order of the nodes, and each row's node or None.
    features: FeatureStream | None = None
    row_ids: IdArray | None = None
    labels: LabelChoice | None = None  # columns of ``table``
    read_labels: Callable[[int], NDArray[Any]] | None = None  # reads the labels of N nodes from another file
    split: SplitSpec | None = None  # columns of ``table``
    read_splits: Callable[[int], Splits] | None = None  # reads the splits of N nodes from another file
    num_nodes: int | None = (
        None  # the number of nodes without keys; None means that it follows from the edges
    )
    num_classes: int | None = None  # None means that it follows from the labels

    @property
    def is_labelled(self) -> bool:
        """True if the type has labels."""
        return self.labels is not None or self.read_labels is not None

    @property
    def has_features(self) -> bool:
        """True if the type has features."""
        return bool(self.columns) or self.features is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRelation:
    """A relation of a graph with keys."""

    relation: Relation
    edge_file: Path  # the edges' file, for messages
    table: KeyedTable | None = None  # the edges' table; None for an array of edges
    plain: EdgeStream | None = None  # the edges, if both ends are plain node ids; None with keys
    features: FeatureStream | None = None  # one row for each row of the table
    columns: tuple[ColumnSpec, ...] = ()  # the table's columns that become features
    missing: Fill | None = None  # what becomes of missing values in ``columns``

    @property
    def has_times(self) -> bool:
        """True if edges have times."""
        plain = self.plain is not None and self.plain.has_times
        return plain or (self.table is not None and self.table.edges.time is not None)

    @property
    def has_features(self) -> bool:
        """True if edges have features."""
        return bool(self.columns) or self.features is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedGraph:
    """A graph with keys for a conversion, whose numbers of nodes are known only after its keys were read."""

    name: str  # a short display name
    origin: str  # the source as the user wrote it
    where: str  # the description, for messages
    nodes: tuple[KeyedNodes, ...]
    relations: tuple[KeyedRelation, ...]
    notes: ColumnNotes
    unused: tuple[str, ...] = ()  # parts of the source that the dataset will not have, besides columns
    # What becomes of an edge whose key is in no row of the type's table: an error, nothing, or a new node.
    dangling: Dangling = "error"
    seed: int = 0  # seed of random splits
    needs_labels: bool = True  # False if edges are predicted, so that nodes may be unlabelled

    @contextmanager
    def numbered(
        self, folder: Path, options: PrepareOptions, *, budget_bytes: int, progress: PrepareProgress
    ) -> Iterator[GraphSource]:
        """Number the keys, and yield the graph with plain ids. Its streams can be read within the block.

        Parameters
        ----------
        folder : an existing folder for temporary files
        options : the conversion's options
        budget_bytes : the memory budget
        progress : receives the steps

        Raises
        ------
        SourceError
            A key is missing, is twice in a table of nodes, is in no such table, or has the wrong form. Or labels, a
            split or a column are malformed. The message names file, row and value.
        BudgetError
            The budget is too small. The message gives a sufficient one.
        StoreWriteError
            The disk has no room for the temporary files.
        """
        keyed = [nodes for nodes in self.nodes if nodes.kind is not None]
        with ExitStack() as held:
            with _naming_enough(budget_bytes, num_shares=len(keyed)):
                numberings = {
                    nodes.name: held.enter_context(numbering)
                    for nodes, numbering in zip(keyed, self._numberings(folder, budget_bytes), strict=True)
                }
                for nodes in keyed:
                    if nodes.table is not None:
                        _append_nodes(nodes, nodes.table, numberings[nodes.name], progress)
                keys = {
                    each.relation: each.table.append_keys(numberings, progress)
                    for each in self.relations
                    if each.table is not None and each.plain is None
                }
                for name, numbering in numberings.items():
                    progress.advance(f"numbering the keys of {name}", 0, None, "keys")
                    numbering.resolve()
            yield NumberedGraph(self, numberings, keys, options, budget_bytes).source()

    @property
    def id_bytes(self) -> int:
        """Bytes of temporary files with the ids of edges, as far as the numbers of rows are known."""
        tables = [each.table for each in self.relations if each.table is not None]
        return sum(_ID_BYTES * len(each.key_columns) * (each.edges.num_edges or 0) for each in tables)

    def _numberings(self, folder: Path, budget_bytes: int) -> Iterator[Numbering]:
        """Yield a numbering for each type with keys. They share the memory equally. Raises BudgetError."""
        keyed = [nodes for nodes in self.nodes if nodes.kind is not None]
        reading = self._reading_bytes()
        share = (budget_bytes - reading) // len(keyed)
        if share < MIN_BUDGET_BYTES:
            raise BudgetError(
                f"numbering the keys of {len(keyed)} node type{'s' * (len(keyed) != 1)} of {self.origin} takes "
                f"{format_bytes(reading)} to read keys and {format_bytes(MIN_BUDGET_BYTES)} a type; the memory budget "
                f"is {format_bytes(budget_bytes)}. Raise --memory-budget",
                short_bytes=MIN_BUDGET_BYTES - share,
            )
        for number, nodes in enumerate(keyed):
            # Each type has a folder of its own: names of types may differ only in case.
            place = folder / f"type-{number}"
            place.mkdir()
            yield Numbering(
                nodes.name,
                nodes.kind or "text",
                folder=place,
                budget_bytes=share,
                dangling=self.dangling,
            )

    def _reading_bytes(self) -> int:
        """Return the memory for reading keys, besides their numberings: tables are read one after another."""
        tables = [(nodes.table, [nodes.key]) for nodes in self.nodes if nodes.table is not None and nodes.key]
        tables += [
            (each.table.edges.table, [column for _, column in each.table.key_columns])
            for each in self.relations
            if each.table is not None
        ]
        return _BATCH_BYTES + max(table.reading_bytes(filter(None, columns)) for table, columns in tables)


def _append_nodes(
    nodes: KeyedNodes, table: NumberTable, numbering: Numbering, progress: PrepareProgress
) -> None:
    """Give the keys in a table of nodes to the type's numbering: row i gets id i."""
    column = str(nodes.key)
    where = column_where(table, column)

    def chunks() -> Iterator[KeyChunk]:
        done = 0
        for batch in table.read_arrow([column], error=SourceError):
            yield key_chunk(batch.column(0), numbering.kind, first_row=done, where=where)
            done += batch.num_rows
            progress.advance(f"reading the keys of {table.path.name}", done, table.num_rows, "rows")

    numbering.add_nodes(chunks(), where=where)


@contextmanager
def _naming_enough(budget_bytes: int, *, num_shares: int) -> Iterator[None]:
    """Give errors of a budget that is too small for the keys a sufficient one. Each type has an equal share of it."""
    try:
        yield
    except BudgetError as error:
        short = error.short_bytes or 0
        enough = rounded_up(budget_bytes + num_shares * short)
        cause = error.cause.removesuffix(". Raise --memory-budget")
        raise BudgetError(
            cause, short_bytes=enough - budget_bytes, advice=advice(enough) if short else ""
        ) from error


@contextmanager
def plain_graph(
    source: AnySource | KeyedGraph, out: Path, options: PrepareOptions, progress: PrepareProgress
) -> Iterator[GraphSource]:
    """Yield a source's graph with plain ids. Keys are numbered in a temporary folder, which the block owns.

    The folder is below $GLOADER_SPILL_DIR, or beside the dataset, because a system's temporary folder may be in memory.
    After a kill, the next conversion at this place removes it.

    Parameters
    ----------
    source : the graph
    out : the dataset's folder
    options : the conversion's options
    progress : receives the steps

    Raises
    ------
    ConfigError
        A table of links has plain ids, and the graph has keys.
    StoreExistsError
        ``out`` exists. It is found here, because numbering keys may take hours.
    SpillError
        The folder cannot be made or removed.
    SourceError, BudgetError, StoreWriteError
        As `KeyedGraph.numbered`.
    """
    if not isinstance(source, KeyedGraph):
        yield source.graph()
        return
    if options.edge_tables:
        raise ConfigError(
            f"--edge-table {options.edge_tables[0]}: tables of links have node ids, and the nodes of {source.origin} "
            "have keys; divide its edges with --edge-split 80/10/10"
        )
    if out.exists() and not options.overwrite:
        raise exists_error(out)
    budget = default_budget_bytes() if options.memory_budget_bytes is None else options.memory_budget_bytes
    parent = os.environ.get(SPILL_DIR_VARIABLE) or nearest_existing(out.absolute().parent)
    with scratch_folder(parent, prefix=_FOLDER_PREFIX) as folder:
        require_free_space(folder, source.id_bytes)
        with source.numbered(folder, options, budget_bytes=budget, progress=progress) as graph:
            yield graph
