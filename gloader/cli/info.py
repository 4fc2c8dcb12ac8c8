"""`gloader info`: the content of a prepared dataset."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.views.screen import Screen, facts
from gloader.core.units import format_bytes

if TYPE_CHECKING:
    from gloader.dataset import Dataset
    from gloader.dataset.edge_table import EdgeTable
    from gloader.dataset.node_table import NodeTable

_SAID = frozenset({"name", "num_classes", "dataset_version", "node_types", "relations"})


def info(dataset: Path, /, *, output: OutputFlags = DEFAULT_OUTPUT) -> None:
    """Show what a prepared dataset holds. Reads the commit record alone and writes nothing.

    Parameters
    ----------
    dataset
        The folder that `gloader prepare` made.
    """
    from gloader.dataset import Dataset

    screen = Screen.open(is_json=output.json)
    opened = Dataset.open(dataset)
    if not output.json:
        screen.console.print(facts(_describe(opened), title=opened.name))
    screen.result(summary(opened))


def summary(dataset: "Dataset") -> dict[str, object]:
    """Return what is known about a dataset without reading its arrays. Pure."""
    of_one: dict[str, object] = {}
    if dataset.kind == "homogeneous":  # of several types, it stands with each
        has_weights = "edge_weight" in dataset.arrays
        of_one = {
            "feature_dim": dataset.feature_dim,
            "feature_dtype": dataset.feature_dtype,
            "has_edge_weights": has_weights,
        }
    return {
        "name": dataset.name,
        "path": str(dataset.root),
        "kind": dataset.kind,
        "num_nodes": dataset.num_nodes,
        "num_edges": dataset.num_edges,
        "num_classes": dataset.num_classes,
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
                "has_labels": table.has_labels,
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
            }
            for table in dataset.edge_tables.values()
        ],
        "metadata": dict(dataset.metadata),
    }


def _describe(dataset: "Dataset") -> dict[str, str]:
    splits = dataset.labelled.split_sizes
    is_typed = dataset.kind == "hetero"
    rows = {
        "path": str(dataset.root),
        **(_typed_tables(dataset) if is_typed else _tables(dataset)),
        "classes": f"{dataset.num_classes:,}" + (f", of {dataset.labelled.name}" if is_typed else ""),
        "splits": ", ".join(f"{name} {count:,}" for name, count in splits.items()),
        "fingerprint": dataset.fingerprint,
    }
    return rows | {name.replace("_", " "): text for name, text in _notes(dataset.metadata)}


def _tables(dataset: "Dataset") -> dict[str, str]:
    (edges,), (nodes,) = dataset.edge_tables.values(), dataset.node_tables.values()
    return {
        "nodes": f"{nodes.num_nodes:,}",
        "edges": _edges(edges, "a node"),
        "features": _features(nodes),
    }


def _typed_tables(dataset: "Dataset") -> dict[str, str]:
    num_bytes = format_bytes(dataset.topology_bytes)
    return {
        "nodes": f"{dataset.num_nodes:,} of {len(dataset.node_types)} types",
        **{f"type {table.name}": _nodes(table) for table in dataset.node_tables.values()},
        "edges": f"{dataset.num_edges:,} of {len(dataset.relations)} relations, {num_bytes}",
        **{
            ":".join(table.relation): _edges(table, f"into each {table.relation[2]}")
            for table in dataset.edge_tables.values()
        },
    }


def _nodes(table: "NodeTable") -> str:
    labels = ", labels" if table.has_labels else ""
    return f"{table.num_nodes:,}, {_features(table) if table.has_features else 'no features'}{labels}"


def _features(table: "NodeTable") -> str:
    row_bytes = table.feature_bytes // max(table.num_nodes, 1)
    return (
        f"{table.feature_dim:,} x {table.feature_dtype}, {format_bytes(row_bytes)} a row, "
        f"{format_bytes(table.feature_bytes)}"
    )


def _edges(table: "EdgeTable", of_a_node: str) -> str:
    degree = table.num_edges / max(table.num_nodes, 1)
    weights = ", weights" if table.has_weights else ""
    return f"{table.num_edges:,} ({degree:.1f} {of_a_node}), {format_bytes(table.topology_bytes)}{weights}"


def _notes(metadata: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the notes of the preparation as name and text; switches that are off are left out."""
    for name, value in metadata.items():
        if isinstance(value, Mapping):
            yield from _notes(value)
        # The others have lines of their own.
        elif name not in _SAID and value is not False and value != []:
            yield (
                name,
                "yes"
                if value is True
                else ", ".join(map(str, value))
                if isinstance(value, list)
                else str(value),
            )
