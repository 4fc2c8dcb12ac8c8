"""The source ``edges:FILE``: an edge list as CSV, Parquet or another table, with files for features, labels and splits.

`open_edges` opens the source. Its ends are node ids, or with a table of nodes, keys: values that identify nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gloader.convert.columns.specs import ColumnSpec
from gloader.convert.readers.column_names import id_columns, listed
from gloader.convert.readers.node_arrays import (
    count_classes,
    no_labels,
    random_splits,
    require_node_memory,
)
from gloader.convert.readers.open_table import is_matrix, open_table, part_files
from gloader.convert.readers.table_streams import ColumnNotes, TableEdges
from gloader.convert.source import Source
from gloader.convert.sources.edge_files import refuse_keys
from gloader.convert.sources.edge_list import (
    edge_table_columns,
    held_bytes,
    label_names,
    open_node_features,
    read_label_file,
    read_split_files,
    reading_bytes,
)
from gloader.convert.sources.graph_yaml import EdgeEntry, GraphYaml, NodeEntry
from gloader.convert.sources.keyed_tables import open_keyed
from gloader.errors import ConfigError
from gloader.types import NODE

if TYPE_CHECKING:
    from gloader.convert.keyed_graph import KeyedGraph
    from gloader.convert.options import SourceOptions


# File names that are no name for a graph. The folder's name is used instead.
_PLAIN_NAMES = ("edge", "edges", "edge_list", "edgelist", "edge_index", "graph", "data")


def open_edges(argument: str, options: SourceOptions) -> Source | KeyedGraph:
    """Open an edge list, with the features and labels that ``options`` name.

    The edge list is a ``.csv``, ``.tsv`` or ``.txt`` (also ``.gz``), a ``.parquet``, or a folder or pattern of such
    files. Its columns have names such as src, dst and weight. Without a header, the first two columns are the ends. If
    there are three columns, the third is the weight. ``options`` name the columns for edge times and edge features.

    Features are a ``.npy`` (N, F), a ``.npz`` with a scipy CSR matrix, or a table with a row per node. Labels are a
    ``.npy`` (N,) or a table with a row per node. In such tables, an id column gives each row's node. Splits are a
    ``.npz`` or a folder of ``.npy`` with train, valid and test. Without splits, labelled nodes are split 60/20/20 at
    random by ``options.seed``. Labels are optional if edges are predicted.

    With ``options.nodes`` or ``options.keys``, the ends of edges are keys: values that identify nodes. Then the result
    is a `KeyedGraph`.

    Raises
    ------
    ConfigError
        Features or required labels are not named, or the table has no such column of times or edge features.
    SourceError
        A file is missing, truncated or malformed.
    GraphError
        The ids in the table are no integers.
    """
    path = _require_path(Path(argument))
    if options.nodes is not None or options.keys:
        return open_keyed(_description(path, options), f"edges:{argument}", options)
    table = open_table(path)
    ends = TableEdges.open(table, src=options.src, dst=options.dst)
    refuse_keys(ends, f"edges:{argument}")
    if options.features is None:
        raise ConfigError(f"edges:{argument} needs features; name their file with --features FILE")
    if options.labels is None and options.needs_labels:
        raise ConfigError(
            f"edges:{argument} needs labels; name their file with --labels FILE, or predict edges, with "
            "--edge-split 80/10/10 or --edge-table, which needs no labels"
        )
    budget = options.budget_bytes
    notes = ColumnNotes()
    if is_matrix(path):
        from gloader.convert.readers.matrix_market import require_square  # imported late: pyarrow takes 30 MB

        require_square(table)
    edges, edge_features = edge_table_columns(
        ends,
        time=options.edge_time,
        features=options.edge_features,
        budget_bytes=budget,
        notes=notes,
    )
    features, row_ids = open_node_features(
        _require_path(options.features), budget_bytes=budget, notes=notes, labels=options.labels
    )
    num_nodes = features.num_rows
    require_node_memory(num_nodes, budget, str(options.features))
    labels = (
        no_labels(num_nodes)
        if options.labels is None
        else read_label_file(
            _require_path(options.labels),
            num_nodes=num_nodes,
            budget_bytes=budget,
            notes=notes,
            labels_as=options.labels_as,
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
        label_names=label_names(options.labels, labels),
        splits=splits,
        edge_features=edge_features,
        edge_file=path,
        resident_bytes=held_bytes(features, row_ids) + reading_bytes(edges, edge_features, features),
        column_notes=tuple(notes.lines),
        unused=notes.unused,
    )


def _description(path: Path, options: SourceOptions) -> GraphYaml:
    """Return the description of one node type and one relation that the options make, as a ``graph.yaml`` would.

    Raises
    ------
    ConfigError
        Options contradict each other, or it is unclear which column has the keys.
    SourceError
        The table of nodes is missing or malformed.
    """
    relation = (NODE, "to", NODE)
    edges = EdgeEntry(folder=Path(), file=path, src=options.src, dst=options.dst)
    nodes = {} if options.nodes is None else {NODE: _node_entry(options.nodes.expanduser(), options)}
    if options.nodes is None:
        given = [flag for flag, value in _node_flags(options).items() if value is not None]
        if given:
            raise ConfigError(f"{given[0]} is about a table of nodes: name it with --nodes FILE")
    elif options.keys:
        raise ConfigError(
            "--nodes names the table of nodes, and --keys says that there is none; leave one out"
        )
    return GraphYaml(
        path=path,
        name=_name_of(path),
        nodes=nodes,
        edges={relation: edges},
        texts={relation: "to"},
        unlisted=() if nodes else (NODE,),
        dangling=options.dangling,
        flags=_FLAGS,
    )


# The flags that stand for the places in a description, for messages.
_FLAGS: Final = {
    f"nodes.{NODE}.file": "--nodes",
    f"nodes.{NODE}.key": "--node-key",
    f"nodes.{NODE}.columns": "--columns",
    f"nodes.{NODE}.labels": "--labels",
    f"nodes.{NODE}.features": "--features",
    f"nodes.{NODE}.splits": "--splits",
}


def _node_flags(options: SourceOptions) -> dict[str, object]:
    """Return the options that only a table of nodes has, by their flags."""
    return {
        "--node-key": options.node_key,
        "--columns": options.columns,
        "--features": options.features,
        "--labels": options.labels,
        "--splits": options.splits,
    }


def _node_entry(file: Path, options: SourceOptions) -> NodeEntry:
    """Return the table of nodes with its columns. Labels and splits are columns of the table, or files."""
    names = open_table(file).names
    keys = id_columns(names) if options.node_key is None else [options.node_key]
    if len(keys) != 1:
        raise ConfigError(
            f"{file} has the columns {listed(names)}; name the one that has the keys of nodes with --node-key COLUMN"
        )
    if options.columns is not None and options.features is not None:
        raise ConfigError("--columns and --features both name the features of nodes; give one of them")
    columns = None if options.columns is None else options.columns.split(",")
    labels, splits = options.labels, options.splits
    label_columns = None if labels is None else [name for name in str(labels).split(",") if name in names]
    has_columns = labels is not None and len(label_columns or ()) == len(str(labels).split(","))
    is_split = splits is not None and str(splits) in names
    return NodeEntry(
        file=file,
        key=keys[0],
        columns=None
        if columns is None
        else tuple(ColumnSpec.parse_text(text, where="--columns") for text in columns),
        features=None if options.features is None else _require_path(options.features),
        label_columns=label_columns if has_columns else None,
        labels=None if has_columns or labels is None else _require_path(labels),
        split=str(splits) if is_split else None,
        splits=None if is_split or splits is None else splits.expanduser(),
    )


def _name_of(path: Path) -> str:
    """Return the graph's name: the file's stem, or the folder's name for a file such as edges.csv."""
    stem = Path(path.stem).stem
    return (path.resolve().parent.name or stem) if stem.lower() in _PLAIN_NAMES else stem


def _require_path(path: Path | None) -> Path:
    """Return the path with ``~`` expanded. Raise SourceError if there is no such file."""
    expanded = Path() if path is None else path.expanduser()
    part_files(expanded)  # raises if there are no files
    return expanded
