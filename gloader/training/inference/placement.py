"""The places of an inference: the device that computes, and the rows, edges and outputs that lie there already.

An inference that runs out of a device's memory is tried again in less.
"""

from __future__ import annotations

import copy
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import torch

from gloader.core.units import format_bytes
from gloader.device import RowTable, open_device
from gloader.device.tier import upload_offsets, upload_topology
from gloader.errors import ConfigError
from gloader.samplers import CscGraph
from gloader.ssd_store.spill.claim import scratch_folder
from gloader.training.inference.edges import DeviceEdges, HostEdges
from gloader.training.inference.plan import (
    Extent,
    device_bytes_of_types,
    plan_inference,
    plan_on_device,
    plan_types,
    plan_types_on_device,
    reasonable_device_bytes,
)
from gloader.training.inference.row_stream import DeviceRows, PinnedRows
from gloader.training.inference.rows import FeatureRows, RamRows, SsdRows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gloader.device import Device, DeviceTier
    from gloader.models import GraphNetwork, HeteroNetwork
    from gloader.models.conv import Conv, HeteroLayer
    from gloader.samplers import Topology
    from gloader.samplers.graph import HeteroGraph
    from gloader.training.inference.edges import Edges
    from gloader.training.inference.plan import LayerPlan, TypePlans
    from gloader.training.inference.row_stream import AnyRows
    from gloader.types import FeatureSource, Relation


LayerOutputs: TypeAlias = "RamRows | SsdRows | DeviceRows"

SCRATCH_PREFIX = "gloader-infer-"


class OutputRoom:
    """Opens the outputs of layers. ``stack`` closes them, and removes the folder.

    Parameters
    ----------
    parent : of the folder; None: the system's temporary folder
    device : computes
    stack : of the run
    """

    def __init__(self, parent: Path | None, device: Device, stack: ExitStack) -> None:
        self._parent = parent
        self._device = device
        self._stack = stack
        self._folder: Path | None = None

    def open(self, name: str, plan: LayerPlan, *, num_rows: int, width: int) -> LayerOutputs:
        """Return rows to be written, where ``plan`` puts them.

        Parameters
        ----------
        name : of a folder that is not there yet
        plan : of the layer
        num_rows, width : of the outputs
        """
        outputs: LayerOutputs
        if plan.is_on_device:
            outputs = DeviceRows.blank(num_rows=num_rows, width=width, place=self._device.place)
        elif plan.is_on_disk:
            # Made with the first layer that needs it; a run that fits leaves no folder, not even an empty one.
            if self._folder is None:
                self._folder = self._stack.enter_context(scratch_folder(self._parent, prefix=SCRATCH_PREFIX))
            outputs = SsdRows(self._folder / name, num_rows=num_rows, num_slabs=len(plan.slabs))
        else:
            outputs = RamRows(num_rows=num_rows, width=width)
        self._stack.callback(outputs.close)
        return outputs


logger = logging.getLogger("gloader")

# Of the device's free memory, half: the loader brings the next batches meanwhile, and torch leaves holes.
FIRST_SHARE: Final = 2
# Of that, for the topology, which every slab of every layer would be sent otherwise.
_TOPOLOGY_SHARE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where an inference computes, and what it computes from."""

    device: Device
    model: GraphNetwork  # there
    plans: tuple[LayerPlan, ...]
    inputs: AnyRows  # the features
    edges: Edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What there is to compute from, and with."""

    graph: Topology
    features: FeatureSource
    budget_bytes: int  # of host memory
    tier: DeviceTier | None  # what a loader's device holds
    device: Device | None  # None: that of the network


def place_inference(
    model: GraphNetwork, given: Given, *, num_outputs: int, share: int = FIRST_SHARE
) -> Placement:
    """Choose where to compute: on the network's device, in slabs that fit, else on the CPU, with a line in the log.

    Parameters
    ----------
    model : the network, on its device
    given : graph, features and memory
    num_outputs : nodes whose logits are wanted
    share : of the device's free memory, one part in so many is taken

    Raises
    ------
    BudgetError
        It computes on the CPU, and the budget is too small for the narrowest table.
    """
    device = given.device or open_device(next(model.parameters()).device)
    if device.is_asynchronous:
        placed = _on_device(model, given, device, num_outputs, share)
        if placed is not None:
            return placed
        model, device = copy.deepcopy(model).to("cpu"), open_device(torch.device("cpu"))
    return _on_cpu(model, given, device, num_outputs)


def device_bytes_needed(convs: Sequence[Conv], *, num_nodes: int) -> int:
    """Return the free memory of a device with which an inference is reasonably fast there: few passes. Pure.

    Parameters
    ----------
    convs : the L layers
    num_nodes : N
    """
    return FIRST_SHARE * (reasonable_device_bytes(convs, num_nodes=num_nodes) + _offset_bytes(num_nodes))


def _on_cpu(model: GraphNetwork, given: Given, device: Device, num_outputs: int) -> Placement:
    graph = given.graph
    tier = _tier_at(device, given)
    edges: Edges = HostEdges(graph)
    if tier is not None and tier.topology is not None:
        edges = DeviceEdges(graph, device, tier.topology.indptr, tier.topology.indices)
    return Placement(
        device=device,
        model=model,
        plans=plan_inference(
            model.layers,
            num_nodes=graph.num_nodes,
            num_outputs=num_outputs,
            budget_bytes=given.budget_bytes,
        ),
        inputs=_inputs(given, tier),
        edges=edges,
    )


def _on_device(
    model: GraphNetwork, given: Given, device: Device, num_outputs: int, share: int
) -> Placement | None:
    """Return a placement on ``device``; None, with a line in the log, if not one step of columns fits there."""
    graph = given.graph
    tier = _tier_at(device, given)
    free = device.free_bytes()
    room = free // share
    held = None if tier is None else tier.topology
    offset_bytes = 0 if held is not None else _offset_bytes(graph.num_nodes)
    sent_whole: CscGraph | None = None
    if held is None and isinstance(graph, CscGraph):
        fits = offset_bytes + graph.indices.nbytes <= room // _TOPOLOGY_SHARE
        sent_whole = graph if fits else None
    plans = plan_on_device(
        model.layers,
        num_nodes=graph.num_nodes,
        num_outputs=num_outputs,
        device_bytes=room - offset_bytes - (0 if sent_whole is None else sent_whole.indices.nbytes),
        budget_bytes=given.budget_bytes,
    )
    if plans is None:
        logger.warning(
            "evaluation computes on the CPU: it may take %s of %s, which is not enough for one step of columns of %s "
            "nodes; a smaller --device-cache leaves more",
            format_bytes(room),
            device.place,
            f"{graph.num_nodes:,}",
        )
        return None
    if sent_whole is not None:
        held = upload_topology(sent_whole, device.place)
    if held is not None:
        edges = DeviceEdges(graph, device, held.indptr, held.indices)
    else:
        edges = DeviceEdges(graph, device, upload_offsets(graph.offsets, device.place), None)
    return Placement(device=device, model=model, plans=plans, inputs=_inputs(given, tier), edges=edges)


def _tier_at(device: Device, given: Given) -> DeviceTier | None:
    """Return what the loader holds where the inference computes."""
    tier = given.tier
    return tier if tier is not None and tier.device.place == device.place else None


def _inputs(given: Given, tier: DeviceTier | None) -> AnyRows:
    """Return the nearest copy of the features."""
    if tier is not None and tier.cache is not None and tier.holds_all:
        return DeviceRows(tier.cache.table)
    if tier is not None and tier.features is not None:
        return PinnedRows(tier.features)
    return FeatureRows(given.features)


def _offset_bytes(num_nodes: int) -> int:
    return 8 * (num_nodes + 1)


class OnADevice(Protocol):
    """What was placed on a device."""

    @property
    def device(self) -> Device:
        """Computes."""
        ...


PlacedT = TypeVar("PlacedT", bound=OnADevice)
MadeT = TypeVar("MadeT")


def in_less_memory(
    place: Callable[[int], PlacedT], run: Callable[[PlacedT, ExitStack], MadeT], stack: ExitStack
) -> MadeT:
    """Return what ``run`` does; after a device ran out of memory, in half of it.

    Parameters
    ----------
    place : returns a placement in one part in so many of the device's free memory
    run : computes there; what it opens is closed by the stack that it is given
    stack : owns what the attempt that came through opened
    """
    share = FIRST_SHARE
    while True:
        placed = place(share)
        device = placed.device
        # Of this attempt: a folder that it leaves is gone before the next one begins.
        with ExitStack() as attempt:
            try:
                result = run(placed, attempt)
            except torch.OutOfMemoryError:
                if not device.is_asynchronous:
                    raise
                result = None
            else:
                stack.push(attempt.pop_all())
            # What is left of it on the device must not count as taken.
            del placed
        # torch keeps freed memory for the stream that it was taken for; batches come on another one.
        device.free_bytes()
        if result is not None:
            return result
        share *= 2
        logger.warning("evaluation ran out of memory on %s: again, in half of it", device.place)


# Of what an inference may take of a device, for the edges, which every slab of every layer would be sent otherwise.


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroGiven:
    """What there is to compute from, and with."""

    graph: HeteroGraph
    features: Mapping[str, FeatureSource]  # of the types that have any
    budget_bytes: int  # of host memory
    device: Device | None  # None: that of the network

    def extent(self, outputs: Mapping[str, int]) -> Extent:
        """Return how much there is, where so many rows of each target are wanted."""
        relations = self.graph.relations.items()
        return Extent(
            num_nodes=self.graph.num_nodes,
            relations=tuple(relation for relation, topology in relations if topology.num_edges),
            outputs=outputs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroPlacement:
    """Where an inference computes, and what it computes from."""

    device: Device
    network: HeteroNetwork  # there
    num_layers: int  # that are computed
    extent: Extent
    plans: tuple[TypePlans, ...]
    inputs: Mapping[str, AnyRows]  # features or learned rows of the types that are needed
    held: Mapping[
        Relation, Edges
    ]  # of the relations whose edges are on the device; others are sent as they are needed
    graph: HeteroGraph

    def edges(self, relation: Relation) -> Edges:
        """Return the in-edges of a relation; what they take on the device goes with them."""
        if relation in self.held:
            return self.held[relation]
        topology = self.graph.relations[relation]
        if not self.device.is_asynchronous:
            return HostEdges(topology)
        return DeviceEdges(topology, self.device, upload_offsets(topology.offsets, self.device.place), None)


def place_types(
    network: HeteroNetwork, given: HeteroGiven, extent: Extent, *, num_layers: int, share: int = FIRST_SHARE
) -> HeteroPlacement:
    """Choose where to compute: on the network's device, in slabs that fit, else on the CPU, with a line in the log.

    Parameters
    ----------
    network : on its device
    given : graph, features and memory
    extent : of the graph, and of what is wanted
    num_layers : that are computed
    share : of the device's free memory, one part in so many is taken

    Raises
    ------
    BudgetError
        It computes on the CPU, and the budget is too small for the narrowest table of a type.
    ConfigError
        A type that is needed has neither features nor learned rows, or features of another width.
    """
    device = given.device or open_device(next(network.parameters()).device)
    if device.is_asynchronous:
        placed = _typed_on_device(network, given, extent, device, num_layers, share)
        if placed is not None:
            return placed
        network, device = copy.deepcopy(network).to("cpu"), open_device(torch.device("cpu"))
    plans = plan_types(network.layers[:num_layers], extent, budget_bytes=given.budget_bytes)
    return _placement(network, given, extent, device, plans, held={})


def device_bytes_for_types(layers: Sequence[HeteroLayer], extent: Extent) -> int:
    """Return the free memory of a device with which an inference is reasonably fast there: few passes. Pure.

    Parameters
    ----------
    layers : the L layers
    extent : of the graph, and of what is wanted
    """
    return FIRST_SHARE * (device_bytes_of_types(layers, extent) + _most_offset_bytes(extent))


def _most_offset_bytes(extent: Extent) -> int:
    """Return the bytes of the offsets of one relation, that with most destinations."""
    return max((8 * (extent.num_nodes[into] + 1) for _, _, into in extent.relations), default=0)


def _typed_on_device(
    network: HeteroNetwork, given: HeteroGiven, extent: Extent, device: Device, num_layers: int, share: int
) -> HeteroPlacement | None:
    """Return a placement on ``device``; None, with a line in the log, if not one step of columns fits there."""
    room = device.free_bytes() // share
    graph = given.graph
    into = {relation: graph.relations[relation] for relation in extent.relations}
    whole = {relation: topology for relation, topology in into.items() if isinstance(topology, CscGraph)}
    whole_bytes = sum(topology.indptr.nbytes + topology.indices.nbytes for topology in whole.values())
    if whole_bytes > room // _TOPOLOGY_SHARE:
        whole, whole_bytes = {}, 0
    # Of the relations that are sent, the offsets of one at a time.
    sent = [topology.num_nodes for relation, topology in into.items() if relation not in whole]
    offset_bytes = max((8 * (count + 1) for count in sent), default=0)
    plans = plan_types_on_device(
        network.layers[:num_layers],
        extent,
        device_bytes=room - whole_bytes - offset_bytes,
        budget_bytes=given.budget_bytes,
    )
    if plans is None:
        logger.warning(
            "evaluation computes on the CPU: it may take %s of %s, which is not enough for one step of columns; a "
            "smaller --device-cache leaves more",
            format_bytes(room),
            device.place,
        )
        return None
    held = {}
    for relation, topology in whole.items():
        there = upload_topology(topology, device.place)
        held[relation] = DeviceEdges(topology, device, there.indptr, there.indices)
    return _placement(network, given, extent, device, plans, held=held)


def _placement(
    network: HeteroNetwork,
    given: HeteroGiven,
    extent: Extent,
    device: Device,
    plans: tuple[TypePlans, ...],
    held: Mapping[Relation, Edges],
) -> HeteroPlacement:
    needed = extent.needed(len(plans))[0]
    return HeteroPlacement(
        device=device,
        network=network,
        num_layers=len(plans),
        extent=extent,
        plans=plans,
        inputs={name: _inputs_of(name, network, given) for name in needed},
        held=held,
        graph=given.graph,
    )


def _inputs_of(name: str, network: HeteroNetwork, given: HeteroGiven) -> AnyRows:
    learned = network.learned.get(name)
    if learned is not None:
        found = tuple(learned.shape)
        if found[0] != given.graph.num_nodes[name]:
            raise ConfigError(
                f"the network has learned rows of {found[0]:,} nodes of type {name!r}; the graph has "
                f"{given.graph.num_nodes[name]:,}"
            )
        return DeviceRows(RowTable(rows=learned.detach()))
    if name not in given.features:
        raise ConfigError(
            f"type {name!r} has no features here, and the network no learned rows of it: it is of another dataset"
        )
    features, width = given.features[name], network.layers[0].in_dims[name]
    if features.dim != width:
        raise ConfigError(f"type {name!r} has {features.dim} features; the network takes {width}")
    return FeatureRows(features)
