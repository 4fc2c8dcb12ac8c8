"""Node and edge data: columns with a row for each node or edge, behind a graph's or block's ``nodes`` and ``edges``.

A `Frame` has the columns of one node type or one relation. `NodesView` and `EdgesView` give access to frames as in DGL:
``g.nodes["user"].data["feat"]``. `RelationData` is the common base class of `DGLGraph` and `DGLBlock`. `EdgeUnits` is
the argument of a user's edge function.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gloader.bridges.dgl_api.edge_list import degrees_of
from gloader.bridges.dgl_api.names import only, relation_of
from gloader.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gloader.bridges.dgl_api.edge_list import EdgeList
    from gloader.types import Relation


class Frame(MutableMapping[str, Any]):
    """Columns by name. A missing column is fetched at its first read if possible, and kept.

    Parameters
    ----------
    num_rows : number of rows in each column
    columns : tensors, or functions that return a tensor at the first read
    fetch : returns a missing column, or raises KeyError; None means that no column is fetched
    """

    def __init__(
        self,
        num_rows: int,
        columns: Mapping[str, Any] | None = None,
        *,
        fetch: Callable[[str], Any] | None = None,
    ) -> None:
        self.num_rows = num_rows
        self._columns = dict(columns or {})
        self._fetch = fetch

    def __getitem__(self, key: str) -> Any:
        if key in self._columns:
            column = self._columns[key]
        elif self._fetch is not None:
            column = self._columns[key] = self._fetch(key)
        else:
            raise KeyError(f"{key}: the columns are {', '.join(map(repr, self._columns)) or 'none'}")
        if callable(column):
            column = self._columns[key] = column()
        return column

    def __setitem__(self, key: str, column: Any) -> None:
        if len(column) != self.num_rows:
            raise ShapeError(f"{key!r} has {len(column)} rows; {self.num_rows} are needed, one for each")
        self._columns[key] = column

    def __delitem__(self, key: str) -> None:
        del self._columns[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, key: object) -> bool:
        return key in self._columns

    def __repr__(self) -> str:
        return f"{{{', '.join(self._columns)}}} of {self.num_rows} rows"

    def add(self, key: str, column: Any) -> None:
        """Add the column ``key``; it may be a function that returns the tensor at the first read."""
        self._columns[key] = column

    def columns(self) -> dict[str, Any]:
        """Return the present columns, without calling functions."""
        return dict(self._columns)

    def restore(self, columns: dict[str, Any]) -> None:
        """Restore the columns from an earlier `columns` call."""
        self._columns = columns

    def to(self, device: Any) -> Frame:
        """Return the frame with its columns on ``device``, including later fetched columns."""

        def moved(column: Any) -> Any:
            return (lambda: column().to(device)) if callable(column) else column.to(device)

        fetch = self._fetch
        return Frame(
            self.num_rows,
            {key: moved(column) for key, column in self._columns.items()},
            fetch=None if fetch is None else lambda key: fetch(key).to(device),
        )


class TypedColumns(MutableMapping[str, Any]):
    """Several frames' columns by name: a column maps each type that has it to the type's rows.

    Parameters
    ----------
    frames : frames by type
    """

    def __init__(self, frames: Mapping[Any, Frame]) -> None:
        self._frames = frames

    def __getitem__(self, key: str) -> dict[Any, Any]:
        rows_by_type = {}
        for name, frame in self._frames.items():
            try:
                rows_by_type[name] = frame[key]
            except KeyError:
                continue
        if not rows_by_type:
            raise KeyError(key)
        return rows_by_type

    def __setitem__(self, key: str, columns: Mapping[Any, Any]) -> None:
        for name, column in columns.items():
            self._frames[name][key] = column

    def __delitem__(self, key: str) -> None:
        for frame in [frame for frame in self._frames.values() if key in frame]:
            del frame[key]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key for frame in self._frames.values() for key in frame))

    def __len__(self) -> int:
        return len(list(iter(self)))


def data_of(frames: Mapping[Any, Frame]) -> Frame | TypedColumns:
    """Return the only frame, or a view of several frames."""
    return next(iter(frames.values())) if len(frames) == 1 else TypedColumns(frames)


@contextmanager
def forgetting(frames: Iterable[Frame]) -> Iterator[None]:
    """Undo changes to the columns of ``frames`` at the end of the ``with`` block, as DGL's ``local_scope`` does."""
    before = [(frame, frame.columns()) for frame in frames]
    try:
        yield
    finally:
        for frame, columns in before:
            frame.restore(columns)


@dataclass(frozen=True, slots=True)
class Space:
    """A type's or relation's data, as ``g.nodes["user"].data``."""

    data: Frame


class NodesView:
    """The nodes of a graph, as ``g.nodes``: ``g.nodes(type)`` are their ids, and ``g.nodes[type].data`` their data.

    Parameters
    ----------
    frames : data by type
    device : device for the nodes' numbers
    """

    def __init__(self, frames: Mapping[str, Frame], device: torch.device) -> None:
        self._frames = frames
        self._device = device

    def __call__(self, ntype: str | None = None) -> torch.Tensor:
        """Return the numbers (n,) int64 of a type's nodes."""
        frame = self._frames[only(self._frames) if ntype is None else ntype]
        return torch.arange(frame.num_rows, device=self._device)

    def __repr__(self) -> str:
        return f"NodesView({', '.join(f'{name}: {frame}' for name, frame in self._frames.items())})"

    def __getitem__(self, ntype: str) -> Space:
        return Space(self._frames[ntype])


class EdgesView:
    """The edges of a graph, as ``g.edges``: ``g.edges()`` are their ends, and ``g.edges[relation].data`` their data.

    Parameters
    ----------
    edges : edges by relation
    frames : edge data by relation
    """

    def __init__(self, edges: Mapping[Relation, EdgeList], frames: Mapping[Relation, Frame]) -> None:
        self._edges = edges
        self._frames = frames

    def __call__(self, form: str = "uv", order: str | None = None, etype: Any = None) -> Any:  # noqa: ARG002
        """Return the edges' ends, two (E,) int64 tensors; with "all" also the numbers; with "eid" only the numbers."""
        edges = self._edges[relation_of(self._edges, etype)]
        numbers = torch.arange(edges.num_edges, device=edges.src.device)
        ends = (edges.src.long(), edges.dst.long())
        return {"uv": ends, "all": (*ends, numbers), "eid": numbers}[form]

    def __repr__(self) -> str:
        return f"EdgesView({', '.join(':'.join(relation) for relation in self._frames)})"

    def __getitem__(self, etype: Any) -> Space:
        return Space(self._frames[relation_of(self._frames, etype)])


class RelationData:
    """The shared part of graphs and blocks: the relations, the edges, and the edge data.

    Parameters
    ----------
    edges, edge_data : edges and their data by relation
    """

    def __init__(self, edges: Mapping[Relation, EdgeList], edge_data: Mapping[Relation, Frame]) -> None:
        self._edges = edges
        self._edge_data = edge_data
        self.idtype = torch.int64

    @property
    def etypes(self) -> list[str]:
        """The relations' names."""
        return [name for _, name, _ in self._edges]

    @property
    def canonical_etypes(self) -> list[Relation]:
        """The relations."""
        return list(self._edges)

    @property
    def edata(self) -> Frame | TypedColumns:
        """Edge data; with several relations, each column is a mapping by relation."""
        return data_of(self._edge_data)

    @property
    def edges(self) -> EdgesView:
        """The edges: a call returns their ends, an index by relation their data."""
        return EdgesView(self._edges, self._edge_data)

    def in_degrees(self, v: Any = None, etype: Any = None) -> torch.Tensor:
        """Return each destination's number of in-edges (int64), or only for the nodes ``v``."""
        return degrees_of(self._edges[relation_of(self._edges, etype)].in_degrees, v)

    def out_degrees(self, u: Any = None, etype: Any = None) -> torch.Tensor:
        """Return each source's number of out-edges (int64), or only for the nodes ``u``."""
        return degrees_of(self._edges[relation_of(self._edges, etype)].out_degrees, u)


class EdgeUnits:
    """The edges in a call of an edge function: ``src``, ``dst`` and ``data`` have a row for each edge.

    Parameters
    ----------
    edges : the edges
    src, dst, data : frames for the sources, the destinations and the edges
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
    """Node columns, gathered at the edges' ``ends``."""

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
