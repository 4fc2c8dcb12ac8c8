"""The search for the settings that a replay likes best: one knob after the other, until none of them helps. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gloader.errors import BudgetError, ConfigError, ReplayError
from gloader.replay.changes import NO_CHANGES, parse_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gloader.replay.changes import Changes

# Of the floor: whoever is so close to it is done.
CLOSE: Final = 0.03
# Of the best so far: less is nothing that a measurement could show.
_GAIN: Final = 0.002
NOTHING_ELSE: Final[Mapping[str, str]] = MappingProxyType({})
_NOT_POSSIBLE: Final = (BudgetError, ConfigError, ReplayError)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedKnob:
    """A setting that is tried, and with what."""

    name: str  # of `gloader.replay.changes.KNOBS`
    values: tuple[str, ...]  # as a what-if has them; leaving it as it was is tried as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One way to run that was tried."""

    changes: Changes
    seconds: float  # of an epoch; infinite: it is not possible
    reason: str = ""  # that it is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What a search came to."""

    start: Tried
    best: Tried
    tried: tuple[Tried, ...]  # in the order in which they were, each once
    is_at_floor: bool  # whether it ended as nothing could be much better


def search(
    knobs: Sequence[SearchedKnob],
    predict: Callable[[Changes], float],
    *,
    floor: Callable[[], float],
    close: float = CLOSE,
    together: Collection[str] = (),
    also: Mapping[str, str] = NOTHING_ELSE,
) -> Searched:
    """Return the best that changing one knob after another finds, from no change on. Pure where its arguments are.

    Begins at no change, or at ``also`` where that is faster. Takes each knob in turn, tries all of its values with the
    best that is known of the others, and keeps the fastest; a value that gains less than a five-hundredth stays away.
    Where no knob alone helps any more, those of ``together`` are tried in all combinations. Ends where these do not
    help either, or as soon as what is found is within ``close`` of the floor. Nothing is predicted twice.

    Parameters
    ----------
    knobs : what may be changed, in the order in which it is tried
    predict : returns the seconds of an epoch with some changes, or raises where they are not possible
    floor : returns seconds that no changes get below, as far as is known by then
    close : of the floor
    together : names of knobs that decide what room there is for each other
    also : values of knobs where it may begin as well

    Raises
    ------
    ReplayError, ConfigError, BudgetError
        What ``predict`` raises for no changes at all.
    """
    walk = _Walk(knobs, predict)
    seconds = predict(NO_CHANGES)
    walk.known[()] = start = best = Tried(changes=NO_CHANGES, seconds=seconds)
    chosen: dict[str, str] = {}
    if also and seconds > (1 + close) * floor():
        other = walk.try_out(also)
        if other.seconds < (1 - _GAIN) * seconds:
            chosen, best, seconds = dict(also), other, other.seconds

    def found(*, is_at_floor: bool) -> Searched:
        return Searched(start=start, best=best, tried=tuple(walk.known.values()), is_at_floor=is_at_floor)

    joint = tuple(knob for knob in knobs if knob.name in together)
    moves = [*((knob,) for knob in knobs), *((joint,) if len(joint) > 1 else ())]
    is_better = True
    while is_better:
        is_better = False
        for turned in moves:
            if len(turned) > 1 and is_better:
                continue
            if seconds <= (1 + close) * floor():
                return found(is_at_floor=True)
            for values in product(*((None, *knob.values) for knob in turned)):
                changed = {knob.name: value for knob, value in zip(turned, values, strict=True)}
                wanted = {name: value for name, value in (chosen | changed).items() if value is not None}
                tried = walk.try_out(wanted)
                if tried.seconds < (1 - _GAIN) * seconds:
                    chosen, best, seconds, is_better = wanted, tried, tried.seconds, True
    return found(is_at_floor=False)


class _Walk:
    """What was tried so far."""

    def __init__(self, knobs: Sequence[SearchedKnob], predict: Callable[[Changes], float]) -> None:
        self._names = [knob.name for knob in knobs]
        self._predict = predict
        self.known: dict[tuple[str, ...], Tried] = {}

    def try_out(self, wanted: Mapping[str, str]) -> Tried:
        """Return what these values of knobs make of an epoch."""
        words = tuple(f"{name}={wanted[name]}" for name in self._names if name in wanted)
        if words not in self.known:
            self.known[words] = self._try(words)
        return self.known[words]

    def _try(self, words: tuple[str, ...]) -> Tried:
        changes = parse_changes(",".join(words)) if words else NO_CHANGES
        try:
            return Tried(changes=changes, seconds=self._predict(changes))
        except _NOT_POSSIBLE as error:
            return Tried(changes=changes, seconds=math.inf, reason=str(error))
