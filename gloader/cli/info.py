"""`gloader info`: the content of a prepared dataset, from its commit record (``dataset.json``).

`summary` returns the facts for JSON output, and `_describe` returns lines for the screen. The receipt in the commit
record is the converter's list of the data that it found in the source and used; it is shown as a second table.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, facts
from gloader.cli.train import open_dataset
from gloader.config import ObjectSettings
from gloader.convert.registry import is_source
from gloader.core.units import format_bytes
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.dataset import Dataset
    from gloader.dataset.link_table import LinkTable
    from gloader.dataset.tables import EdgeTable, FeatureRows, NodeTable
    from gloader.dataset.task_table import TaskTable

_OBJECTS = ObjectSettings()
# Entries of the metadata that `_notes` leaves out: they have lines of their own, or are not shown.
_OWN_LINES = frozenset(
    {
        "name",
        "num_classes",
        "labels",
        "dataset_version",
        "node_types",
        "relations",
        "links",
        "tables",
        "receipt",
        "encoders",  # the receipt has a line on the columns, and --json has all
        "hops",
    }
)
_MOST_GROUPS = 12  # groups of hop columns on the screen; --json has all
# Properties of a task table, as JSON values.
_OF_TASKS = (
    *("name", "node_type", "num_rows", "label_kind", "label_names"),
    *("num_classes", "has_times", "has_weights", "num_bytes"),
)
_MOST_NAMES = 8  # names of classes or label columns on the screen; --json has all


def info(
    dataset: str, /, *, objects: ObjectSettings = _OBJECTS, output: OutputFlags = DEFAULT_OUTPUT
) -> None:
    """Show the content of a prepared dataset. Reads only the commit record and writes nothing.

    Parameters
    ----------
    dataset
        The folder that `gloader prepare` made, or its URL (s3://...). No array is fetched from the URL.
    objects
        Settings for the mirror of a dataset at a URL.
    """
    if is_source(dataset) and not Path(dataset).exists():
        raise ConfigError(
            f"{dataset} is a source of graphs, and no dataset yet: gloader prepare {dataset} FOLDER"
        )
    screen = Screen.open(is_json=output.json)
    with closing(open_dataset(dataset, objects)) as opened:
        if not output.json:
            screen.console.print(facts(_describe(opened), title=opened.name))
            receipt = opened.metadata.get("receipt")
            if isinstance(receipt, Mapping):
                lines = {str(name): str(text) for name, text in receipt.items()}
                screen.console.print(facts(lines, title="what came in"))
        screen.result(summary(opened))


def summary(dataset: "Dataset") -> dict[str, object]:
    """Return facts about a dataset without reading its arrays. Pure."""
    of_one: dict[str, object] = {}
    if dataset.kind == "homogeneous":  # with several types, each table has its own figures
        has_weights = "edge_weight" in dataset.arrays
        of_one = {
            "feature_dim": dataset.feature_dim,
            "feature_dtype": dataset.feature_dtype,
            "has_edge_weights": has_weights,
        }
    tasks = [{name: getattr(table, name) for name in _OF_TASKS} for table in dataset.task_tables.values()]
    return {
        "name": dataset.name,
        "path": dataset.location,
        "kind": dataset.kind,
        "num_nodes": dataset.num_nodes,
        "num_edges": dataset.num_edges,
        "num_classes": dataset.num_classes,
        **({} if dataset.label_kind == "classes" else {"label_kind": dataset.label_kind}),
        **({} if dataset.label_names is None else {"label_names": list(dataset.label_names)}),
        **of_one,
        "feature_bytes": dataset.feature_bytes,
        "topology_bytes": dataset.topology_bytes,
        "splits": dataset.labelled.split_sizes,
        "has_self_loops": dataset.has_self_loops,
        "fingerprint": dataset.fingerprint,
        "node_types": [
            {
                "name": table.name,
                "num_nodes": table.num_nodes,
                "feature_dim": table.feature_dim,
                "feature_dtype": table.feature_dtype if table.has_features else None,
                "feature_bytes": table.feature_bytes,
                "has_labels": table.has_labels and not dataset.is_for_tables_alone,
                **({} if table.key_kind is None else {"key_kind": table.key_kind}),
                **({"has_row_times": True} if table.has_row_times else {}),
            }
            for table in dataset.node_tables.values()
        ],
        "relations": [
            {
                "relation": ":".join(table.relation),
                "num_edges": table.num_edges,
                "mean_degree": table.num_edges / max(table.num_nodes, 1),
                "topology_bytes": table.topology_bytes,
                "has_edge_weights": table.has_weights,
                "has_edge_times": table.has_times,
                "time_bytes": table.time_bytes,
                "edge_feature_dim": rows.feature_dim if rows else 0,
                "edge_feature_dtype": rows.feature_dtype if rows else None,
                "edge_feature_bytes": rows.feature_bytes if rows else 0,
            }
            for table in dataset.edge_tables.values()
            for rows in [table.feature_rows]
        ],
        "link_tables": [
            {
                "name": table.name,
                "relation": ":".join(table.relation),
                "reverse_relation": None
                if table.reverse_relation is None
                else ":".join(table.reverse_relation),
                "num_rows": table.num_rows,
                "in_graph": table.in_graph,
                "label_dtype": table.label_dtype,
                "has_times": table.has_times,
                "negatives_per_row": table.negatives_per_row,
                "num_bytes": table.num_bytes + table.negative_bytes,
            }
            for table in dataset.link_tables.values()
        ],
        **({"task_tables": tasks} if tasks else {}),
        **({} if dataset.ranges is None else {"ranges": asdict(dataset.ranges)}),
        "metadata": dict(dataset.metadata),
    }


# Each of the next functions returns lines for the screen, as names and texts, or the text of one line.


def _describe(dataset: "Dataset") -> dict[str, str]:
    """Return all lines about a dataset."""
    tables = dataset.link_tables.values()
    if dataset.kind == "hetero":
        rows = _typed_tables(dataset) | _labels(dataset, f", of {dataset.labelled.name}")
        links = {table.name: _links(table, f" of {':'.join(table.relation)}") for table in tables}
    else:
        rows = _tables(dataset) | _labels(dataset, "")
        links = {table.name: _links(table, "") for table in tables}
    return {
        "path": dataset.location,
        **rows,
        **{f"links {name}": text for name, text in links.items()},
        **_hops(dataset.metadata.get("hops")),
        **{f"table {table.name}": _tasks(table) for table in dataset.task_tables.values()},
        "fingerprint": dataset.fingerprint,
        **{name.replace("_", " "): text for name, text in _notes(dataset.metadata)},
    }


def _labels(dataset: "Dataset", of_type: str) -> dict[str, str]:
    """Return the lines about classes and splits; ``of_type`` names the labelled type, if there are several."""
    if dataset.is_for_tables_alone:  # such a dataset's single class and empty splits belong to no node
        return {"labels": "none"}
    splits, width = dataset.labelled.split_sizes, dataset.label_width
    classes = {"classes": f"{dataset.num_classes:,}{of_type}{_label_names(dataset)}"}
    columns = {
        "labels": f"{width:,} column{'s' * (width != 1)}, {dataset.label_kind}{of_type}{_label_names(dataset)}"
    }
    return {
        **(classes if dataset.label_kind == "classes" else columns),
        "splits": ", ".join(f"{name} {count:,}" for name, count in splits.items()),
    }


def _label_names(dataset: "Dataset") -> str:
    """Return the first names of the classes or label columns, or no text without names."""
    names = dataset.label_names or ()
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f": {', '.join(names[:_MOST_NAMES])}{more}" if names else ""


def _tables(dataset: "Dataset") -> dict[str, str]:
    """Return the lines about the nodes, edges and features of a dataset with one type."""
    (edges,), (nodes,) = dataset.edge_tables.values(), dataset.node_tables.values()
    of_edges = edges.feature_rows
    return {
        "nodes": f"{nodes.num_nodes:,}{_keys(nodes)}",
        "edges": _edges(edges, "a node"),
        **({} if nodes.feature_rows is None else {"features": _features(nodes.feature_rows)}),
        **({} if of_edges is None else {"edge features": _features(of_edges)}),
    }


def _typed_tables(dataset: "Dataset") -> dict[str, str]:
    """Return the lines about the types and relations of a dataset with several types."""
    num_bytes = format_bytes(dataset.topology_bytes)
    return {
        "nodes": f"{dataset.num_nodes:,} of {len(dataset.node_types)} types",
        **{f"type {table.name}": _nodes(table, dataset) for table in dataset.node_tables.values()},
        "edges": f"{dataset.num_edges:,} of {len(dataset.relations)} relations, {num_bytes}",
        **{
            ":".join(table.relation): _edges(table, f"into each {table.relation[2]}") + _edge_features(table)
            for table in dataset.edge_tables.values()
        },
    }


def _nodes(table: "NodeTable", dataset: "Dataset") -> str:
    """Return a node type's number of nodes, its features, and whether it has labels."""
    labels = ", labels" if table.has_labels and not dataset.is_for_tables_alone else ""
    rows = table.feature_rows
    return f"{table.num_nodes:,}, {'no features' if rows is None else _features(rows)}{labels}{_keys(table)}"


def _keys(table: "NodeTable") -> str:
    """Return the kind of a node type's keys, and whether nodes have times. Without both the text is empty."""
    keys = "" if table.key_kind is None else f", keys {table.key_kind}"
    return f"{keys}, times" if table.has_row_times else keys


def _features(rows: "FeatureRows") -> str:
    """Return the width, dtype and bytes of features, and the rows that this machine has, if not all."""
    row_bytes = rows.feature_bytes // max(rows.num_rows, 1)
    return (
        f"{rows.feature_dim:,} x {rows.feature_dtype}, {format_bytes(row_bytes)} a row, "
        f"{format_bytes(rows.feature_bytes)}" + ("" if rows.held is None else f", here {rows.held}")
    )


def _edges(table: "EdgeTable", of_a_node: str) -> str:
    """Return a relation's number of edges, its mean degree and its bytes; ``of_a_node`` follows the degree."""
    degree = table.num_edges / max(table.num_nodes, 1)
    weights = ", weights" if table.has_weights else ""
    times = ", times" if table.has_times else ""
    return f"{table.num_edges:,} ({degree:.1f} {of_a_node}), {format_bytes(table.topology_bytes)}{weights}{times}"


def _edge_features(table: "EdgeTable") -> str:
    return "" if table.feature_rows is None else f", features {_features(table.feature_rows)}"


def _links(table: "LinkTable", of_relation: str) -> str:
    """Return a link table's rows, labels, negatives and bytes. A link table lists edges to predict."""
    parts = [f"{table.num_rows:,}{of_relation}"]
    # Held-out edges should not be in the graph, because messages pass along graph edges.
    leak = ", where a model sees what it is to predict" if table.in_graph and table.name != "train" else ""
    parts += [f"{table.in_graph:,} of them in the graph{leak}"]
    parts += [f"labels {table.label_dtype}"] if table.has_labels else []
    parts += ["times"] if table.has_times else []
    parts += [f"{table.negatives_per_row:,} negatives each"] if table.negatives_per_row else []
    return ", ".join([*parts, format_bytes(table.num_bytes + table.negative_bytes)])


def _hops(hops: object) -> dict[str, str]:
    """Return the lines about hop columns. There are none if the features are other columns."""
    try:
        groups = [f"{name} {stop - start:,}" for name, start, stop in hops["columns"]]  # type: ignore[index]
        made = {name: hops[name] for name in ("hops", "norm", "directions", "stats", "nodes", "source")}  # type: ignore[index]
    except (KeyError, TypeError, ValueError):  # another program's entry
        return {}
    more = ", ..." if len(groups) > _MOST_GROUPS else ""
    return {
        "hop columns": ", ".join(groups[:_MOST_GROUPS]) + more,
        "made by": ", ".join(f"{name} {_plain(value)}" for name, value in made.items()),
    }


def _plain(value: object) -> str:
    """Return a note as text."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _tasks(table: "TaskTable") -> str:
    """Return a task table's rows, labels and bytes. A task table lists rows to predict."""
    kind, classes = table.label_kind, f"{table.num_classes:,} class{'es' * (table.num_classes != 1)}"
    columns = f"{table.num_classes:,} column{'s' * (table.num_classes != 1)}, {kind}"
    labels = "no labels" if kind is None else classes if kind == "classes" else columns
    parts = [f"{table.num_rows:,} rows of {table.node_type}", labels]
    parts += ["times"] if table.has_times else []
    parts += ["weights"] if table.has_weights else []
    return ", ".join([*parts, format_bytes(table.num_bytes)])


def _notes(metadata: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the preparation's notes as name and text, without switches that are off."""
    for name, value in metadata.items():
        if name in _OWN_LINES:
            continue
        if isinstance(value, Mapping):
            yield from _notes(value)
        elif value is not False and value != []:
            yield name, "yes" if value is True else _plain(value)
