"""SIGN and SGC on hop columns beside sampled networks: accuracies on real graphs, seconds of an epoch from the SSD.

    python experiments/bench/sign_epoch.py --data FOLDER --work FOLDER --out experiments/results/DATE-sign-epoch

The accuracies are of graphs in FOLDER, with three hops and the norm gcn, by scipy in memory. Features wider than 1,536
columns are first multiplied by a random matrix, for all models that this script trains. "sign, full shuffle" takes
single seeds in random order, and "sign" windows of 2 steps with 64 blocks, so that a window is a part of these small
graphs too. The references are of FOLDER: GraphSAGE, GCN and an MLP of two layers, trained on whole graphs, on the same
splits. They read the features as they are, also the wide ones.

The epochs are of a made-up graph, whose nodes are in the order of their classes: then a block has one class, which is
the hardest order for windows. All runs have their features on the SSD; GraphSAGE, whose batches are larger, has a
memory budget of its own. The rate of the loader alone, over all nodes, is beside that of plain reads of the same file,
1 MiB each, past the page cache. A table and its JSON are written.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from scipy import sparse
from torch.nn import functional

from gloader import Dataset, Loader
from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.lab.bench.environment import provenance
from gloader.training.model_spec import spec_of
from gloader.training.train import fit, resolved_settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Epochs on each graph. Batches of the sampled networks hold most of these graphs, so that an epoch takes long.
GRAPHS: Final = {"cora_planetoid": 40, "tolokers": 20, "amazon_cs": 20, "coauthor_phy": 8}
MODELS: Final = ("sign", "sign, full shuffle", "sgc", "graphsage", "gcn", "mlp")
REFERENCES: Final = {"sage": "GraphSAGE", "gcn": "GCN", "mlp": "MLP"}
HOPS: Final = 3
FANOUTS: Final = (10, 5, 5)
MOST_COLUMNS: Final = 1536
WINDOWED: Final = {"seed_blocks": 32, "seed_window": 2}
FULL: Final = {"seed_blocks": 1, "seed_window": 2}  # blocks of one seed: all are shuffled
CLASSES: Final = 40
WITHIN: Final = 0.3  # share of the made-up edges that join nodes of one class
READ_BYTES: Final = 1 << 20


def main() -> None:
    """Measure what was asked for and write the table."""
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    accuracies = [row for name in options.graphs for row in _accuracies(name, options)]
    epochs = [] if options.nodes == 0 else _epochs(options)
    text = _table(accuracies, epochs, options)
    print(text)
    if options.out is not None:
        found = {"benchmark": "sign_epoch", **provenance(), "accuracies": accuracies, "epochs": epochs}
        options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of graphs")
    parser.add_argument("--work", type=Path, default=Path("runs/sign-epoch"), help="datasets")
    parser.add_argument("--graphs", nargs="*", default=list(GRAPHS))
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--runs", type=int, default=3, help="seeds of each accuracy")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of the made-up graph; 0 leaves it out")
    parser.add_argument("--degree", type=int, default=15)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--train-share", type=float, default=0.1)
    parser.add_argument("--budget", default="700MB", help="memory budget of SIGN and SGC")
    parser.add_argument("--sage-budget", default="3GB", help="memory budget of GraphSAGE")
    parser.add_argument("--sage-steps", type=int, default=0, help="steps of GraphSAGE; 0 trains its epoch")
    parser.add_argument("--sign-epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="two files, .md and .json")
    return parser.parse_args()


def _normalised(adjacency: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return D^-1/2 (A + I) D^-1/2."""
    looped = (adjacency + sparse.identity(adjacency.shape[0], np.float32, format="csr")).tocsr()
    scale = sparse.diags((1 / np.sqrt(np.asarray(looped.sum(1)).ravel())).astype(np.float32))
    normalised: sparse.csr_matrix = (scale @ looped @ scale).tocsr().astype(np.float32)
    return normalised


def _hop_columns(adjacency: sparse.csr_matrix, x: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Return the features and their sums after each hop."""
    matrix, hops = _normalised(adjacency), [x]
    for _ in range(HOPS):
        hops.append(matrix @ hops[-1])
    return hops


def _write(
    path: Path,
    hops: list[NDArray[np.float32]],
    labels: NDArray[np.int64],
    splits: dict[str, NDArray[np.int64]],
    graph: sparse.csr_matrix | None = None,
) -> Dataset:
    """Write a dataset of hop columns without edges, or of the features with ``graph``."""
    num_nodes, dim = hops[0].shape
    names = ["x", *(f"in{hop}.mean" for hop in range(1, len(hops)))]
    columns = [[name, place * dim, (place + 1) * dim] for place, name in enumerate(names)]
    metadata = {} if graph is not None else {"hops": {"norm": "gcn", "hops": HOPS, "columns": columns}}
    indptr = np.zeros(num_nodes + 1, np.int64) if graph is None else graph.indptr.astype(np.int64)
    indices = np.zeros(0, np.int32) if graph is None else graph.indices.astype(np.int32)
    writer = Dataset.create(
        path,
        name=path.name,
        num_nodes=num_nodes,
        num_classes=int(labels.max()) + 1,
        overwrite=True,
        metadata=metadata,
    )
    with writer:
        with writer.features(dim * len(hops), "float32") as rows:
            for start in range(0, num_nodes, 1 << 14):
                rows.append(np.concatenate([hop[start : start + (1 << 14)] for hop in hops], axis=1))
        with writer.indptr() as out:
            out.append(indptr)
        with writer.indices(len(indices), "int32") as out:
            out.append(indices)
        writer.labels(labels)
        writer.splits(**splits)
    return Dataset.open(path)


def _accuracies(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the test accuracies of all models on a real graph, each of several seeds, after the references."""
    folder = options.data / name
    stored, features = np.load(folder / "graph.npz"), sparse.load_npz(folder / "features_csr.npz")
    num_nodes = len(stored["indptr"]) - 1
    ones = np.ones(len(stored["indices"]), np.float32)
    graph = sparse.csr_matrix((ones, stored["indices"], stored["indptr"]), shape=(num_nodes, num_nodes))
    if features.shape[1] > MOST_COLUMNS:
        matrix = np.random.default_rng(0).normal(
            scale=MOST_COLUMNS**-0.5, size=(features.shape[1], MOST_COLUMNS)
        )
        x = np.asarray(features @ matrix.astype(np.float32))
    else:
        x = np.asarray(features.todense(), dtype=np.float32)
    split = np.load(folder / "split.npz")
    splits = {part: np.sort(split[part]).astype(np.int64) for part in ("train", "valid", "test")}
    labels = stored["labels"].astype(np.int64)
    plain = _write(options.work / name, [x], labels, splits, graph)
    hops = _write(options.work / f"{name}-hops", _hop_columns(graph, x), labels, splits)
    known = json.loads((folder / "reference.json").read_text())
    rows = [
        {"graph": name, "model": f"{text}, whole graph", "test_acc": known[key]["test_acc_mean"]}
        | {"test_std": known[key]["test_acc_std"]}
        for key, text in REFERENCES.items()
    ]
    for model in options.models:
        has_hops = model.startswith(("sign", "sgc"))
        dataset = hops if has_hops else plain
        loader: dict[str, Any] = (FULL if "full" in model else WINDOWED) if has_hops else {}
        settings = TrainSettings(
            model=ModelConfig(name=model.split(",")[0], hidden=128),
            optim=OptimConfig(epochs=GRAPHS[name], lr=0.01, eval_every=2),
            loader=LoaderSettings.of(fanouts=FANOUTS, batch_size=1024, **loader),
            runs=options.runs,
        )
        started = time.perf_counter()
        found = [run.test_acc or 0.0 for run in fit(dataset, settings).runs]
        rows.append(
            {
                "graph": name,
                "model": model,
                "test_acc": fmean(found),
                "test_std": stdev(found) if len(found) > 1 else 0.0,
                "seconds": time.perf_counter() - started,
            }
        )
        print(rows[-1], flush=True)
    return rows


def _made_up(options: argparse.Namespace) -> tuple[sparse.csr_matrix, NDArray[np.float32], NDArray[np.int64]]:
    """Return edges, features and labels of a graph whose nodes are in the order of their classes."""
    rng = np.random.default_rng(0)
    count = options.nodes
    labels = np.sort(rng.integers(0, CLASSES, count))
    starts = np.searchsorted(labels, np.arange(CLASSES + 1))
    sources = rng.integers(0, count, (count, options.degree), dtype=np.int32)
    is_within = rng.random((count, options.degree), dtype=np.float32) < WITHIN
    widths = (starts[labels + 1] - starts[labels])[:, None]
    sources = np.where(is_within, starts[labels][:, None] + sources % widths, sources).astype(np.int32)
    indptr = np.arange(count + 1, dtype=np.int64) * options.degree
    ones = np.ones(sources.size, np.float32)
    graph = sparse.csr_matrix((ones, sources.reshape(-1), indptr), shape=(count, count))
    centers = rng.normal(scale=0.1, size=(CLASSES, options.dim)).astype(np.float32)
    x = rng.standard_normal((count, options.dim), dtype=np.float32)
    x += centers[labels]
    return graph, x, labels


def _epochs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the seconds of an epoch of each model on the made-up graph."""
    graph, x, labels = _made_up(options)
    count = options.nodes
    order = np.random.default_rng(1).permutation(count)
    num_train, num_other = int(options.train_share * count), count // 50
    cuts = np.split(order, [num_train, num_train + num_other, num_train + 2 * num_other])
    splits = dict(zip(("train", "valid", "test"), map(np.sort, cuts), strict=False))
    plain = _write(options.work / "made-up", [x], labels, splits, graph)
    columns = _hop_columns(graph, x)
    hops = _write(options.work / "made-up-hops", columns, labels, splits)
    labelled = np.sort(np.concatenate(list(splits.values())))
    local = {part: np.searchsorted(labelled, ids) for part, ids in splits.items()}
    small = _write(
        options.work / "made-up-labelled", [hop[labelled] for hop in columns], labels[labelled], local
    )
    del graph, x, columns
    rows = []
    runs: tuple[tuple[str, str, Dataset, int, dict[str, Any]], ...] = (
        ("sign, labelled rows", "sign", small, options.sign_epochs, {}),
        ("sign, full shuffle", "sign", small, options.sign_epochs, {"seed_blocks": 1, "seed_window": 2}),
        (
            "sign, blocks of 1 MiB",
            "sign",
            small,
            options.sign_epochs,
            {"seed_blocks": 512, "seed_window": 32},
        ),
        ("sign, rows of all nodes", "sign", hops, options.sign_epochs, {}),
        ("sgc, labelled rows", "sgc", small, options.sign_epochs, {}),
        ("graphsage, fan-out 15,10,5", "graphsage", plain, 1, {}),
    )
    for name, model, dataset, epochs, loader in runs:
        budget = options.sage_budget if model == "graphsage" else options.budget
        settings = TrainSettings(
            model=ModelConfig(name=model),  # type: ignore[arg-type]
            optim=OptimConfig(epochs=epochs),
            loader=LoaderSettings.of(
                fanouts=(15, 10, 5), batch_size=1024, memory_budget=budget, features="ssd", **loader
            ),
        )
        if model == "graphsage" and options.sage_steps:
            # Both networks by steps, one after the other: other work on the machine then slows both.
            rows += [
                _by_steps("sign, by steps", replace(settings, model=ModelConfig(name="sign")), small, 0),
                _by_steps("graphsage, by steps", settings, dataset, options.sage_steps),
            ]
            break
        (run,) = fit(dataset, settings).runs
        alone = {} if model != "sign" else _loader_alone(dataset, settings)
        rows.append(
            {
                "run": name,
                "seconds": median(record.seconds for record in run.epochs),
                "evaluate_seconds": median(record.evaluate_seconds for record in run.epochs),
                "bytes_read": median(record.stats.bytes_read for record in run.epochs),
                "valid_acc": run.valid_acc,
                "epochs": epochs,
                "feature_bytes": dataset.feature_bytes,
                **alone,
            }
        )
        print(rows[-1], flush=True)
    return rows


def _by_steps(name: str, settings: TrainSettings, dataset: Dataset, num_steps: int) -> dict[str, Any]:
    """Return the seconds of an epoch of which ``num_steps`` are trained, or all with 0; the first step is left out."""
    settings = resolved_settings(settings, dataset)
    model = spec_of(settings, dataset).build()
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.optim.lr)
    seconds: list[float] = []
    with Loader.from_settings(dataset, settings.loader) as loader:
        before = time.perf_counter()
        for batch in islice(loader, (num_steps or len(loader) - 1) + 1):
            loss = functional.cross_entropy(model(batch), batch.y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seconds.append(time.perf_counter() - before)
            before = time.perf_counter()
        epoch_s = fmean(seconds[1:]) * len(loader)
    row = {"run": name, "seconds": epoch_s, "steps": len(seconds) - 1}
    print(row, flush=True)
    return row


def _loader_alone(dataset: Dataset, settings: TrainSettings) -> dict[str, Any]:
    """Return the seconds of an epoch of all nodes without a model, and the rates of its reads and of plain reads."""
    loader_settings = resolved_settings(settings, dataset).loader
    nodes = np.arange(dataset.num_nodes)
    with Loader.from_settings(dataset, loader_settings, seeds=nodes) as loader:
        seconds, read = [], []
        for _ in range(4):
            started = time.perf_counter()
            for _ in loader:
                pass
            seconds.append(time.perf_counter() - started)
            read.append(loader.stats.bytes_read)
    best = median(seconds[1:])
    (rows,) = dataset.feature_rows(edges=False)
    return {
        "loader_seconds": best,
        "loader_bytes": median(read[1:]),
        "loader_bytes_per_s": median(read[1:]) / best,
        "plain_bytes_per_s": _plain_rate(rows.features_path),
    }


def _plain_rate(path: Path) -> float:
    """Return the bytes per second of reads of 1 MiB in file order, past the page cache."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer, offset, started = mmap.mmap(-1, READ_BYTES), 0, time.perf_counter()
        while (count := os.preadv(file, [buffer], offset)) == READ_BYTES:
            offset += count
        return offset / (time.perf_counter() - started)
    finally:
        os.close(file)


def _table(
    accuracies: list[dict[str, Any]], epochs: list[dict[str, Any]], options: argparse.Namespace
) -> str:
    """Return the text of the result."""
    lines = []
    if accuracies:
        names = list(dict.fromkeys(row["model"] for row in accuracies))
        lines += [
            "Test accuracy in per cent at the best validation accuracy, mean and standard deviation over",
            f"{options.runs} seeds. Three hops (fan-out 10,5,5 where neighbours are sampled), hidden 128, dropout 0.5,",
            "Adam lr 0.01, batches of 1,024, 2 cores, 24 GB.",
            "",
            f"| graph | {' | '.join(names)} |",
            f"|{'---|' * (1 + len(names))}",
        ]
        for graph in dict.fromkeys(row["graph"] for row in accuracies):
            found = {row["model"]: row for row in accuracies if row["graph"] == graph}
            cells = [
                f"{100 * found[name]['test_acc']:.2f} ± {100 * found[name]['test_std']:.2f}" for name in names
            ]
            lines.append(f"| {graph} | {' | '.join(cells)} |")
        lines.append("")
    if epochs:
        slow = epochs[-1]["seconds"]
        lines += [
            f"Seconds of an epoch with features on the SSD: {options.nodes:,} nodes, {options.degree} in-edges each,",
            f"{options.dim} features, {options.train_share:.0%} training nodes, batches of 1,024, hidden 256, 2 cores,",
            f"24 GB. Memory budget {options.budget}; of GraphSAGE {options.sage_budget}. Medians over a run's epochs.",
            "",
            "| run | epoch | beside GraphSAGE | read | valid acc | evaluation | loader alone | reads | rate | plain |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in epochs:
            alone = (
                f"{row['loader_seconds']:.2f} s | {row['loader_bytes'] / row['feature_bytes']:.2f}x the file | "
                f"{row['loader_bytes_per_s'] / 1e9:.2f} GB/s | "
                f"{row['plain_bytes_per_s'] / 1e9:.2f} GB/s"
                if "loader_seconds" in row
                else " | | | "
            )
            if "steps" in row:
                lines.append(
                    f"| {row['run']} ({row['steps']}) | {row['seconds']:.1f} s | {slow / row['seconds']:.1f}x faster "
                    "| | | | | | | |"
                )
                continue
            lines.append(
                f"| {row['run']} | {row['seconds']:.2f} s | {slow / row['seconds']:.1f}x faster | "
                f"{row['bytes_read'] / 1e6:.0f} MB | {100 * row['valid_acc']:.1f} | "
                f"{row['evaluate_seconds']:.2f} s | "
                f"{alone} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
