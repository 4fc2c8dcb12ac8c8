"""``dgl:FILE``: a graph that DGL saved with ``dgl.save_graphs(FILE, [graph])``."""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gloader.convert.arrays import ArrayEdges, ArrayFeatures
from gloader.convert.attributes import Attributes
from gloader.convert.labels import count_classes
from gloader.convert.source import Source
from gloader.convert.splits import random_splits
from gloader.errors import MissingDependencyError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.convert.options import SourceOptions

_MAGIC = (0xDD2E4FF046B4A13F).to_bytes(8, "little")  # of every file of dgl.save_graphs


def open_dgl(argument: str, options: SourceOptions) -> Source:
    """Open a saved homogeneous graph with node data feat, label and masks, and perhaps edge data weight.

    Without masks, ``options.seed`` decides a random split.

    Raises
    ------
    MissingDependencyError
        DGL is not installed.
    SourceError
        The file is missing, is not such a file, holds other than one homogeneous graph, or lacks a key.
    ShapeError
        A tensor has the wrong shape or dtype.
    """
    path = Path(argument).expanduser()
    graph, extra = _load(path)
    nodes = Attributes(
        arrays={
            **{name: tensor.numpy() for name, tensor in extra.items()},
            **{name: tensor.numpy() for name, tensor in graph.ndata.items()},
        },
        where=f"{path} (node data)",
    )
    links = Attributes(
        arrays={name: tensor.numpy() for name, tensor in graph.edata.items()}, where=f"{path} (edge data)"
    )
    rows = nodes.features("feat", "features", "x")
    labels = nodes.labels("label", "labels", "y")
    src, dst = graph.edges(order="eid")
    return Source(
        name=path.stem,
        origin=f"dgl:{argument}",
        num_nodes=graph.num_nodes(),
        num_classes=count_classes(labels),
        edges=ArrayEdges(
            src=src.numpy(),
            dst=dst.numpy(),
            where=str(path),
            weight=links.weights("weight", "edge_weight", "w", num_edges=graph.num_edges()),
        ),
        features=ArrayFeatures(rows=rows),
        labels=labels,
        splits=nodes.splits(graph.num_nodes()) or random_splits(labels, seed=options.seed),
        edge_file=path,
        resident_bytes=rows.nbytes + 16 * graph.num_edges(),
    )


def _load(path: Path) -> tuple[Any, dict[str, Any]]:
    if not path.is_file():
        raise SourceError(f"{path} does not exist or is not a file; dgl: takes a file of dgl.save_graphs")
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise SourceError(
                f"{path} is not a file of dgl.save_graphs: it does not start with its signature"
            )
    with _quiet_dgl() as dgl:
        try:
            graphs, extra = dgl.load_graphs(str(path))
        except (dgl.DGLError, RuntimeError, ValueError, KeyError) as error:
            reason = str(error).partition("\n")[0].rpartition("Check failed: ")[2]  # without the C++ stack
            raise SourceError(f"{path} is damaged, DGL cannot read it: {reason}") from error
    if len(graphs) != 1:
        raise SourceError(f"{path} holds {len(graphs)} graphs; save one")
    if not graphs[0].is_homogeneous:
        raise SourceError(f"{path} holds a heterogeneous graph; convert it with dgl.to_homogeneous first")
    return graphs[0], extra


@contextmanager
def _quiet_dgl() -> Iterator[Any]:
    """Import DGL with its torch backend, without its warnings and without the file it writes in $HOME."""
    before = os.environ.get("DGLBACKEND")
    os.environ["DGLBACKEND"] = "pytorch"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                import dgl
            except ImportError as error:
                raise MissingDependencyError(
                    f"dgl: sources need DGL ({error}); install it with: pip install 'gloader[dgl]'"
                ) from error
            yield dgl
    finally:
        if before is None:
            del os.environ["DGLBACKEND"]
        else:
            os.environ["DGLBACKEND"] = before
