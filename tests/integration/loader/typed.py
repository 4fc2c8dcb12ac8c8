"""A small graph of several node types on disk, and its batches without a loader."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gloader
from gloader import Dataset
from gloader.core.order import EpochOrder
from gloader.samplers import make_hetero_sampler
from gloader.samplers.arguments import checked_fanouts
from gloader.types import BatchId, HeteroReadyBatch, Relation

NUM_NODES = {"author": 300, "paper": 240, "field": 20, "nobody": 0}
WIDTHS = {"paper": 12, "field": 5}
NUM_CLASSES = 4
EDGES: dict[Relation, int] = {
    ("author", "writes", "paper"): 900,
    ("paper", "written_by", "author"): 900,
    ("paper", "cites", "paper"): 700,
    ("field", "of", "paper"): 500,
    ("nobody", "reads", "paper"): 0,
    ("paper", "has", "field"): 500,
}
WEIGHTED: tuple[Relation, ...] = (("author", "writes", "paper"), ("paper", "has", "field"))
FANOUTS: Any = {"author:writes:paper": [4, 3], ("paper", "cites", "paper"): [3, 2], "*": [2, 2]}


@dataclass(frozen=True, kw_only=True)
class TypedGraph:
    """A dataset and what was written into it."""

    dataset: Dataset
    features: Mapping[str, NDArray[np.float32]]
    labels: NDArray[np.int64]


def write_typed(
    path: Path,
    *,
    dtype: str = "float32",
    has_features: bool = True,
    seed: int = 7,
    num_train: int = 100,
    overwrite: bool = False,
) -> TypedGraph:
    """Write a graph of four types, one of them without nodes and one without features."""
    rng = np.random.Generator(np.random.Philox(seed))
    features = {
        name: rng.standard_normal((NUM_NODES[name], width)).astype(np.float32)
        for name, width in (WIDTHS.items() if has_features else ())
    }
    edges = {}
    for (source, name, destination), count in EDGES.items():
        # Some nodes are far more used than others, as in real graphs: caches have something to do.
        sources = (max(NUM_NODES[source], 1) * rng.random(count) ** 3).astype(np.int64)
        edges[source, name, destination] = np.stack([sources, rng.integers(0, NUM_NODES[destination], count)])
    labels, order = rng.integers(0, NUM_CLASSES, NUM_NODES["paper"]), rng.permutation(NUM_NODES["paper"])
    dataset = Dataset.from_numpy_hetero(
        path,
        num_nodes=NUM_NODES,
        features=features,
        edges=edges,
        edge_weight={
            relation: np.random.default_rng(1).random(edges[relation].shape[1], np.float32)
            for relation in WEIGHTED
        },
        labels={"paper": labels},
        train=order[:num_train],
        valid=order[100:150],
        test=order[150:],
        name="typed",
        feature_dtype=dtype,
        overwrite=overwrite,
    )
    found = {name: dataset.node_tables[name].all_features() for name in features}
    return TypedGraph(dataset=dataset, features=found, labels=labels)


def contents(batch: HeteroReadyBatch) -> dict[str, Any]:
    """Return every array of a batch by name, as lists."""
    found: dict[str, Any] = {"id": batch.id, "y": batch.y.tolist(), "num_seeds": dict(batch.num_seeds)}
    for name, nodes in batch.nodes.items():
        found[f"nodes {name}"], found[f"x {name}"] = nodes.tolist(), batch.x[name].tolist()
    for number, hop in enumerate(batch.blocks):
        for relation, block in hop.items():
            arrays = (block.indptr, block.indices, block.edge_ids)
            found[f"{number} {relation}"] = [block.num_src, block.num_dst, *(a.tolist() for a in arrays)]
    return found


def expected(
    graph: TypedGraph,
    *,
    fanouts: Any = FANOUTS,
    batch_size: int = 16,
    epochs: int = 1,
    layout: Any = "layered",
    seeds: NDArray[np.int64] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the contents of the batches of a loader with seed 3: sampled one by one, rows and labels looked up."""
    dataset = graph.dataset
    starts = dataset.type_starts
    paper = dataset.node_tables["paper"].number
    order = EpochOrder(
        seeds=dataset.train + starts[paper] if seeds is None else seeds,
        num_nodes=int(starts[-1]),
        batch_size=batch_size,
        seed=3,
    )
    sampler = make_hetero_sampler(
        "neighbor", dataset.load_hetero_graph(), checked_fanouts(fanouts), 3, layout=layout
    )
    for epoch in range(epochs):
        positions = order.epoch_positions(epoch)
        for index in range(order.num_batches):
            ids = order.seeds[order.batch_seeds(positions, index)]
            batch = sampler.sample(BatchId(epoch=epoch, index=index), ids)
            papers = ids[(ids >= starts[paper]) & (ids < starts[paper + 1])] - starts[paper]
            found: dict[str, Any] = {
                "id": batch.id,
                "y": graph.labels[papers].tolist(),
                "num_seeds": dict(batch.num_seeds),
            }
            for name, nodes in batch.nodes.items():
                rows = graph.features.get(name, np.empty((NUM_NODES[name], 0), dtype=np.float32))
                found[f"nodes {name}"], found[f"x {name}"] = nodes.tolist(), rows[nodes].tolist()
            for number, hop in enumerate(batch.blocks):
                for relation, block in hop.items():
                    arrays = (block.indptr, block.indices, block.edge_ids)
                    found[f"{number} {relation}"] = [
                        block.num_src,
                        block.num_dst,
                        *(a.tolist() for a in arrays),
                    ]
            yield found


def open_loader(graph: TypedGraph, **settings: Any) -> gloader.HeteroLoader:
    """Return a loader with the settings of `expected`, and those given."""
    return gloader.HeteroLoader(
        graph.dataset, **{"fanouts": FANOUTS, "batch_size": 16, "seed": 3, "memory_budget": "80MB"} | settings
    )
