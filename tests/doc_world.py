"""The surroundings of the pages' code: a graph in the working directory, a model, names from a reader's own script."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gloader

Names = dict[str, Any]
_EXAMPLES = Path(__file__).parents[1] / "examples"
_SAVED = Path(__file__).parent / "saved_graphs"
NODES, EDGES, WIDTH, CLASSES = 1800, 5000, 16, 4
TRAIN, VALID = 1080, 1440  # the ids of each part end there
PAPERS, TOPICS = 2200, 8


def enter(page: str, heading: str, names: Names) -> None:
    """Make what the blocks below ``heading`` of ``page`` take for granted, in the working directory and ``names``."""
    for prepare in _PAGES.get(page, {}).get(heading, ()):
        names.update(prepare() or {})


def dataset_at(*places: str) -> Callable[[], Names]:
    """Return what makes a small dataset at each of ``places``."""

    def prepare() -> Names:
        made = [_write(Path(place)) for place in places]
        return {"ds": made[0], "dataset": made[0]}

    return prepare


def _write(place: Path) -> gloader.Dataset:
    random = np.random.default_rng(0)
    pairs = np.unique(random.integers(0, NODES, (EDGES, 2)), axis=0)
    pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
    ids = np.arange(NODES)
    place.parent.mkdir(parents=True, exist_ok=True)
    return gloader.Dataset.from_numpy(
        place,
        indptr=np.searchsorted(pairs[:, 1], np.arange(NODES + 1)),
        indices=pairs[:, 0],
        features=random.normal(size=(NODES, WIDTH)).astype(np.float32),
        labels=ids % CLASSES,
        train=ids[:TRAIN],
        valid=ids[TRAIN:VALID],
        test=ids[VALID:],
    )


def _arrays() -> Names:
    """Write the files that README prepares."""
    random = np.random.default_rng(0)
    edges = random.integers(0, NODES, (EDGES, 2))
    np.savetxt("edges.csv", edges, fmt="%d", delimiter=",", header="src,dst", comments="")
    np.save("features.npy", random.normal(size=(NODES, WIDTH)).astype(np.float32))
    np.save("labels.npy", np.arange(NODES) % CLASSES)
    np.save("pairs.npy", np.array([[0, 1], [0, 2], [17, 300]]))
    return {}


def _tables(folder: str) -> Callable[[], Names]:
    """Return what writes the tables of examples/publications.py into ``folder``."""

    def prepare() -> Names:
        sys.path.insert(0, str(_EXAMPLES))
        try:
            from publications import make_publications, write_tables
        finally:
            sys.path.remove(str(_EXAMPLES))
        Path(folder).mkdir()
        write_tables(Path(folder), make_publications(PAPERS))
        return {}

    return prepare


def _typed() -> Names:
    """Make the dataset of docs/hetero.md."""
    from gloader.cli.main import main

    _tables("typed-tables")()
    words = ["prepare", "tables:typed-tables", "typed", "--add-reverse", "--symmetrize", "cites"]
    assert main(words) == 0
    return {"dataset": gloader.Dataset.open("typed")}


def _linked() -> Names:
    """Make a dataset whose edges are split."""
    from gloader.cli.main import main

    _arrays()
    words = ["prepare", "edges:edges.csv", "linked", "--features", "features.npy", "--symmetrize"]
    assert main([*words, "--edge-split", "80/10/10"]) == 0
    return {"dataset": gloader.Dataset.open("linked")}


def _scores() -> Names:
    """Return a model that says nothing, and can be learned all the same."""
    import torch

    def model(x: Any, blocks: Any) -> Any:
        return torch.zeros(blocks[-1].num_dst, CLASSES, requires_grad=True)

    return {"model": model, "F": torch.nn.functional, "torch": torch}


def _of_pyg() -> Names:
    import torch

    def model(x: Any, edge_index: Any) -> Any:
        return torch.zeros(len(x), CLASSES, requires_grad=True)

    return {"model": model, "F": torch.nn.functional, "train_ids": torch.arange(TRAIN), "gloader": gloader}


def _of_typed_pyg() -> Names:
    import torch

    def model(x: Any, edges: Any) -> Any:
        return {"paper": torch.zeros(len(x["paper"]), TOPICS, requires_grad=True)}

    return {"model": model, "embeddings": lambda ids: torch.zeros(len(ids), 8)}


def _without_dgl() -> Names:
    """Write the file that the lines without DGL read."""
    import torch

    with gzip.open(_SAVED / "pairs.bin.gz") as file:
        Path("graph.bin").write_bytes(file.read())

    def model(blocks: Any, x: Any) -> Any:
        return torch.zeros(blocks[-1].num_dst_nodes(), 3, requires_grad=True)

    from gloader.cli.main import main

    _arrays()
    words = [
        "prepare",
        "edges:edges.csv",
        "data/links",
        "--features",
        "features.npy",
        "--edge-split",
        "80/10/10",
    ]
    assert main(words) == 0
    return {"model": model, "F": torch.nn.functional, "gloader": gloader}


def _of_dgl() -> Names:
    import dgl
    import torch

    def model(blocks: Any, x: Any) -> Any:
        return torch.zeros(blocks[-1].num_dst_nodes(), CLASSES, requires_grad=True)

    return {
        "dgl": dgl,
        "F": torch.nn.functional,
        "model": model,
        "train_ids": torch.arange(TRAIN),
        "gloader": gloader,
    }


def _of_typed_dgl() -> Names:
    import torch

    def model(blocks: Any, x: Any) -> Any:
        return {"paper": torch.zeros(blocks[-1].num_dst_nodes("paper"), TOPICS, requires_grad=True)}

    return {"model": model, "embeddings": lambda ids: torch.zeros(len(ids), 8)}


def _of_dgl_links() -> Names:
    return {"model": lambda blocks, x: x, "score": lambda pairs, found: pairs.num_edges()}


def _described(page: str, *, below: str = "", name: str = "graph.yaml") -> Callable[[], Names]:
    """Return what writes the first graph.yaml that ``page`` shows ``below`` a text."""

    def prepare() -> Names:
        Path(name).write_text(_first_block(page, "yaml", below=below))
        return {}

    return prepare


def _shop() -> Names:
    """Write the three tables of docs/own-data.md."""
    exec(_first_block("docs/own-data.md", "python"), {})  # noqa: S102 - the text of this repository
    return {}


def _first_block(page: str, language: str, *, below: str = "") -> str:
    text = (Path(__file__).parents[1] / page).read_text()
    text = text[text.index(below) :]
    return text.partition(f"```{language}\n")[2].partition("```")[0]


def _source_files() -> Names:
    """Write a file of each kind that docs/datasets.md prepares."""
    import pyarrow as pa
    import torch
    from pyarrow import csv, parquet
    from torch_geometric.data import Data

    random = np.random.default_rng(0)
    edges = random.integers(0, NODES, (EDGES, 2))
    table = pa.table({"src": edges[:, 0], "dst": edges[:, 1]})
    csv.write_csv(table, "links.csv")
    parquet.write_table(table, "links.parquet")
    kind, when = random.integers(0, 3, EDGES), np.sort(random.integers(1, 10**9, EDGES))
    timed = table.append_column("paid_at", pa.array(when)).append_column(
        "amount", pa.array(random.random(EDGES))
    )
    parquet.write_table(timed.append_column("kind", pa.array(kind)), "payments.parquet")
    features, labels = random.normal(size=(NODES, WIDTH)).astype(np.float32), np.arange(NODES) % CLASSES
    for name, array in (("features", features), ("x", features), ("labels", labels), ("y", labels)):
        np.save(f"{name}.npy", array)
    parts = {"train": np.arange(TRAIN), "valid": np.arange(TRAIN, VALID), "test": np.arange(VALID, NODES)}
    np.savez("split.npz", **parts)
    Path("my_graph").mkdir()
    np.savez("my_graph/graph.npz", edges=edges, labels=labels)
    np.savez("my_graph/split.npz", **parts)
    np.save("my_graph/features.npy", features)
    masks = {name: torch.zeros(NODES, dtype=torch.bool) for name in ("train", "val", "test")}
    for mask, ids in zip(masks.values(), parts.values(), strict=True):
        mask[torch.from_numpy(ids)] = True
    data = Data(
        x=torch.from_numpy(features), edge_index=torch.from_numpy(edges.T), y=torch.from_numpy(labels)
    )
    data.update({f"{name}_mask": mask for name, mask in masks.items()})
    torch.save(data, "graph.pt")
    with gzip.open(_SAVED / "pairs.bin.gz") as file:
        Path("graph.bin").write_bytes(file.read())
    return {}


def _sampled() -> Names:
    """Return a graph as docs/sampling.md has it."""
    random = np.random.default_rng(0)
    degrees = random.integers(1, 8, NODES)
    seconds = [np.sort(random.integers(0, 1000, degree)) for degree in degrees]
    return {
        "indptr": np.concatenate([[0], np.cumsum(degrees)]),
        "indices": random.integers(0, NODES, degrees.sum()),
        "seconds": np.concatenate(seconds),
        "seeds": np.arange(16),
        "times": np.full(16, 500),
    }


def _graph() -> Names:
    """Return a graph and what samples it, as docs/samplers.md has them."""
    from gloader.samplers import CscGraph

    made = _sampled()
    return {"gloader": gloader, "graph": CscGraph(indptr=made["indptr"], indices=made["indices"])}


def _relation() -> Names:
    """Return the edges of a relation into 736,389 papers."""
    from gloader.samplers import CscGraph

    return {
        "csc": CscGraph(
            indptr=np.zeros(736_390, np.int64), indices=np.zeros(0, np.int64), num_sources=1_134_649
        )
    }


def _cached() -> Names:
    """Return the superbatches of docs/inspector.md."""
    from gloader.cache import SlotCache
    from gloader.ssd_store import RamFeatures

    random, capacity = np.random.default_rng(0), 100
    batches = [random.permutation(NODES)[:50] for _ in range(4)]
    sorted_ids = [np.sort(nodes) for nodes in batches]
    source = RamFeatures(np.ones((NODES, WIDTH), np.float32))
    return {
        "np": np,
        "N": NODES,
        "C": capacity,
        "batches": batches,
        "sorted_ids_of_each_batch": sorted_ids,
        "sorted_ids_of_the_superbatch_after": sorted_ids,
        "slots": SlotCache(capacity, dim=WIDTH, dtype=np.dtype(np.float32)),
        "out": np.empty((50, WIDTH), np.float32),
        "source": source,
    }


def _database() -> Names:
    """Write the database of docs/rows-with-time.md."""
    from relbench_folders import write_shop

    write_shop(Path("rel-shop"), num_customers=200, num_orders=4000)
    return {}


_PAGES: dict[str, dict[str, tuple[Callable[[], Names | None], ...]]] = {
    "README.md": {"Your tables": (_shop, _described("README.md")), "Your graph": (_arrays, _scores)},
    "how-it-works.md": {"1. A number becomes seeds": (dataset_at("data/mine"),)},
    "embeddings.md": {"An example": (dataset_at("data/mine"),)},
    "hetero.md": {"From tables to a trained model": (_tables("tables"),)},
    "pipeline.md": {
        "The pipeline: from seeds to a batch on the device": (
            dataset_at("data/ogbn-products"),
            lambda: {"epochs": 1},
        )
    },
    "from-pyg.md": {
        "The smallest change": (dataset_at("data/mine"), _of_pyg),
        "Several types": (_typed, _of_typed_pyg),
        "Links": (_linked, _of_pyg),
        "PyG's own loader over an SSD": (dataset_at("data/direct"), _of_pyg),
    },
    "sampling.md": {
        "Sampling": (_sampled, _relation, dataset_at("data/sampled")),
        "Sampling by time": (_sampled,),
    },
    "from-dgl.md": {
        "Without DGL": (_without_dgl,),
        "Before and after": (dataset_at("data/mine"), _of_dgl),
        "Several types": (_typed, _of_typed_dgl),
        "Links": (_linked, _of_dgl, _of_dgl_links),
        "DGL's own sampler over features on the SSD": (dataset_at("data/direct"), _of_dgl),
    },
    "datasets.md": {"": (_source_files,)},
    "own-data.md": {
        "": (_described("docs/own-data.md"),),
        "Rows with a time": (
            _described("docs/own-data.md", below="A description `quiet.yaml`", name="quiet.yaml"),
        ),
    },
    "rows-with-time.md": {"From a folder to predictions": (_database,)},
    "inspector.md": {"The inspector: which rows to keep in memory": (_cached,)},
    "samplers.md": {"Samplers": (_sampled, _graph, dataset_at("data/sampled"))},
    "topology.md": {"Edges beyond memory": (dataset_at("data/mine"), lambda: {"Loader": gloader.Loader})},
    "models.md": {"Training": (dataset_at("data/products"),)},
}
