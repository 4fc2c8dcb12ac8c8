"""Train GCN and GraphSAGE with every sampler on real graphs: accuracy, rows per batch, time.

    python experiments/bench/samplers_table.py --data FOLDER --out experiments/results/DATE-samplers

FOLDER holds one folder per graph (graph.npz, features_csr.npz, split.npz). Writes OUT.json and OUT.md. Features are
in memory and the time of an epoch is sampling, gathering and training, one after the other, without evaluation: what
a sampler costs and what its rows cost. Test accuracy is taken from all neighbours, at the epoch of the best
validation accuracy; the same seeds, batches, network and number of epochs for every sampler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import sparse
from torch.nn import functional

from gloader.config import ModelConfig
from gloader.lab.bench.environment import provenance
from gloader.models import GraphNetwork, build_model
from gloader.pipeline.send import to_device_block
from gloader.samplers import CscGraph, make_sampler
from gloader.ssd_store.feature_store import RamFeatures
from gloader.training.evaluate import evaluate
from gloader.training.inference.layerwise_inference import HeteroInference
from gloader.types import BatchId, IdArray, SampledBatch, Sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.config import ModelName

CPU = torch.device("cpu")
HOPS = 2
SAMPLERS = {
    "all neighbours": "neighbor",
    "neighbour": "neighbor",
    "weighted": "weighted",
    "LABOR-0": "labor",
    "LABOR-0, normalised": "labor:normalize=true",
    "LABOR-0, shared layers": "labor:normalize=true,share_layers=true",
    "LABOR-1": "labor:normalize=true,iterations=1",
    "LABOR-*": "labor:normalize=true,iterations=-1",
    "LADIES": "ladies:normalize=true",
    "FastGCN": "fastgcn:normalize=true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGraph:
    """A dataset in memory."""

    name: str
    topology: CscGraph
    features: NDArray[np.float32]  # (N, F)
    labels: IdArray
    splits: dict[str, IdArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """One network trained with one sampler."""

    test_acc: float
    nodes_per_batch: float  # unique rows
    edges_per_batch: float
    sample_ms: float  # per batch, one thread
    epoch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRow:
    """One line of the table: means over the runs."""

    graph: str
    model: str
    sampler: str
    test_acc: float
    test_std: float
    nodes_per_batch: float
    edges_per_batch: float
    sample_ms: float
    epoch_s: float


def main() -> None:
    """Train every combination that was asked for and write the table."""
    options = _options()
    torch.set_num_threads(options.threads)
    rows: list[SamplerRow] = []
    for name in options.datasets:
        graph = load_graph(options.data / name)
        for model in options.models:
            for label in options.samplers:
                runs = [train(graph, model, label, options, seed) for seed in range(options.runs)]
                rows.append(_row(graph.name, model, label, runs))
                print(markdown_row(rows[-1]), flush=True)
    _write(rows, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare samplers on real graphs.")
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per graph")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    parser.add_argument("--datasets", nargs="*", default=["amazon_cs", "dblp"])
    parser.add_argument("--models", nargs="*", default=["graphsage", "gcn"])
    parser.add_argument("--samplers", nargs="*", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--fanout", type=int, default=5, help="neighbours per node in both hops")
    parser.add_argument("--layer-sizes", type=int, nargs=HOPS, default=[1024, 2048], help="LADIES, FastGCN")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    return parser.parse_args()


def load_graph(folder: Path) -> TableGraph:
    """Read a graph; its edges weigh as GCN's normalised adjacency, for the weighted sampler."""
    with np.load(folder / "graph.npz") as arrays, np.load(folder / "split.npz") as split:
        indptr, indices = arrays["indptr"], arrays["indices"]
        degree = np.diff(indptr) + 1.0
        weight = 1 / np.sqrt(np.repeat(degree, np.diff(indptr)) * degree[indices])
        return TableGraph(
            name=folder.name,
            topology=CscGraph(indptr=indptr, indices=indices, edge_weight=weight),
            features=sparse.load_npz(folder / "features_csr.npz").toarray().astype(np.float32),
            labels=arrays["labels"],
            splits={name: split[name].astype(np.int64) for name in ("train", "valid", "test")},
        )


def train(
    graph: TableGraph, model: ModelName, label: str, options: argparse.Namespace, seed: int
) -> TrainedRun:
    """Train one network."""
    torch.manual_seed(seed)
    sampler = _sampler(graph, model, label, options, seed)
    network = build_model(
        ModelConfig(name=model, hidden=options.hidden),
        in_dim=graph.features.shape[1],
        out_dim=int(graph.labels.max()) + 1,
        num_layers=HOPS,
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr)
    best, test_acc = -1.0, 0.0
    batches: list[SampledBatch] = []
    sample_s, epoch_s = [], []
    for epoch in range(options.epochs):
        started = time.perf_counter()
        seeds = np.random.default_rng([seed, epoch]).permutation(graph.splits["train"])
        for index, start in enumerate(range(0, len(seeds), options.batch_size)):
            before = time.perf_counter()
            batch_seeds = seeds[start : start + options.batch_size]
            batches.append(sampler.sample(BatchId(epoch=epoch, index=index), batch_seeds))
            sample_s.append(time.perf_counter() - before)
            _step(graph, network, optimizer, batches[-1])
        epoch_s.append(time.perf_counter() - started)
        accuracy = _accuracy(graph, network)
        if accuracy["valid"] > best:
            best, test_acc = accuracy["valid"], accuracy["test"]
    return TrainedRun(
        test_acc=test_acc,
        nodes_per_batch=statistics.mean(len(batch.nodes) for batch in batches),
        edges_per_batch=statistics.mean(sum(block.num_edges for block in batch.blocks) for batch in batches),
        sample_ms=1000 * statistics.median(sample_s),
        epoch_s=statistics.median(epoch_s),
    )


def _sampler(graph: TableGraph, model: str, label: str, options: argparse.Namespace, seed: int) -> Sampler:
    spec = SAMPLERS[label]
    sizes = [-1 if label == "all neighbours" else options.fanout] * HOPS
    extra: dict[str, Any] = {}
    if spec.startswith(("ladies", "fastgcn")):
        sizes, extra = options.layer_sizes, {"adjacency": "gcn" if model == "gcn" else "mean"}
    return make_sampler(spec, graph.topology, sizes, seed, **extra)


def _step(
    graph: TableGraph, network: GraphNetwork, optimizer: torch.optim.Optimizer, batch: SampledBatch
) -> None:
    """Gather the features of a batch and train on it."""
    x = torch.from_numpy(graph.features[batch.nodes])
    degree = torch.from_numpy(graph.topology.in_degrees(batch.nodes)).float()
    blocks = [to_device_block(block, degree, CPU) for block in batch.blocks]
    y = torch.from_numpy(graph.labels[batch.nodes[: batch.num_seeds]])
    optimizer.zero_grad()
    torch.autograd.backward(functional.cross_entropy(network(x, blocks), y))
    optimizer.step()


def _accuracy(graph: TableGraph, network: GraphNetwork) -> dict[str, float]:
    inference = HeteroInference.of_one_type(
        graph=graph.topology, features=RamFeatures(graph.features), memory_budget_bytes=1 << 30
    )
    splits = {name: graph.splits[name] for name in ("valid", "test")}
    return {name: value or 0.0 for name, value in evaluate(network, inference, graph.labels, splits).items()}


def _row(graph: str, model: str, label: str, runs: list[TrainedRun]) -> SamplerRow:
    means = {name: statistics.mean(getattr(run, name) for run in runs) for name in asdict(runs[0])}
    spread = statistics.stdev(run.test_acc for run in runs) if len(runs) > 1 else 0.0
    return SamplerRow(graph=graph, model=model, sampler=label, test_std=spread, **means)


def markdown_row(row: SamplerRow) -> str:
    """Return one line of the table. Pure."""
    return (
        f"| {row.graph} | {row.model} | {row.sampler} | {100 * row.test_acc:.1f} ± {100 * row.test_std:.1f} "
        f"| {row.nodes_per_batch:,.0f} | {row.edges_per_batch:,.0f} | {row.sample_ms:.2f} ms | {row.epoch_s:.2f} s |"
    )


def _write(rows: list[SamplerRow], options: argparse.Namespace) -> None:
    if options.out is None:
        return
    caption = (
        f"Test accuracy in per cent, mean and deviation of {options.runs} seeds, best of {options.epochs} epochs; "
        f"fan-out {options.fanout} in {HOPS} hops, layers of {options.layer_sizes} nodes, batches of "
        f"{options.batch_size}."
    )
    head = [
        caption,
        "",
        "| graph | model | sampler | test accuracy | rows per batch | edges per batch | sampling a batch | epoch |",
        "|---|---|---|---|---|---|---|---|",
    ]
    table = "\n".join([*head, *map(markdown_row, rows)]) + "\n"
    settings = {key: value for key, value in vars(options).items() if key not in ("data", "out")}
    figures = {
        "rows": [asdict(row) for row in rows],
        "settings": settings,
        **provenance(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".md").write_text(table, encoding="utf-8")
    options.out.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
