"""Made-up data sets in the layout of OGB's link benchmarks: true shapes scaled down, edges that can be learned.

    python experiments/ogb/fabricate_links.py --root FOLDER --scale 0.001 ogbl-citation2

Nodes are of communities, most edges stay within one, and features show it. Columns, and the negatives of an edge, are
as in the data set; nodes, edges and held-out edges are its numbers times the scale. Scores on such data mean nothing.
"""

from __future__ import annotations

import argparse
import gzip
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_COMMUNITY: Final = 500  # nodes of a community
_INSIDE: Final = 0.8  # of the edges
_SIGNAL: Final = 0.5  # deviation of a community's center; the noise of a feature has deviation 1
_ROWS: Final = 1 << 16  # of a piece of a text file


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """The numbers of a data set."""

    nodes: int
    train: int  # edges, which are those of the graph's file
    valid: int
    test: int
    dim: int
    split: str  # folder below ``split``
    each: int = 0  # negatives of each held-out edge; 0: all are compared with the same ones
    shared: int = 0  # so many of them

    def scaled(self, scale: float) -> LinkShape:
        """Return the numbers times ``scale``, at least 40 of each. Pure."""
        names = ("nodes", "train", "valid", "test", *(["shared"] if self.shared else []))
        return replace(self, **{name: max(40, round(scale * getattr(self, name))) for name in names})


LINK_SHAPES: Final = {
    "ogbl-citation2": LinkShape(
        nodes=2_927_963, train=30_387_995, valid=86_596, test=86_596, dim=128, split="time", each=1000
    ),
    "ogbl-collab": LinkShape(
        nodes=235_868, train=1_179_052, valid=60_084, test=46_329, dim=128, split="time", shared=100_000
    ),
    "ogbl-ppa": LinkShape(
        nodes=576_289,
        train=21_231_931,
        valid=6_062_562,
        test=3_031_780,
        dim=58,
        split="throughput",
        shared=3_000_000,
    ),
}


def fabricate_links(root: Path, name: str, shape: LinkShape, *, seed: int = 0) -> Path:
    """Write data set ``name`` of ``shape`` below ``root`` and return its folder.

    Features are made and written piece by piece; edges and negatives are held.
    """
    import torch

    random = np.random.default_rng(seed)
    folder = root / name.replace("-", "_")
    raw, split = folder / "raw", folder / "split" / shape.split
    for new in (raw, folder / "processed", folder / "mapping", split):
        new.mkdir(parents=True)
    (folder / "RELEASE_v1.txt").write_text("made up\n")
    for part in ("train", "valid", "test"):
        sources, destinations = _edges(random, shape.nodes, getattr(shape, part))
        if part == "train":
            _write_csv(raw / "edge.csv.gz", iter([np.stack([sources, destinations], axis=1)]))
        torch.save(_split_file(random, name, shape, part, sources, destinations), split / f"{part}.pt")
    _write_csv(raw / "node-feat.csv.gz", _features(random, name, shape))
    _write_csv(raw / "num-node-list.csv.gz", iter([np.array([[shape.nodes]])]))
    _write_csv(raw / "num-edge-list.csv.gz", iter([np.array([[shape.train]])]))
    if name == "ogbl-citation2":
        _write_csv(raw / "node_year.csv.gz", iter([np.full((shape.nodes, 1), 2015)]))
    if name == "ogbl-collab":
        for column, value in (("weight", 1), ("year", 2015)):
            _write_csv(raw / f"edge_{column}.csv.gz", iter([np.full((shape.train, 1), value)]))
    return folder


def _split_file(
    random: np.random.Generator,
    name: str,
    shape: LinkShape,
    part: str,
    sources: NDArray[np.int64],
    destinations: NDArray[np.int64],
) -> dict[str, NDArray[np.int64]]:
    """Return what OGB saves of a part: arrays, by its names."""
    if shape.each:
        negatives = {"target_node_neg": random.integers(0, shape.nodes, (len(sources), shape.each))}
        return {"source_node": sources, "target_node": destinations} | (negatives if part != "train" else {})
    held = {"edge": np.stack([sources, destinations], axis=1)}
    if name == "ogbl-collab":
        held |= {"weight": np.ones(len(sources), np.int64), "year": np.full(len(sources), 2018)}
    if part != "train":
        held["edge_neg"] = random.integers(0, shape.nodes, (shape.shared, 2))
    return held


def _edges(
    random: np.random.Generator, num_nodes: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sources and destinations; a node's community is its number by `_COMMUNITY`."""
    destinations = random.integers(0, num_nodes, count)
    starts = destinations - destinations % _COMMUNITY
    near = starts + random.integers(0, _COMMUNITY, count)
    is_far = (random.random(count) >= _INSIDE) | (near >= num_nodes)
    return np.where(is_far, random.integers(0, num_nodes, count), near), destinations


def _features(random: np.random.Generator, name: str, shape: LinkShape) -> Iterator[NDArray[Any]]:
    """Yield the rows: whole numbers of ogbl-ppa, one of which is 1, or real ones."""
    num_communities = -(-shape.nodes // _COMMUNITY)
    centers = (_SIGNAL * random.standard_normal((num_communities, shape.dim))).astype(np.float32)
    for start in range(0, shape.nodes, _ROWS):
        ids = np.arange(start, min(start + _ROWS, shape.nodes))
        if name == "ogbl-ppa":
            yield np.eye(shape.dim, dtype=np.int64)[ids // _COMMUNITY % shape.dim]
            continue
        rows = centers[ids // _COMMUNITY] + random.standard_normal((len(ids), shape.dim), dtype=np.float32)
        yield rows.round(3)


def _write_csv(path: Path, pieces: Iterator[NDArray[Any]]) -> None:
    options = pa.csv.WriteOptions(include_header=False)
    with gzip.GzipFile(path, "wb", compresslevel=1) as file:
        for piece in pieces:
            columns = [pa.array(piece[:, number]) for number in range(piece.shape[1])]
            table = pa.table(columns, names=[str(number) for number in range(len(columns))])
            pa.csv.write_csv(table, file, options)  # type: ignore[arg-type] # it writes bytes


def main() -> None:
    """Write the data sets that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=list(LINK_SHAPES))
    parser.add_argument("--root", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--scale", type=float, default=0.001, help="of nodes and edges")
    options = parser.parse_args()
    for name in options.names:
        shape = LINK_SHAPES[name].scaled(options.scale)
        fabricate_links(options.root, name, shape)
        print(f"{name}: {shape}")


if __name__ == "__main__":
    main()
