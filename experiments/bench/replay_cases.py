"""Cases of the replay benchmark: graphs, and the runs on them. Pure, except `make_graph`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
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


PLAIN: Final = Graph(nodes=870_000, edges=12_000_000, dim=128)
SMALL_GRAPH: Final = Graph(nodes=400_000, edges=6_000_000, dim=128)
SAGE: Final = {"name": "graphsage", "hidden": 128}
NARROW_MODEL: Final = {"name": "graphsage", "hidden": 32}
LABOR: Final = "labor:iterations=3"
# A disk of known rates, slower than this machine's.
FAST_DISK: Final = Disk(read_bytes_per_s=400e6, reads_per_s=20_000, write_bytes_per_s=200e6)


# --- unchanged: replays of runs as they were

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
        case("memory, GraphSAGE", _RAM, SAGE),
        case("memory, GCN", _RAM, _GCN),
        case("memory, GAT", _RAM, _GAT),
        case("direct, GraphSAGE", direct, SAGE),
        case("direct, GCN, 1 thread", {**direct, "threads": 1}, _GCN),
        case("staged, GraphSAGE", staged, SAGE),
        case("staged, GCN, S = 8", {**staged, "superbatch": 8}, _GCN),
        case("packed, GraphSAGE", packed, SAGE),
        case("packed, GAT", packed, _GAT),
        case("auto, GraphSAGE", _SSD, SAGE),
        case("memory, GraphSAGE, 2 ranks", {**_RAM, "batch_size": 512}, SAGE, **two),
        case("direct, GCN, 2 ranks", {**direct, "batch_size": 512}, _GCN, **two),
        case("staged, GraphSAGE, 2 ranks", {**staged, "batch_size": 512}, SAGE, **two),
        case("edges swept, GraphSAGE", {**_SSD, "topology": "sweep", "spill_budget": "4GB"}, SAGE),
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
        case("all fits", SMALL_GRAPH, "1GB", SAGE),
        case("narrow rows, tight", PLAIN, "180MB", SAGE, batch_size=1024),
        case("wide rows, tight", wide, "300MB", SAGE),
        case("slow disk, tight", SMALL_GRAPH, "120MB", SAGE, disk=replace(FAST_DISK, read_bytes_per_s=100e6)),
        case("wide fan-out", SMALL_GRAPH, "150MB", NARROW_MODEL, fanouts=[25, 20], batch_size=256),
        case("attention", SMALL_GRAPH, "150MB", _GAT),
    )
