"""``edges:FILE``: an edge list as CSV or Parquet, with features, labels and splits in files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gloader.convert.readers.node_arrays import (
    count_classes,
    no_labels,
    random_splits,
    require_node_memory,
)
from gloader.convert.readers.open_table import open_table
from gloader.convert.readers.part_files import part_files
from gloader.convert.readers.tables import TableEdges
from gloader.convert.readers.told import Told
from gloader.convert.source import Source
from gloader.convert.sources.array_files import (
    held_bytes,
    open_node_features,
    read_label_file,
    read_split_files,
    reading_bytes,
)
from gloader.convert.sources.edge_tables import edge_table_columns
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.convert.options import SourceOptions

_PLAIN_NAMES = ("edge", "edges", "edge_list", "edgelist", "edge_index", "graph", "data")


def open_edges(argument: str, options: SourceOptions) -> Source:
    """Open an edge list with the features and labels that ``options`` name.

    The edge list is a ``.csv``, ``.tsv`` or ``.txt`` (also ``.gz``), with or without a header, or a ``.parquet``,
    or a folder or a pattern of such files: columns of names such as src, dst and weight; without a header the first
    two (and, of three, the third). Features are a ``.npy`` (N, F), a ``.npz`` of a scipy CSR matrix, or a table of
    a row per node; labels a ``.npy`` (N,) or a table; splits a ``.npz`` or a folder of ``.npy`` with train, valid
    and test. A table of nodes is joined by its column of ids, where it has one. Times and features of edges are
    columns that ``options`` name. Without splits, the labelled nodes are dealt out 60/20/20 at random by
    ``options.seed``. Where edges are predicted, labels may be left out.

    Raises
    ------
    ConfigError
        Features are not named, or labels where they are needed, or the table has no column of times or of edge features
        of that name.
    SourceError
        A file is missing, truncated or malformed.
    GraphError
        The ids in the table are no integers.
    """
    path = _require_path(Path(argument))
    if options.features is None:
        raise ConfigError(f"edges:{argument} needs features; name their file with --features FILE")
    if options.labels is None and options.needs_labels:
        raise ConfigError(
            f"edges:{argument} needs labels; name their file with --labels FILE, or predict edges, with "
            "--edge-split 80/10/10 or --edge-table, which takes none"
        )
    budget = options.budget_bytes
    told = Told()
    edges, edge_features = edge_table_columns(
        TableEdges.open(open_table(path), src=options.src, dst=options.dst),
        time=options.edge_time,
        features=options.edge_features,
        budget_bytes=budget,
        told=told,
    )
    features, row_ids = open_node_features(
        _require_path(options.features), budget_bytes=budget, told=told, labels=options.labels
    )
    num_nodes = features.num_rows
    require_node_memory(num_nodes, budget, str(options.features))
    labels = (
        no_labels(num_nodes)
        if options.labels is None
        else read_label_file(
            _require_path(options.labels), num_nodes=num_nodes, budget_bytes=budget, told=told
        )
    )
    splits = (
        random_splits(labels, seed=options.seed)
        if options.splits is None
        else read_split_files(options.splits.expanduser(), num_nodes=num_nodes, budget_bytes=budget)
    )
    return Source(
        name=_name_of(path),
        origin=f"edges:{argument}",
        num_nodes=num_nodes,
        num_classes=count_classes(labels),
        edges=edges,
        features=features,
        row_ids=row_ids,
        labels=labels,
        splits=splits,
        edge_features=edge_features,
        edge_file=path,
        resident_bytes=held_bytes(features, row_ids) + reading_bytes(edges, edge_features, features),
        said=tuple(told.said),
        unused=told.unused,
    )


def _name_of(path: Path) -> str:
    """Return the name of the graph in the file ``path``: edges.csv is the file of a folder that has one."""
    stem = Path(path.stem).stem
    return (path.resolve().parent.name or stem) if stem.lower() in _PLAIN_NAMES else stem


def _require_path(path: Path | None) -> Path:
    expanded = Path() if path is None else path.expanduser()
    part_files(expanded)  # raises where there are none
    return expanded
