"""Link tables as Python callers give them: arrays by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.links.array_rows import ArrayRows
from gloader.convert.links.link_source import LinkSource
from gloader.core.malformed import shown
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Mapping

_COLUMNS = ("labels", "times", "negatives")
_KEYS = ("edge_index", *_COLUMNS, "relation", "reverse")


def array_tables(links: Mapping[str, Mapping[str, Any]]) -> tuple[LinkSource, ...]:
    """Return the link tables over arrays, which are shared.

    Parameters
    ----------
    links : by name, each with "edge_index" (2, n), and perhaps "labels" (n,), "times" (n,), "negatives" (n, k),
        "relation" and "reverse"

    Raises
    ------
    ConfigError
        A table lacks its edges, or has a key that is not known.
    ShapeError, GraphError, SourceError
        An array has the wrong shape or dtype.
    """
    return tuple(_table(name, table) for name, table in links.items())


def _table(name: str, table: Mapping[str, Any]) -> LinkSource:
    where = f"links[{shown(name)}]"
    unknown = [key for key in table if key not in _KEYS]
    if unknown or "edge_index" not in table:
        said = f"the key {shown(unknown[0])}" if unknown else "no edge_index"
        raise ConfigError(
            f"{where} has {said}; it takes {', '.join(_KEYS)}, of which edge_index must be there"
        )
    pairs = np.asanyarray(table["edge_index"])
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        cure = ", as .T makes it" if pairs.shape[1:] == (2,) else ""
        raise ShapeError(f"{where} has edge_index of shape {pairs.shape}; it must be (2, n){cure}")
    labels, times, negatives = (
        None if table.get(key) is None else np.asanyarray(table[key]) for key in _COLUMNS
    )
    named = {key: table.get(key) for key in ("relation", "reverse")}
    return LinkSource(
        name=name,
        rows=ArrayRows.of(pairs[0], pairs[1], where=where, label=labels, time=times, negatives=negatives),
        where=where,
        **{
            key: each if each is None or isinstance(each, str) else relation_text(each)
            for key, each in named.items()
        },
    )
