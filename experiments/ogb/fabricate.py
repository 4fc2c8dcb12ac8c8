"""Made-up data sets in the exact layouts of OGB, OGB-LSC and IGB: true shapes scaled down, content that can be learned.

    python experiments/ogb/fabricate.py --root FOLDER --scale 0.01 ogbn-arxiv

For trying the path from files to table where the data cannot be had. Columns and classes are as in the data set; nodes,
edges and the parts of the split are its numbers times the scale. Accuracies on such data mean nothing.
"""

from __future__ import annotations

import argparse
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_HOMOPHILY = 0.7
_LABEL_SHARE = 0.3  # share of the labels of a class that are 1
_LABEL_NOISE = 0.05  # share of the labels of a node that differ from those of its class
_SIGNAL = 4.0  # distance of a class from the origin; the noise of a feature has deviation 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers of a data set."""

    nodes: int
    edges: int  # as they lie in the file
    dim: int
    classes: int
    train: int
    valid: int
    test: int
    split: str = ""  # folder below ``split``

    def scaled(self, scale: float) -> Shape:
        """Return the numbers times ``scale``, at least 20 of each. Pure."""
        parts = {name: max(20, round(scale * getattr(self, name))) for name in ("train", "valid", "test")}
        return Shape(
            nodes=max(sum(parts.values()), round(scale * self.nodes)),
            edges=max(20, round(scale * self.edges)),
            dim=self.dim,
            classes=self.classes,
            split=self.split,
            **parts,
        )


SHAPES = {
    "ogbn-arxiv": Shape(
        nodes=169_343,
        edges=1_166_243,
        dim=128,
        classes=40,
        train=90_941,
        valid=29_799,
        test=48_603,
        split="time",
    ),
    "ogbn-products": Shape(
        nodes=2_449_029,
        edges=61_859_140,
        dim=100,
        classes=47,
        train=196_615,
        valid=39_323,
        test=2_213_091,
        split="sales_ranking",
    ),
    "ogbn-proteins": Shape(
        nodes=132_534,
        edges=39_561_252,
        dim=8,
        classes=112,
        train=86_619,
        valid=21_236,
        test=24_679,
        split="species",
    ),
    "ogbn-papers100M": Shape(
        nodes=111_059_956,
        edges=1_615_685_872,
        dim=128,
        classes=172,
        train=1_207_179,
        valid=125_265,
        test=214_338,
        split="time",
    ),
    "mag240m": Shape(
        nodes=121_751_666,
        edges=1_297_748_926,
        dim=768,
        classes=153,
        train=1_112_392,
        valid=138_949,
        test=146_818,
    ),
    "igb-tiny": Shape(
        nodes=100_000, edges=447_416, dim=1024, classes=19, train=60_000, valid=20_000, test=20_000
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A graph with everything that the layouts hold."""

    shape: Shape
    edges: NDArray[np.int64]  # (2, E)
    features: NDArray[np.float32]  # (N, F), six decimals, as OGB's text files have
    labels: NDArray[np.int64]  # (N,)
    splits: dict[str, NDArray[np.int64]]

    @property
    def has_label(self) -> NDArray[np.bool_]:
        """Which nodes are in a part of the split, (N,)."""
        mask = np.zeros(self.shape.nodes, bool)
        mask[np.concatenate(list(self.splits.values()))] = True
        return mask


def make_content(shape: Shape, *, seed: int = 0) -> Content:
    """Return a graph of ``shape`` whose edges and features show the classes. Pure."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, shape.classes, shape.nodes)
    labels[: shape.classes] = np.arange(shape.classes)[: shape.nodes]  # no class is empty
    by_label = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[by_label], np.arange(shape.classes + 1))
    dst = random.integers(0, shape.nodes, shape.edges)
    draws = random.random(shape.edges)
    own = labels[dst]
    inside = by_label[first[own] + (draws * (first[own + 1] - first[own])).astype(np.int64)]
    outside = random.integers(0, shape.nodes, shape.edges)
    src = np.where(random.random(shape.edges) < _HOMOPHILY, inside, outside)
    centers = random.standard_normal((shape.classes, shape.dim))
    centers *= _SIGNAL / np.linalg.norm(centers, axis=1, keepdims=True)
    features = centers[labels] + random.standard_normal((shape.nodes, shape.dim))
    order = random.permutation(shape.nodes)
    train, valid, test = np.split(
        order[: shape.train + shape.valid + shape.test], [shape.train, shape.train + shape.valid]
    )
    return Content(
        shape=shape,
        edges=np.stack([src, dst]),
        features=features.round(6).astype(np.float32),
        labels=labels,
        splits={"train": train, "valid": valid, "test": test},
    )


def write_ogb_csv(root: Path, name: str, content: Content) -> Path:
    """Write ``content`` as OGB writes all but its largest data sets: text, gzip."""
    folder = _ogb_folder(root, name, content)
    raw = folder / "raw"
    _write_csv(raw / "edge.csv.gz", content.edges.T, "%d")
    _write_csv(raw / "node-feat.csv.gz", content.features, "%.6f")
    _write_csv(raw / "node-label.csv.gz", content.labels, "%d")
    _write_csv(raw / "num-node-list.csv.gz", np.array([content.shape.nodes]), "%d")
    _write_csv(raw / "num-edge-list.csv.gz", np.array([content.shape.edges]), "%d")
    if name == "ogbn-arxiv":
        _write_csv(raw / "node_year.csv.gz", np.full(content.shape.nodes, 2015), "%d")
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Proteins:
    """What ogbn-proteins has in place of node features and classes."""

    labels: NDArray[np.int64]  # (N, 112) of 0 and 1
    edge_features: NDArray[np.float32]  # (E, 8) in 0..1, three decimals
    species: NDArray[np.int64]  # (N,) numbers of taxa; those of valid and of test occur in no other part

    @classmethod
    def of(cls, content: Content, *, seed: int = 0) -> Proteins:
        """Return labels and edge features that both follow from the hidden classes of ``content``. Pure."""
        random = np.random.default_rng(seed)
        shape = content.shape
        has_label = random.random((shape.classes, shape.classes)) < _LABEL_SHARE
        flipped = random.random((shape.nodes, shape.classes)) < _LABEL_NOISE
        ends = content.features[content.edges[0]] + content.features[content.edges[1]]
        species = np.full(shape.nodes, 3702)
        species[content.splits["valid"]], species[content.splits["test"]] = 7955, 10090
        return cls(
            labels=(has_label[content.labels] ^ flipped).astype(np.int64),
            edge_features=(1 / (1 + np.exp(-ends))).round(3).astype(np.float32),
            species=species,
        )


def write_ogb_proteins(root: Path, name: str, content: Content) -> Path:
    """Write ``content`` in the layout of ogbn-proteins: several labels per node, features of edges instead of nodes."""
    folder, proteins = _ogb_folder(root, name, content), Proteins.of(content)
    raw = folder / "raw"
    _write_csv(raw / "edge.csv.gz", content.edges.T, "%d")
    _write_csv(raw / "edge-feat.csv.gz", proteins.edge_features, "%.3f")
    _write_csv(raw / "node_species.csv.gz", proteins.species, "%d")
    _write_csv(raw / "node-label.csv.gz", proteins.labels, "%d")
    _write_csv(raw / "num-node-list.csv.gz", np.array([content.shape.nodes]), "%d")
    _write_csv(raw / "num-edge-list.csv.gz", np.array([content.shape.edges]), "%d")
    return folder


def write_ogb_binary(root: Path, name: str, content: Content) -> Path:
    """Write ``content`` as OGB writes papers100M: deflated ``.npz``, labels as floats, NaN outside of the split."""
    folder = _ogb_folder(root, name, content)
    np.savez_compressed(
        folder / "raw" / "data.npz",
        edge_index=content.edges,
        num_nodes_list=np.array([content.shape.nodes]),
        num_edges_list=np.array([content.shape.edges]),
        node_feat=content.features,
        node_year=np.full((content.shape.nodes, 1), 2015),
    )
    labels = np.where(content.has_label, content.labels, np.nan).astype(np.float32)
    np.savez_compressed(folder / "raw" / "node-label.npz", node_label=labels[:, None])
    return folder


def write_mag240m(root: Path, name: str, content: Content) -> Path:
    """Write the papers of OGB-LSC's MAG240M; the labels of test nodes are hidden, as there."""
    import torch

    del name
    folder = root / "mag240m_kddcup2021"
    paper, cites = folder / "processed" / "paper", folder / "processed" / "paper___cites___paper"
    for new in (paper, cites):
        new.mkdir(parents=True)
    (folder / "RELEASE_v1.txt").write_text("made up\n")
    shown = np.zeros(content.shape.nodes, bool)
    shown[np.concatenate([content.splits["train"], content.splits["valid"]])] = True
    np.save(paper / "node_feat.npy", content.features.astype(np.float16))
    np.save(paper / "node_label.npy", np.where(shown, content.labels, np.nan).astype(np.float32))
    np.save(paper / "node_year.npy", np.full(content.shape.nodes, 2015, np.int16))
    np.save(cites / "edge_index.npy", content.edges.astype(np.int32))
    sizes = {"paper": content.shape.nodes, "author": 9, "institution": 2}
    torch.save(sizes | {"num_classes": content.shape.classes}, folder / "meta.pt")
    dev, challenge = np.split(content.splits["test"], [round(0.6 * content.shape.test)])
    hidden = {"test-dev": dev, "test-whole": content.splits["test"], "test-challenge": challenge}
    torch.save(
        {"train": content.splits["train"], "valid": content.splits["valid"], **hidden},
        folder / "split_dict.pt",
    )
    return folder


def write_igb(root: Path, name: str, content: Content) -> Path:
    """Write a homogeneous graph of IGB: edges are rows, labels are floats."""
    folder = root / "igb" / name.removeprefix("igb-")
    paper, cites = folder / "processed" / "paper", folder / "processed" / "paper__cites__paper"
    for new in (paper, cites):
        new.mkdir(parents=True)
    np.save(paper / "node_feat.npy", content.features)
    np.save(paper / "node_label_19.npy", content.labels.astype(np.float32))
    np.save(cites / "edge_index.npy", np.ascontiguousarray(content.edges.T))
    return folder


WRITERS: dict[str, Callable[[Path, str, Content], Path]] = {
    "ogbn-arxiv": write_ogb_csv,
    "ogbn-products": write_ogb_csv,
    "ogbn-proteins": write_ogb_proteins,
    "ogbn-papers100M": write_ogb_binary,
    "mag240m": write_mag240m,
    "igb-tiny": write_igb,
}


def fabricate(root: Path, name: str, *, scale: float, seed: int = 0) -> Content:
    """Write data set ``name`` below ``root`` and return what it holds."""
    content = make_content(SHAPES[name].scaled(scale), seed=seed)
    WRITERS[name](root, name, content)
    return content


def _ogb_folder(root: Path, name: str, content: Content) -> Path:
    folder = root / name.replace("-", "_")
    split = folder / "split" / content.shape.split
    for new in (folder / "raw", folder / "processed", folder / "mapping", split):
        new.mkdir(parents=True)
    (folder / "RELEASE_v1.txt").write_text("made up\n")
    for part, ids in content.splits.items():
        _write_csv(split / f"{part}.csv.gz", ids, "%d")
    return folder


def _write_csv(path: Path, array: NDArray[Any], fmt: str) -> None:
    with gzip.open(path, "wt", compresslevel=1) as file:
        np.savetxt(file, array, delimiter=",", fmt=fmt)


def main() -> None:
    """Write the data sets that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=list(SHAPES))
    parser.add_argument("--root", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--scale", type=float, default=0.001, help="of nodes, edges and splits")
    options = parser.parse_args()
    for name in options.names:
        shape = fabricate(options.root, name, scale=options.scale).shape
        print(f"{name}: {shape}")


if __name__ == "__main__":
    main()
