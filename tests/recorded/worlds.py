"""Tiny datasets for the recorded digests. Whole-number arithmetic makes their values, the same on every machine."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader import Dataset, propagate

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Rows = NDArray[np.float32]
    Relation = tuple[str, str, str]

NODES, EDGES, DIM, EDGE_DIM, CLASSES, LINKS = 400, 3_200, 6, 3, 3, 150
COUNTS = {"author": 300, "paper": 240, "field": 20, "empty": 0}
WIDTHS = {"paper": 8, "field": 5}
WRITES, WRITTEN_BY = ("author", "writes", "paper"), ("paper", "written_by", "author")
CITES, OF, HAS = ("paper", "cites", "paper"), ("field", "of", "paper"), ("paper", "has", "field")
READS = ("empty", "reads", "paper")
RELATIONS: dict[Relation, int] = {WRITES: 900, WRITTEN_BY: 900, CITES: 700, OF: 500, READS: 0, HAS: 500}
WEIGHTED: tuple[Relation, ...] = (WRITES, HAS)


def words(count: int, salt: int) -> NDArray[np.uint64]:
    """Return (count,) well-mixed words: the splitmix64 hash of the position and ``salt``."""
    x = np.arange(count, dtype=np.uint64) + np.uint64(salt << 32)
    x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw(count: int, limit: int, salt: int) -> Ids:
    """Return (count,) numbers in ``range(limit)``."""
    return (words(count, salt) % np.uint64(max(limit, 1))).astype(np.int64)


def draw_low(count: int, limit: int, salt: int) -> Ids:
    """Return (count,) numbers in ``range(limit)``, low ones more often: hubs."""
    return np.minimum(draw(count, limit, salt), draw(count, limit, salt + 1000))


def matrix(num_rows: int, dim: int, salt: int) -> Rows:
    """Return (num_rows, dim) eighths between -1.5 and 1.5, which every stored dtype but int8 holds exactly."""
    values = draw(num_rows * dim, 25, salt).reshape(num_rows, dim)
    return (values - 12).astype(np.float32) / 8


def parts(count: int) -> dict[str, Ids]:
    """Return training, validation and test ids, each a share of ``range(count)`` in mixed order."""
    order = np.argsort(words(count, 77), kind="stable").astype(np.int64)
    return {
        "train": order[: count // 3],
        "valid": np.sort(order[count // 3 : count // 2]),
        "test": np.sort(order[count // 2 :]),
    }


@cache
def edges() -> Ids:
    """Return (2, E) edges with a hub, self-loops, parallel edges, reverse edges and nodes without any."""
    src, dst = draw_low(EDGES, NODES, 1), draw_low(EDGES, NODES - 20, 2)
    dst[:120] = 7
    src[200:230], dst[200:230] = src[230:260], dst[230:260]
    src[300:500], dst[300:500] = dst[500:700], src[500:700]
    return np.stack([src, dst])


def weights(count: int, salt: int) -> Rows:
    """Return (count,) quarters from 0 to 1.5; a seventh of them are 0."""
    return draw(count, 7, salt).astype(np.float32) / 4


def link_tables(pairs: Ids, num_sources: int, num_destinations: int) -> dict[str, dict[str, Any]]:
    """Return the link tables over ``pairs`` (2, E): edges, pairs of no edge, labels, times and given negatives."""
    taken = np.argsort(words(pairs.shape[1], 31), kind="stable")[:LINKS]
    some = pairs[:, taken].copy()
    some[:, :5] = np.stack([draw(5, num_sources, 32), draw(5, num_destinations, 33)])
    negatives = draw(LINKS * 2, num_destinations, 34).reshape(LINKS, 2)
    wrong = np.stack([draw(40, num_sources, 35), draw(40, num_destinations, 36)])
    return {
        "train": {"edge_index": some, "times": draw(LINKS, 1_000, 37), "negatives": negatives},
        "values": {"edge_index": some, "labels": draw(LINKS, 9, 38).astype(np.float32) / 2},
        "classes": {"edge_index": some, "labels": draw(LINKS, 4, 39)},
        "wrong": {"edge_index": wrong},
    }


def one_type(path: Path, **changes: Any) -> Dataset:
    """Write a weighted graph of one type; entries of ``changes`` replace keywords of `Dataset.from_numpy`."""
    given: dict[str, Any] = {
        "features": matrix(NODES, DIM, 3),
        "labels": draw(NODES, CLASSES, 4),
        "num_classes": CLASSES,
        "edge_index": edges(),
        "edge_weight": weights(EDGES, 5),
        **parts(NODES),
    }
    given |= changes
    return Dataset.from_numpy(path, **{name: value for name, value in given.items() if value is not None})


def one_type_linked(path: Path, **changes: Any) -> Dataset:
    """Write a graph of one type with edge features, edge times and link tables."""
    given: dict[str, Any] = {
        "edge_features": matrix(EDGES, EDGE_DIM, 6),
        "edge_time": draw(EDGES, 1_000, 7),
        "edge_weight": None,
        "links": link_tables(edges(), NODES, NODES),
    }
    return one_type(path, **(given | changes))


def hop_columns(path: Path) -> Dataset:
    """Write hop columns of features and of labels, for the graph of one type."""
    graph = one_type(path.with_name(f"{path.name}-of"))
    made = propagate(graph, path, hops=2, directions=("in", "out"), labels=True)
    assert isinstance(made, Dataset)
    return made


@cache
def typed_edges() -> dict[Relation, Ids]:
    """Return (2, E) edges by relation; the third of `WRITTEN_BY` leads back what `WRITES` has."""
    found = {
        relation: np.stack(
            [
                draw_low(count, COUNTS[relation[0]], 40 + number),
                draw_low(count, COUNTS[relation[2]], 50 + number),
            ]
        )
        for number, (relation, count) in enumerate(RELATIONS.items())
    }
    found[WRITTEN_BY][:, :600] = found[WRITES][::-1, :600]
    return found


def typed(path: Path, **changes: Any) -> Dataset:
    """Write a graph of four types, one without nodes and one without features; two relations have weights."""
    given: dict[str, Any] = {
        "num_nodes": COUNTS,
        "features": {name: matrix(COUNTS[name], width, 60 + width) for name, width in WIDTHS.items()},
        "edges": typed_edges(),
        "edge_weight": {relation: weights(RELATIONS[relation], 70) for relation in WEIGHTED},
        "labels": {"paper": draw(COUNTS["paper"], CLASSES, 71)},
        "num_classes": CLASSES,
        "name": "typed",
        **parts(COUNTS["paper"]),
    }
    given |= changes
    return Dataset.from_numpy_hetero(path, **{k: value for k, value in given.items() if value is not None})


def typed_linked(path: Path, **changes: Any) -> Dataset:
    """Write the typed graph with edge features, edge times and link tables of `WRITES`."""
    tables = link_tables(typed_edges()[WRITES], COUNTS["author"], COUNTS["paper"])
    given: dict[str, Any] = {
        "edge_weight": None,
        "edge_features": {
            WRITES: matrix(RELATIONS[WRITES], EDGE_DIM, 80),
            CITES: matrix(RELATIONS[CITES], 2, 81),
        },
        "edge_time": {WRITES: draw(RELATIONS[WRITES], 1_000, 82), CITES: draw(RELATIONS[CITES], 1_000, 83)},
        "links": {name: {"relation": WRITES, "reverse": WRITTEN_BY, **of} for name, of in tables.items()},
    }
    return typed(path, **(given | changes))


# By name: the writer, and what is special.
WORLDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "one type": (one_type, {}),
    "float16": (one_type, {"dtype": "float16"}),
    "bfloat16": (one_type, {"dtype": "bfloat16"}),
    "int8": (one_type, {"dtype": "int8"}),
    "ordered by degree": (one_type, {"order": "degree"}),
    "ordered by community": (one_type, {"order": "community"}),
    "one type linked": (one_type_linked, {}),
    "hop columns": (hop_columns, {}),
    "typed": (typed, {}),
    "typed float16": (typed, {"feature_dtype": "float16"}),
    "typed linked": (typed_linked, {}),
}


class Worlds:
    """The datasets by name, each written below ``root`` when it is asked for first."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._opened: dict[str, Dataset] = {}

    def __getitem__(self, name: str) -> Dataset:
        """Return the dataset ``name``."""
        if name not in self._opened:
            write, changes = WORLDS[name]
            self._opened[name] = write(self._root / name.replace(" ", "-"), **changes)
        return self._opened[name]
