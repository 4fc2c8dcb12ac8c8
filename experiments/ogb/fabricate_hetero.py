"""Made-up graphs of several types in the layouts of ogbn-mag and IGBH: true shapes times a scale.

    python experiments/ogb/fabricate_hetero.py --root FOLDER --scale 0.01 ogbn-mag igbh-small

For trying the path from files to table where the data cannot be had. Features are written in pieces, so that any size
fits in memory; rows of papers show their classes, and all else is noise. Accuracies on such data mean nothing.
"""

from __future__ import annotations

import argparse
import gzip
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

Relation = tuple[str, str, str]
_ROWS = 1 << 16  # of features, generated at a time
_SIGNAL = 4.0  # distance of a class from the origin; the noise of a feature has deviation 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroShape:
    """The numbers of a data set."""

    nodes: Mapping[str, int]
    edges: Mapping[Relation, int]  # as they lie in the files
    dims: Mapping[str, int]  # of the types with features
    classes: int
    labelled: str = "paper"

    def scaled(self, scale: float, *, dim: int | None = None) -> HeteroShape:
        """Return the numbers times ``scale``, at least 30 of each, with ``dim`` columns where it is given. Pure."""
        return replace(
            self,
            nodes={name: max(30, round(scale * count)) for name, count in self.nodes.items()},
            edges={relation: max(30, round(scale * count)) for relation, count in self.edges.items()},
            dims={name: dim or columns for name, columns in self.dims.items()},
        )


_IGBH_EDGES = (
    ("paper", "cites", "paper"),
    ("paper", "written_by", "author"),
    ("paper", "topic", "fos"),
    ("author", "affiliated_to", "institute"),
)


def _igbh(nodes: tuple[int, int, int, int], edges: tuple[int, int, int, int]) -> HeteroShape:
    types = ("paper", "author", "institute", "fos")
    return HeteroShape(
        nodes=dict(zip(types, nodes, strict=True)),
        edges=dict(zip(_IGBH_EDGES, edges, strict=True)),
        dims=dict.fromkeys(types, 1024),
        classes=19,
    )


SHAPES = {
    "ogbn-mag": HeteroShape(
        nodes={"author": 1_134_649, "field_of_study": 59_965, "institution": 8_740, "paper": 736_389},
        edges={
            ("author", "affiliated_with", "institution"): 1_043_998,
            ("author", "writes", "paper"): 7_145_660,
            ("paper", "cites", "paper"): 5_416_271,
            ("paper", "has_topic", "field_of_study"): 7_505_078,
        },
        dims={"paper": 128},
        classes=349,
    ),
    "igbh-tiny": _igbh((100_000, 357_041, 8_738, 84_220), (447_416, 471_443, 718_445, 325_410)),
    "igbh-small": _igbh(
        (1_000_000, 1_926_066, 14_751, 190_449), (12_070_502, 4_553_516, 7_234_122, 1_630_476)
    ),
    "igbh-medium": _igbh(
        (10_000_000, 15_544_654, 23_256, 415_054), (120_077_694, 39_854_592, 68_510_495, 11_049_412)
    ),
}


def write_mag(root: Path, name: str, shape: HeteroShape, *, seed: int = 0) -> Path:
    """Write ``shape`` as OGB writes ogbn-mag: text, gzip, a folder for each relation and type."""
    random = np.random.default_rng(seed)
    folder = root / name.replace("-", "_")
    raw, split = folder / "raw", folder / "split" / "time" / "paper"
    for new in (raw, folder / "processed", folder / "mapping", split):
        new.mkdir(parents=True)
    (folder / "RELEASE_v2.txt").write_text("made up\n")
    types = sorted(shape.nodes)
    _write_csv(raw / "num-node-dict.csv.gz", np.array([[shape.nodes[kind] for kind in types]]), "%d", types)
    with gzip.open(raw / "triplet-type-list.csv.gz", "wt") as file:
        file.writelines(",".join(relation) + "\n" for relation in sorted(shape.edges))
    for relation, count in shape.edges.items():
        at = raw / "relations" / "___".join(relation)
        at.mkdir(parents=True)
        _write_csv(at / "edge.csv.gz", _edges(random, shape, relation, count), "%d")
        _write_csv(at / "num-edge-list.csv.gz", np.array([count]), "%d")
        _write_csv(at / "edge_reltype.csv.gz", np.zeros(count, np.int64), "%d")
    labels = _labels(random, shape)
    for kind in shape.dims:
        (raw / "node-feat" / kind).mkdir(parents=True)
        rows = np.concatenate(list(_features(random, shape, kind, labels))).round(6)
        _write_csv(raw / "node-feat" / kind / "node-feat.csv.gz", rows, "%.6f")
    (raw / "node-label" / "paper").mkdir(parents=True)
    _write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", labels, "%d")
    (raw / "node-feat" / "paper").mkdir(parents=True, exist_ok=True)
    years = np.full(shape.nodes["paper"], 2015)
    _write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", years, "%d")
    has_label = np.array([[kind == shape.labelled for kind in types]])
    for path in (raw / "nodetype-has-label.csv.gz", split.parent / "nodetype-has-split.csv.gz"):
        _write_csv(path, has_label, "%d", types)
    parts = np.split(random.permutation(len(labels)), _cuts(len(labels), 0.855, 0.943))
    for part, ids in zip(("train", "valid", "test"), parts, strict=True):
        _write_csv(split / f"{part}.csv.gz", np.sort(ids), "%d")
    return folder


def write_igbh(root: Path, name: str, shape: HeteroShape, *, seed: int = 0) -> Path:
    """Write ``shape`` as IGB writes its typed graphs up to medium: arrays with headers, edges as rows."""
    random = np.random.default_rng(seed)
    folder = root / "igbh" / name.removeprefix("igbh-")
    labels = _labels(random, shape)
    for kind, count in shape.nodes.items():
        at = folder / "processed" / kind
        at.mkdir(parents=True)
        out = np.lib.format.open_memmap(
            at / "node_feat.npy", mode="w+", dtype=np.float32, shape=(count, shape.dims[kind])
        )
        done = 0
        for rows in _features(random, shape, kind, labels):
            out[done : done + len(rows)] = rows
            done += len(rows)
        out.flush()
        del out
    for file in ("node_label_19.npy", "node_label_2K.npy"):
        np.save(folder / "processed" / "paper" / file, labels.astype(np.float32))
    for relation, count in shape.edges.items():
        at = folder / "processed" / "__".join(relation)
        at.mkdir(parents=True)
        np.save(at / "edge_index.npy", _edges(random, shape, relation, count))
    return folder


WRITERS: dict[str, Callable[..., Path]] = {
    name: write_mag if name == "ogbn-mag" else write_igbh for name in SHAPES
}


def fabricate_hetero(root: Path, name: str, *, scale: float, dim: int | None = None, seed: int = 0) -> Path:
    """Write data set ``name`` below ``root`` and return its folder."""
    return WRITERS[name](root, name, SHAPES[name].scaled(scale, dim=dim), seed=seed)


def _labels(random: np.random.Generator, shape: HeteroShape) -> NDArray[np.int64]:
    labels = random.integers(0, shape.classes, shape.nodes[shape.labelled])
    labels[: shape.classes] = np.arange(shape.classes)[: len(labels)]  # no class is empty
    return labels


def _edges(
    random: np.random.Generator, shape: HeteroShape, relation: Relation, count: int
) -> NDArray[np.int64]:
    """Return ``count`` edges (count, 2) whose ends are skewed, as those of publications are."""
    source, _, destination = relation
    pair = np.empty((count, 2), np.int64)
    for column, kind in enumerate((source, destination)):
        pair[:, column] = (shape.nodes[kind] * random.random(count) ** 1.6).astype(np.int64)
    return pair


def _features(random: np.random.Generator, shape: HeteroShape, kind: str, labels: NDArray[np.int64]) -> Any:
    """Yield the rows of a type, a piece at a time."""
    dim = shape.dims[kind]
    centers = random.standard_normal((shape.classes, dim), dtype=np.float32)
    centers *= _SIGNAL / np.linalg.norm(centers, axis=1, keepdims=True)
    for first in range(0, shape.nodes[kind], _ROWS):
        rows = random.standard_normal((min(_ROWS, shape.nodes[kind] - first), dim), dtype=np.float32)
        if kind == shape.labelled:
            rows += centers[labels[first : first + len(rows)]]
        yield rows


def _cuts(count: int, *shares: float) -> list[int]:
    return [round(share * count) for share in shares]


def _write_csv(path: Path, array: NDArray[Any], fmt: str, header: list[str] | None = None) -> None:
    with gzip.open(path, "wt", compresslevel=1) as file:
        if header is not None:
            file.write(",".join(header) + "\n")
        np.savetxt(file, array, delimiter=",", fmt=fmt)


def main() -> None:
    """Write the data sets that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=list(SHAPES))
    parser.add_argument("--root", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--scale", type=float, default=0.001, help="of nodes and edges")
    parser.add_argument("--dim", type=int, help="columns of features, instead of the true number")
    options = parser.parse_args()
    for name in options.names:
        print(f"{name}: {fabricate_hetero(options.root, name, scale=options.scale, dim=options.dim)}")


if __name__ == "__main__":
    main()
