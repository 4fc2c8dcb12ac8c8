"""The placement of an inference: its computing device, and the memory for its inputs, edges and outputs.

`place_inference` makes a `Placement` before a pass through the layers (`layer_pass`): the device, the plan of each
layer, and the copies of features and edges that are read. A tier is the loader's part of the device memory, with cached
rows and perhaps the edges; an inference on the same device reads it. `OutputRoom` opens the outputs of each layer
during the pass.
"""

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

# Begins the name of the folder for activations, the rows between layers, on the SSD.
SCRATCH_PREFIX = "gloader-infer-"


class OutputRoom:
    """Opens the outputs of layers. ``stack`` closes them and removes the folder.

    Parameters
    ----------
    parent : parent of the scratch folder. If None, the system's temporary folder
    device : the computing device
    stack : the run's exit stack
    """

    def __init__(self, parent: Path | None, device: Device, stack: ExitStack) -> None:
        self._parent = parent
        self._device = device
        self._stack = stack
        self._folder: Path | None = None

    def open(self, name: str, plan: LayerPlan, *, num_rows: int, width: int) -> LayerOutputs:
        """Return writable rows in the memory that ``plan`` chose.

        Parameters
        ----------
        name : a new folder's name
        plan : the layer's plan
        num_rows, width : the outputs' shape
        """
        outputs: LayerOutputs
        if plan.is_on_device:
            outputs = DeviceRows.blank(num_rows=num_rows, width=width, place=self._device.place)
        elif plan.is_on_disk:
            # The first layer that needs the folder makes it: a run that fits memory leaves none, not even an empty one.
            if self._folder is None:
                self._folder = self._stack.enter_context(scratch_folder(self._parent, prefix=SCRATCH_PREFIX))
            outputs = SsdRows(self._folder / name, num_rows=num_rows, num_slabs=len(plan.slabs))
        else:
            outputs = RamRows(num_rows=num_rows, width=width)
        self._stack.callback(outputs.close)
        return outputs


logger = logging.getLogger("gloader")

# The divisor for the device's free memory: an inference takes half of it at first. The rest is for the loader, which
# sends the next batches meanwhile, and for holes that torch leaves.
FIRST_SHARE: Final = 2
# The divisor for this half: a third of it may hold the edges. Edges that take more stay on the host. They are sent
# again for every slab (a range of output columns) of every layer.
_TOPOLOGY_SHARE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs of an inference: graph, features and memory."""

    graph: HeteroGraph
    features: Mapping[str, FeatureSource]  # features of the types that have some
    budget_bytes: int  # budget of host memory
    edge_features: Mapping[Relation, FeatureSource] = field(default_factory=dict)
    tiers: Mapping[str, DeviceTier] = field(default_factory=dict)  # the loader's device memory, by type
    device: Device | None = None  # defaults to the network's device

    def extent(self, outputs: Mapping[str, int]) -> Extent:
        """Return the sizes of the graph and a result with ``outputs`` rows per target type."""
        relations = self.graph.relations.items()
        return Extent(
            num_nodes=self.graph.num_nodes,
            relations=tuple(relation for relation, topology in relations if topology.num_edges),
            outputs=outputs,
        )


class Placement:
    """An inference's device, with its layers' plans, inputs and edges.

    Parameters
    ----------
    given : graph, features and memory
    network : the network, on ``device``
    extent : sizes of graph and result
    device : the computing device
    plans : plans of the computed layers
    held : edges on the device, by relation; edges of other relations are sent on demand

    Raises
    ------
    ConfigError
        A required type has neither features nor learned rows, or rows or edges have features of another width.
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
        self._sent: tuple[Relation, Edges] | None = None  # the last relation whose edges are sent on demand

    def edges(self, relation: Relation) -> Edges:
        """Return a relation's in-edges. Only one relation with sent edges keeps its offsets on the device."""
        if relation in self._held:
            return self._held[relation]
        topology = self.graph.relations[relation]
        if not self.device.is_asynchronous:
            return HostEdges(topology)
        if self._sent is None or self._sent[0] != relation:
            self._sent = None  # freed before the next relation's offsets arrive
            offsets = upload_offsets(topology.offsets, self.device.place)
            self._sent = relation, DeviceEdges(topology, self.device, offsets, None)
        return self._sent[1]


def place_inference(
    network: GraphNetwork, given: Given, extent: Extent, *, num_layers: int, share: int = FIRST_SHARE
) -> Placement:
    """Choose the computing device, and plan the layers for it.

    The device is the network's device if slabs fit there, otherwise the CPU, with a log line. A slab is a range of a
    layer's output columns that is computed at once.

    Parameters
    ----------
    network : the network, on its device
    given : graph, features and memory
    extent : sizes of graph and result
    num_layers : number of computed layers
    share : divisor: one part in ``share`` of the device's free memory is used

    Raises
    ------
    BudgetError
        The CPU computes, and the budget is too small for the narrowest table of a type.
    ConfigError
        See `Placement`.
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
    """Return the free device memory that makes an inference reasonably fast, with few passes. Pure.

    Parameters
    ----------
    layers : the L layers
    extent : sizes of graph and result
    """
    # Relations with sent edges keep only one relation's offsets on the device.
    offsets = max((_offset_bytes(extent.num_nodes[into]) for _, _, into in extent.relations), default=0)
    return FIRST_SHARE * (reasonable_device_bytes(layers, extent) + offsets)


def _on_device(
    network: GraphNetwork, given: Given, extent: Extent, device: Device, num_layers: int, share: int
) -> Placement | None:
    """Return a placement on ``device``, or None with a log line if not even the narrowest slab fits there."""
    room = device.free_bytes() // share
    held = _held_by_tiers(device, given)
    # Edges that no tier holds are uploaded whole if they are in host memory and all fit. Otherwise they are sent in
    # pieces during the pass.
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
        uploaded = upload_topology(topology, device.place)
        held[relation] = DeviceEdges(topology, device, uploaded.indptr, uploaded.indices)
    return Placement(given, network, extent, device, plans, held)


def _tiers_at(device: Device, given: Given) -> dict[str, DeviceTier]:
    """Return the loader's tiers on the computing device, by type."""
    return {name: tier for name, tier in given.tiers.items() if tier.device.place == device.place}


def _held_by_tiers(device: Device, given: Given) -> dict[Relation, Edges]:
    """Return the edges that the loader holds on the computing device."""
    held: dict[Relation, Edges] = {}
    for tier in _tiers_at(device, given).values():
        if tier.topology is not None:
            # A loader samples on its device only if there is one type with one relation.
            ((relation, topology),) = given.graph.relations.items()
            held[relation] = DeviceEdges(topology, device, tier.topology.indptr, tier.topology.indices)
    return held


def _inputs(name: str, network: GraphNetwork, given: Given, tier: DeviceTier | None) -> AnyRows:
    """Return a type's input rows: learned rows, or features from the device, pinned memory or the source.

    Raises
    ------
    ConfigError
        See `Placement`.
    """
    learned = network.learned.get(name)
    if learned is not None:
        num_learned = len(learned)
        if num_learned != given.graph.num_nodes[name]:
            raise ConfigError(
                f"the network has learned rows of {num_learned:,} nodes of type {name!r}; the graph has "
                f"{given.graph.num_nodes[name]:,}"
            )
        return DeviceRows(RowTable(rows=learned.detach()))
    if name not in given.features:
        raise ConfigError(
            f"type {name!r} has no features in this graph, and the network has no learned rows for it: the network "
            "belongs to another dataset"
        )
    features, width = given.features[name], network.layers[0].read_dims[name]
    if features.dim != width:
        raise ConfigError(f"type {name!r} has {features.dim} features; the network takes {width}")
    if tier is not None and tier.cache is not None and tier.holds_all:
        return DeviceRows(tier.cache.table)
    if tier is not None and tier.features is not None:
        return PinnedRows(tier.features)
    return InputRows(features)


def _offset_bytes(num_nodes: int) -> int:
    """Return the bytes of a relation's offsets into ``num_nodes`` destinations."""
    return 8 * (num_nodes + 1)
