"""``dgl:FILE``: a graph that DGL saved with ``dgl.save_graphs(FILE, [graph])``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gloader.convert.readers.arrays import ArrayCscEdges, ArrayFeatures
from gloader.convert.readers.attributes import Attributes
from gloader.convert.readers.labels import count_classes
from gloader.convert.readers.splits import random_splits
from gloader.convert.source import Source
from gloader.convert.sources.dgl_import import quiet_dgl
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    source = graph_source(
        graph, name=path.stem, origin=f"dgl:{argument}", where=path, seed=options.seed, extra=extra
    )
    row_bytes = source.features.dim * source.features.dtype.itemsize
    return replace(source, resident_bytes=graph.num_nodes() * row_bytes + 16 * graph.num_edges())


def graph_source(
    graph: Any,
    *,
    name: str,
    origin: str,
    where: Path | str,
    seed: int,
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> Source:
    """Return the source over a homogeneous graph in memory, whose edges are shared.

    Parameters
    ----------
    where : what holds it, for messages; the file that it came from, if any
    seed : of the random split where there are no masks
    extra : tensors that stand beside the graph

    Raises
    ------
    SourceError, ShapeError
        As `open_dgl`.
    """
    tensors = {**extra, **graph.ndata}
    nodes = Attributes(
        arrays={key: tensor.numpy() for key, tensor in tensors.items()}, where=f"{where} (node data)"
    )
    links = Attributes(
        arrays={key: tensor.numpy() for key, tensor in graph.edata.items()}, where=f"{where} (edge data)"
    )
    rows = nodes.features("feat", "features", "x")
    labels = nodes.labels("label", "labels", "y")
    weight = links.weights("weight", "edge_weight", "w", num_edges=graph.num_edges())
    indptr, indices, edge_ids = (tensor.numpy() for tensor in graph.adj_tensors("csc"))
    return Source(
        name=name,
        origin=origin,
        num_nodes=graph.num_nodes(),
        num_classes=count_classes(labels),
        edges=ArrayCscEdges.of(
            indptr,
            indices,
            where=str(where),
            weight=weight[edge_ids] if weight is not None and len(edge_ids) else weight,
        ),
        features=ArrayFeatures(rows=rows),
        labels=labels,
        splits=nodes.splits(graph.num_nodes()) or random_splits(labels, seed=seed),
        edge_file=where if isinstance(where, Path) else None,
    )


def _load(path: Path) -> tuple[Any, dict[str, Any]]:
    if not path.is_file():
        raise SourceError(f"{path} does not exist or is not a file; dgl: takes a file of dgl.save_graphs")
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise SourceError(
                f"{path} is not a file of dgl.save_graphs: it does not start with its signature"
            )
    with quiet_dgl("dgl: sources need") as dgl:
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
