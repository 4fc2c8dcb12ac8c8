"""The contenders of the comparison: each system, the place of its features, and the settings to try for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from gloader.errors import ConfigError

System = Literal["gloader", "dgl", "pyg"]
Home = Literal["memory", "ssd", "memmap"]
Settings = dict[str, Any]

_WORKERS = ({"workers": 0}, {"workers": 1}, {"workers": 2})
# By default torch's idle threads spin for a while, which is the better setting on cores that nobody else wants.
_PEERS = (*_WORKERS, {"workers": 0, "idle_threads": "spin"})
_GINEX = {
    "policy": "belady",
    "io_strategy": "direct",
    "max_gap": 0,
    "superbatch_reset": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One row of the comparison.

    Where several ``variants`` are given, the first round runs all of them, and the fastest goes on.
    """

    name: str
    system: System
    home: Home  # of the features
    is_limited: bool  # whether it runs under the memory limit
    settings: Settings = field(default_factory=dict)
    variants: tuple[Settings, ...] = ({},)


def _gloader(name: str, **settings: Any) -> Contender:
    return Contender(name=name, system="gloader", home="ssd", is_limited=True, settings=settings)


def _memmap(system: System, advice: str, *, tries: int) -> Contender:
    # 32-bit ids halve what DGL's topology takes from the page cache; its fused sampler needs 64-bit ones.
    narrow = tuple({"narrow_ids": True, **variant} for variant in _WORKERS)
    variants = (narrow[0], _WORKERS[0], *narrow[1:]) if system == "dgl" else _WORKERS
    return Contender(
        name=f"{system}-memmap-{advice}",
        system=system,
        home="memmap",
        is_limited=True,
        settings={"advice": advice},
        variants=variants[:tries],
    )


def _memory(system: System, *, is_limited: bool = False) -> Contender:
    return Contender(
        name=f"{system}-memory" + ("-limited" if is_limited else ""),
        system=system,
        home="memory",
        is_limited=is_limited,
        variants=_PEERS[:1] if is_limited else _PEERS,
    )


CONTENDERS: tuple[Contender, ...] = (
    _gloader("gloader", policy="belady", io_strategy="auto"),
    _gloader("gloader-direct", policy="belady", io_strategy="direct"),
    _gloader("gloader-staged", policy="belady", io_strategy="staged"),
    _gloader("gloader-packed", policy="belady", io_strategy="packed"),
    _gloader("gloader-static", policy="static", io_strategy="auto"),
    _gloader("gloader-lru", policy="lru", io_strategy="auto"),
    _gloader("gloader-sieve", policy="sieve", io_strategy="auto"),
    _gloader("gloader-ginex", **_GINEX),
    Contender(name="gloader-memory", system="gloader", home="memory", is_limited=False),
    _memory("dgl"),
    _memmap("dgl", "random", tries=4),
    _memmap("dgl", "readahead", tries=1),
    _memory("dgl", is_limited=True),
    _memory("pyg"),
    _memmap("pyg", "random", tries=4),
    _memmap("pyg", "readahead", tries=1),
)
QUICK = ("gloader", "gloader-ginex", "gloader-memory", "dgl-memory", "dgl-memmap-random", "pyg-memory")


def choose(names: str) -> tuple[Contender, ...]:
    """Return the contenders named in a comma-separated list, in that order; all for "all". Pure.

    Raises
    ------
    ConfigError
        A name is not known.
    """
    known = {contender.name: contender for contender in CONTENDERS}
    wanted = list(known) if names == "all" else [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise ConfigError(f"contender {name!r} is not known; allowed: all, {', '.join(known)}")
    return tuple(known[name] for name in wanted)
