"""`gloader info`: the content of a prepared dataset."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.views.screen import Screen, facts
from gloader.core.units import format_bytes

if TYPE_CHECKING:
    from gloader.dataset import Dataset


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
    return {
        "name": dataset.name,
        "path": str(dataset.root),
        "num_nodes": dataset.num_nodes,
        "num_edges": dataset.num_edges,
        "num_classes": dataset.num_classes,
        "feature_dim": dataset.feature_dim,
        "feature_dtype": dataset.feature_dtype,
        "feature_bytes": dataset.feature_bytes,
        "topology_bytes": dataset.topology_bytes,
        "splits": {name: dataset.arrays[name].shape[0] for name in ("train", "valid", "test")},
        "has_self_loops": dataset.has_self_loops,
        "has_edge_weights": "edge_weight" in dataset.arrays,
        "fingerprint": dataset.fingerprint,
        "metadata": dict(dataset.metadata),
    }


def _describe(dataset: "Dataset") -> dict[str, str]:
    splits = {name: dataset.arrays[name].shape[0] for name in ("train", "valid", "test")}
    row_bytes = dataset.feature_bytes // max(dataset.num_nodes, 1)
    rows = {
        "path": str(dataset.root),
        "nodes": f"{dataset.num_nodes:,}",
        "edges": f"{dataset.num_edges:,} ({dataset.num_edges / max(dataset.num_nodes, 1):.1f} a node), "
        f"{format_bytes(dataset.topology_bytes)}",
        "features": f"{dataset.feature_dim:,} x {dataset.feature_dtype}, {format_bytes(row_bytes)} a row, "
        f"{format_bytes(dataset.feature_bytes)}",
        "classes": f"{dataset.num_classes:,}",
        "splits": ", ".join(f"{name} {count:,}" for name, count in splits.items()),
        "fingerprint": dataset.fingerprint,
    }
    return rows | {name.replace("_", " "): text for name, text in _notes(dataset.metadata)}


def _notes(metadata: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the notes of the preparation as name and text; switches that are off are left out."""
    for name, value in metadata.items():
        if isinstance(value, Mapping):
            yield from _notes(value)
        # The name and the classes have lines of their own.
        elif name not in {"name", "num_classes"} and value is not False:
            yield name, "yes" if value is True else str(value)
