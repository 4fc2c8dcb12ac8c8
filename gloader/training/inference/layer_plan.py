"""Plans that keep full-neighbour inference within its memory: one plan for each layer and node type. Pure.

A layer computes the rows of a node type in two steps. First the rows of a source type are read in chunks and projected
into a table, which stays in memory. Then the table's rows are added along the in-edges, one piece of edges after
another, into sums. A table and sums that exceed the memory are made slab by slab: a slab is a range of output columns,
and each slab reads all inputs again. The sums are the layer's outputs; between two layers they are called activations.

A plan chooses the slabs, the sizes of chunks and pieces, and the home of the outputs. `plan_inference` plans for the
CPU, and `plan_on_device` for a GPU. `layer_pass` follows the plan.
"""

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

    # The place of a layer's outputs. "near": the memory that also holds the tables (the GPU's, or the host's for
    # computation on the CPU). "host": host memory, while the tables are on a GPU. "disk": the SSD.
    Home = Literal["near", "host", "disk"]
    TypePlans = Mapping[str, "LayerPlan"]


FLOAT_BYTES: Final = 4
# Bytes per edge: its source, another source read ahead, its destination and the scores of a few heads.
EDGE_BYTES: Final = 40
MAX_BUFFER_BYTES: Final = 128 << 20  # host memory for chunks and pieces; larger chunks are not faster
# Bytes for the buffers of one file of activations.
FILE_BYTES: Final = 8 << 20
# Bytes per requested node: its id, position, label and class.
OUTPUT_BYTES: Final = 32
# Further bytes per requested node if the layer adds the node's own row: its positions in ascending and in requested
# order.
ORDER_BYTES: Final = 16

# Device memory for chunks and pieces. More than on the host, because a small piece is not worth a kernel launch.
MAX_DEVICE_BUFFER_BYTES: Final = 512 << 20
# Copies of an input row on a device. Three chunks exist at once. The chunk under computation has three more copies:
# widened, normalised, and after the activation.
DEVICE_ROW_COPIES: Final = 6
# Device bytes per edge. Three pieces of sources exist at once. One of them also has destinations, positions and scores.
DEVICE_EDGE_BYTES: Final = 64
# Host bytes per edge: its position, twice if lists are gathered, its source, and three pieces of sources in transfer.
SENT_EDGE_BYTES: Final = 48
# Copies of an edge's features. On the CPU: one under computation and one read ahead. On a device: three pieces. On the
# host: the piece that is read, and three pieces in transfer.
_FEATURE_COPIES: Final = 2
_DEVICE_FEATURE_COPIES: Final = 3
_SENT_FEATURE_COPIES: Final = 4
# With slabs of so many columns, the passes over the inputs stay few. Narrower slabs work too, but more slowly.
REASONABLE_COLUMNS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """The steps in which one layer computes its rows of one type."""

    slabs: tuple[slice, ...]  # column ranges; each takes one pass over the inputs
    rows_per_read: int  # input rows of a chunk, which are projected together
    rows_per_piece: int  # largest number of output rows in a piece; their messages are added together
    edges_per_piece: int  # largest number of in-edges in a piece
    is_on_disk: bool  # whether the outputs go to the SSD
    # Whether the outputs stay on the GPU that computes. Outputs neither there nor on the SSD are in host memory.
    is_on_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The sizes of the graph and of the result."""

    num_nodes: Mapping[str, int]  # node count of each type, in the order of the types
    relations: tuple[Relation, ...]  # relations with edges
    outputs: Mapping[str, int]  # requested rows of each target type: the last layer computes no other rows

    def needed(self, num_layers: int) -> tuple[tuple[str, ...], ...]:
        """Return the types whose rows the outputs need after 0, 1, ... ``num_layers`` layers; see `Schema.reaching`."""
        targets = tuple(self.outputs)
        schema = Schema(num_nodes=self.num_nodes, feature_dims={}, relations=self.relations, targets=targets)
        return schema.reaching(num_layers)

    def relations_into(self, node_type: str) -> tuple[Relation, ...]:
        """Return the relations with edges into a type."""
        return tuple(relation for relation in self.relations if relation[2] == node_type)

    def types_read(self, node_type: str) -> tuple[str, ...]:
        """Return the types whose rows a layer reads for ``node_type``."""
        sources = {source for source, _, _ in self.relations_into(node_type)} | {node_type}
        return tuple(name for name in self.num_nodes if name in sources)


def plan_inference(layers: Sequence[Layer], extent: Extent, *, budget_bytes: int) -> tuple[TypePlans, ...]:
    """Return a plan for each layer and each of its types that keeps all memory within ``budget_bytes``. Pure.

    The types of a layer are computed one after another, in order. A type needs one relation's source table at a
    time. It also needs a sum for each destination if several terms are added. Tables and sums that do not fit are made
    in slabs of columns. Every slab reads the inputs once more, in node order, so that all I/O stays sequential. The
    activations of a layer's types may take a third of the memory, smallest types first. The other activations go to
    the SSD. A layer's inputs are freed after the last type that reads them.

    Parameters
    ----------
    layers : the L layers
    extent : sizes of graph and result
    budget_bytes : memory for tables, sums, activations, buffers and results; the topology is not counted

    Raises
    ------
    BudgetError
        The narrowest table and sum of a type do not fit.
    """
    plans = _plan(layers, extent, _OnCpu(_host_room(layers, extent, budget_bytes)))
    if isinstance(plans, _PlanFailure):
        raise plans.error(extent)
    return plans


def plan_on_device(
    layers: Sequence[Layer], extent: Extent, *, device_bytes: int, budget_bytes: int
) -> tuple[TypePlans, ...] | None:
    """Return a plan as `plan_inference` does, with tables and sums on a device. Pure.

    Returns None if the narrowest table and sum do not fit on the device. Less memory gives narrower slabs; the device
    still computes. Activations stay on the device if they fit a third of its memory, otherwise in host memory if they
    fit half of it, otherwise on the SSD.

    Parameters
    ----------
    layers, extent : see `plan_inference`
    device_bytes : device memory for tables, sums, activations and buffers; the edges there are not counted
    budget_bytes : host memory for buffers, activations and results
    """
    device = Room(device_bytes, MAX_DEVICE_BUFFER_BYTES)
    host = _host_room(layers, extent, budget_bytes)
    # The second try leaves all memory on the device to tables and sums.
    for keeps_activations in (True, False):
        plans = _plan(layers, extent, _OnDevice(device, host, keeps_activations))
        if not isinstance(plans, _PlanFailure):
            return plans
    return None


def reasonable_device_bytes(layers: Sequence[Layer], extent: Extent) -> int:
    """Return the device memory with which every layer can use slabs of 16 columns or more. Pure.

    Parameters
    ----------
    layers, extent : see `plan_inference`
    """
    most = 0  # largest bytes for tables and sums
    for depth, types in enumerate(extent.needed(len(layers))[1:]):
        for name in types:
            # All nodes are counted. Only the last layer computes fewer rows.
            num_rows = extent.num_nodes[name]
            work = _TypeWork(layers, depth, extent, name, num_rows=num_rows, adds_in_place=False)
            most = max(most, work.held_bytes(work.at_least(REASONABLE_COLUMNS)))
    # Buffers take a quarter of the memory, up to their limit. The 4 bytes make up for roundings.
    return min(most + most // 3 + 4, most + MAX_DEVICE_BUFFER_BYTES)


class Room:
    """A memory split into buffers and a remainder.

    Parameters
    ----------
    num_bytes : the memory
    max_buffer_bytes : largest number of bytes for the buffers
    fixed : bytes that are already taken
    """

    def __init__(self, num_bytes: int, max_buffer_bytes: int, *, fixed: int = 0) -> None:
        # A quarter is for chunks and pieces. More would make slabs narrower, and each slab reads all inputs again.
        self.buffers = min(num_bytes // 4, max_buffer_bytes)
        self.left = num_bytes - self.buffers - fixed


def _host_room(layers: Sequence[Layer], extent: Extent, budget_bytes: int) -> Room:
    """Return the host memory that is left after file buffers and results."""
    # Each type may have files open for its inputs and for its outputs.
    files = min(budget_bytes // 8, FILE_BYTES * max(1, len(extent.num_nodes) // 2))
    result_bytes = OUTPUT_BYTES + (ORDER_BYTES if layers[-1].roots else 0)
    return Room(budget_bytes, MAX_BUFFER_BYTES, fixed=files + result_bytes * sum(extent.outputs.values()))


class _Memory(Protocol):
    """The memory for computing on the CPU (`_OnCpu`), or on a device with its host (`_OnDevice`)."""

    @property
    def tables(self) -> Room:
        """The memory for tables and sums."""
        ...

    def homes(self, sizes: Mapping[str, int], *, is_last: bool) -> Mapping[str, Home]:
        """Return the place for each type's outputs, from their bytes. ``is_last`` means that they are the result."""
        ...

    def plan(self, slabs: tuple[slice, ...], widths: _Widths, home: Home) -> LayerPlan:
        """Return a type's plan with the largest chunks and pieces that the buffers allow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Widths:
    """Floats per row and per edge: the largest over all types and relations."""

    read: int  # floats of a row as it is read
    entered: int  # floats of a row that enters the layer, through the lower layer's head, norm and activation
    made: int  # floats computed for a row in one pass: the projection and its arrays, own terms, sum
    edge: int  # floats of an edge's features
    edge_terms: int  # further floats of an edge, besides its features and a few scores

    def edge_bytes(self, base: int, feature_copies: int) -> int:
        """Return the bytes of an edge, with ``base`` bytes besides its features and terms."""
        return base + FLOAT_BYTES * (feature_copies * self.edge + self.edge_terms)


class _OnCpu:
    """Host memory for everything; see `_Memory`."""

    def __init__(self, tables: Room) -> None:
        self.tables = tables

    def homes(self, sizes: Mapping[str, int], *, is_last: bool) -> Mapping[str, Home]:  # noqa: ARG002 - `_Memory` has it
        # The limit is a third: the outputs, the inputs below them and the table share the memory.
        near = _smallest(sizes, self.tables.left // 3)
        return {name: "near" if name in near else "disk" for name in sizes}

    def plan(self, slabs: tuple[slice, ...], widths: _Widths, home: Home) -> LayerPlan:
        # Half of the buffers is for chunks of inputs, and a quarter each for the rows and the edges of a piece.
        buffers = self.tables.buffers
        # A row needs two input buffers and the entered copy, in addition to the computed floats.
        row_bytes = FLOAT_BYTES * (3 * widths.entered + widths.made)
        return LayerPlan(
            slabs=slabs,
            rows_per_read=max(1, buffers // 2 // row_bytes),
            rows_per_piece=max(1, buffers // 4 // (4 * FLOAT_BYTES * slabs[0].stop)),
            edges_per_piece=max(1, buffers // 4 // widths.edge_bytes(EDGE_BYTES, _FEATURE_COPIES)),
            is_on_disk=home == "disk",
        )


class _OnDevice:
    """Device memory for tables and sums, with host memory for buffers; see `_Memory`."""

    def __init__(self, tables: Room, host: Room, keeps_activations: bool) -> None:
        self.tables = tables
        self._host = host
        self._keeps_activations = keeps_activations

    def homes(self, sizes: Mapping[str, int], *, is_last: bool) -> Mapping[str, Home]:
        # The last layer's outputs are the result, which belongs in host memory.
        keeps = self._keeps_activations and not is_last
        near = _smallest(sizes, self.tables.left // 3) if keeps else frozenset()
        rest = {name: size for name, size in sizes.items() if name not in near}
        # The limit is half: the outputs and the inputs below them share the memory.
        host = _smallest(rest, self._host.left // 2)
        return {name: "near" if name in near else "host" if name in host else "disk" for name in sizes}

    def plan(self, slabs: tuple[slice, ...], widths: _Widths, home: Home) -> LayerPlan:
        device, host = self.tables.buffers, self._host.buffers
        width = slabs[0].stop
        row_bytes = FLOAT_BYTES * (DEVICE_ROW_COPIES * widths.entered + widths.made)
        sent_bytes = SENT_EDGE_BYTES + FLOAT_BYTES * _SENT_FEATURE_COPIES * widths.edge
        # The host holds pieces and three buffers. The buffers hold a layer's inputs first and its outputs later.
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
class _PlanFailure:
    """A type whose narrowest table and sums do not fit, as the result of a failed plan."""

    node_type: str  # the type
    needed: int  # bytes of the narrowest table and sums
    left: int  # bytes left for them

    def error(self, extent: Extent) -> BudgetError:
        """Return the error with both sizes, and with the type's name if there are several types."""
        kept, room = format_bytes(self.needed), format_bytes(max(self.left, 0))
        text = f" keeps at least {kept} for {extent.num_nodes[self.node_type]:,} nodes"
        if len(extent.num_nodes) > 1:
            text = f" of type {self.node_type!r} keeps at least {kept} beside its inputs"
        return BudgetError(
            f"full-neighbour inference{text}; the memory budget leaves {room} for that. Raise the budget",
            short_bytes=self.needed - self.left,
        )


def _plan(layers: Sequence[Layer], extent: Extent, memory: _Memory) -> tuple[TypePlans, ...] | _PlanFailure:
    """Return the plans of all layers, or the first type that does not fit. Pure."""
    needed = extent.needed(len(layers))
    plans: list[TypePlans] = []
    inputs: dict[str, int] = {}  # bytes near the tables of each type's input rows
    for depth, (layer, types) in enumerate(zip(layers, needed[1:], strict=True)):
        is_last = depth == len(layers) - 1
        rows = {name: (extent.outputs if is_last else extent.num_nodes)[name] for name in types}
        sizes = {name: FLOAT_BYTES * layer.sum_dim * count for name, count in rows.items()}
        homes = memory.homes(sizes, is_last=is_last)
        near = {name: size for name, size in sizes.items() if homes[name] == "near"}
        layer_plans: dict[str, LayerPlan] = {}
        for number, name in enumerate(types):
            # The inputs of later types and the outputs of earlier types are still in memory.
            alive = {read for later in types[number:] for read in extent.types_read(later)}
            left = memory.tables.left - sum(inputs.get(read, 0) for read in alive)
            left -= sum(near.get(made, 0) for made in types[: number + 1])
            work = _TypeWork(
                layers, depth, extent, name, num_rows=rows[name], adds_in_place=homes[name] == "near"
            )
            width = work.widest(left)
            if width is None:
                return _PlanFailure(node_type=name, needed=work.held_bytes(work.column_step), left=left)
            layer_plans[name] = memory.plan(work.slabs(width), work.widths(width), homes[name])
        plans.append(layer_plans)
        inputs = near
    return tuple(plans)


class _TypeWork:
    """The memory that one layer needs to compute one type's rows.

    Parameters
    ----------
    layers, extent : see `plan_inference`
    depth : number of the layer, from 0
    node_type : type of the output rows
    num_rows : number of output rows
    adds_in_place : whether the sums are added in the memory of the outputs
    """

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
        types, read = extent.types_read(node_type), layer.read_dims
        self._read_dim = max(1, *(read[name] for name in types))
        entered = max(self._read_dim, *(layer.in_dims[name] for name in types))
        # A head has its own inner width and a result width. Most heads are as wide as a hidden row. Learned numbers in
        # place of codes are looked up first, and then joined with the other columns.
        has_two = layers[depth - 1].head is not None if depth else read != layer.in_dims
        self._entered_dim = 2 * entered if has_two else entered
        self._sum_dim = layer.sum_dim
        self._num_rows = num_rows
        # Either one convolution computes the whole row, from a table that includes the node's own row, or terms are
        # summed.
        self._is_sum = node_type in layer.roots
        self._needs_sums = self._is_sum and not adds_in_place
        self.column_step = max((conv.column_step for conv in self._convs.values()), default=1)

    def widest(self, left: int) -> int | None:
        """Return the largest slab width that fits ``left`` bytes, in columns, or None if the narrowest does not fit."""
        # Fewer slabs mean fewer passes over the inputs and the edges, so the widest slab is best. Bytes grow with
        # the width, so a binary search finds it: an oversized network may have a billion columns.
        widths = range(self._sum_dim, 0, -self.column_step)
        index = bisect_left(widths, True, key=lambda width: self.held_bytes(width) <= left)
        return widths[index] if index < len(widths) else None

    def at_least(self, num_columns: int) -> int:
        """Return ``num_columns``, rounded up to a slab width that the layer allows, at most all columns."""
        return min(-(-num_columns // self.column_step) * self.column_step, self._sum_dim)

    def held_bytes(self, width: int) -> int:
        """Return the bytes that a slab of ``width`` columns needs: the largest table, own terms, and separate sums.

        Own terms are the values that a convolution computes from each destination's own row. Sums are separate if they
        are not added in the memory of the outputs.
        """
        tables = [
            self._num_nodes[relation[0]] * sum(conv.table_widths(width))
            for relation, conv in self._convs.items()
            if not conv.is_rowwise and (relation in self._with_edges or not self._is_sum)
        ]
        sums = width if self._needs_sums else 0
        return FLOAT_BYTES * (max(tables, default=0) + self._num_rows * (self._own_floats(width) + sums))

    def slabs(self, width: int) -> tuple[slice, ...]:
        """Return the column ranges of the slabs."""
        return tuple(
            slice(start, min(start + width, self._sum_dim)) for start in range(0, self._sum_dim, width)
        )

    def widths(self, width: int) -> _Widths:
        """Return the floats per read row, per row's terms in one pass, and per edge."""
        convs = self._convs.values()
        table = max((sum(conv.table_widths(width)) for conv in convs), default=0)
        rows = max((conv.row_floats for conv in convs), default=0)
        return _Widths(
            read=self._read_dim,
            entered=self._entered_dim,
            made=(width if self._is_sum else 0) + self._own_floats(width) + table + rows,
            edge=max((conv.edge_dim for conv in convs), default=0),
            edge_terms=max((conv.edge_floats for conv in convs), default=0),
        )

    def _own_floats(self, width: int) -> int:
        """Return the floats of a destination's own terms, over all convolutions."""
        return sum(sum(conv.own_widths(width)) for conv in self._convs.values())


def _smallest(sizes: Mapping[str, int], room: int) -> frozenset[str]:
    """Return the names of the smallest ``sizes`` that fit into ``room`` together."""
    names = []
    for name in sorted(sizes, key=sizes.__getitem__):
        room -= sizes[name]
        if room >= 0 or sizes[name] == 0:
            names.append(name)
    return frozenset(names)
