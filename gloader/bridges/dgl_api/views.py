"""What `nodes` and `edges` of a graph or a block are: called and indexed; and what a function of edges is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gloader.bridges.dgl_api.relations import only, relation_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.bridges.dgl_api.edge_list import EdgeList
    from gloader.bridges.dgl_api.frame import Frame
    from gloader.types import Relation


@dataclass(frozen=True, slots=True)
class Space:
    """The data of a type or a relation, as ``g.nodes["user"].data``."""

    data: Frame


class NodesView:
    """Nodes by type.

    Parameters
    ----------
    frames : the data of each type
    device : of their numbers
    """

    def __init__(self, frames: Mapping[str, Frame], device: torch.device) -> None:
        self._frames = frames
        self._device = device

    def __call__(self, ntype: str | None = None) -> torch.Tensor:
        """Return the numbers (n,) int64 of the nodes of a type."""
        frame = self._frames[only(self._frames) if ntype is None else ntype]
        return torch.arange(frame.num_rows, device=self._device)

    def __repr__(self) -> str:
        return f"NodesView({', '.join(f'{name}: {frame}' for name, frame in self._frames.items())})"

    def __getitem__(self, ntype: str) -> Space:
        return Space(self._frames[ntype])


class EdgesView:
    """Edges by relation.

    Parameters
    ----------
    edges : of each
    frames : their data
    """

    def __init__(self, edges: Mapping[Relation, EdgeList], frames: Mapping[Relation, Frame]) -> None:
        self._edges = edges
        self._frames = frames

    def __call__(self, form: str = "uv", order: str | None = None, etype: Any = None) -> Any:  # noqa: ARG002 - they are in the order of their numbers
        """Return the ends of the edges, two of (E,) int64; with "all" their numbers, too; or these alone, "eid"."""
        edges = self._edges[relation_of(self._edges, etype)]
        numbers = torch.arange(edges.num_edges, device=edges.src.device)
        ends = (edges.src.long(), edges.dst.long())
        return {"uv": ends, "all": (*ends, numbers), "eid": numbers}[form]

    def __repr__(self) -> str:
        return f"EdgesView({', '.join(':'.join(relation) for relation in self._frames)})"

    def __getitem__(self, etype: Any) -> Space:
        return Space(self._frames[relation_of(self._frames, etype)])


class EdgeUnits:
    """The edges that a function of edges is given: ``src``, ``dst`` and ``data`` have a row for each of them.

    Parameters
    ----------
    edges : whose units they are
    src, dst, data : of the sources, the destinations and the edges
    """

    def __init__(self, edges: EdgeList, src: Frame, dst: Frame, data: Frame) -> None:
        self.src = _AtEnds(src, edges.src)
        self.dst = _AtEnds(dst, edges.dst)
        self.data = data
        self._edges = edges

    def edges(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sources, destinations and numbers."""
        numbers = torch.arange(len(self), device=self._edges.src.device)
        return self._edges.src.long(), self._edges.dst.long(), numbers

    def __len__(self) -> int:
        return self._edges.num_edges

    batch_size = __len__


class _AtEnds(Mapping[str, torch.Tensor]):
    """Columns of nodes, as the edges at ``ends`` see them."""

    def __init__(self, frame: Frame, ends: torch.Tensor) -> None:
        self._frame = frame
        self._ends = ends

    def __getitem__(self, key: str) -> torch.Tensor:
        column: torch.Tensor = self._frame[key]
        return column.index_select(0, self._ends)

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame)

    def __len__(self) -> int:
        return len(self._frame)
