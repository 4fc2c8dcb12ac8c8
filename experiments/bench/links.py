"""Batches of links beside PyG's LinkNeighborLoader and DGL's edge sampler, on a graph of ogbl-citation2's shape.

    python experiments/bench/links.py --workdir FOLDER --out experiments/results/DATE-links

Part "load" counts batches a second of loops that do nothing with them, features included, all in memory. Every round
runs every contender, one after the other; figures are medians over the rounds, and ratios are those of one round, of
which the median is taken too. Each peer runs with several numbers of workers, and its best counts. DGL draws in every
hop for every node that is known by then, as our layered batches; PyG once for each node, as our merged ones.

Part "ssd" trains GraphSAGE with a dot product, features on the SSD and a tenth of them in memory, beside the same with
all in memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from link_graphs import LinkGraph, make_citations, write_citations
from link_streams import DglStream, GloaderStream, PygStream, Stream

from gloader.config import ModelConfig
from gloader.lab.bench.environment import provenance
from gloader.models import build_decoder, build_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader import Dataset

# Which of ours draws as a peer does.
LAYOUT_OF: Final = {"dgl": "layered", "pyg": "merged"}
WARM_BATCHES: Final = 6


def main() -> None:
    """Measure, print the ratios, write JSON."""
    options = _options()
    graph = make_citations(options.scale, seed=1)
    settings = {name: value for name, value in vars(options).items() if name not in {"workdir", "out"}}
    result: dict[str, Any] = {"graph": graph.to_json(), "settings": settings}
    options.workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gloader-links-", dir=options.workdir) as folder:
        dataset = write_citations(Path(folder) / "citations", graph)
        if "load" in options.parts:
            result["load"] = _load(dataset, graph, options)
        if "ssd" in options.parts:
            result["ssd"] = _ssd(dataset, options)
    result |= provenance()
    print(json.dumps({part: result[part]["ratios"] for part in options.parts}, indent=1))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of ogbl-citation2's nodes and edges")
    parser.add_argument("--parts", nargs="+", choices=("load", "ssd"), default=["load", "ssd"])
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5], help="next to the seeds first")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=20, help="of a round of loading")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="of the peers' loaders")
    parser.add_argument("--train-batches", type=int, default=20, help="of an epoch that trains")
    parser.add_argument("--train-rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--memory-budget", default="8GB", help="of loading in memory")
    parser.add_argument(
        "--ssd-budget", default="1.6GB", help="of everything, a tenth of the features included"
    )
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="writes OUT.json")
    return parser.parse_args()


def _load(dataset: Dataset, graph: LinkGraph, options: argparse.Namespace) -> dict[str, Any]:
    """Return batches a second of every contender, and the ratios of ours to each peer at its best."""
    common = (options.fanouts, options.batch_size)

    def ours(layout: str, exclude: Any) -> Stream:
        held = {"features": "ram", "topology": "ram", "memory_budget": options.memory_budget}
        return GloaderStream(dataset, *common, exclude, layout=layout, **held)

    makers: dict[str, Callable[[], Stream]] = {
        "gloader layered": lambda: ours("layered", "none"),
        "gloader merged": lambda: ours("merged", "none"),
        "gloader layered, excluding": lambda: ours("layered", "self"),
    }
    for workers in options.workers:
        makers[f"pyg, {workers} workers"] = partial(PygStream, graph, *common, workers)
        makers[f"dgl, {workers} workers"] = partial(DglStream, graph, *common, workers, None)
        makers[f"dgl, excluding, {workers} workers"] = partial(DglStream, graph, *common, workers, "self")
    rates: dict[str, list[float]] = {name: [] for name in makers}
    sizes: dict[str, tuple[float, float]] = {}
    # One contender at a time is there: their copies of the graph would not fit beside each other.
    for number in range(options.rounds):
        for name, make in makers.items():
            stream = make()
            rate, sizes[name] = _rate(stream, options.batches)
            rates[name].append(rate)
            del stream
            print(f"round {number}: {name}: {rate:.2f} batches/s of {sizes[name][0]:,.0f} nodes", flush=True)
    ratios = {}
    for peer, layout in LAYOUT_OF.items():
        for suffix in ("", ", excluding") if peer == "dgl" else ("",):
            own = rates[f"gloader {layout}{suffix}"]
            best = [
                max(rates[f"{peer}{suffix}, {workers} workers"][number] for workers in options.workers)
                for number in range(options.rounds)
            ]
            found = [mine / theirs for mine, theirs in zip(own, best, strict=True)]
            ratios[f"{peer}{suffix}"] = {"median": statistics.median(found), "least": min(found)}
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {"batches_per_s": rates, "medians": medians, "mean_nodes_and_edges": sizes, "ratios": ratios}


def _rate(stream: Stream, count: int) -> tuple[float, tuple[float, float]]:
    """Return batches a second behind the first few, and the mean nodes and edges of a batch."""
    nodes = edges = 0
    started = 0.0
    for number, (of_nodes, of_edges) in enumerate(stream.batches(count + WARM_BATCHES), 1):
        nodes, edges = nodes + of_nodes, edges + of_edges
        if number == WARM_BATCHES:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    total = count + WARM_BATCHES
    return count / seconds, (nodes / total, edges / total)


def _ssd(dataset: Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of epochs that train from memory and from the SSD, and their ratios."""
    places: dict[str, dict[str, Any]] = {
        "memory": {"features": "ram", "topology": "ram", "memory_budget": options.memory_budget},
        "ssd": {"features": "ssd", "cache": "10%", "memory_budget": options.ssd_budget},
    }
    seconds: dict[str, list[float]] = {name: [] for name in places}
    explained = ""
    for number in range(options.train_rounds):
        for name, place in places.items():
            stream = GloaderStream(dataset, options.fanouts, options.batch_size, "none", **place)
            seconds[name].append(_train(stream, options, dim=dataset.feature_dim))
            if name == "ssd":
                explained = stream.explain()
            stream.close()
            print(f"round {number}: {name}: {seconds[name][-1]:.1f} s", flush=True)
    ratios = [ssd / memory for ssd, memory in zip(seconds["ssd"], seconds["memory"], strict=True)]
    return {
        "seconds": seconds,
        "explain": explained,
        "ratios": {"median": statistics.median(ratios), "most": max(ratios)},
    }


def _train(stream: GloaderStream, options: argparse.Namespace, *, dim: int) -> float:
    """Return the seconds of an epoch that trains, from its second batch on."""
    torch.manual_seed(0)
    config = ModelConfig(name="graphsage", hidden=options.hidden, dropout=0.0)
    network = build_model(config, in_dim=dim, out_dim=options.hidden, num_layers=len(options.fanouts))
    decoder = build_decoder("dot", dim=options.hidden, hidden=options.hidden, dropout=0.0)
    optimizer = torch.optim.Adam([*network.parameters(), *decoder.parameters()], lr=5e-4)
    started = 0.0
    for number, batch in enumerate(stream.ready(options.train_batches), 1):
        ready: Any = batch.batch
        rows = network(ready.x, ready.blocks)
        scores = decoder(rows[batch.pairs[:, 0]], rows[batch.pairs[:, 1]])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, batch.labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if number == 1:
            started = time.perf_counter()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
