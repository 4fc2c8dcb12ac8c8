"""Digests of streams of batches: two epochs of each kind of loader, part by part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import gloader
from gloader import Binary, InBatch, Table, Uniform, collective

from .worlds import CITES, COUNTS, NODES, WRITES, draw

if TYPE_CHECKING:
    from pathlib import Path

    from .worlds import Worlds

EPOCHS = 2
SSD: dict[str, Any] = {"features": "ssd", "cache": 1_500, "superbatch": 3, "io_strategy": "packed"}
PLACES: dict[str, dict[str, Any]] = {
    "memory": {"features": "ram", "topology": "ram", "threads": 1},
    "ssd": {**SSD, "topology": "ram", "threads": 3},
    "edges read": {"features": "ram", "topology": "direct", "threads": 2},
    "edges swept": {**SSD, "topology": "sweep", "threads": 2, "superbatch": 2},
}
HELD = ("memory", "ssd")  # where edges cannot be swept
SWEPT = ("memory", "edges swept")
ALL = tuple(PLACES)
LOADERS = {"node": gloader.Loader, "typed": gloader.HeteroLoader, "link": gloader.LinkLoader}


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream of batches: of a dataset, by a loader with settings, in each of ``places``."""

    loader: str  # a key of `LOADERS`
    world: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    places: tuple[str, ...] = HELD

    def open(self, worlds: Worlds, place: str, spill: Path) -> Any:
        """Return the loader."""
        given: dict[str, Any] = {
            "fanouts": [4, 3],
            "batch_size": 32,
            "seed": 11,
            "epochs": EPOCHS,
            "memory_budget": "200MB",
            "spill_dir": spill,
            "spill_budget": "64MB",
        }
        settings = given | PLACES[place] | dict(self.settings)
        return LOADERS[self.loader](worlds[self.world], **settings)

    def digests(self, worlds: Worlds, place: str, spill: Path) -> dict[str, Any]:
        """Return the digest of each part of the batches of two epochs."""
        found = Digests()
        with self.open(worlds, place, spill) as loader:
            found.add("state", json.dumps(loader.state_dict(), sort_keys=True))
            for _ in range(EPOCHS):
                for batch in loader:
                    add_batch(found, batch)
        return found.result()


class Digests:
    """SHA-256 digests of named parts, and sums of the floats that machines may round differently."""

    def __init__(self) -> None:
        self._hashes: dict[str, Any] = {}
        self._sums: dict[str, list[float]] = {}

    def add(self, part: str, *values: Any) -> None:
        """Add arrays, tensors and plain values to ``part``: dtype, shape and bytes of each, in order."""
        found = self._hashes.setdefault(part, hashlib.sha256())
        for value in values:
            array = value.numpy() if hasattr(value, "numpy") else value
            if isinstance(array, np.ndarray):
                found.update(f"{array.dtype.name}{array.shape}".encode())
                found.update(np.ascontiguousarray(array).tobytes())
            else:
                found.update(repr(_plain(array)).encode())

    def add_floats(self, part: str, value: Any) -> None:
        """Add float32 values to two sums of ``part``, the second of which depends on their order."""
        array = value.numpy().astype(np.float64)
        sums = self._sums.setdefault(part, [0.0, 0.0])
        sums[0] += float(array.sum())
        sums[1] += float((array * (1 + np.arange(array.size) % 97)).sum())

    def result(self) -> dict[str, Any]:
        """Return the parts: 16 digits of each digest, and the sums with 6."""
        digests = {part: found.hexdigest()[:16] for part, found in self._hashes.items()}
        sums = {part: [float(f"{value:.6g}") for value in found] for part, found in self._sums.items()}
        return dict(sorted((digests | sums).items()))


def _plain(value: Any) -> Any:
    """Return ``value`` with numpy's numbers as Python's: versions of numpy print them in different ways."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def add_batch(found: Digests, batch: Any) -> None:
    """Add every value of a batch, of one type or of several, or of links."""
    if hasattr(batch, "pairs"):
        found.add(
            "links", batch.id, batch.pairs, batch.labels, batch.edge_ids, batch.num_positives, batch.times
        )
        batch = batch.batch
    of_types = isinstance(batch.nodes, Mapping)
    found.add("nodes", (batch.id.epoch, batch.id.index), _by_type(batch.num_seeds), type(batch).__name__)
    found.add("labels", batch.y)
    for name, nodes in _by_type(batch.nodes).items():
        found.add("nodes", name, nodes)
    for name, tree in _by_type(batch.trees).items():
        found.add("nodes", name, tree)
    for name, rows in _by_type(batch.x).items():
        found.add("features", name, rows)
    for hop in batch.blocks:
        for relation, block in hop.items() if of_types else [("", hop)]:
            _add_block(found, relation, block)


def _by_type(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {"": value}


def _add_block(found: Digests, relation: Any, block: Any) -> None:
    found.add("edges", relation, block.num_src, block.num_dst, block.indptr, block.indices, block.edge_index)
    found.add("edge positions", relation, block.edge_ids)
    found.add("degrees", relation, block.src_degree)
    if block.edge_x is not None:
        found.add("edge features", relation, block.edge_x)
    if block.edge_weight is not None:
        found.add("edges", block.edge_weight.shape, str(block.edge_weight.dtype))
        found.add_floats("edge weights", block.edge_weight)


BY_RELATION: Any = {WRITES: [4, 3], CITES: [3, 2], "*": [2, 2]}
TYPED_SEEDS = {"paper": np.arange(0, 240, 4), "author": np.arange(20, 60), "field": np.arange(0, 20, 3)}
ASKED = draw(70, NODES, 90)  # seeds that ask at times may repeat
ASKED_TYPED = {"paper": draw(70, COUNTS["paper"], 91)}
AT = draw(70, 1_000, 92)


def _node(world: str = "one type", *, places: tuple[str, ...] = HELD, **settings: Any) -> Stream:
    return Stream(loader="node", world=world, settings=settings, places=places)


def _typed(world: str = "typed", *, places: tuple[str, ...] = HELD, **settings: Any) -> Stream:
    return Stream(loader="typed", world=world, settings={"fanouts": BY_RELATION} | settings, places=places)


def _link(world: str = "one type linked", *, places: tuple[str, ...] = HELD, **settings: Any) -> Stream:
    return Stream(loader="link", world=world, settings=settings, places=places)


_LAYERS: dict[str, Any] = {"fanouts": [64, 64]}
_TIMED: dict[str, Any] = {"seeds": ASKED, "times": AT}
_TIMED_TYPED: dict[str, Any] = {"seeds": ASKED_TYPED, "times": AT}
_TIME_STRATEGIES: dict[str, dict[str, Any]] = {
    "uniform": {"time_strategy": "uniform"},
    "last": {"time_strategy": "last"},
    "uniform to the second": {"time_strategy": "uniform", "time_bound": "<=", "time_window": 300},
    "last to the second": {"time_strategy": "last", "time_bound": "<=", "time_window": 300},
    "uniform with replacement": {"time_strategy": "uniform", "sampler": "neighbor:replace=true"},
    "uniform merged": {"time_strategy": "uniform", "layout": "merged"},
    "last merged": {"time_strategy": "last", "layout": "merged", "time_window": 500},
}
_NEGATIVES: dict[str, dict[str, Any]] = {
    "uniform": {"negatives": Uniform(2)},
    "uniform strict": {"negatives": Uniform(1, strict=True)},
    "binary": {"negatives": Binary(1.5)},
    "binary strict": {"negatives": Binary(1.0, strict=True)},
    "in batch": {"negatives": InBatch()},
    "other table": {"negatives": Table("wrong")},
    "own negatives": {"negatives": Table("train")},
    "values": {"negatives": None, "edges": "values"},
    "classes": {"negatives": None, "edges": "classes"},
    "exclude self": {"exclude": "self", "fanouts": [-1, 3]},
    "exclude reverse": {"exclude": "reverse", "fanouts": [-1, 3]},
    "exclude reverse and duplicates": {
        "exclude": "reverse",
        "exclude_duplicates": True,
        "fanouts": [-1, 3],
    },
    "merged": {"layout": "merged", "exclude": "reverse"},
    "no edge features": {"edge_features": "none"},
}
_LINK_TIMES: dict[str, dict[str, Any]] = {
    "times uniform": {"time_strategy": "uniform", "time_window": 500},
    "times last": {"time_strategy": "last", "time_bound": "<=", "exclude": "self"},
    "times merged": {"time_strategy": "last", "layout": "merged", "exclude": "reverse"},
    "times in batch": {"time_strategy": "uniform", "negatives": InBatch()},
}

NODE_STREAMS = {
    "neighbor": _node(places=ALL),
    "neighbor merged": _node(layout="merged", places=ALL),
    "neighbor with replacement": _node(sampler="neighbor:replace=true", places=SWEPT),
    "all neighbours": _node(fanouts=[-1, 2, -1], batch_size=8),
    "labor": _node(sampler="labor", places=SWEPT),
    "labor iterated": _node(sampler="labor:iterations=1"),
    "labor shared": _node(sampler="labor:share_layers=true,normalize=true"),
    "ladies": _node(sampler="ladies", **_LAYERS),
    "ladies gcn": _node(sampler="ladies:adjacency=gcn,normalize=true", **_LAYERS),
    "fastgcn": _node(sampler="fastgcn", **_LAYERS),
    "weighted": _node(sampler="weighted"),
    "weighted without replacement": _node(sampler="weighted:replace=false", places=SWEPT),
    "weighted without importance": _node(sampler="weighted:replace=false,importance=false", places=SWEPT),
    "weighted merged": _node(sampler="weighted:replace=false", layout="merged", places=SWEPT),
    "in order": _node(shuffle=False, drop_last=True),
    "seed blocks": _node(seed_blocks=4),
    "other seeds": _node(seeds=np.arange(5, 400, 7), seed=2**40 + 1),
    "second of two ranks": _node(rank=1, world_size=2, sharing="private", batch_size=16),
    "float16": _node("float16"),
    "bfloat16": _node("bfloat16"),
    "int8": _node("int8"),
    "ordered by degree": _node("ordered by degree", places=SWEPT),
    "ordered by community": _node("ordered by community"),
    "edge features": _node("one type linked", places=ALL),
    "edge features merged": _node("one type linked", layout="merged"),
    **{
        f"times {name}": _node("one type linked", **_TIMED, **settings)
        for name, settings in _TIME_STRATEGIES.items()
    },
}
TYPED_STREAMS = {
    "neighbor": _typed(places=ALL),
    "neighbor merged": _typed(layout="merged", places=ALL),
    "neighbor with replacement": _typed(sampler="neighbor:replace=true", places=SWEPT),
    "collective": _typed(fanouts=collective([6, 4])),
    "collective merged": _typed(fanouts=collective([6, 4]), layout="merged"),
    "all neighbours": _typed(fanouts=[-1, 2], batch_size=8),
    "several seed types": _typed(seeds=TYPED_SEEDS, places=SWEPT),
    "labor": _typed(sampler="labor", places=SWEPT),
    "weighted": _typed(sampler="weighted"),
    "weighted without replacement": _typed(sampler="weighted:replace=false", places=SWEPT),
    "weighted merged": _typed(sampler="weighted:replace=false", layout="merged", places=SWEPT),
    "second of two ranks": _typed(rank=1, world_size=2, sharing="private", batch_size=16),
    "float16": _typed("typed float16"),
    "one type": _typed("one type", fanouts=[4, 3], places=SWEPT),
    "edge features": _typed("typed linked", places=ALL),
    "edge features merged": _typed("typed linked", layout="merged"),
    **{
        f"times {name}": _typed("typed linked", **_TIMED_TYPED, **settings)
        for name, settings in _TIME_STRATEGIES.items()
    },
}
LINK_STREAMS = {
    **{name: _link(places=SWEPT, **settings) for name, settings in _NEGATIVES.items()},
    **{name: _link(**settings) for name, settings in _LINK_TIMES.items()},
    "labor": _link(sampler="labor"),
    "second of two ranks": _link(rank=1, world_size=2, sharing="private", batch_size=16),
}
TYPED_LINK_STREAMS = {
    **{name: _link("typed linked", places=SWEPT, **settings) for name, settings in _NEGATIVES.items()},
    **{name: _link("typed linked", **settings) for name, settings in _LINK_TIMES.items()},
    "one type as typed": _link(typed=True, exclude="reverse", places=SWEPT),
    "by relation": _link("typed linked", fanouts=BY_RELATION, exclude="reverse"),
}
STREAMS: dict[str, Stream] = {
    f"{kind}: {name}": stream
    for kind, streams in (
        ("one type", NODE_STREAMS),
        ("typed", TYPED_STREAMS),
        ("links", LINK_STREAMS),
        ("typed links", TYPED_LINK_STREAMS),
    )
    for name, stream in streams.items()
}
