"""The places of an inference: the device that computes, and the rows, edges and outputs that it has already."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import torch

from gloader.core.units import format_bytes
from gloader.device import RowTable, open_device
from gloader.device.tier import upload_offsets, upload_topology
from gloader.errors import ConfigError
from gloader.samplers import CscGraph
from gloader.ssd_store.spill.claim import scratch_folder
from gloader.training.inference.layer_plan import (
    Extent,
    plan_inference,
    plan_on_device,
    reasonable_device_bytes,
)
from gloader.training.inference.layer_rows import InputRows, RamRows, SsdRows
from gloader.training.inference.row_stream import DeviceRows, PinnedRows
from gloader.training.inference.scanned_edges import DeviceEdges, EdgeFeatures, HostEdges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from gloader.device import Device, DeviceTier
    from gloader.models import GraphNetwork
    from gloader.models.conv import Layer
    from gloader.samplers.graph import HeteroGraph
    from gloader.training.inference.layer_plan import LayerPlan, TypePlans
    from gloader.training.inference.row_stream import AnyRows
    from gloader.training.inference.scanned_edges import Edges
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
# Of that, for the edges, which every slab of every layer would be sent otherwise.
_TOPOLOGY_SHARE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The graph, its features and the memory of an inference."""

    graph: HeteroGraph
    features: Mapping[str, FeatureSource]  # of the types that have any
    budget_bytes: int  # of host memory
    edge_features: Mapping[Relation, FeatureSource] = field(default_factory=dict)
    tiers: Mapping[str, DeviceTier] = field(default_factory=dict)  # of a loader's device, by type
    device: Device | None = None  # None: that of the network

    def extent(self, outputs: Mapping[str, int]) -> Extent:
        """Return the size of the graph, and of a result with so many rows of each target."""
        relations = self.graph.relations.items()
        return Extent(
            num_nodes=self.graph.num_nodes,
            relations=tuple(relation for relation, topology in relations if topology.num_edges),
            outputs=outputs,
        )


class Placement:
    """The device of an inference, with the plans, inputs and edges of its layers.

    Parameters
    ----------
    given : graph, features and memory
    network : on ``device``
    extent : of the graph, and of the result
    device : computes
    plans : of each layer that is computed
    held : the edges that are on the device; others are sent as they are needed

    Raises
    ------
    ConfigError
        A type that is needed has neither features nor learned rows, or rows or edges have features of another width.
    """

    def __init__(
        self,
        given: Given,
        network: GraphNetwork,
        extent: Extent,
        device: Device,
        plans: tuple[TypePlans, ...],
        held: Mapping[Relation, Edges],
    ) -> None:
        self.graph = given.graph
        self.network = network
        self.layers = network.layers[: len(plans)]
        self.extent = extent
        self.device = device
        self.plans = plans
        self.edge_features = {
            relation: EdgeFeatures(source=source) for relation, source in given.edge_features.items()
        }
        tiers = _tiers_at(device, given)
        self.inputs: Mapping[str, AnyRows] = {
            name: _inputs(name, network, given, tiers.get(name)) for name in extent.needed(len(plans))[0]
        }
        self._held = held
        self._sent: tuple[Relation, Edges] | None = None

    def edges(self, relation: Relation) -> Edges:
        """Return the in-edges of a relation. Of relations that are sent, one has its offsets on the device."""
        if relation in self._held:
            return self._held[relation]
        topology = self.graph.relations[relation]
        if not self.device.is_asynchronous:
            return HostEdges(topology)
        if self._sent is None or self._sent[0] != relation:
            self._sent = None  # gone before the next one is there
            offsets = upload_offsets(topology.offsets, self.device.place)
            self._sent = relation, DeviceEdges(topology, self.device, offsets, None)
        return self._sent[1]


def place_inference(
    network: GraphNetwork, given: Given, extent: Extent, *, num_layers: int, share: int = FIRST_SHARE
) -> Placement:
    """Choose where to compute: on the network's device, in slabs that fit, else on the CPU, with a line in the log.

    Parameters
    ----------
    network : on its device
    given : graph, features and memory
    extent : of the graph, and of the result
    num_layers : layers that are computed
    share : of the device's free memory, one part in so many is taken

    Raises
    ------
    BudgetError
        It computes on the CPU, and the budget is too small for the narrowest table of a type.
    ConfigError
        As `Placement`.
    """
    device = given.device or open_device(next(network.parameters()).device)
    if device.is_asynchronous:
        placed = _on_device(network, given, extent, device, num_layers, share)
        if placed is not None:
            return placed
        network, device = copy.deepcopy(network).to("cpu"), open_device(torch.device("cpu"))
    plans = plan_inference(network.layers[:num_layers], extent, budget_bytes=given.budget_bytes)
    return Placement(given, network, extent, device, plans, _held_by_tiers(device, given))


def device_bytes_needed(layers: Sequence[Layer], extent: Extent) -> int:
    """Return the free memory of a device with which an inference is reasonably fast there: few passes. Pure.

    Parameters
    ----------
    layers : the L layers
    extent : of the graph, and of the result
    """
    # Of the relations that are sent, the offsets of one at a time.
    offsets = max((_offset_bytes(extent.num_nodes[into]) for _, _, into in extent.relations), default=0)
    return FIRST_SHARE * (reasonable_device_bytes(layers, extent) + offsets)


def _on_device(
    network: GraphNetwork, given: Given, extent: Extent, device: Device, num_layers: int, share: int
) -> Placement | None:
    """Return a placement on ``device``; None, with a line in the log, if not one step of columns fits there."""
    room = device.free_bytes() // share
    held = _held_by_tiers(device, given)
    left = {key: given.graph.relations[key] for key in extent.relations if key not in held}
    whole = {key: topology for key, topology in left.items() if isinstance(topology, CscGraph)}
    whole_bytes = sum(topology.indptr.nbytes + topology.indices.nbytes for topology in whole.values())
    if whole_bytes > room // _TOPOLOGY_SHARE:
        whole, whole_bytes = {}, 0
    sent = [_offset_bytes(topology.num_nodes) for key, topology in left.items() if key not in whole]
    plans = plan_on_device(
        network.layers[:num_layers],
        extent,
        device_bytes=room - whole_bytes - max(sent, default=0),
        budget_bytes=given.budget_bytes,
    )
    if plans is None:
        logger.warning(
            "evaluation computes on the CPU: it may take %s of %s, which is not enough for one step of columns of %s "
            "nodes; a smaller --device-cache leaves more",
            format_bytes(room),
            device.place,
            f"{sum(extent.num_nodes.values()):,}",
        )
        return None
    for relation, topology in whole.items():
        there = upload_topology(topology, device.place)
        held[relation] = DeviceEdges(topology, device, there.indptr, there.indices)
    return Placement(given, network, extent, device, plans, held)


def _tiers_at(device: Device, given: Given) -> dict[str, DeviceTier]:
    """Return what the loader holds where the inference computes, by type."""
    return {name: tier for name, tier in given.tiers.items() if tier.device.place == device.place}


def _held_by_tiers(device: Device, given: Given) -> dict[Relation, Edges]:
    """Return the edges that the loader holds where the inference computes."""
    held: dict[Relation, Edges] = {}
    for tier in _tiers_at(device, given).values():
        if tier.topology is not None:
            # A loader samples on its device where there is one type with one relation.
            ((relation, topology),) = given.graph.relations.items()
            held[relation] = DeviceEdges(topology, device, tier.topology.indptr, tier.topology.indices)
    return held


def _inputs(name: str, network: GraphNetwork, given: Given, tier: DeviceTier | None) -> AnyRows:
    """Return the learned rows of a type, or the nearest copy of its features."""
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
    if tier is not None and tier.cache is not None and tier.holds_all:
        return DeviceRows(tier.cache.table)
    if tier is not None and tier.features is not None:
        return PinnedRows(tier.features)
    return InputRows(features)


def _offset_bytes(num_nodes: int) -> int:
    return 8 * (num_nodes + 1)
