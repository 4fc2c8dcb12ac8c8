"""Typed samplers to compare: gloader's, DGL's and PyG's, each a function from batches of papers to an edge count."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from gloader.convert.sources.dgl import quiet_dgl
from gloader.errors import MissingDependencyError
from gloader.samplers import make_hetero_sampler
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hetero_graphs import TypedGraph

    from gloader.config import Layout
    from gloader.types import IdArray

    Run = Callable[[Sequence[IdArray]], int]  # samples the batches, returns the number of edges

LABELLED = "paper"


def our_samplers(graph: TypedGraph, fanouts: Sequence[int], threads: int) -> dict[str, Run]:
    """Return ours in both layouts, on ``threads`` threads and on one."""
    topology = graph.topology()
    start = int(topology.type_starts[list(graph.num_nodes).index(LABELLED)])
    layouts: tuple[Layout, ...] = ("layered", "merged")
    found = {}
    for layout in layouts:
        sampler = make_hetero_sampler("neighbor", topology, tuple(fanouts), 1, layout=layout)

        def edges_of(item: tuple[int, IdArray], sampler: Any = sampler, layout: str = layout) -> int:
            batch = sampler.sample(BatchId(epoch=0, index=item[0]), item[1] + start)
            # A merged batch repeats the edges of a hop in the blocks behind it: the first holds all.
            blocks = batch.blocks[0].values() if layout == "merged" else batch.all_blocks
            return sum(block.num_edges for block in blocks)

        for count in {1, threads}:
            found[f"gloader, {layout}, {_threads(count)}"] = _on_threads(edges_of, count)
    return found


def dgl_samplers(graph: TypedGraph, fanouts: Sequence[int], threads: int) -> dict[str, Run]:
    """Return DGL's sampler on ``threads`` threads and on one; none without DGL."""
    try:
        with quiet_dgl("the comparison needs") as dgl:
            # int64 alone: of a graph with int32 ids DGL 1.1 draws a fifth to a half of the edges too few.
            typed = dgl_graph(dgl, graph)
            sampler = dgl.dataloading.NeighborSampler(list(reversed(fanouts)))
            return {f"dgl, {_threads(count)}": _dgl_run(sampler, typed, count) for count in {1, threads}}
    except MissingDependencyError as error:
        print(f"left out: {error}")
        return {}


def dgl_graph(dgl: Any, graph: TypedGraph) -> Any:
    """Return ``graph`` as DGL's heterograph, in the format that its sampler reads."""
    arrays = {
        relation: (
            "csc",
            (torch.from_numpy(indptr), torch.from_numpy(indices).long(), torch.empty(0, dtype=torch.int64)),
        )
        for relation, (indptr, indices) in graph.csc().items()
    }
    return dgl.heterograph(arrays, num_nodes_dict=graph.num_nodes).formats("csc")


def pyg_samplers(graph: TypedGraph, fanouts: Sequence[int], threads: int) -> dict[str, Run]:
    """Return PyG's sampler on ``threads`` threads and on one; none where it has no kernels."""
    try:
        data = pyg_graph(graph)
    except MissingDependencyError as error:
        print(f"left out: {error}")
        return {}
    from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch-sparse is old
        sampler = NeighborSampler(data, num_neighbors=list(fanouts), is_sorted=True)

    def make(count: int) -> Run:
        def run(batches: Sequence[IdArray]) -> int:
            torch.set_num_threads(count)
            edges = 0
            for batch in batches:
                given = NodeSamplerInput(
                    input_id=None, node=torch.from_numpy(batch), time=None, input_type=LABELLED
                )
                edges += sum(len(rows) for rows in sampler.sample_from_nodes(given).row.values())
            return edges

        return run

    return {f"pyg, {_threads(count)}": make(count) for count in {1, threads}}


def pyg_graph(graph: TypedGraph) -> Any:
    """Return ``graph`` without features as PyG's ``HeteroData``.

    Raises
    ------
    MissingDependencyError
        PyG is not installed, or neither pyg-lib nor torch-sparse.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch_geometric import typing as support
            from torch_geometric.data import HeteroData
    except ImportError as error:
        raise MissingDependencyError(f"PyG is not installed ({error})") from error
    if not (support.WITH_PYG_LIB or support.WITH_TORCH_SPARSE):
        raise MissingDependencyError(
            "PyG's NeighborLoader needs pyg-lib or torch-sparse; install one that fits this torch"
        )
    data = HeteroData()
    for name, count in graph.num_nodes.items():
        data[name].num_nodes = count
    for relation, pair in graph.edges.items():
        data[relation].edge_index = torch.from_numpy(pair).long()
    return data


def _dgl_run(sampler: Any, graph: Any, threads: int) -> Run:
    def run(batches: Sequence[IdArray]) -> int:
        torch.set_num_threads(threads)  # of OpenMP, which DGL uses too
        edges = 0
        for batch in batches:
            blocks = sampler.sample_blocks(graph, {LABELLED: torch.from_numpy(batch)})[2]
            edges += sum(block.num_edges(relation) for block in blocks for relation in block.canonical_etypes)
        return edges

    return run


def _on_threads(edges_of: Callable[[tuple[int, IdArray]], int], threads: int) -> Run:
    def run(batches: Sequence[IdArray]) -> int:
        if threads == 1:
            return sum(map(edges_of, enumerate(batches)))
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(edges_of, enumerate(batches)))

    return run


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def pyg_kernels() -> str | None:
    """Return what PyG samples with: pyg-lib, torch-sparse, which is slower, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch_geometric import typing as support
    except ImportError:
        return None
    if support.WITH_PYG_LIB:
        return "pyg-lib"
    return "torch-sparse" if support.WITH_TORCH_SPARSE else None
