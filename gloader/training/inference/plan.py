"""Plans by which full-neighbour inference fits its memory, layer by layer. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.models import Schema
from gloader.models.conv import made_dim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.models.conv import Conv, HeteroLayer
    from gloader.types import Relation

    Home = Literal[
        "near", "host", "disk"
    ]  # beside the tables; in host memory where tables are elsewhere; the SSD
    TypePlans = Mapping[str, "LayerPlan"]


FLOAT_BYTES = 4
EDGE_BYTES = 40  # a source, one that is read ahead, a destination and the scores of a few heads
MAX_BUFFER_BYTES = 128 << 20  # larger chunks are not faster
OUTPUT_BYTES = 32  # of a node whose class is asked for: its id, its position, its label, its class
FILE_BYTES = 8 << 20  # buffers of the files that activations are written to and read from

# Of a GPU, whose pieces are worth their launches only where they are large.
MAX_DEVICE_BUFFER_BYTES = 512 << 20
# Three chunks of inputs are there at a time; the one that is computed on is widened, normalised and cut off at 0.
DEVICE_ROW_COPIES = 6
DEVICE_EDGE_BYTES = (
    64  # three pieces of sources are there at a time; of one, destinations, positions and scores
)
# On the host: its position, twice, where lists are gathered; its source, and three pieces of sources on their way.
SENT_EDGE_BYTES = 48
# Of the features of an edge: that are computed on and read ahead; on a device three pieces; on the host those that are
# read, and three pieces on their way.
_FEATURE_COPIES = 2
_DEVICE_FEATURE_COPIES = 3
_SENT_FEATURE_COPIES = 4
# So many columns keep the passes over the inputs few; narrower ones are possible.
REASONABLE_COLUMNS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """How one layer is computed for its output rows."""

    slabs: tuple[slice, ...]  # ranges of the columns that are made, one pass over the inputs each
    rows_per_read: int  # input rows projected at once
    rows_per_piece: int  # output rows propagated at once, at most
    edges_per_piece: int  # in-edges propagated at once
    is_on_disk: bool  # the outputs go to the SSD
    is_on_device: bool = False  # they stay on the device that computes


def plan_inference(
    convs: Sequence[Conv], *, num_nodes: int, num_outputs: int, budget_bytes: int
) -> tuple[LayerPlan, ...]:
    """Return a plan for each layer that keeps everything it holds within ``budget_bytes``. Pure.

    A layer needs a table with one row per node. Where all of its columns do not fit, it is made in slabs of
    columns: every slab streams the inputs once more, in node order, so that all I/O stays sequential.

    Parameters
    ----------
    convs : the L layers
    num_nodes : N
    num_outputs : nodes whose logits are wanted; the last layer computes no others
    budget_bytes : for tables, activations, buffers and what comes out together; the topology is not counted

    Raises
    ------
    BudgetError
        A layer's narrowest table does not fit.
    """
    # A quarter for chunks in flight: more of it would make slabs narrower, and each slab reads all inputs once more.
    buffers = min(budget_bytes // 4, MAX_BUFFER_BYTES)
    left = budget_bytes - buffers - min(budget_bytes // 8, FILE_BYTES) - OUTPUT_BYTES * num_outputs
    plans = []
    input_bytes = 0  # of the activations below that are held in memory
    for depth, conv in enumerate(convs):
        rows = num_nodes if depth < len(convs) - 1 else num_outputs
        output_bytes = rows * made_dim(conv) * FLOAT_BYTES
        # A third: the outputs, the inputs below them and the table share what is left.
        is_on_disk = output_bytes > left // 3
        held = input_bytes + (0 if is_on_disk else output_bytes)
        width = _slab_width(conv, num_nodes, left - held)
        if width is None:
            raise _too_small(conv, num_nodes, left - held)
        # Two buffers of inputs and the entered copy, beside the projected row.
        row_bytes = FLOAT_BYTES * (3 * _entered_floats(convs, depth) + sum(conv.table_widths(width)))
        plans.append(
            LayerPlan(
                slabs=_slabs(conv, width),
                rows_per_read=max(1, buffers // 2 // row_bytes),
                rows_per_piece=max(1, buffers // 4 // (4 * FLOAT_BYTES * width)),
                edges_per_piece=max(1, buffers // 4 // (EDGE_BYTES + edge_bytes(conv, _FEATURE_COPIES))),
                is_on_disk=is_on_disk,
            )
        )
        input_bytes = 0 if is_on_disk else output_bytes
    return tuple(plans)


def plan_on_device(
    convs: Sequence[Conv],
    *,
    num_nodes: int,
    num_outputs: int,
    device_bytes: int,
    budget_bytes: int,
) -> tuple[LayerPlan, ...] | None:
    """Return a plan for each layer with its tables on a device; None if not even the narrowest fit there. Pure.

    Less memory makes slabs narrower, not the device idle. Activations stay on the device where a third of it holds
    them, else in host memory where half of that does, else on the SSD.

    Parameters
    ----------
    convs, num_nodes, num_outputs : as of `plan_inference`
    device_bytes : for tables, activations and buffers; what is known of the edges is not counted
    budget_bytes : of host memory, for buffers, activations and what comes out
    """
    for keeps_activations in (True, False):
        plans = _plan_on_device(
            convs,
            num_nodes=num_nodes,
            num_outputs=num_outputs,
            device=Room(device_bytes, MAX_DEVICE_BUFFER_BYTES),
            host=Room(
                budget_bytes,
                MAX_BUFFER_BYTES,
                fixed=min(budget_bytes // 8, FILE_BYTES) + OUTPUT_BYTES * num_outputs,
            ),
            keeps_activations=keeps_activations,
        )
        if plans is not None:
            return plans
    return None


def reasonable_device_bytes(convs: Sequence[Conv], *, num_nodes: int) -> int:
    """Return the device memory with which no layer needs slabs of less than 16 columns. Pure.

    Parameters
    ----------
    convs : the L layers
    num_nodes : N
    """
    tables = max(
        num_nodes * FLOAT_BYTES * sum(conv.table_widths(_columns(conv, REASONABLE_COLUMNS))) for conv in convs
    )
    return with_device_buffers(tables)


def with_device_buffers(num_bytes: int) -> int:
    """Return the device memory of which ``num_bytes`` are left beside the buffers. Pure."""
    # A quarter of it is for buffers, up to their most.
    return min(num_bytes + num_bytes // 3 + 4, num_bytes + MAX_DEVICE_BUFFER_BYTES)


def read_dim(convs: Sequence[Conv], depth: int) -> int:
    """Return the width of the rows that layer ``depth`` reads: features, or what the layer below made. Pure."""
    return made_dim(convs[depth - 1]) if depth else convs[0].in_dim


def edge_bytes(conv: Conv, feature_copies: int) -> int:
    """Return what an edge of a piece takes more because ``conv`` looks at its features. Pure."""
    return FLOAT_BYTES * (feature_copies * conv.edge_dim + conv.edge_floats)


def _entered_floats(convs: Sequence[Conv], depth: int) -> int:
    """Return the width of a row on its way into layer ``depth``, whatever is the widest. Pure."""
    # A head has a width of its own between its layers, and that of what it makes: as wide as a hidden row, mostly.
    has_head = depth > 0 and convs[depth - 1].head is not None
    width = max(read_dim(convs, depth), convs[depth].in_dim)
    return 2 * width if has_head else width


class Room:
    """Memory of a kind: buffers, and what is left for all else."""

    def __init__(self, num_bytes: int, max_buffer_bytes: int, *, fixed: int = 0) -> None:
        self.buffers = min(num_bytes // 4, max_buffer_bytes)
        self.left = num_bytes - self.buffers - fixed


def _plan_on_device(
    convs: Sequence[Conv],
    *,
    num_nodes: int,
    num_outputs: int,
    device: Room,
    host: Room,
    keeps_activations: bool,
) -> tuple[LayerPlan, ...] | None:
    plans = []
    input_bytes = 0  # of the activations below that the device holds
    for depth, conv in enumerate(convs):
        is_last = depth == len(convs) - 1
        output_bytes = (num_outputs if is_last else num_nodes) * made_dim(conv) * FLOAT_BYTES
        # Those of the last layer are the result, which is asked for in host memory.
        is_on_device = keeps_activations and not is_last and output_bytes <= device.left // 3
        held = input_bytes + (output_bytes if is_on_device else 0)
        width = _slab_width(conv, num_nodes, device.left - held)
        if width is None:
            return None
        row_bytes = FLOAT_BYTES * (
            DEVICE_ROW_COPIES * _entered_floats(convs, depth) + sum(conv.table_widths(width))
        )
        plans.append(
            LayerPlan(
                slabs=_slabs(conv, width),
                # On the host there are three buffers, for the inputs of a layer first and its outputs then, and pieces.
                rows_per_read=max(
                    1,
                    min(
                        device.buffers // 2 // row_bytes,
                        host.buffers // 4 // (FLOAT_BYTES * read_dim(convs, depth)),
                    ),
                ),
                rows_per_piece=max(
                    1,
                    min(
                        device.buffers // 4 // (4 * FLOAT_BYTES * width),
                        host.buffers // 4 // (FLOAT_BYTES * width),
                    ),
                ),
                edges_per_piece=max(
                    1,
                    min(
                        device.buffers // 4 // (DEVICE_EDGE_BYTES + edge_bytes(conv, _DEVICE_FEATURE_COPIES)),
                        host.buffers
                        // 4
                        // (SENT_EDGE_BYTES + _SENT_FEATURE_COPIES * FLOAT_BYTES * conv.edge_dim),
                    ),
                ),
                # Half: the inputs below share what is left.
                is_on_disk=not is_on_device and output_bytes > host.left // 2,
                is_on_device=is_on_device,
            )
        )
        input_bytes = output_bytes if is_on_device else 0
    return tuple(plans)


def _slabs(conv: Conv, width: int) -> tuple[slice, ...]:
    num_columns = made_dim(conv)
    return tuple(slice(start, min(start + width, num_columns)) for start in range(0, num_columns, width))


def _columns(conv: Conv, num_columns: int) -> int:
    """Return ``num_columns``, rounded up to what the layer can be cut into."""
    step = conv.column_step
    return min(-(-num_columns // step) * step, made_dim(conv))


def _slab_width(conv: Conv, num_nodes: int, left: int) -> int | None:
    """Return the most columns whose table fits ``left`` bytes; None if the narrowest does not."""
    # The widest that does: every slab less saves a pass over the inputs.
    widths = range(made_dim(conv), 0, -conv.column_step)[::-1]
    most = bisect_right(
        widths, left, key=lambda width: num_nodes * sum(conv.table_widths(width)) * FLOAT_BYTES
    )
    return widths[most - 1] if most else None


def _too_small(conv: Conv, num_nodes: int, left: int) -> BudgetError:
    needed = num_nodes * sum(conv.table_widths(conv.column_step)) * FLOAT_BYTES
    return BudgetError(
        f"full-neighbour inference keeps at least {format_bytes(needed)} for {num_nodes:,} nodes; the memory "
        f"budget leaves {format_bytes(max(left, 0))} for that. Raise the budget",
        short_bytes=needed - left,
    )


# Of a node whose row is asked for: its place among the others in order, and in the order that was asked for.
_ORDER_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much there is to compute from, and what is wanted."""

    num_nodes: Mapping[str, int]  # of each type, in order
    relations: tuple[Relation, ...]  # those with edges
    outputs: Mapping[str, int]  # rows that are wanted of each target; the last layer computes no others

    def needed(self, num_layers: int) -> tuple[tuple[str, ...], ...]:
        """Return the types that are needed after each number of layers, 0 to ``num_layers``: see `Schema.reaching`."""
        return self._schema.reaching(num_layers)

    def relations_into(self, node_type: str) -> tuple[Relation, ...]:
        """Return the relations with edges into a type."""
        return self._schema.relations_into(node_type)

    def types_read(self, node_type: str) -> tuple[str, ...]:
        """Return the types whose rows a layer reads to make those of ``node_type``."""
        sources = {source for source, _, _ in self.relations_into(node_type)} | {node_type}
        return tuple(name for name in self.num_nodes if name in sources)

    @property
    def _schema(self) -> Schema:
        return Schema(
            num_nodes=self.num_nodes, feature_dims={}, relations=self.relations, targets=tuple(self.outputs)
        )


def plan_types(layers: Sequence[HeteroLayer], extent: Extent, *, budget_bytes: int) -> tuple[TypePlans, ...]:
    """Return a plan for each layer and each type that it makes, which keeps what is held within ``budget_bytes``. Pure.

    The types of a layer are made one after another, in order. Of one type there is a table of the sources of one
    relation at a time, and a sum for each destination that the relations are added to; both come in slabs of columns
    where they do not fit. Activations of all types of a layer may take a third: those of the smallest types first, and
    the SSD holds the others. What a layer reads goes with the last type that needs it.

    Parameters
    ----------
    layers : the L layers
    extent : of the graph, and of what is wanted
    budget_bytes : for tables, sums, activations, buffers and what comes out; the topology is not counted

    Raises
    ------
    BudgetError
        The narrowest table and sum of a type do not fit.
    """
    memory = _OnCpu(_host_room(extent, budget_bytes))
    plans = _plan(layers, extent, memory)
    if isinstance(plans, _Lacking):
        raise BudgetError(
            f"full-neighbour inference of type {plans.node_type!r} keeps at least {format_bytes(plans.needed)} beside "
            f"its inputs; the memory budget leaves {format_bytes(max(plans.left, 0))} for that. Raise the budget",
            short_bytes=plans.needed - plans.left,
        )
    return plans


def plan_types_on_device(
    layers: Sequence[HeteroLayer], extent: Extent, *, device_bytes: int, budget_bytes: int
) -> tuple[TypePlans, ...] | None:
    """Return a plan as `plan_types` does, with tables and sums on a device; None if the narrowest do not fit there.

    Pure. Activations stay on the device where a third of it holds them, else in host memory where half of that does,
    else on the SSD.

    Parameters
    ----------
    layers, extent : as of `plan_types`
    device_bytes : for tables, sums, activations and buffers; what is known of the edges is not counted
    budget_bytes : of host memory, for buffers, activations and what comes out
    """
    device, host = Room(device_bytes, MAX_DEVICE_BUFFER_BYTES), _host_room(extent, budget_bytes)
    for keeps_activations in (True, False):
        plans = _plan(layers, extent, _OnDevice(device, host, keeps_activations))
        if not isinstance(plans, _Lacking):
            return plans
    return None


def device_bytes_of_types(layers: Sequence[HeteroLayer], extent: Extent) -> int:
    """Return the device memory with which no layer needs slabs of less than 16 columns; see `reasonable_device_bytes`.

    Pure.
    """
    most = 0
    for layer, types in zip(layers, extent.needed(len(layers))[1:], strict=True):
        for name in types:
            # Of all nodes, as everywhere but in the last layer.
            work = _TypeWork(layer, extent, name, num_rows=extent.num_nodes[name], adds_in_place=False)
            most = max(most, work.held_bytes(work.at_least(REASONABLE_COLUMNS)))
    return with_device_buffers(most)


def _host_room(extent: Extent, budget_bytes: int) -> Room:
    # Each type may have files open for what is read of it and what is written.
    files = min(budget_bytes // 8, FILE_BYTES * max(1, len(extent.num_nodes) // 2))
    results = (OUTPUT_BYTES + _ORDER_BYTES) * sum(extent.outputs.values())
    return Room(budget_bytes, MAX_BUFFER_BYTES, fixed=files + results)


class _Memory(Protocol):
    """The memory of a kind of place to compute."""

    @property
    def tables(self) -> Room:
        """Where tables and sums are."""
        ...

    def homes(self, sizes: Mapping[str, int], *, is_last: bool) -> Mapping[str, Home]:
        """Return where the outputs of each type go."""
        ...

    def plan(self, slabs: tuple[slice, ...], widths: _Widths, home: Home) -> LayerPlan:
        """Return the plan of a type with as large chunks and pieces as buffers allow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Widths:
    """Floats of a row."""

    entered: int  # that is read: the widest of all types
    made: int  # of what is made of it


class _OnCpu:
    def __init__(self, tables: Room) -> None:
        self.tables = tables

    def homes(self, sizes: Mapping[str, int], *, is_last: bool) -> Mapping[str, Home]:  # noqa: ARG002 - as of `_Memory`
        # A third: the outputs, the inputs below them and the table share what is left.
        near = _smallest(sizes, self.tables.left // 3)
        return {name: "near" if name in near else "disk" for name in sizes}

    def plan(self, slabs: tuple[slice, ...], widths: _Widths, home: Home) -> LayerPlan:
        buffers = self.tables.buffers
        # Two buffers of inputs and the entered copy, beside what is made of it.
        row_bytes = FLOAT_BYTES * (3 * widths.entered + widths.made)
        return LayerPlan(
            slabs=slabs,
            rows_per_read=max(1, buffers // 2 // row_bytes),
            rows_per_piece=max(1, buffers // 4 // (4 * FLOAT_BYTES * slabs[0].stop)),
            edges_per_piece=max(1, buffers // 4 // EDGE_BYTES),
            is_on_disk=home == "disk",
        )


class _OnDevice:
    def __init__(self, tables: Room, host: Room, keeps_activations: bool) -> None:
        self.tables = tables
        self._host = host
        self._keeps_activations = keeps_activations

    def homes(self, sizes: Mapping[str, int], *, is_last: bool) -> Mapping[str, Home]:
        # Those of the last layer are the result, which is asked for in host memory.
        keeps = self._keeps_activations and not is_last
        near = _smallest(sizes, self.tables.left // 3) if keeps else frozenset()
        rest = {name: size for name, size in sizes.items() if name not in near}
        # Half: the inputs below share what is left.
        host = _smallest(rest, self._host.left // 2)
        return {name: "near" if name in near else "host" if name in host else "disk" for name in sizes}

    def plan(self, slabs: tuple[slice, ...], widths: _Widths, home: Home) -> LayerPlan:
        device, host = self.tables.buffers, self._host.buffers
        width = slabs[0].stop
        row_bytes = FLOAT_BYTES * (DEVICE_ROW_COPIES * widths.entered + widths.made)
        # On the host there are three buffers, for the inputs of a layer first and its outputs then, and pieces.
        rows_per_read = min(device // 2 // row_bytes, host // 4 // (FLOAT_BYTES * widths.entered))
        rows_per_piece = min(device // 4 // (4 * FLOAT_BYTES * width), host // 4 // (FLOAT_BYTES * width))
        return LayerPlan(
            slabs=slabs,
            rows_per_read=max(1, rows_per_read),
            rows_per_piece=max(1, rows_per_piece),
            edges_per_piece=max(1, min(device // 4 // DEVICE_EDGE_BYTES, host // 4 // SENT_EDGE_BYTES)),
            is_on_disk=home == "disk",
            is_on_device=home == "near",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lacking:
    """A type whose narrowest table and sum do not fit."""

    node_type: str
    needed: int
    left: int


def _plan(layers: Sequence[HeteroLayer], extent: Extent, memory: _Memory) -> tuple[TypePlans, ...] | _Lacking:
    needed = extent.needed(len(layers))
    plans: list[TypePlans] = []
    inputs: dict[str, int] = {}  # bytes near the tables, of each type of the layer below
    for layer, types in zip(layers, needed[1:], strict=True):
        is_last = len(plans) == len(layers) - 1
        rows = {name: (extent.outputs if is_last else extent.num_nodes)[name] for name in types}
        sizes = {name: FLOAT_BYTES * layer.out_dim * count for name, count in rows.items()}
        homes = memory.homes(sizes, is_last=is_last)
        near = {name: size for name, size in sizes.items() if homes[name] == "near"}
        found: dict[str, LayerPlan] = {}
        for number, name in enumerate(types):
            # What later types read too is still there, and what earlier ones came to.
            alive = {read for later in types[number:] for read in extent.types_read(later)}
            left = memory.tables.left - sum(inputs.get(read, 0) for read in alive)
            left -= sum(near.get(made, 0) for made in types[: number + 1])
            work = _TypeWork(layer, extent, name, num_rows=rows[name], adds_in_place=homes[name] == "near")
            width = work.widest(left)
            if width is None:
                return _Lacking(node_type=name, needed=work.held_bytes(work.column_step), left=left)
            found[name] = memory.plan(work.slabs(width), work.widths(width), homes[name])
        plans.append(found)
        inputs = near
    return tuple(plans)


class _TypeWork:
    """What one layer holds to make the rows of one type."""

    def __init__(
        self, layer: HeteroLayer, extent: Extent, node_type: str, *, num_rows: int, adds_in_place: bool
    ) -> None:
        self._convs = {
            relation: conv for relation, conv in layer.relations.items() if relation[2] == node_type
        }
        self._with_edges = set(extent.relations_into(node_type))
        self._num_nodes = extent.num_nodes
        self._in_dim = max(1, *(layer.in_dims[name] for name in extent.types_read(node_type)))
        self._out_dim = layer.out_dim
        self._num_rows = num_rows
        self._adds_in_place = adds_in_place
        self.column_step = max((conv.column_step for conv in self._convs.values()), default=1)

    def widest(self, left: int) -> int | None:
        """Return the most output columns that fit ``left`` bytes; None if the narrowest do not."""
        # The widest first: every slab less saves a pass over the inputs and the edges.
        for width in range(self._out_dim, 0, -self.column_step):
            if self.held_bytes(width) <= left:
                return width
        return None

    def at_least(self, num_columns: int) -> int:
        """Return ``num_columns``, rounded up to what the layer can be cut into."""
        return min(-(-num_columns // self.column_step) * self.column_step, self._out_dim)

    def held_bytes(self, width: int) -> int:
        """Return the bytes of the largest table, of what destinations bring, and of sums with a place of their own."""
        tables = [
            self._num_nodes[relation[0]] * sum(conv.table_widths(width))
            for relation, conv in self._convs.items()
            if relation in self._with_edges
        ]
        own = sum(sum(conv.own_widths(width)) for conv in self._convs.values())
        sums = 0 if self._adds_in_place else width
        return FLOAT_BYTES * (max(tables, default=0) + self._num_rows * (own + sums))

    def slabs(self, width: int) -> tuple[slice, ...]:
        """Return the ranges of columns."""
        return tuple(
            slice(start, min(start + width, self._out_dim)) for start in range(0, self._out_dim, width)
        )

    def widths(self, width: int) -> _Widths:
        """Return the floats of a row that is read, and of all that may be made of it in one pass."""
        own = sum(sum(conv.own_widths(width)) for conv in self._convs.values())
        table = max((sum(conv.table_widths(width)) for conv in self._convs.values()), default=0)
        return _Widths(entered=self._in_dim, made=width + own + table)


def _smallest(sizes: Mapping[str, int], room: int) -> frozenset[str]:
    """Return the names of the smallest ``sizes`` that fit ``room`` together."""
    found = []
    for name in sorted(sizes, key=sizes.__getitem__):
        room -= sizes[name]
        if room >= 0 or sizes[name] == 0:
            found.append(name)
    return frozenset(found)
