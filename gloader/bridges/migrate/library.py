"""What a library's calls return, as data: by it a reader guesses what the variables of a script hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


Kind: TypeAlias = str
"""What a variable holds: "graph", "block", "blocks", "loader", "data", "batch", ...; "" is anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """What is known of the values of one library."""

    kind_of_call: Callable[[str], Kind]  # of what a call of a dotted name returns
    hands_on: Callable[[str], bool]  # whether a call of a dotted name returns its first argument, changed
    methods: Mapping[tuple[Kind, str], Kind]  # of what a method returns
    attributes: Mapping[tuple[Kind, str], Kind]
    items: Mapping[Kind, Kind]  # of x[...]
    several: Mapping[Kind, Kind]  # of a list of values of a kind
    loops: Mapping[
        tuple[Kind, int], tuple[Kind, ...]
    ]  # of what a loop over it gives, by the number of targets
    parameters: Mapping[str, Kind]  # of parameters, by the names that examples give them
