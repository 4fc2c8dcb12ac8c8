"""Specifications for synthetic graphs: checked values from the text after ``synthetic:``.

`parse_spec` reads a text such as "rmat,nodes=500000,edges=6000000": a kind of graph, then fields of the kind's class
below. `open_synthetic` makes the graph from the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TypeAlias

from gloader.errors import ConfigError

# Upper bounds. A conversion sorts edges in 256 buckets, and a node's offset in its bucket has 32 bits: 40 bits in all.
MAX_NODES = 1 << 40
MAX_EDGES = 1 << 50
MAX_CLASSES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunitySpec:
    """A degree-corrected community graph with class-correlated features.

    A node has its community's class. Edges are undirected, and both directions are listed.
    """

    nodes: int  # number of nodes
    edges: int  # number of directed edges, even
    dim: int = 128  # features per node
    classes: int = 16  # number of classes
    seed: int = 0  # seed of all random draws
    communities: int = 0  # number of communities; 0 means one per class
    homophily: float = 0.6  # the share of edges that stay inside a community
    # The power-law exponent of expected degrees, above 2; a smaller one means larger hubs.
    exponent: float = 2.3
    signal: float = 1.7  # distance of a class's centre from the origin; a feature's noise has deviation 1
    train: float = 0.6  # the share of training nodes
    valid: float = 0.2  # the share of validation nodes; the rest are test nodes

    def __post_init__(self) -> None:
        """Check every value. Raises ConfigError."""
        _check_sizes(self)
        if self.edges % 2:
            raise ConfigError(
                f"edges={self.edges} is odd; a community graph lists both directions of every edge, so write "
                f"edges={self.edges + 1}"
            )
        _check_range("homophily", self.homophily, 0.0, 1.0)
        if not 2.0 < self.exponent <= 10.0:
            raise ConfigError(
                f"exponent={self.exponent} is not in (2, 10]; graphs of this field have 2.1 to 3"
            )
        if not self.classes <= self.num_communities <= self.nodes:
            raise ConfigError(
                f"communities={self.num_communities} is not allowed; say a number from "
                f"classes={self.classes} to nodes={self.nodes}"
            )

    @property
    def num_communities(self) -> int:
        """Number of communities."""
        return self.communities or self.classes


@dataclass(frozen=True, slots=True, kw_only=True)
class RmatSpec:
    """A directed R-MAT graph (Chakrabarti et al., SDM'04), by default with Graph500's probabilities.

    Every node has a few binary traits, on which its features depend. Its label combines each trait's majority among its
    in-neighbours. As usual in R-MAT, there are parallel edges and self loops.
    """

    nodes: int  # number of nodes
    edges: int  # number of directed edges
    dim: int = 128  # features per node
    classes: int = 16  # number of classes
    seed: int = 0  # seed of all random draws
    a: float = 0.57  # probability of the quadrant with the lower half of the sources and of the destinations
    b: float = 0.19  # probability of the quadrant with the lower half of the sources and the upper half of destinations
    c: float = 0.19  # probability of the quadrant with the upper half of the sources and the lower half of destinations
    signal: float = 4.0  # distance of a centre from the origin; a feature's noise has deviation 1
    train: float = 0.6  # the share of training nodes
    valid: float = 0.2  # the share of validation nodes; the rest are test nodes

    def __post_init__(self) -> None:
        """Check every value. Raises ConfigError."""
        _check_sizes(self)
        for name, value in (("a", self.a), ("b", self.b), ("c", self.c), ("a+b+c", self.a + self.b + self.c)):
            _check_range(name, value, 0.0, 1.0 + 1e-9)


SyntheticSpec: TypeAlias = CommunitySpec | RmatSpec
_KINDS: dict[str, type[CommunitySpec | RmatSpec]] = {"community": CommunitySpec, "rmat": RmatSpec}


def parse_spec(text: str, *, seed: int = 0) -> SyntheticSpec:
    """Return the specification for a text such as "rmat,nodes=500000,edges=6000000,seed=5". Pure.

    ``seed`` is used if the text names no seed.

    Raises
    ------
    ConfigError
        A kind or key is unknown, a key has no value or occurs twice, or a value is not allowed.
    """
    kind, *pairs = (part.strip() for part in text.split(","))
    if kind not in _KINDS:
        raise ConfigError(f"{kind!r} is not a kind of synthetic graph{_nearest(kind, list(_KINDS))}")
    spec = _KINDS[kind]
    types = {field.name: str(field.type) for field in fields(spec)}
    values: dict[str, float | int] = {"seed": seed}
    seen: set[str] = set()
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if key not in types:
            raise ConfigError(f"{key!r} is not a key of synthetic:{kind}{_nearest(key, list(types))}")
        if key in seen:
            raise ConfigError(f"{key!r} is given twice in synthetic:{text}")
        if not equals or not value:
            raise ConfigError(f"{key!r} has no value in synthetic:{text}; write {key}=VALUE")
        seen.add(key)
        values[key] = _parse_value(key, value, types[key])
    missing = [key for key in ("nodes", "edges") if key not in seen]
    if missing:
        raise ConfigError(f"synthetic:{kind} needs {' and '.join(f'{key}=NUMBER' for key in missing)}")
    return spec(**values)  # type: ignore[arg-type]  # the types were looked up just above


def _parse_value(key: str, value: str, type_name: str) -> float | int:
    """Return a field's value as its type, "int" or "float". Raises ConfigError if it is no such number."""
    try:
        return int(value) if type_name == "int" else float(value)
    except ValueError:
        wanted = "a whole number" if type_name == "int" else "a number"
        raise ConfigError(f"{key}={value!r} is not {wanted}") from None


def _check_sizes(spec: SyntheticSpec) -> None:
    """Raise ConfigError for a field, common to both kinds, that is out of range."""
    _check_range("nodes", spec.nodes, 1, MAX_NODES)
    _check_range("edges", spec.edges, 0, MAX_EDGES)
    _check_range("dim", spec.dim, 1, 1 << 20)
    _check_range("classes", spec.classes, 1, min(MAX_CLASSES, spec.nodes))
    _check_range("seed", spec.seed, 0, (1 << 63) - 1)
    _check_range("signal", spec.signal, 0.0, 1e6)
    for name, value in (
        ("train", spec.train),
        ("valid", spec.valid),
        ("train+valid", spec.train + spec.valid),
    ):
        _check_range(name, value, 0.0, 1.0 + 1e-9)  # the sum of two shares may be rounded up


def _check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise ConfigError if ``value`` is not a finite number in [low, high]."""
    if not (math.isfinite(value) and low <= value <= high):
        raise ConfigError(f"{name}={value} is not allowed; say a number from {low} to {high:.15g}")


def _nearest(word: str, valid: list[str]) -> str:
    """Return the end of a message about an unknown word: the most similar valid word, and all valid words."""
    nearest = get_close_matches(word.lower(), valid, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ";"
    return f"{hint} Allowed: {', '.join(valid)}"
