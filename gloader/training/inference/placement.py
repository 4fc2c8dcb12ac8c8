"""Where an inference computes, by what memory there is, and what lies there already."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from gloader.core.units import format_bytes
from gloader.device import open_device
from gloader.device.topology import upload_offsets, upload_topology
from gloader.samplers import CscGraph
from gloader.training.inference.activations import FeatureRows
from gloader.training.inference.device_edges import DeviceEdges
from gloader.training.inference.edge_pieces import HostEdges
from gloader.training.inference.layer_plan import plan_inference, plan_on_device, reasonable_device_bytes
from gloader.training.inference.row_stream import DeviceRows, PinnedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.device import Device, DeviceTier
    from gloader.models import GraphNetwork
    from gloader.models.conv import Conv
    from gloader.samplers import Topology
    from gloader.training.inference.edge_pieces import Edges
    from gloader.training.inference.layer_plan import LayerPlan
    from gloader.training.inference.row_stream import AnyRows
    from gloader.types import FeatureSource

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
