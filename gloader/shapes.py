"""Values printed in one line, arrays by their shapes: ``ReadyBatch(x=[12040, 128], y=[1024], ...)``.

They answer an attribute that they do not have with the nearest that they have, or with all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

_MAX_SHOWN: Final = 2  # items of a mapping; a graph may have hundreds of relations


class ByShapes:
    """A dataclass, made with ``repr=False``, that prints its fields by their shapes, without those that are None."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a slip is an error of mypy

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property that raised this error: once more, for its own words
                return object.__getattribute__(self, name)
            raise AttributeError(f"a {type(self).__name__} has no {name!r}" + _advice(name, self))

    def __repr__(self) -> str:
        """Return one line; a field that is computed when it is read first is not read for it."""
        held = getattr(self, "__dict__", None)  # where such a field is kept
        parts = {
            each.name: getattr(self, each.name) if held is None else held[each.name]
            for each in fields(self)  # type: ignore[arg-type]  # of a dataclass
        }
        shown = [
            f"{name}={_short(part)}"
            for name, part in parts.items()
            if part is not None and not callable(part)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _advice(name: str, value: ByShapes) -> str:
    if name.startswith("_"):  # of a protocol
        return ""
    there = {each.name for each in fields(value)} | {each for each in dir(type(value)) if each[0] != "_"}  # type: ignore[arg-type]  # of a dataclass
    near = get_close_matches(name, there, n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(there))}"


def _short(value: Any) -> str:
    if (shape := getattr(value, "shape", None)) is not None:
        return str(list(shape))
    if isinstance(value, Mapping):
        items = [f"{_name(key)}: {_short(item)}" for key, item in islice(value.items(), _MAX_SHOWN)]
        more = len(value) - len(items)
        return f"{{{', '.join(items)}{f', {more} more' if more > 0 else ''}}}"
    if isinstance(value, tuple):
        return str(len(value))
    if isinstance(value, ByShapes):
        return f"{type(value).__name__}(...)"
    return repr(value)


def _name(key: object) -> str:
    return ":".join(map(str, key)) if isinstance(key, tuple) else str(key)
