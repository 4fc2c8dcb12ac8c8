"""Ten runs that are held up on purpose, each by something else, and what an analysis has to say of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from replay_cases import FAST_DISK, LABOR, NARROW_MODEL, SAGE, SMALL_GRAPH, Case, Graph
from replay_disk import Disk

from gloader.core.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """A run that is held up on purpose, and what an analysis has to say of it."""

    case: Case
    parts: tuple[str, ...]  # one of them takes most of an epoch
    remedies: tuple[str, ...]  # knobs, one of which is what would help most
    why: str  # what holds it up


_MEMORY: Final = "/dev/shm"  # noqa: S108 - the folder that is made there is for its owner alone

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
                held_to("150MB", cache=0.2, io_strategy="direct", superbatch=2, batch_size=128),
                disk=Disk(read_bytes_per_s=1e9, reads_per_s=10_000, write_bytes_per_s=200e6),
            ),
            parts=("read",),
            remedies=("disk.random",),
            why="10,000 reads a second, of rows that no sweep can stage",
        ),
        Bottleneck(
            case=case(
                "one core",
                _small(features="ram", sampler=LABOR, threads=2),
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
                _small(features="ram", sampler=LABOR, threads=1),
                {"name": "gcn", "hidden": 4},
                graph=narrow_rows,
            ),
            parts=("sample",),
            remedies=("threads",),
            why="for a sampler that looks at every edge four times",
        ),
        Bottleneck(
            case=case("costly model", _small(features="ram"), SAGE, compute=4),
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
            case=case("one buffer", held_to("82MB"), SAGE, disk=FAST_DISK, epochs=2),
            parts=("read",),
            remedies=("memory", "buffers"),
            why="a budget without room for two, or for a cache",
        ),
        Bottleneck(
            case=case(
                "slow writes",
                held_to("260MB", cache=0.1, io_strategy="packed", superbatch=32),
                disk=Disk(read_bytes_per_s=1e9, reads_per_s=20_000, write_bytes_per_s=30e6),
            ),
            parts=("sweep",),
            remedies=("disk.write", "strategy"),
            why="30 MB/s into packs that every superbatch writes",
        ),
        Bottleneck(
            case=case(
                "swept edges",
                # What a pass brings lies in memory: small reads from the disk would wait behind those of the next pass.
                held_to("400MB", features="ram", topology="sweep", spill_budget="5MB", spill_dir=_MEMORY),
                disk=replace(FAST_DISK, read_bytes_per_s=50e6),
            ),
            parts=("sweep",),
            remedies=("disk",),
            why="50 MB/s for edges that are read for every few batches",
        ),
    )
