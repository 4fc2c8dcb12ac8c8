"""The numbering of a graph's keys before a conversion: tables with keys become a graph with plain ids.

A *key* is a value that identifies a node. `plain_graph` makes a temporary folder for a conversion, and `numbered`
numbers the keys there within the memory budget. It yields a `GraphSource` with plain ids, whose streams read the
temporary files. So these stay until the conversion ends.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gloader.convert.keyed_edges import column_where
from gloader.convert.keyed_graph import AHEAD_BYTES, KeyedGraph
from gloader.convert.keyed_links import numbered_links, require_no_edges
from gloader.convert.keys.numbering import MIN_BUDGET_BYTES, Numbering
from gloader.convert.keys.values import key_chunk
from gloader.convert.numbered_graph import NumberedGraph
from gloader.convert.read_ahead import read_ahead
from gloader.core.malformed import shown
from gloader.core.paths import nearest_existing
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError, SourceError
from gloader.plan.available import default_budget_bytes
from gloader.plan.too_small import rounded_up
from gloader.ssd_store.os_io import require_free_space
from gloader.ssd_store.spill.claim import SPILL_DIR_VARIABLE, scratch_folder
from gloader.ssd_store.write.new_directory import exists_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gloader.convert.options import PrepareOptions
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.readers.table_streams import NumberTable
    from gloader.convert.source import AnySource, GraphSource
    from gloader.core.keys import KeyChunk

# Keys are read ahead if the batches that wait take at most this share of the memory budget (1/8).
_AHEAD_SHARE: Final = 8
_FOLDER_PREFIX: Final = "gloader-keys-"  # beginning of the temporary folder's name


@contextmanager
def plain_graph(
    source: AnySource | KeyedGraph, out: Path, options: PrepareOptions, progress: PrepareProgress
) -> Iterator[GraphSource]:
    """Yield a source's graph with plain ids. Keys are numbered in a `temporary_folder`.

    Parameters
    ----------
    source : the graph
    out : the dataset's folder
    options : the conversion's options
    progress : receives the steps

    Raises
    ------
    ConfigError
        A table of links has plain ids, and the graph has keys. Or a dtype does not hold the numbers of a category.
    StoreExistsError, SpillError
        As `temporary_folder`.
    SourceError, FeatureValueError, ShapeError, BudgetError, StoreWriteError
        As `numbered`.
    """
    if not isinstance(source, KeyedGraph):
        graph = source.graph()
        fitted = [column for each in graph.nodes if each.encoders for column in each.encoders.columns]
        _check_indexes(graph.origin, [[each.column for each in fitted if each.kind == "index"], []], options)
        yield graph
        return
    if options.edge_tables:
        raise ConfigError(
            f"--edge-table {options.edge_tables[0]}: tables of links have node ids, and the nodes of {source.origin} "
            "have keys; divide its edges with --edge-split 80/10/10"
        )
    if source.links:
        require_no_edges(options, source.origin)
    _check_indexes(
        source.where,
        [
            [spec.name for each in part for spec in each.columns if spec.kind == "index"]
            for part in (source.nodes, source.relations)
        ],
        options,
    )
    budget = default_budget_bytes() if options.memory_budget_bytes is None else options.memory_budget_bytes
    with temporary_folder(out, _FOLDER_PREFIX, overwrite=options.overwrite) as folder:
        require_free_space(folder, source.id_bytes)
        with numbered(source, folder, options, budget_bytes=budget, progress=progress) as graph:
            yield graph


def _check_indexes(where: str, columns: Sequence[Sequence[str]], options: PrepareOptions) -> None:
    """Raise ConfigError if a column ``as: index`` is to be stored in a dtype that does not hold all its numbers.

    ``columns`` are the names of such columns of nodes, and of edges. ``where`` is the source, for messages.
    """
    # A column has up to 200,000 values, whose numbers float32 holds exactly.
    dtypes = (("--dtype", options.stored_dtype), ("--edge-dtype", options.stored_edge_dtype))
    for (flag, dtype), names in zip(dtypes, columns, strict=True):
        if names and dtype != "float32":
            raise ConfigError(
                f"{where}: the numbers of the values of {', '.join(map(shown, names))} (as: index) are rounded by "
                f"{flag} {dtype}; leave {flag} out, or take as: category or top: instead of as: index"
            )


@contextmanager
def temporary_folder(out: Path, prefix: str, *, overwrite: bool) -> Iterator[Path]:
    """Make a folder for a conversion's temporary files, which the block owns.

    It is below $GLOADER_SPILL_DIR, or beside the dataset, because a system's temporary folder may be in memory. After a
    kill, the next conversion at this place removes it.

    Parameters
    ----------
    out : the dataset's folder
    prefix : the beginning of the folder's name
    overwrite : True if the dataset may exist already

    Raises
    ------
    StoreExistsError
        ``out`` exists. It is found here, because the work in the folder may take hours.
    SpillError
        The folder cannot be made or removed.
    """
    if out.exists() and not overwrite:
        raise exists_error(out)
    parent = os.environ.get(SPILL_DIR_VARIABLE) or nearest_existing(out.absolute().parent)
    with scratch_folder(parent, prefix=prefix) as folder:
        yield folder


@contextmanager
def numbered(
    graph: KeyedGraph, folder: Path, options: PrepareOptions, *, budget_bytes: int, progress: PrepareProgress
) -> Iterator[GraphSource]:
    """Number the keys, and yield the graph with plain ids. Its streams can be read within the block.

    Parameters
    ----------
    graph : the tables
    folder : an existing folder for temporary files
    options : the conversion's options
    budget_bytes : the memory budget
    progress : receives the steps

    Raises
    ------
    SourceError
        A key is missing, is twice in a table of nodes, is in no such table, or has the wrong form. Or labels, a
        split or a column are malformed. The message names file, row and value.
    FeatureValueError
        A feature is missing, or is no number.
    ShapeError
        A table, or a file of features, labels or splits, has another number of rows than the type or relation.
    BudgetError
        The budget is too small. The message gives a sufficient one.
    StoreWriteError
        The disk has no room for the temporary files.
    """
    keyed = graph.keyed
    with ExitStack() as held:
        with _naming_enough(budget_bytes, num_shares=len(keyed)):
            numberings = {
                nodes.name: held.enter_context(numbering)
                for nodes, numbering in zip(keyed, _numberings(graph, folder, budget_bytes), strict=True)
            }
            is_ahead = _reads_ahead(budget_bytes)
            for nodes in keyed:
                if nodes.table is not None:
                    with _column_keys(
                        nodes.table, str(nodes.key), numberings[nodes.name], progress, is_ahead=is_ahead
                    ) as chunks:
                        numberings[nodes.name].add_nodes(
                            chunks, where=column_where(nodes.table, str(nodes.key))
                        )
            keys = {
                each.relation: each.table.append_keys(numberings, progress, is_ahead=is_ahead)
                for each in graph.relations
                if each.table is not None and each.plain is None
            }
            link_keys = [each.append_keys(numberings, progress, is_ahead=is_ahead) for each in graph.links]
            row_keys = {}
            for name, rows in graph.keyed_rows:
                stream = numberings[name].open_stream(column_where(rows.table, rows.node))
                row_keys[rows.name] = stream
                with _column_keys(
                    rows.table, rows.node, numberings[name], progress, is_ahead=is_ahead
                ) as chunks:
                    for chunk in chunks:
                        stream.append(chunk)
                stream.close()
            for name, numbering in numberings.items():
                progress.advance(f"numbering the keys of {name}", 0, None, "keys")
                report = numbering.resolve()
                progress.advance(f"numbering the keys of {name}", report.num_nodes, report.num_nodes, "keys")
        source = NumberedGraph(graph, numberings, keys, row_keys, options, budget_bytes).source()
        if graph.links:
            links, note = numbered_links(
                link_keys, options, folder=folder, budget_bytes=budget_bytes, origin=graph.origin
            )
            source = replace(source, links=links, link_note=note)
        yield source


def _numberings(graph: KeyedGraph, folder: Path, budget_bytes: int) -> Iterator[Numbering]:
    """Yield a numbering for each type with keys. They share the memory equally. Raises BudgetError."""
    keyed = graph.keyed
    # Tables of nodes may have columns and no keys.
    if not keyed:
        return
    reading = graph.reading_bytes + (AHEAD_BYTES if _reads_ahead(budget_bytes) else 0)
    share = (budget_bytes - reading) // len(keyed)
    if share < MIN_BUDGET_BYTES:
        raise BudgetError(
            f"numbering the keys of {len(keyed)} node type{'s' * (len(keyed) != 1)} of {graph.origin} takes "
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
            dangling=graph.dangling,
        )


def _reads_ahead(budget_bytes: int) -> bool:
    """True if a thread reads the next keys while earlier ones are numbered. It takes memory for more batches. Pure."""
    return budget_bytes >= _AHEAD_SHARE * AHEAD_BYTES


@contextmanager
def _column_keys(
    table: NumberTable, column: str, numbering: Numbering, progress: PrepareProgress, *, is_ahead: bool
) -> Iterator[Iterator[KeyChunk]]:
    """Yield an iterator over the keys in a column of a table, which a thread reads ahead if ``is_ahead``."""
    where = column_where(table, column)

    def read() -> Iterator[KeyChunk]:
        done = 0
        for batch in table.read_arrow([column], error=SourceError):
            yield key_chunk(batch.column(0), numbering.kind, first_row=done, where=where)
            done += batch.num_rows

    def advancing(chunks: Iterator[KeyChunk]) -> Iterator[KeyChunk]:
        done = 0
        for chunk in chunks:
            yield chunk
            done += len(chunk)
            progress.advance(f"reading the keys of {table.path.name}", done, table.num_rows, "rows")

    with read_ahead(read(), name="keys", is_on=is_ahead) as chunks:
        yield advancing(chunks)


@contextmanager
def _naming_enough(budget_bytes: int, *, num_shares: int) -> Iterator[None]:
    """Add a sufficient budget to the error of a budget that is too small for the keys.

    ``num_shares`` is the number of types with keys. Each of them has an equal share of the budget.
    """
    try:
        yield
    except BudgetError as error:
        if not error.short_bytes:
            raise
        # The rest of the conversion is planned after the keys are numbered, and may need more.
        enough = rounded_up(budget_bytes + num_shares * error.short_bytes)
        cause = error.cause.removesuffix(". Raise --memory-budget")
        raise BudgetError(
            f"{cause}; {format_bytes(enough)} are enough for the keys. Raise --memory-budget",
            short_bytes=enough - budget_bytes,
        ) from error
