"""Negatives in the forms that users write: the kind and the number of wrong edges for link prediction.

A model that predicts edges trains on positives, which are true edges, and on negatives, which are drawn pairs of nodes.
`Uniform`, `Binary`, `InBatch` and `Table` are four ways to get negatives. Each has a text form for the command line,
which `str` returns and `parse_negatives` reads. A *link table* is a dataset's stored list of edges to predict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np

from gloader.core.fanouts import MAX_COUNT
from gloader.core.malformed import shown
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError

# The allowed texts, for messages.
_ALLOWED: Final = (
    "'uniform:5', 'uniform:5,strict', 'uniform:256,shared', 'binary:1.0', 'in_batch', 'table:NAME' or 'none'"
)
_STRICT: Final = "strict"
_SHARED: Final = "shared"


@near_keywords
@dataclass(frozen=True, slots=True)
class Uniform:
    """``k`` negatives for each edge: its source, and a destination drawn from all nodes of the destination's type.

    With ``strict``, no negative is an edge of the graph or a self loop. A held-out edge, which is not in the graph, may
    still be drawn, as with OGB's uniform negatives. With ``shared``, the k nodes are drawn once for a batch, for all of
    its edges, and also as wrong sources (Lerer et al., "PyTorch-BigGraph", MLSys 2019, section 4.3).

    Raises
    ------
    ConfigError
        ``k`` is not a whole number of at least 1, ``strict`` or ``shared`` is neither True nor False, or both are True.
    """

    k: int  # negatives per edge, or with ``shared`` per batch and end
    strict: bool = False  # whether edges of the graph are excluded
    shared: bool = (
        False  # whether all edges of a batch have the same negatives, in place of pairs of their own
    )

    def __post_init__(self) -> None:
        """Check the fields."""
        if isinstance(self.k, (bool, np.bool_)) or not isinstance(self.k, (int, np.integer)):
            raise ConfigError(f"Uniform(k={shown(self.k)}): k must be a whole number of at least 1")
        if not 1 <= self.k <= MAX_COUNT:
            raise ConfigError(f"Uniform(k={shown(self.k)}): k must be in 1..{MAX_COUNT:,}")
        object.__setattr__(self, "k", int(self.k))
        _check_flag("Uniform", _STRICT, self.strict)
        _check_flag("Uniform", _SHARED, self.shared)
        if self.strict and self.shared:
            raise ConfigError(
                f"Uniform(k={self.k}, strict=True, shared=True): a node that all edges of a batch share may be a true "
                "end of one of them; leave strict out"
            )

    def __str__(self) -> str:
        """Return the command line's form, such as "uniform:5,strict"."""
        return f"uniform:{self.k}{_suffix(self.strict)}{f',{_SHARED}' if self.shared else ''}"


@near_keywords
@dataclass(frozen=True, slots=True)
class Binary:
    """``ratio`` negatives for each edge on average: pairs of a source and a destination, both drawn from all nodes.

    With ``strict``, no negative is an edge of the graph, as in `Uniform`. Both ends may be the same node.

    Raises
    ------
    ConfigError
        ``ratio`` is not a finite number above 0, or ``strict`` is neither True nor False.
    """

    ratio: float = 1.0  # negatives per edge
    strict: bool = False  # whether edges of the graph are excluded

    def __post_init__(self) -> None:
        """Check the fields."""
        numbers = (int, float, np.integer, np.floating)
        if isinstance(self.ratio, (bool, np.bool_)) or not isinstance(self.ratio, numbers):
            raise ConfigError(f"Binary(ratio={shown(self.ratio)}): ratio must be a number above 0")
        if not 0 < self.ratio <= MAX_COUNT:  # NaN fails both comparisons
            raise ConfigError(
                f"Binary(ratio={shown(self.ratio)}): ratio must be above 0 and at most {MAX_COUNT:,}"
            )
        object.__setattr__(self, "ratio", float(self.ratio))
        _check_flag("Binary", _STRICT, self.strict)

    def num_pairs(self, num_positives: int) -> int:
        """Return the number of negatives for ``num_positives`` edges: the product with the ratio, rounded up. Pure."""
        # The arithmetic is exact and decimal. As floats, 1.1 * 10 is above 11 and would be rounded up to 12.
        return math.ceil(Fraction(repr(self.ratio)) * num_positives)

    def __str__(self) -> str:
        """Return the command line's form, such as "binary:1.0"."""
        return f"binary:{self.ratio!r}{_suffix(self.strict)}"


@near_keywords
@dataclass(frozen=True, slots=True)
class InBatch:
    """Negatives from the batch itself: for each edge, its source with the destinations of the batch's other edges."""

    def __str__(self) -> str:
        """Return the command line's form."""
        return "in_batch"


@near_keywords
@dataclass(frozen=True, slots=True)
class Table:
    """Negatives from the dataset: the link table ``name``, or the ``negatives`` of the batch's own link table.

    Raises
    ------
    ConfigError
        ``name`` is not a text, or is empty.
    """

    name: str  # the link table's name

    def __post_init__(self) -> None:
        """Check the name."""
        given: object = self.name
        if not isinstance(given, str) or not given:
            raise ConfigError(f"Table(name={shown(self.name)}): name must be the name of a link table")

    def __str__(self) -> str:
        """Return the command line's form, such as "table:wrong"."""
        return f"table:{self.name}"


Negatives: TypeAlias = Uniform | Binary | InBatch | Table


def checked_negatives(negatives: Any) -> Negatives | None:
    """Return ``negatives``, or the value for their text. None means no negatives. Pure.

    Raises
    ------
    ConfigError
        ``negatives`` is no `Negatives` value, and no text that `parse_negatives` accepts.
    """
    if negatives is None or isinstance(negatives, Negatives):
        return negatives
    if isinstance(negatives, str):
        return parse_negatives(negatives)
    raise ConfigError(
        f"negatives={shown(negatives)}; pass gloader.Uniform(k), Binary(ratio), InBatch(), Table(name) or None, or "
        f"a text such as {_ALLOWED}"
    )


def parse_negatives(text: str) -> Negatives | None:
    """Return the negatives for ``text``, such as "uniform:5,strict", or None for "none". Pure.

    Raises
    ------
    ConfigError
        The text has none of these forms, or its number is not allowed.
    """
    word, has_value, value = text.partition(":")
    word = word.strip()
    if word == "table" and value.strip():
        return Table(value.strip())
    value, has_option, option = (part.strip() for part in value.partition(","))
    is_strict = bool(has_option) and option == _STRICT
    try:
        match word, bool(has_value), is_strict or not has_option:
            case "uniform", True, True:
                return Uniform(int(value), strict=is_strict)
            case "uniform", True, False if option == _SHARED:
                return Uniform(int(value), shared=True)
            case "binary", True, True:
                return Binary(float(value), strict=is_strict)
            case "in_batch", False, _:
                return InBatch()
            case "none", False, _:
                return None
    except ConfigError:
        raise
    except ValueError:
        pass  # the error below reports a value that is not a number
    raise ConfigError(f"{shown(text)} names no negatives; write {_ALLOWED}")


def _suffix(strict: bool) -> str:
    """Return the end of the command line's form: ",strict" or nothing."""
    return f",{_STRICT}" if strict else ""


def _check_flag(name: str, field: str, value: object) -> None:
    """Raise ConfigError if ``value``, a ``field`` of the class ``name``, is neither True nor False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}({field}={shown(value)}): {field} must be True or False")
