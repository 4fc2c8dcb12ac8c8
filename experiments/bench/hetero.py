"""Typed graphs: sampling and epochs beside DGL's and PyG's own heterogeneous loaders, on a graph of ogbn-mag's shape.

    python experiments/bench/hetero.py --workdir FOLDER --out experiments/results/DATE-hetero

Every round runs every contender, one after the other, so that a change in the machine's load meets all; figures are
medians over the rounds, and ratios are those of one round, of which the median is taken too. DGL draws in every hop for
every node that is known by then, as our layered batches, and is compared with them; PyG once for each node, as our
merged ones. A contender that is not installed, or without the kernels that it needs, is left out and named.

Parts: "sampler" counts batches and edges a second; "load" runs epochs that do nothing with a batch; "train" does a step
of R-SAGE on it, the same model for all. What it takes to bring a peer's batch into the model's form is not counted as
its time. "ssd" trains with the features on the SSD and a tenth of them in memory, beside features in memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hetero_graphs import make_mag
from hetero_samplers import LABELLED, dgl_samplers, our_samplers, pyg_kernels, pyg_samplers
from hetero_streams import DglStream, GloaderStream, PygStream, Stream

from gloader import Dataset
from gloader.config import ModelConfig, OptimConfig
from gloader.errors import MissingDependencyError
from gloader.lab.bench.environment import provenance
from gloader.models import build_hetero_model
from gloader.training.model_spec import schema_of
from gloader.training.train_step import build_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hetero_graphs import TypedGraph

    from gloader.types import HeteroReadyBatch

PARTS = ("sampler", "load", "train", "ssd")
FANOUTS = ("25,20", "10,5")
# Which of ours draws as a peer does.
LAYOUT_OF = {"dgl": "layered", "pyg": "merged"}


def main() -> None:
    """Measure, print the ratios, write JSON."""
    options = _options()
    graph = make_mag(options.scale, seed=1)
    result: dict[str, Any] = {
        "graph": graph.to_json(),
        "settings": _settings(options),
        "pyg_kernels": pyg_kernels(),
    }
    for text in options.fanouts:
        fanouts = [int(fanout) for fanout in text.split(",")]
        if "sampler" in options.parts:
            result[f"sampler {text}"] = _sampler(graph, fanouts, options)
    epochs = [part for part in options.parts if part != "sampler"]
    if epochs:
        options.workdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="gloader-hetero-", dir=options.workdir) as folder:
            dataset = _dataset(Path(folder) / "mag", graph)
            for text in options.fanouts:
                fanouts = [int(fanout) for fanout in text.split(",")]
                for part in epochs:
                    result[f"{part} {text}"] = _epochs(part, dataset, graph, fanouts, options)
    result |= provenance()
    print(json.dumps(_ratios(result), indent=1))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of ogbn-mag's nodes, edges and seeds")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--fanouts", nargs="+", default=list(FANOUTS), help="next to the seeds first")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, default=16, help="of a round of the sampler")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epoch-batches", type=int, default=60, help="of an epoch")
    parser.add_argument("--epoch-rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="of the peers' loaders")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--memory-budget", default="8GB")
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="writes OUT.json")
    return parser.parse_args()


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name not in {"workdir", "out"}}


def _sampler(graph: TypedGraph, fanouts: Sequence[int], options: argparse.Namespace) -> dict[str, Any]:
    """Return batches and edges a second of every contender, and the ratios to each peer at its best."""
    order = np.random.default_rng(2).permutation(graph.train)
    size = options.batch_size
    starts = range(0, len(order) - size + 1, size)
    batches = [order[start : start + size] for start in starts][: options.batches]
    contenders = (
        our_samplers(graph, fanouts, options.threads)
        | dgl_samplers(graph, fanouts, options.threads)
        | pyg_samplers(graph, fanouts, options.threads)
    )
    runs: dict[str, list[float]] = {name: [] for name in contenders}
    edges: dict[str, float] = {}
    for number in range(options.rounds + 1):  # the first warms all up
        for name, run in contenders.items():
            started = time.perf_counter()
            edges[name] = run(batches) / len(batches)
            if number:
                runs[name].append(len(batches) / (time.perf_counter() - started))
    return {
        "batches_per_second": {name: statistics.median(found) for name, found in runs.items()},
        "edges_per_batch": edges,
        "runs_batches_per_second": runs,
        "ratios": _to_peers(runs, one_thread=False),
        "ratios_one_thread": _to_peers(runs, one_thread=True),
    }


def _to_peers(rates: Mapping[str, Sequence[float]], *, one_thread: bool) -> dict[str, Any]:
    """Return ours to each peer's best setting: median, least and most over the rounds. Pure."""
    chosen = {name: found for name, found in rates.items() if name.endswith(", 1 thread") is one_thread}
    if not any(name.startswith("gloader") for name in chosen):  # one thread is all that was asked for
        return {}
    ratios = {}
    for peer, layout in LAYOUT_OF.items():
        theirs = [name for name in chosen if name.startswith(peer)]
        if theirs:
            best = max(theirs, key=lambda name: statistics.median(chosen[name]))
            (ours,) = (name for name in chosen if name.startswith(f"gloader, {layout}"))
            ratios[peer] = _spread(chosen[ours], chosen[best]) | {"setting": best}
    return ratios


def _spread(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    pairs = [ours_of / theirs_of for ours_of, theirs_of in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(pairs), "least": min(pairs), "most": max(pairs)}


def _dataset(path: Path, graph: TypedGraph) -> Dataset:
    rest = np.setdiff1d(np.arange(graph.num_nodes[LABELLED]), graph.train)
    return Dataset.from_numpy_hetero(
        path,
        num_nodes=graph.num_nodes,
        features=graph.features,
        edges=graph.edges,
        labels={LABELLED: graph.labels},
        train=graph.train,
        valid=rest[::2],
        test=rest[1::2],
        num_classes=graph.num_classes,
    )


def _epochs(
    part: str, dataset: Dataset, graph: TypedGraph, fanouts: Sequence[int], options: argparse.Namespace
) -> dict[str, Any]:
    """Return seconds a batch of every contender, and their ratios to ours in memory."""
    seeds = np.random.default_rng(3).permutation(graph.train)[: options.epoch_batches * options.batch_size]
    contenders = _contenders(part, dataset, graph, np.sort(seeds), fanouts, options)
    use = _step(dataset, len(fanouts), options.hidden) if part != "load" else _nothing
    runs: dict[str, list[float]] = {name: [] for name in contenders}
    converting: dict[str, list[float]] = {name: [] for name in contenders}
    try:
        for number in range(options.epoch_rounds + 1):  # the first warms all up
            for name, stream in contenders.items():
                # Peers take what torch takes; a loader of ours shares the cores with the model as a user's does.
                torch.set_num_threads(options.threads)
                started, count = time.perf_counter(), 0
                for batch in stream.epoch():
                    use(batch)
                    count += 1
                seconds = time.perf_counter() - started - stream.converting_s
                if number:
                    runs[name].append(seconds / count)
                    converting[name].append(stream.converting_s / count)
    finally:
        for stream in contenders.values():
            stream.close()
    rates = {name: [1 / seconds for seconds in found] for name, found in runs.items()}
    figures: dict[str, Any] = {
        "batch_s": {name: statistics.median(found) for name, found in runs.items()},
        "converting_s": {name: statistics.median(found) for name, found in converting.items()},
        "runs_batch_s": runs,
    }
    if part == "ssd":
        return figures | {
            "ssd to memory": _spread(runs["gloader, layered, ssd"], runs["gloader, layered, memory"])
        }
    peers = {}
    for peer, layout in LAYOUT_OF.items():
        theirs = [name for name in rates if name.startswith(peer)]
        if theirs:
            best = max(theirs, key=lambda name: statistics.median(rates[name]))
            peers[peer] = _spread(rates[f"gloader, {layout}, memory"], rates[best]) | {"setting": best}
    return figures | {"ratios": peers}


def _contenders(
    part: str,
    dataset: Dataset,
    graph: TypedGraph,
    seeds: Any,
    fanouts: Sequence[int],
    options: argparse.Namespace,
) -> dict[str, Stream]:
    size = options.batch_size
    common = {"memory_budget": options.memory_budget}

    def ours(layout: str, **settings: Any) -> Stream:
        return GloaderStream(dataset, seeds, fanouts, size, {**common, "layout": layout, **settings})

    if part == "ssd":
        tenth = dataset.feature_bytes // 10
        return {
            "gloader, layered, memory": ours("layered", features="ram"),
            "gloader, layered, ssd": ours("layered", features="ssd", cache=tenth),
        }
    found = {f"gloader, {layout}, memory": ours(layout, features="ram") for layout in ("layered", "merged")}
    for name, make in (("dgl", DglStream), ("pyg", PygStream)):
        for workers in options.workers:
            try:
                found[f"{name}, {workers} workers"] = make(graph, seeds, fanouts, size, workers)
            except MissingDependencyError as error:
                print(f"left out: {error}")
                break
    return found


def _nothing(batch: HeteroReadyBatch) -> None:
    """Do what a loop without a model does."""


def _step(dataset: Dataset, num_layers: int, hidden: int) -> Callable[[HeteroReadyBatch], None]:
    """Return a training step of R-SAGE."""
    torch.manual_seed(0)
    model = build_hetero_model(
        ModelConfig(name="rsage", hidden=hidden),
        schema_of(dataset),
        out_dim=dataset.num_classes,
        num_layers=num_layers,
    )
    optimizer = build_optimizer(OptimConfig(lr=0.01), model.parameters())

    def step(batch: HeteroReadyBatch) -> None:
        loss = torch.nn.functional.cross_entropy(model(batch), batch.y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _ratios(result: Mapping[str, Any]) -> dict[str, Any]:
    wanted = ("ratios", "ratios_one_thread", "ssd to memory", "batches_per_second", "batch_s")
    return {
        part: {name: found[name] for name in wanted if name in found}
        for part, found in result.items()
        if part.split(" ")[0] in PARTS
    }


if __name__ == "__main__":
    main()
