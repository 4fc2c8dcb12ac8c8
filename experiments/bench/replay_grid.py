"""The grid of the benchmark of the replay: runs that differ along an axis, and which is predicted from which. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Final

from replay_cases import FAST_DISK, LABOR, SMALL_GRAPH, Case

from gloader.core.units import parse_bytes

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
                "sampler": LABOR if self.is_labor else "neighbor",
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
    Point(cache=20, superbatch=32, threads=1, disk=0.5, compute=1, is_labor=True),
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
