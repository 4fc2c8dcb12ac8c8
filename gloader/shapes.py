"""Values printed in one line, arrays by their shapes: ``ReadyBatch(x=[12040, 128], y=[1024], ...)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import islice
from typing import Any, Final

_MAX_SHOWN: Final = 2  # items of a mapping; a graph may have hundreds of relations


class ByShapes:
    """A dataclass, made with ``repr=False``, that prints its fields by their shapes, without those that are None."""

    __slots__ = ()

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
