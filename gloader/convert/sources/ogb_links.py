"""The source ``ogb:ogbl-NAME``: an OGB data set for link prediction, read from OGB's folder.

The graph has OGB's training edges in OGB's order, with the reverse edges that OGB's loader adds. The link tables are
OGB's splits train, valid and test, which are files such as ``split/time/train.pt``. *Negatives* are pairs without an
edge. A table has them as a list of destinations per row, or they are separate tables, valid_neg and test_neg.
`open_ogb` calls `open_ogb_links`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.links.link_rows import array_rows
from gloader.convert.readers.csv_table import CsvTable
from gloader.convert.readers.edge_columns import weighted_edges
from gloader.convert.readers.node_arrays import require_node_memory
from gloader.convert.readers.table_streams import TableEdges, table_features
from gloader.convert.readers.torch_file import dense_tensors, load_mapping, pickled_bytes, require_stored
from gloader.convert.source import FeatureStream, LinkSource, LinkStream, Source, Splits
from gloader.convert.sources.ogb_text import OgbEdgeFiles, raw_table, read_count, table_column
from gloader.core.malformed import MALFORMED
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.options import EdgeNames

# Copies of a pickled array while it is read: the file, the text, the bytes and the array.
_PICKLE_COPIES = 4
# Prefix of file names in ``raw``. A split file's key for the same column lacks the prefix: edge_year.csv.gz is the key
# year.
_EDGE_PREFIX = "edge_"


@dataclass(frozen=True, slots=True, kw_only=True)
class OgbLinkInfo:
    """A data set's row in OGB's list, ``ogb/linkproppred/master.csv`` in the ogb package."""

    add_inverse_edge: bool  # True if OGB's loader adds a reverse to each edge
    split: str  # the folder below ``split/`` with the split's files


# The rows of the data sets that *fit*, which means that they can be converted.
LINK_SETS = {
    "ogbl-citation2": OgbLinkInfo(add_inverse_edge=False, split="time"),
    "ogbl-collab": OgbLinkInfo(add_inverse_edge=True, split="time"),
    "ogbl-ddi": OgbLinkInfo(add_inverse_edge=True, split="target"),
    "ogbl-ppa": OgbLinkInfo(add_inverse_edge=True, split="throughput"),
}
# The reason why a data set does not fit. The text continues a sentence that begins with the name.
UNFIT_LINKS = {
    "ogbl-biokg": "is a knowledge graph of 51 relations, and its split depends on the relation",
    "ogbl-vessel": "has features and edges in another layout than OGB's other data sets",
    "ogbl-wikikg2": "is a knowledge graph, whose 535 relations are numbers next to its edges",
}


def open_ogb_links(
    folder: Path, *, name: str, origin: str, info: OgbLinkInfo, budget_bytes: int, edge_names: EdgeNames
) -> Source:
    """Return the source for a folder in OGB's text layout.

    Nodes have no labels. A data set without features, such as ogbl-ddi, gets a column of ones, so a model sees only
    the graph's structure. If edges get times from ``raw/edge_year.csv.gz``, link tables get times from the key ``year``
    in their files.

    Parameters
    ----------
    folder : a folder with ``raw`` and ``split``
    name, origin : the source's display name, and the source as the user wrote it
    info : the data set's row in OGB's list
    budget_bytes : memory for an array with one entry per node, and for one split file
    edge_names : names of edge times and edge features

    Raises
    ------
    ConfigError
        A requested name of times or features does not exist.
    SourceError
        A file is missing or malformed.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    BudgetError
        The arrays or a split file take more than ``budget_bytes``.
    """
    raw = folder / "raw"
    num_nodes, num_edges = read_count(raw / "num-node-list.csv.gz"), read_count(raw / "num-edge-list.csv.gz")
    require_node_memory(num_nodes, budget_bytes, str(raw))
    edges = TableEdges.open(raw_table(raw / "edge.csv.gz"), num_edges=num_edges).stream()
    if (raw / "edge_weight.csv.gz").is_file():
        weights = table_column(CsvTable.open(raw / "edge_weight.csv.gz"), "float64")
        edges = weighted_edges(edges, weights)
    columns = OgbEdgeFiles(folder=raw, names=edge_names)
    edge_features = columns.features(num_edges, add_inverse=info.add_inverse_edge)
    edges = columns.timed(edges, add_inverse=info.add_inverse_edge)
    edge_names.require(
        has_times=edges.has_times,
        has_features=edge_features is not None,
        there=columns.there(),
        where=str(raw),
    )
    time = columns.time_name()
    time_key = None if time is None else time.removeprefix(_EDGE_PREFIX)
    features = _ones(num_nodes)
    if (raw / "node-feat.csv.gz").is_file():
        features = table_features(CsvTable.open(raw / "node-feat.csv.gz"), num_nodes)
    files = {part: folder / "split" / info.split / f"{part}.pt" for part in ("train", "valid", "test")}
    none = np.empty(0, np.int64)
    return Source(
        name=name,
        origin=origin,
        num_nodes=num_nodes,
        num_classes=1,
        edges=edges,
        features=features,
        labels=np.full(num_nodes, -1, np.int64),
        splits=Splits(train=none, valid=none, test=none),
        edge_features=edge_features,
        edge_file=raw / "edge.csv.gz",
        resident_bytes=max(_require_memory(file, budget_bytes) for file in files.values()),
        links=tuple(table for part, file in files.items() for table in _tables(part, file, time_key)),
    )


def _ones(num_rows: int) -> FeatureStream:
    """Return a column of ones, for nodes without features."""

    def chunks(max_rows: int) -> Iterator[NDArray[np.generic]]:
        for start in range(0, num_rows, max_rows):
            yield np.ones((min(max_rows, num_rows - start), 1), np.float32)

    return FeatureStream(chunks=chunks, num_rows=num_rows, dim=1, dtype=np.dtype(np.float32))


def _tables(part: str, file: Path, time_key: str | None) -> list[LinkSource]:
    """Return a split file's link tables: its edges, and its negative edges if it has any.

    Edges have the times under ``time_key`` if the file has this key. Negative edges have no times.
    """
    content = _content(file)
    names = {"": part} | ({"_neg": f"{part}_neg"} if "edge_neg" in content else {})
    tables = []
    for suffix, name in names.items():
        key = time_key if time_key in content and not suffix else None
        tables.append(LinkSource(name=name, rows=_split_rows(content, file, suffix, key), where=str(file)))
    return tables


def _split_rows(content: Mapping[Any, Any], file: Path, suffix: str, time_key: str | None) -> LinkStream:
    """Return a table's rows. Each pass reads the file again, so that the arrays do not stay in memory.

    Parameters
    ----------
    content : the file's arrays; only their sizes are used
    file : the split file
    suffix : the keys' suffix: "" for edges, "_neg" for negative edges
    time_key : the key of the times, or None for rows without times
    """

    def rows() -> LinkStream:
        return _rows(_content(file), suffix, file, time_key)

    return replace(
        _rows(content, suffix, file, time_key),
        chunks=lambda max_rows: rows().chunks(max_rows),
        negatives=lambda max_rows: rows().negatives(max_rows),
    )


def _content(file: Path) -> Mapping[Any, Any]:
    """Read a split file and return its arrays, by name. Raises SourceError if it is missing or damaged."""
    content = load_mapping(file, missing="unpack OGB's archive anew")
    require_stored(dense_tensors(content), file)
    return content


def _rows(content: Mapping[Any, Any], suffix: str, file: Path, time_key: str | None) -> LinkStream:
    """Return a table's rows over the arrays in ``content``, with the other parameters of `_split_rows`."""
    times = None if time_key is None else _array(content[time_key], f"{file}[{time_key}]")
    if f"edge{suffix}" in content:
        where = f"{file}[edge{suffix}]"
        pairs = _array(content[f"edge{suffix}"], where)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise ShapeError(f"{where} has shape {pairs.shape}; edges are (n, 2)")
        return array_rows(pairs[:, 0], pairs[:, 1], where=where, time=times)
    if "source_node" not in content or "target_node" not in content:
        names = ", ".join(key for key in content if type(key) is str)
        raise SourceError(
            f"{file} holds neither edge nor source_node and target_node; it holds {names or 'nothing'}"
        )
    negatives = content.get("target_node_neg")
    return array_rows(
        _array(content["source_node"], f"{file}[source_node]"),
        _array(content["target_node"], f"{file}[target_node]"),
        where=str(file),
        time=times,
        negatives=None if negatives is None else _array(negatives, f"{file}[target_node_neg]"),
    )


def _array(value: object, where: str) -> NDArray[Any]:
    """Return a value of a split file as an array. Raises SourceError if it is none."""
    try:
        return np.asarray(value)
    except (RuntimeError, *MALFORMED) as error:  # such as sparse tensors, or ragged lists
        raise SourceError(f"{where} is a {type(value).__name__} that is no array: {error}") from error


def _require_memory(file: Path, budget_bytes: int) -> int:
    """Return an upper bound for the memory to read a file, in bytes. Raises BudgetError if it exceeds the budget."""
    needed = _PICKLE_COPIES * pickled_bytes(file)
    if needed > budget_bytes:
        raise BudgetError(
            f"{file} holds numpy arrays, which are read whole, and takes {format_bytes(needed)}; the memory budget is "
            f"{format_bytes(budget_bytes)}. Raise --memory-budget, or save the split with tensors in place of arrays"
        )
    return needed
