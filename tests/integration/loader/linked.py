"""A dataset with link tables, edge features and times, whose arrays a test has in memory too."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gloader import Dataset
from gloader.types import NO_EDGE, LinkBatch, ReadyBatch

NUM_NODES, NUM_EDGES, NUM_ROWS = 400, 3000, 500
DIM, EDGE_DIM = 6, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedGraph:
    """The dataset, and what was written to it."""

    dataset: Dataset
    indptr: NDArray[np.int64]
    src: NDArray[np.int64]  # (E,) in the order of positions
    dst: NDArray[np.int64]
    time: NDArray[np.int64]
    x: NDArray[np.float32]
    edge_x: NDArray[np.float32]
    pairs: NDArray[np.int64]  # (n, 4) of the table "train"
    times: NDArray[np.int64]  # (n,)


def write_linked(root: Path, *, seed: int = 0, edge_features: bool = True) -> LinkedGraph:
    """Write a graph of random edges, some of them parallel, and a table of some of them with two that it lacks."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, NUM_NODES, (2, NUM_EDGES))
    dst[:200] = 7  # a hub
    src[300:320], dst[300:320] = src[320:340], dst[320:340]  # parallel edges
    src[340:400], dst[340:400] = dst[400:460], src[400:460]  # reverses
    time = rng.integers(0, 1000, NUM_EDGES)
    order = np.lexsort((src, time, dst))
    src, dst, time = src[order], dst[order], time[order]
    indptr = np.zeros(NUM_NODES + 1, np.int64)
    np.cumsum(np.bincount(dst, minlength=NUM_NODES), out=indptr[1:])
    x = rng.standard_normal((NUM_NODES, DIM)).astype(np.float32)
    edge_x = rng.standard_normal((NUM_EDGES, EDGE_DIM)).astype(np.float32)
    position = {(int(s), int(d)): at for at, (s, d) in enumerate(zip(src, dst, strict=True))}
    taken = rng.permutation(NUM_EDGES)[: NUM_ROWS - 2]
    reverse = [position.get((int(dst[at]), int(src[at])), NO_EDGE) for at in taken]
    pairs = np.stack([src[taken], dst[taken], taken, np.array(reverse)], axis=1)
    pairs = np.concatenate([pairs, [[1, 2, NO_EDGE, NO_EDGE], [3, 3, NO_EDGE, NO_EDGE]]])
    times = np.concatenate([time[taken], [500, 0]])
    with Dataset.create(root, name="linked", num_nodes=NUM_NODES, num_classes=2) as writer:
        with writer.indptr() as array:
            array.append(indptr)
        with writer.indices(NUM_EDGES, "int32") as array:
            array.append(src.astype(np.int32))
        with writer.edge_time(NUM_EDGES) as array:
            array.append(time)
        with writer.features(DIM, "float32") as column:
            column.append(x)
        if edge_features:
            with writer.edge_features(NUM_EDGES, EDGE_DIM, "float32") as column:
                column.append(edge_x)
        writer.labels(np.arange(NUM_NODES) % 2)
        nothing = np.empty(0, np.int64)
        writer.splits(train=np.arange(0, NUM_NODES, 2), valid=nothing, test=nothing)
        table = writer.links("train")
        with table.pairs(NUM_ROWS) as array:
            array.append(pairs)
        with table.times(NUM_ROWS) as array:
            array.append(times)
    return LinkedGraph(
        dataset=Dataset.open(root),
        indptr=indptr,
        src=src,
        dst=dst,
        time=time,
        x=x,
        edge_x=edge_x,
        pairs=pairs,
        times=times,
    )


def link_contents(batch: LinkBatch) -> tuple[Any, ...]:
    """Return everything that is in a batch of links over one type, to be compared."""
    ready = batch.batch
    assert isinstance(ready, ReadyBatch)
    blocks = [
        (
            block.indptr.tolist(),
            block.indices.tolist(),
            block.edge_ids.tolist(),
            block.src_degree.tolist(),
            block.num_src,
            block.num_dst,
        )
        for block in ready.blocks
    ]
    edge_x = [None if block.edge_x is None else block.edge_x.numpy().tobytes() for block in ready.blocks]
    return (
        batch.id,
        batch.pairs.tolist(),
        batch.labels.tolist(),
        batch.edge_ids.tolist(),
        batch.num_positives,
        ready.nodes.tolist(),
        ready.num_seeds,
        ready.x.numpy().tobytes(),
        blocks,
        edge_x,
    )


def check_rows(graph: LinkedGraph, batch: ReadyBatch) -> None:
    """Check that every row of nodes and of edges is the one that was written, and that edges end where they should."""
    assert np.array_equal(batch.x.numpy(), graph.x[batch.nodes])
    for block in batch.blocks:
        ids = block.edge_ids.numpy()
        assert block.edge_x is not None
        assert np.array_equal(block.edge_x.numpy(), graph.edge_x[ids])
        index = block.edge_index.numpy()
        assert np.array_equal(batch.nodes[index[0]], graph.src[ids])
        assert np.array_equal(batch.nodes[index[1]], graph.dst[ids])
