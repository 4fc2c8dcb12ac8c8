"""What the benchmark of the replay runs: graphs, and the runs on them. Pure, but for `make_graph`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from hetero_graphs import make_mag
from link_graphs import make_citations, write_citations
from replay_disk import Disk

from gloader import Dataset
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.core.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RMAT: Final = (
    "synthetic:rmat,nodes={nodes},edges={edges},dim={dim},classes=8,seed=5,train={train},valid=0.01"
)
_SCALE: Final = {"typed": 0.1, "links": 0.01}  # of ogbn-mag and ogbl-citation2
_TINY_SCALE: Final = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A dataset that is made."""

    kind: str = "rmat"  # or "typed", "links"
    nodes: int = 0
    edges: int = 0
    dim: int = 0
    train: float = 0.1
    dtype: str = "float32"
    is_tiny: bool = False

    @property
    def tiny(self) -> Graph:
        """A graph of the kind that a test can afford."""
        return replace(self, nodes=min(self.nodes, 6_000), edges=min(self.edges, 60_000), is_tiny=True)

    @property
    def name(self) -> str:
        """A folder name."""
        if self.kind != "rmat":
            return f"{self.kind}-tiny" if self.is_tiny else self.kind
        return f"rmat-{self.nodes}-{self.edges}-{self.dim}-{self.train:g}-{self.dtype}"


def make_graph(workdir: Path, graph: Graph) -> Path:
    """Return the folder of the dataset of ``graph``, made where it is missing."""
    folder = workdir / graph.name
    if folder.exists():
        return folder
    print(f"making {graph.name}", flush=True)
    scale = _TINY_SCALE if graph.is_tiny else _SCALE.get(graph.kind, 1.0)
    if graph.kind == "typed":
        _write_mag(folder, scale)
    elif graph.kind == "links":
        write_citations(folder, make_citations(scale)).close()
    else:
        spec = _RMAT.format(**asdict(graph))
        prepare(open_source(spec, SourceOptions()), folder, PrepareOptions(dtype=graph.dtype))
    return folder


def _write_mag(folder: Path, scale: float) -> None:
    made = make_mag(scale)
    nothing = np.empty(0, np.int64)
    Dataset.from_numpy_hetero(
        folder,
        name="typed",
        num_nodes=made.num_nodes,
        features=made.features,
        edges={relation: np.asarray(pair, np.int64) for relation, pair in made.edges.items()},
        labels={"paper": made.labels},
        num_classes=made.num_classes,
        train=made.train[: len(made.train) // 6],
        valid=nothing,
        test=nothing,
    ).close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run: what is trained on, with what, and on what machine."""

    name: str
    graph: Graph
    loader: dict[str, Any]  # keywords of `gloader.Loader`, without ``epochs``, ``trace`` and the spill folder
    model: dict[str, Any]  # of `gloader.config.ModelConfig`
    links: dict[str, Any] | None = None  # of `gloader.config.LinkConfig`; None: nodes are classified
    epochs: int = 3
    compute: int = 1  # times that each batch is learned from
    ranks: int = 1
    cores: int | None = None  # None: those there are
    disk: Disk | None = None  # None: as fast as it is

    @property
    def key(self) -> str:
        """A folder name: of another run where anything differs."""
        body = json.dumps(asdict(self), sort_keys=True).encode()
        return f"{self.name}-{hashlib.blake2b(body, digest_size=4).hexdigest()}"

    def changed(self, name: str, *, loader: dict[str, Any] | None = None, **fields: Any) -> Case:
        """Return a case with some keywords of the loader, and other fields, changed."""
        return replace(self, name=name, loader={**self.loader, **(loader or {})}, **fields)

    @property
    def tiny(self) -> Case:
        """The same in a few seconds, whose figures say nothing."""
        # Links are many, however small the graph is.
        batch_size = min(self.loader["batch_size"], 64 if self.links is None else 2048)
        return self.changed(
            f"tiny {self.name}", loader={"batch_size": batch_size}, graph=self.graph.tiny, epochs=2
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


# --- unchanged: replays of runs as they were

PLAIN: Final = Graph(nodes=870_000, edges=12_000_000, dim=128)
_SAGE: Final = {"name": "graphsage", "hidden": 128}
NARROW_MODEL: Final = {"name": "graphsage", "hidden": 32}
_GCN: Final = {"name": "gcn", "hidden": 128}
_GAT: Final = {"name": "gat", "hidden": 64, "heads": 2}
_BASE: Final = {"fanouts": [10, 10], "batch_size": 1024, "memory_budget": parse_bytes("700MB")}
_SSD: Final = {**_BASE, "features": "ssd", "cache": 0.1}
_RAM: Final = {**_BASE, "features": "ram", "memory_budget": parse_bytes("1.5GB")}


def unchanged_cases() -> tuple[Case, ...]:
    """Return runs in memory, direct, staged and packed, on one and two ranks, of three models, and more."""

    def case(name: str, loader: dict[str, Any], model: dict[str, Any], **fields: Any) -> Case:
        return Case(name=name, graph=fields.pop("graph", PLAIN), loader=loader, model=model, **fields)

    direct, staged, packed = ({**_SSD, "io_strategy": way} for way in ("direct", "staged", "packed"))
    two: dict[str, Any] = {"ranks": 2}
    return (
        case("memory, GraphSAGE", _RAM, _SAGE),
        case("memory, GCN", _RAM, _GCN),
        case("memory, GAT", _RAM, _GAT),
        case("direct, GraphSAGE", direct, _SAGE),
        case("direct, GCN, 1 thread", {**direct, "threads": 1}, _GCN),
        case("staged, GraphSAGE", staged, _SAGE),
        case("staged, GCN, S = 8", {**staged, "superbatch": 8}, _GCN),
        case("packed, GraphSAGE", packed, _SAGE),
        case("packed, GAT", packed, _GAT),
        case("auto, GraphSAGE", _SSD, _SAGE),
        case("memory, GraphSAGE, 2 ranks", {**_RAM, "batch_size": 512}, _SAGE, **two),
        case("direct, GCN, 2 ranks", {**direct, "batch_size": 512}, _GCN, **two),
        case("staged, GraphSAGE, 2 ranks", {**staged, "batch_size": 512}, _SAGE, **two),
        case("edges swept, GraphSAGE", {**_SSD, "topology": "sweep", "spill_budget": "4GB"}, _SAGE),
        case(
            "types, R-SAGE",
            {**_SSD, "fanouts": [10, 5], "batch_size": 512},
            {"name": "rsage", "hidden": 32},
            graph=Graph(kind="typed"),
        ),
        case(
            "links, GraphSAGE",
            {**_SSD, "batch_size": 8192, "fanouts": [5, 3]},
            {"name": "graphsage", "hidden": 32},
            graph=Graph(kind="links"),
            links={"edges": "train"},
        ),
    )


# --- cross: what a recording says of another run

_LABOR: Final = "labor:iterations=3"
SMALL_GRAPH: Final = Graph(nodes=400_000, edges=6_000_000, dim=128)
# A disk of known rates, slower than this machine's.
FAST_DISK: Final = Disk(read_bytes_per_s=400e6, reads_per_s=20_000, write_bytes_per_s=200e6)
# A control group lets what was not used in a tenth of a second through at once: superbatches take several of them.
CROSS_DISK: Final = FAST_DISK.scaled(reads=0.5, writes=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run of the grid."""

    cache: int  # percent of the features
    superbatch: int
    threads: int
    disk: float  # times the rates of the fastest
    compute: int
    is_labor: bool = False  # whether the sampler is a costly one, for a narrow model

    @property
    def name(self) -> str:
        """Its place in the grid."""
        labor = "labor-" if self.is_labor else ""
        return f"{labor}c{self.cache}-S{self.superbatch}-t{self.threads}-d{self.disk:g}-x{self.compute}"

    @property
    def case(self) -> Case:
        """The run."""
        return Case(
            name=self.name,
            graph=SMALL_GRAPH,
            loader={
                "fanouts": [10, 10],
                "sampler": _LABOR if self.is_labor else "neighbor",
                "batch_size": 256,
                "memory_budget": parse_bytes("700MB"),
                "features": "ssd",
                "cache": self.cache / 100,
                "superbatch": self.superbatch,
                "threads": self.threads,
            },
            model={"name": "graphsage", "hidden": 16 if self.is_labor else 64},
            compute=self.compute,
            disk=CROSS_DISK.scaled(reads=self.disk, writes=self.disk),
        )

    def change(self, axis: str, other: Point) -> str:
        """Return the what-if that makes this run the ``other`` one, which differs along ``axis``."""
        value = getattr(other, axis)
        if axis == "cache":
            return f"cache={value}%"
        if axis in {"disk", "compute"}:
            return f"{axis}={value / getattr(self, axis):g}x"
        return f"{axis}={value}"


AXES: Final[dict[str, tuple[Any, ...]]] = {
    "cache": (5, 10, 20, 40),
    "superbatch": (8, 32, 128),
    "threads": (1, 2),
    "disk": (1.0, 0.5, 0.25),
    "compute": (1, 2),
}
BASES: Final = (
    # Bound by the disk, by the model and by its sampling thread.
    Point(cache=10, superbatch=32, threads=2, disk=0.5, compute=1),
    Point(cache=40, superbatch=128, threads=1, disk=1.0, compute=1),
    Point(cache=20, superbatch=32, threads=1, disk=1.0, compute=1, is_labor=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A recording, and the run that it is asked about."""

    axis: str
    known: Point
    asked: Point

    @property
    def name(self) -> str:
        """Axis, recording and run, for --only."""
        return f"{self.axis} {self.known.name} {self.asked.name}"

    @property
    def change(self) -> str:
        """The what-if."""
        return self.known.change(self.axis, self.asked)


def pairs_of(bases: tuple[Point, ...]) -> tuple[Pair, ...]:
    """Return all pairs of runs along each axis through each base, both ways, none twice. Pure."""
    found = {}
    for base in bases:
        for axis, values in AXES.items():
            line = [replace(base, **{axis: value}) for value in values]
            for known, asked in permutations(line, 2):
                found[known, asked] = Pair(axis=axis, known=known, asked=asked)
    return tuple(found.values())


def points_of(pairs: tuple[Pair, ...]) -> tuple[Point, ...]:
    """Return the runs of ``pairs``, none twice. Pure."""
    return tuple(dict.fromkeys(point for pair in pairs for point in (pair.known, pair.asked)))


# --- bottlenecks: runs that something in particular holds up


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """A run that is held up on purpose, and what an analysis has to say of it."""

    case: Case
    parts: tuple[str, ...]  # one of them takes most of an epoch
    remedies: tuple[str, ...]  # knobs, one of which is what would help most
    why: str  # what holds it up


# What every run is asked, those that do the least first: a disk that is faster at everything is no better advice than
# one that is faster at what is needed.
MENU: Final = (
    "threads={threads}",
    "superbatch={superbatch}",
    "strategy=staged",
    "cache=8x",
    "memory=2x",
    "compute=0.25x",
    "disk.random=4x",
    "disk.write=4x",
    "disk=4x",
    "cores={cores}",
    "dtype=float16",
)


def menu_of(*, threads: int, superbatch: int, cores: int) -> Iterator[str]:
    """Yield the what-ifs for a run of so many sampling threads, batches of a superbatch, and cores. Pure."""
    for words in MENU:
        yield words.format(threads=2 * threads, superbatch=16 * superbatch, cores=2 * cores)


def _small(**fields: Any) -> dict[str, Any]:
    return {
        "fanouts": [10, 10],
        "batch_size": 512,
        "memory_budget": parse_bytes("700MB"),
        "features": "ssd",
        **fields,
    }


def bottlenecks() -> tuple[Bottleneck, ...]:
    """Return ten runs, each held up by something else.

    Budgets are no larger than they have to be where more memory would help as well as what is to be found.
    """
    narrow_rows = replace(SMALL_GRAPH, dim=8)
    wide_rows = Graph(nodes=60_000, edges=1_500_000, dim=1024, train=0.3)

    def case(name: str, loader: dict[str, Any], model: dict[str, Any] = NARROW_MODEL, **fields: Any) -> Case:
        return Case(name=name, graph=fields.pop("graph", SMALL_GRAPH), loader=loader, model=model, **fields)

    def held_to(budget: str, **fields: Any) -> dict[str, Any]:
        return _small(memory_budget=parse_bytes(budget), **fields)

    return (
        Bottleneck(
            case=case(
                "slow disk in order",
                held_to("260MB", cache=0.1, io_strategy="staged", superbatch=32),
                disk=replace(FAST_DISK, read_bytes_per_s=100e6),
            ),
            parts=("sweep",),
            remedies=("disk",),
            why="100 MB/s",
        ),
        Bottleneck(
            case=case(
                "slow disk at random",
                held_to("150MB", cache=0.2, io_strategy="direct", superbatch=2),
                disk=Disk(read_bytes_per_s=500e6, reads_per_s=10_000, write_bytes_per_s=200e6),
            ),
            parts=("read",),
            remedies=("disk.random",),
            why="10,000 reads a second, of rows that no sweep can stage",
        ),
        Bottleneck(
            case=case(
                "one core",
                _small(features="ram", sampler=_LABOR, threads=2),
                {"name": "graphsage", "hidden": 256},
                cores=1,
            ),
            parts=("waiting for cores",),
            remedies=("cores",),
            why="for the model and two threads that sample",
        ),
        Bottleneck(
            case=case(
                "one sampling thread",
                _small(features="ram", sampler=_LABOR, threads=1),
                {"name": "gcn", "hidden": 4},
                graph=narrow_rows,
            ),
            parts=("sample",),
            remedies=("threads",),
            why="for a sampler that looks at every edge four times",
        ),
        Bottleneck(
            case=case("costly model", _small(features="ram"), _SAGE, compute=4),
            parts=("compute",),
            remedies=("compute",),
            why="each batch is learned from four times",
        ),
        Bottleneck(
            case=case(
                "small cache",
                held_to("900MB", cache=0.125, batch_size=256),
                {"name": "graphsage", "hidden": 8},
                graph=wide_rows,
                disk=replace(FAST_DISK, read_bytes_per_s=50e6),
            ),
            parts=("sweep", "read"),
            remedies=("cache",),
            why="an eighth of the rows, all of which are needed in every epoch",
        ),
        Bottleneck(
            case=case(
                "short superbatches",
                held_to("260MB", cache=0.12, io_strategy="staged", superbatch=2),
                disk=FAST_DISK,
            ),
            parts=("sweep",),
            remedies=("superbatch",),
            why="a sweep for every two batches",
        ),
        Bottleneck(
            case=case("one buffer", held_to("82MB"), _SAGE, disk=FAST_DISK, epochs=2),
            parts=("read",),
            remedies=("memory", "buffers"),
            why="a budget without room for two, or for a cache",
        ),
        Bottleneck(
            case=case(
                "slow writes",
                _small(cache=0.05, io_strategy="packed", superbatch=32),
                disk=replace(FAST_DISK, write_bytes_per_s=30e6),
            ),
            parts=("sweep",),
            remedies=("disk.write", "strategy"),
            why="30 MB/s into packs that every superbatch writes",
        ),
        Bottleneck(
            case=case(
                "swept edges",
                held_to("400MB", features="ram", topology="sweep", spill_budget="5MB"),
                disk=replace(FAST_DISK, read_bytes_per_s=50e6),
            ),
            parts=("sweep",),
            remedies=("disk",),
            why="50 MB/s for edges that are read for every few batches",
        ),
    )


# --- defaults: runs without a flag


def default_cases() -> tuple[Case, ...]:
    """Return six workloads as they come: what is trained on, a model, and the memory there is."""

    def case(name: str, graph: Graph, memory: str, model: dict[str, Any], **fields: Any) -> Case:
        loader = {
            "fanouts": fields.pop("fanouts", [10, 10]),
            "batch_size": fields.pop("batch_size", 512),
            "memory_budget": parse_bytes(memory),
        }
        return Case(name=name, graph=graph, loader=loader, model=model, **fields)

    wide = Graph(nodes=120_000, edges=2_000_000, dim=1632, train=0.1)
    return (
        case("all fits", SMALL_GRAPH, "1GB", _SAGE),
        case("narrow rows, tight", PLAIN, "180MB", _SAGE, batch_size=1024),
        case("wide rows, tight", wide, "300MB", _SAGE),
        case(
            "slow disk, tight", SMALL_GRAPH, "120MB", _SAGE, disk=replace(FAST_DISK, read_bytes_per_s=100e6)
        ),
        case("wide fan-out", SMALL_GRAPH, "150MB", NARROW_MODEL, fanouts=[25, 20], batch_size=256),
        case("attention", SMALL_GRAPH, "150MB", _GAT),
    )
