"""Writing link tables into a dataset, after the graph's topology.

A link table lists pairs of nodes whose edges a model predicts. The conversion calls `write_tables` with the planned
tables. Each table's rows are checked and renumbered. Then each row's edge, and its reverse edge, are looked up in the
written topology (`locate`), and their positions are stored with the row. A *held-out* edge is kept for evaluation. If
it is in the topology, messages pass along it and reveal the answer, so there is a warning.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.csc.csc_kernels import first_bad_edge
from gloader.convert.links.locate import LocatedRows, plan_locate
from gloader.convert.options import TRAIN
from gloader.convert.source import LinkChunk
from gloader.convert.stored_parts import StoredCsc
from gloader.dataset.link_record import KNOWN_PAIRS, PAIR_WIDTH, REPEATED_PAIRS
from gloader.dataset.schema import relation_text
from gloader.errors import GraphError, ShapeError, SourceError
from gloader.types import NO_EDGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import LinkSource
    from gloader.dataset.table_writers import LinkTableWriter
    from gloader.dataset.writer import DatasetWriter
    from gloader.types import IdArray, Relation


_LOG = logging.getLogger(__name__)

# Number of entries per chunk of labels, times or negatives: 4 MiB of 8-byte entries.
_CHUNK_NUMBERS = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """Sizes and counts of a written link table."""

    relation: str
    reverse: str | None  # the reverse relation, if any
    num_rows: int
    in_graph: int  # number of rows whose edge is in the graph
    reversed_in_graph: int  # number of rows with only the reverse edge in the graph
    spilled_bytes: int  # bytes of rows in temporary files


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLinks:
    """A link table that the dataset will have."""

    source: LinkSource  # the rows in the source
    relation: Relation
    reverse: Relation | None  # the reverse relation, if any
    num_sources: int  # number of nodes of the source type; their ids are below this
    num_destinations: int  # number of nodes of the destination type
    new_ids: IdArray | None = None  # (N,) new node id by source id; None means that nodes keep their ids

    @property
    def where(self) -> str:
        """The table's file or source, and its name, for messages."""
        return f"{self.source.where}, link table {self.source.name!r}"

    def chunks(self, max_rows: int) -> Iterator[LinkChunk]:
        """Yield the rows in order, with checked and renumbered ids, in chunks of at most ``max_rows``.

        Raises
        ------
        GraphError
            An id is out of its type's range. The message names the row and the source id.
        """
        done = 0
        for chunk in self.source.rows.chunks(max_rows):
            bad = int(first_bad_edge(chunk.src, chunk.dst, self.num_sources, self.num_destinations))
            if bad >= 0:
                raise GraphError(f"{self.where}: row {done + bad} has {self._wrong_end(chunk, bad)}")
            done += chunk.num_rows
            if self.new_ids is None:
                yield chunk
            else:
                yield LinkChunk(src=self.new_ids[chunk.src], dst=self.new_ids[chunk.dst], time=chunk.time)

    def negatives(self, max_rows: int) -> Iterator[IdArray]:
        """Yield the given negatives (n, k) in order, checked and renumbered. Raises as `chunks`."""
        done = 0
        for rows in self.source.rows.negatives(max_rows):
            bad = np.flatnonzero((rows < 0) | (rows >= self.num_destinations))
            if bad.size:
                row, value = done + int(bad[0]) // rows.shape[1], rows.ravel()[bad[0]]
                raise GraphError(
                    f"{self.where}: row {row} has the negative destination {value}; "
                    f"{_allowed(self.num_destinations)}"
                )
            done += rows.shape[0]
            yield rows if self.new_ids is None else self.new_ids[rows]

    def _wrong_end(self, chunk: LinkChunk, row: int) -> str:
        """Return the end of the message for a row with an id out of range."""
        kind, value, count = "source", int(chunk.src[row]), self.num_sources
        if 0 <= value < count:
            kind, value, count = "destination", int(chunk.dst[row]), self.num_destinations
        return f"{kind} {value}; {_allowed(count)}"


def write_tables(
    tables: Sequence[PlannedLinks],
    writer: DatasetWriter,
    *,
    budget_bytes: int,
    progress: PrepareProgress,
) -> dict[str, LinkReport]:
    """Write all link tables, and return their reports by name.

    Parameters
    ----------
    tables : the dataset's link tables
    writer : the dataset's writer, with written topologies
    budget_bytes : the memory budget
    progress : receives a step for each table

    Raises
    ------
    GloaderError
        As `write_table`.
    """
    relations = writer.schema.relations if tables else ()
    graphs = {relation: StoredCsc.of(writer.edges(relation)) for relation in relations}
    return {
        table.source.name: write_table(
            table,
            writer.links(
                table.source.name, relation=table.relation, reverse=table.reverse, free=table.source.is_free
            ),
            graphs,
            budget_bytes=budget_bytes,
            scratch=writer.scratch,
            progress=progress,
        )
        for table in tables
    }


def write_table(
    table: PlannedLinks,
    writer: LinkTableWriter,
    graphs: Mapping[Relation, StoredCsc],
    *,
    budget_bytes: int,
    scratch: Path,
    progress: PrepareProgress,
) -> LinkReport:
    """Write a link table, and warn if held-out edges are in the graph.

    Parameters
    ----------
    table : the table; its pairs are read twice if the rows have times, and otherwise once
    writer : the table's writer
    graphs : the written topologies, by relation
    budget_bytes : the memory budget
    scratch : an existing folder for temporary files, which are removed at the end
    progress : receives a step that names the table

    Raises
    ------
    GraphError
        An id is out of its type's range. The message names the row.
    ShapeError
        There is not one label, or one list of negatives, per row.
    SourceError
        A label is not a finite number, or the file is malformed.
    BudgetError, StoreWriteError
        The budget is too small, or the disk refuses.
    """
    rows, name = table.source.rows, table.source.name
    if table.source.is_free:
        return _write_free(table, writer)
    plan = plan_locate(
        max(table.num_sources, table.num_destinations), budget_bytes=budget_bytes, num_rows=rows.num_rows
    )
    step = f"finding link table {name}"

    def counted(chunks: Iterator[LinkChunk]) -> Iterator[LinkChunk]:
        """Yield the chunks unchanged, and report the progress."""
        done = 0
        for chunk in chunks:
            yield chunk
            done += chunk.num_rows
            progress.advance(step, done, rows.num_rows, "edges")

    with LocatedRows(plan, scratch) as located:
        located.fill(
            counted(table.chunks(plan.chunk_rows)),
            graphs[table.relation],
            None if table.reverse is None else graphs[table.reverse],
            num_rows=rows.num_rows,
        )
        with writer.pairs(located.num_rows) as pairs:
            for part in located.rows():
                pairs.append(part)
    _write_columns(table, writer, located.num_rows)
    report = LinkReport(
        relation=relation_text(table.relation),
        reverse=None if table.reverse is None else relation_text(table.reverse),
        num_rows=located.num_rows,
        in_graph=located.num_found,
        reversed_in_graph=located.num_reversed,
        spilled_bytes=located.spilled_bytes,
    )
    # Rows from an edge split were removed from the graph. If one is found nevertheless, the pair has another edge in
    # train: a split by time may put one pair's edges into several tables. Given tables need another remedy.
    remedy = REPEATED_PAIRS if rows.are_edges else KNOWN_PAIRS
    if (text := leak_text(name, report, remedy)) is not None:
        _LOG.warning(text)
    return report


def _write_free(table: PlannedLinks, writer: LinkTableWriter) -> LinkReport:
    """Write a link table whose relation the graph does not have: no row has a position. Raises as `write_table`."""
    num_rows = table.source.rows.num_rows
    if num_rows is None:
        num_rows = sum(chunk.num_rows for chunk in table.chunks(_CHUNK_NUMBERS))
    with writer.pairs(num_rows) as pairs:
        for chunk in table.chunks(_CHUNK_NUMBERS // PAIR_WIDTH):
            positions = np.full(chunk.num_rows, NO_EDGE, np.int64)
            pairs.append(np.column_stack([chunk.src, chunk.dst, positions, positions]))
    _write_columns(table, writer, num_rows)
    return LinkReport(
        relation=relation_text(table.relation),
        reverse=None,
        num_rows=num_rows,
        in_graph=0,
        reversed_in_graph=0,
        spilled_bytes=0,
    )


def leak_text(name: str, report: LinkReport, remedy: str) -> str | None:
    """Return the warning about held-out edges that are in the graph, or None if there are none. Pure.

    ``name`` is the table, and ``remedy`` the end of the text.
    """
    # The table "train" may be in the graph. All other tables are held out.
    if name == TRAIN or not report.in_graph + report.reversed_in_graph:
        return None
    back = f", and {report.reversed_in_graph:,} more the other way round" if report.reversed_in_graph else ""
    return (
        f"link table {name}: {report.in_graph:,} of its {report.num_rows:,} edges are in the graph{back}; messages "
        f"pass along them, so that a model sees what it is to predict; {remedy}"
    )


def _write_columns(table: PlannedLinks, writer: LinkTableWriter, num_rows: int) -> None:
    """Write a table's labels, times and negatives, if it has them."""
    rows = table.source.rows
    if rows.label_dtype is not None:
        with writer.labels(num_rows, rows.label_dtype) as column:
            for part in _whole(rows.labels(_CHUNK_NUMBERS), num_rows, "labels", table.where):
                _check_finite(part, column.rows_written, table.where)
                column.append(part)
    if rows.has_times:
        with writer.times(num_rows) as column:
            for chunk in rows.chunks(_CHUNK_NUMBERS):
                if chunk.time is not None:
                    column.append(chunk.time)
    if k := rows.negatives_per_row:
        dtype = "int32" if table.num_destinations < 2**31 else "int64"
        with writer.negatives(num_rows, k, dtype) as column:
            given = table.negatives(max(1, _CHUNK_NUMBERS // k))
            for part in _whole(given, num_rows, "negatives", table.where):
                column.append(part.astype(dtype))


def _whole(parts: Iterator[NDArray[Any]], num_rows: int, what: str, where: str) -> Iterator[NDArray[Any]]:
    """Yield a column's parts. Raises ShapeError unless the column has exactly one entry per row."""
    done = 0
    for part in parts:
        done += part.shape[0]
        if done > num_rows:
            break
        yield part
    if done != num_rows:
        count = "more" if done > num_rows else str(done)
        raise ShapeError(f"{where} has {num_rows} rows and {count} {what}; one is needed for each")


def _check_finite(labels: NDArray[Any], first: int, where: str) -> None:
    """Raise SourceError for a label that is NaN or infinite. ``first`` is the row of the first label."""
    bad = np.flatnonzero(~np.isfinite(labels))
    if bad.size:
        raise SourceError(
            f"{where}: row {first + int(bad[0])} has label {labels[bad[0]]}; labels are finite numbers"
        )


def _allowed(count: int) -> str:
    """Return the allowed ids of a type with ``count`` nodes, for messages."""
    return f"ids must lie in 0..{count - 1}" if count else "there are no such nodes"
