"""Digests of batches as PyG's loops see them: every entry of ``Data`` and ``HeteroData``, of one epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .streams import STREAMS, Digests
from .worlds import WRITES

if TYPE_CHECKING:
    from pathlib import Path

    from .worlds import Worlds


@dataclass(frozen=True, kw_only=True)
class Face:
    """The batches of a stream, made into another library's by ``convert``."""

    stream: str
    convert: Callable[[Any], Any]

    def digests(self, worlds: Worlds, spill: Path) -> dict[str, Any]:
        """Return the digest of each entry."""
        found = Digests()
        with STREAMS[self.stream].open(worlds, "memory", spill) as loader:
            for batch in loader:
                _add(found, (), self.convert(batch).to_dict())
        return found.result()


def _add(found: Digests, path: tuple[str, ...], value: Any) -> None:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            name = ":".join(key) if isinstance(key, tuple) else str(key)
            _add(found, (*path, name), value[key])
    else:
        found.add(" ".join(path), value)


def _data(batch: Any) -> Any:
    from gloader.adapters.pyg import to_data

    return to_data(batch)


def _hetero_data(batch: Any) -> Any:
    from gloader.adapters.pyg import to_hetero_data

    return to_hetero_data(batch, labelled="paper")


def _link_data(**options: Any) -> Callable[[Any], Any]:
    def convert(batch: Any) -> Any:
        from gloader.adapters.pyg import to_link_data

        return to_link_data(batch, **options)

    return convert


FACES: dict[str, Face] = {
    "one type": Face(stream="one type: neighbor merged", convert=_data),
    "one type layered": Face(stream="one type: neighbor", convert=_data),
    "one type with edge features": Face(stream="one type: edge features merged", convert=_data),
    "typed": Face(stream="typed: neighbor merged", convert=_hetero_data),
    "typed layered": Face(stream="typed: neighbor", convert=_hetero_data),
    "typed with edge features": Face(stream="typed: edge features merged", convert=_hetero_data),
    "links": Face(stream="links: merged", convert=_link_data()),
    "links as triplets": Face(stream="links: uniform", convert=_link_data(triplets=True)),
    "links with times": Face(stream="links: times merged", convert=_link_data()),
    "typed links": Face(stream="typed links: merged", convert=_link_data(relation=WRITES)),
    "typed links as triplets": Face(
        stream="typed links: uniform", convert=_link_data(relation=WRITES, triplets=True)
    ),
}
