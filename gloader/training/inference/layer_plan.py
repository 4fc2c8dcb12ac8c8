"""Plans by which full-neighbour inference fits its memory, layer by layer and type by type. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.models import Schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.models.conv import Layer
    from gloader.types import Relation

    # In the memory of the tables; in host memory, with tables elsewhere; on the SSD.
    Home = Literal["near", "host", "disk"]
    TypePlans = Mapping[str, "LayerPlan"]


FLOAT_BYTES: Final = 4
# Of an edge: its source, one that is read ahead, its destination and the scores of a few heads.
EDGE_BYTES: Final = 40
MAX_BUFFER_BYTES: Final = 128 << 20  # larger chunks are not faster
FILE_BYTES: Final = 8 << 20  # buffers of the files that activations are written to and read from
OUTPUT_BYTES: Final = 32  # of a wanted node: its id, its position, its label, its class
ORDER_BYTES: Final = (
    16  # of a wanted node whose own row is added: its places in ascending and in wanted order
)

# Pieces of a GPU are worth their launches only where they are large.
MAX_DEVICE_BUFFER_BYTES: Final = 512 << 20
# Three chunks of inputs are there at a time; the one in the computation is widened, normalised and cut off at 0.
DEVICE_ROW_COPIES: Final = 6
# Three pieces of sources are there at a time; of one of them, destinations, positions and scores.
DEVICE_EDGE_BYTES: Final = 64
# On the host: its position, twice, where lists are gathered; its source, and three pieces of sources on their way.
SENT_EDGE_BYTES: Final = 48
# Copies of an edge's features: the one in the computation and the one read ahead; on a device three pieces; on the host
# those that are read, and three pieces on their way.
_FEATURE_COPIES: Final = 2
_DEVICE_FEATURE_COPIES: Final = 3
_SENT_FEATURE_COPIES: Final = 4
# So many columns keep the passes over the inputs few; narrower slabs are possible.
REASONABLE_COLUMNS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """The steps in which one layer computes its rows of one type."""

    slabs: tuple[slice, ...]  # ranges of the columns that are made, one pass over the inputs each
    rows_per_read: int  # input rows projected at once
    rows_per_piece: int  # output rows propagated at once, at most
    edges_per_piece: int  # in-edges propagated at once
    is_on_disk: bool  # the outputs go to the SSD
    is_on_device: bool = False  # the outputs stay on the device that computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The size of the graph, and of the result."""

    num_nodes: Mapping[str, int]  # of each type, in order
    relations: tuple[Relation, ...]  # those with edges
    outputs: Mapping[str, int]  # wanted rows of each target; the last layer computes no others

    def needed(self, num_layers: int) -> tuple[tuple[str, ...], ...]:
        """Return the types that are needed after each number of layers, 0 to ``num_layers``: see `Schema.reaching`."""
        targets = tuple(self.outputs)
        schema = Schema(num_nodes=self.num_nodes, feature_dims={}, relations=self.relations, targets=targets)
        return schema.reaching(num_layers)

    def relations_into(self, node_type: str) -> tuple[Relation, ...]:
        """Return the relations with edges into a type."""
        return tuple(relation for relation in self.relations if relation[2] == node_type)

    def types_read(self, node_type: str) -> tuple[str, ...]:
        """Return the types whose rows a layer reads to make those of ``node_type``."""
        sources = {source for source, _, _ in self.relations_into(node_type)} | {node_type}
        return tuple(name for name in self.num_nodes if name in sources)


def read_dims(layers: Sequence[Layer], depth: int) -> Mapping[str, int]:
    """Return the width of the rows of each type that layer ``depth`` reads: features, or sums of that below. Pure."""
    dims = layers[depth].in_dims
    return dict.fromkeys(dims, layers[depth - 1].sum_dim) if depth else dims


def plan_inference(layers: Sequence[Layer], extent: Extent, *, budget_bytes: int) -> tuple[TypePlans, ...]:
    """Return a plan for each layer and each type that it makes, which keeps everything held within ``budget_bytes``.

    Pure. The types of a layer are made one after another, in order. A type needs a table of the sources of one relation
    at a time, and a sum for each destination where several terms are added. Both come in slabs of columns where they do
    not fit: every slab streams the inputs once more, in node order, so that all I/O stays sequential. Activations of
    all types of a layer may take a third, the smallest types first; the SSD holds the others. The inputs of a layer go
    with the last type that reads them.

    Parameters
    ----------
    layers : the L layers
    extent : of the graph, and of the result
    budget_bytes : for tables, sums, activations, buffers and results; the topology is not counted

    Raises
    ------
    BudgetError
        The narrowest table and sum of a type do not fit.
    """
    plans = _plan(layers, extent, _OnCpu(_host_room(layers, extent, budget_bytes)))
    if isinstance(plans, _Lacking):
        raise plans.error(extent)
    return plans


def plan_on_device(
    layers: Sequence[Layer], extent: Extent, *, device_bytes: int, budget_bytes: int
) -> tuple[TypePlans, ...] | None:
    """Return a plan as `plan_inference` does, with tables and sums on a device; None if the narrowest do not fit there.

    Pure. Less memory makes slabs narrower, not the device idle. Activations stay on the device where a third of it
    holds them, else in host memory where half of that does, else on the SSD.

    Parameters
    ----------
    layers, extent : as of `plan_inference`
    device_bytes : for tables, sums, activations and buffers; the edges there are not counted
    budget_bytes : of host memory, for buffers, activations and results
    """
    device = Room(device_bytes, MAX_DEVICE_BUFFER_BYTES)
    host = _host_room(layers, extent, budget_bytes)
    for keeps_activations in (True, False):
        plans = _plan(layers, extent, _OnDevice(device, host, keeps_activations))
        if not isinstance(plans, _Lacking):
            return plans
    return None


def reasonable_device_bytes(layers: Sequence[Layer], extent: Extent) -> int:
    """Return the device memory with which no layer needs slabs of less than 16 columns. Pure.

    Parameters
    ----------
    layers, extent : as of `plan_inference`
    """
    most = 0
    for depth, types in enumerate(extent.needed(len(layers))[1:]):
        for name in types:
            # Of all nodes, as everywhere but in the last layer.
            num_rows = extent.num_nodes[name]
            work = _TypeWork(layers, depth, extent, name, num_rows=num_rows, adds_in_place=False)
            most = max(most, work.held_bytes(work.at_least(REASONABLE_COLUMNS)))
    # A quarter of it is for buffers, up to their most.
    return min(most + most // 3 + 4, most + MAX_DEVICE_BUFFER_BYTES)


class Room:
    """Memory of one kind: buffers, and the rest."""

    def __init__(self, num_bytes: int, max_buffer_bytes: int, *, fixed: int = 0) -> None:
        # A quarter for chunks in flight: more of it would make slabs narrower, and each slab reads all inputs again.
        self.buffers = min(num_bytes // 4, max_buffer_bytes)
        self.left = num_bytes - self.buffers - fixed


def _host_room(layers: Sequence[Layer], extent: Extent, budget_bytes: int) -> Room:
    # Each type may have files open for its inputs and for its outputs.
    files = min(budget_bytes // 8, FILE_BYTES * max(1, len(extent.num_nodes) // 2))
    result_bytes = OUTPUT_BYTES + (ORDER_BYTES if layers[-1].roots else 0)
    return Room(budget_bytes, MAX_BUFFER_BYTES, fixed=files + result_bytes * sum(extent.outputs.values()))


class _Memory(Protocol):
    """The memory of a kind of place to compute."""

    @property
    def tables(self) -> Room:
        """The memory of tables and sums."""
        ...

    def homes(self, sizes: Mapping[str, int], *, is_last: bool) -> Mapping[str, Home]:
        """Return the place of the outputs of each type."""
        ...

    def plan(self, slabs: tuple[slice, ...], widths: _Widths, home: Home) -> LayerPlan:
        """Return the plan of a type with as large chunks and pieces as buffers allow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Widths:
    """Floats of a row, and of an edge; the widest of all types and relations that are read."""

    read: int
    entered: int  # on the way into the layer
    made: int  # in one pass
    edge: int  # features of an edge
    edge_terms: int  # of an edge, besides features and a few scores

    def edge_bytes(self, base: int, feature_copies: int) -> int:
        """Return the bytes of an edge that takes ``base`` without features."""
        return base + FLOAT_BYTES * (feature_copies * self.edge + self.edge_terms)


class _OnCpu:
    def __init__(self, tables: Room) -> None:
        self.tables = tables

    def homes(self, sizes: Mapping[str, int], *, is_last: bool) -> Mapping[str, Home]:  # noqa: ARG002 - as of `_Memory`
        # A third: the outputs, the inputs below them and the table share the rest.
        near = _smallest(sizes, self.tables.left // 3)
        return {name: "near" if name in near else "disk" for name in sizes}

    def plan(self, slabs: tuple[slice, ...], widths: _Widths, home: Home) -> LayerPlan:
        buffers = self.tables.buffers
        # Two buffers of inputs and the entered copy, besides the rows that are made of it.
        row_bytes = FLOAT_BYTES * (3 * widths.entered + widths.made)
        return LayerPlan(
            slabs=slabs,
            rows_per_read=max(1, buffers // 2 // row_bytes),
            rows_per_piece=max(1, buffers // 4 // (4 * FLOAT_BYTES * slabs[0].stop)),
            edges_per_piece=max(1, buffers // 4 // widths.edge_bytes(EDGE_BYTES, _FEATURE_COPIES)),
            is_on_disk=home == "disk",
        )


class _OnDevice:
    def __init__(self, tables: Room, host: Room, keeps_activations: bool) -> None:
        self.tables = tables
        self._host = host
        self._keeps_activations = keeps_activations

    def homes(self, sizes: Mapping[str, int], *, is_last: bool) -> Mapping[str, Home]:
        # Those of the last layer are the result, which is wanted in host memory.
        keeps = self._keeps_activations and not is_last
        near = _smallest(sizes, self.tables.left // 3) if keeps else frozenset()
        rest = {name: size for name, size in sizes.items() if name not in near}
        # Half: the inputs below share the rest.
        host = _smallest(rest, self._host.left // 2)
        return {name: "near" if name in near else "host" if name in host else "disk" for name in sizes}

    def plan(self, slabs: tuple[slice, ...], widths: _Widths, home: Home) -> LayerPlan:
        device, host = self.tables.buffers, self._host.buffers
        width = slabs[0].stop
        row_bytes = FLOAT_BYTES * (DEVICE_ROW_COPIES * widths.entered + widths.made)
        sent_bytes = SENT_EDGE_BYTES + FLOAT_BYTES * _SENT_FEATURE_COPIES * widths.edge
        # On the host there are three buffers, for the inputs of a layer first and its outputs then, and pieces.
        rows_per_read = min(device // 2 // row_bytes, host // 4 // (FLOAT_BYTES * widths.read))
        rows_per_piece = min(device // 4 // (4 * FLOAT_BYTES * width), host // 4 // (FLOAT_BYTES * width))
        edges_per_piece = min(
            device // 4 // widths.edge_bytes(DEVICE_EDGE_BYTES, _DEVICE_FEATURE_COPIES),
            host // 4 // sent_bytes,
        )
        return LayerPlan(
            slabs=slabs,
            rows_per_read=max(1, rows_per_read),
            rows_per_piece=max(1, rows_per_piece),
            edges_per_piece=max(1, edges_per_piece),
            is_on_disk=home == "disk",
            is_on_device=home == "near",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lacking:
    """A type whose narrowest table and sum do not fit."""

    node_type: str
    needed: int
    left: int

    def error(self, extent: Extent) -> BudgetError:
        """Return the error that names both sizes, and the type where there are several."""
        kept, room = format_bytes(self.needed), format_bytes(max(self.left, 0))
        text = f" keeps at least {kept} for {extent.num_nodes[self.node_type]:,} nodes"
        if len(extent.num_nodes) > 1:
            text = f" of type {self.node_type!r} keeps at least {kept} beside its inputs"
        return BudgetError(
            f"full-neighbour inference{text}; the memory budget leaves {room} for that. Raise the budget",
            short_bytes=self.needed - self.left,
        )


def _plan(layers: Sequence[Layer], extent: Extent, memory: _Memory) -> tuple[TypePlans, ...] | _Lacking:
    needed = extent.needed(len(layers))
    plans: list[TypePlans] = []
    inputs: dict[str, int] = {}  # bytes near the tables, of each type of the layer below
    for depth, (layer, types) in enumerate(zip(layers, needed[1:], strict=True)):
        is_last = depth == len(layers) - 1
        rows = {name: (extent.outputs if is_last else extent.num_nodes)[name] for name in types}
        sizes = {name: FLOAT_BYTES * layer.sum_dim * count for name, count in rows.items()}
        homes = memory.homes(sizes, is_last=is_last)
        near = {name: size for name, size in sizes.items() if homes[name] == "near"}
        found: dict[str, LayerPlan] = {}
        for number, name in enumerate(types):
            # The inputs of later types are still there, and the outputs of earlier ones.
            alive = {read for later in types[number:] for read in extent.types_read(later)}
            left = memory.tables.left - sum(inputs.get(read, 0) for read in alive)
            left -= sum(near.get(made, 0) for made in types[: number + 1])
            work = _TypeWork(
                layers, depth, extent, name, num_rows=rows[name], adds_in_place=homes[name] == "near"
            )
            width = work.widest(left)
            if width is None:
                return _Lacking(node_type=name, needed=work.held_bytes(work.column_step), left=left)
            found[name] = memory.plan(work.slabs(width), work.widths(width), homes[name])
        plans.append(found)
        inputs = near
    return tuple(plans)


class _TypeWork:
    """The memory that one layer needs to make the rows of one type."""

    def __init__(
        self,
        layers: Sequence[Layer],
        depth: int,
        extent: Extent,
        node_type: str,
        *,
        num_rows: int,
        adds_in_place: bool,
    ) -> None:
        layer = layers[depth]
        self._convs = layer.relations_into(node_type)
        self._with_edges = set(extent.relations_into(node_type))
        self._num_nodes = extent.num_nodes
        types, read = extent.types_read(node_type), read_dims(layers, depth)
        self._read_dim = max(1, *(read[name] for name in types))
        entered = max(self._read_dim, *(layer.in_dims[name] for name in types))
        # A head has a width of its own between its layers, and that of its result: mostly as wide as a hidden row.
        self._entered_dim = 2 * entered if depth and layers[depth - 1].head is not None else entered
        self._sum_dim = layer.sum_dim
        self._num_rows = num_rows
        # A lone convolution gives the whole row, from a table with the row of the node itself; several are summed.
        self._is_sum = node_type in layer.roots
        self._needs_sums = self._is_sum and not adds_in_place
        self.column_step = max((conv.column_step for conv in self._convs.values()), default=1)

    def widest(self, left: int) -> int | None:
        """Return the most output columns that fit ``left`` bytes; None if the narrowest do not."""
        # The widest: every slab less saves a pass over the inputs and the edges. Wider slabs hold more bytes, so the
        # search halves: a network that no machine holds may have a billion columns.
        widths = range(self._sum_dim, 0, -self.column_step)
        at = bisect_left(widths, True, key=lambda width: self.held_bytes(width) <= left)
        return widths[at] if at < len(widths) else None

    def at_least(self, num_columns: int) -> int:
        """Return ``num_columns``, rounded up to what the layer can be cut into."""
        return min(-(-num_columns // self.column_step) * self.column_step, self._sum_dim)

    def held_bytes(self, width: int) -> int:
        """Return the bytes of the largest table, of own terms, and of sums with a place of their own."""
        tables = [
            self._num_nodes[relation[0]] * sum(conv.table_widths(width))
            for relation, conv in self._convs.items()
            if relation in self._with_edges or not self._is_sum
        ]
        sums = width if self._needs_sums else 0
        return FLOAT_BYTES * (max(tables, default=0) + self._num_rows * (self._own_floats(width) + sums))

    def slabs(self, width: int) -> tuple[slice, ...]:
        """Return the ranges of columns."""
        return tuple(
            slice(start, min(start + width, self._sum_dim)) for start in range(0, self._sum_dim, width)
        )

    def widths(self, width: int) -> _Widths:
        """Return the floats of a row that is read, of all terms made of it in one pass, and of an edge."""
        convs = self._convs.values()
        table = max((sum(conv.table_widths(width)) for conv in convs), default=0)
        return _Widths(
            read=self._read_dim,
            entered=self._entered_dim,
            made=(width if self._is_sum else 0) + self._own_floats(width) + table,
            edge=max((conv.edge_dim for conv in convs), default=0),
            edge_terms=max((conv.edge_floats for conv in convs), default=0),
        )

    def _own_floats(self, width: int) -> int:
        return sum(sum(conv.own_widths(width)) for conv in self._convs.values())


def _smallest(sizes: Mapping[str, int], room: int) -> frozenset[str]:
    """Return the names of the smallest ``sizes`` that fit ``room`` together."""
    found = []
    for name in sorted(sizes, key=sizes.__getitem__):
        room -= sizes[name]
        if room >= 0 or sizes[name] == 0:
            found.append(name)
    return frozenset(found)
