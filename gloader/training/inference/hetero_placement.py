"""Where an inference of several node types computes, by what memory there is."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from gloader.core.units import format_bytes
from gloader.device import RowTable, open_device
from gloader.device.topology import upload_offsets, upload_topology
from gloader.errors import ConfigError
from gloader.samplers import CscGraph
from gloader.training.inference.activations import FeatureRows
from gloader.training.inference.device_edges import DeviceEdges
from gloader.training.inference.edge_pieces import HostEdges
from gloader.training.inference.hetero_plan import (
    Extent,
    device_bytes_of_types,
    plan_types,
    plan_types_on_device,
)
from gloader.training.inference.placement import FIRST_SHARE
from gloader.training.inference.row_stream import DeviceRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.device import Device
    from gloader.models import HeteroNetwork
    from gloader.models.hetero_conv import HeteroLayer
    from gloader.samplers.hetero_graph import HeteroGraph
    from gloader.training.inference.edge_pieces import Edges
    from gloader.training.inference.hetero_plan import TypePlans
    from gloader.training.inference.row_stream import AnyRows
    from gloader.types import FeatureSource, Relation

logger = logging.getLogger("gloader")

# Of what an inference may take of a device, for the edges, which every slab of every layer would be sent otherwise.
_TOPOLOGY_SHARE: Final = 3


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
        placed = _on_device(network, given, extent, device, num_layers, share)
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
    return FIRST_SHARE * (device_bytes_of_types(layers, extent) + _offset_bytes(extent))


def _offset_bytes(extent: Extent) -> int:
    """Return the bytes of the offsets of one relation, that with most destinations."""
    return max((8 * (extent.num_nodes[into] + 1) for _, _, into in extent.relations), default=0)


def _on_device(
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
        inputs={name: _inputs(name, network, given) for name in needed},
        held=held,
        graph=given.graph,
    )


def _inputs(name: str, network: HeteroNetwork, given: HeteroGiven) -> AnyRows:
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
