"""The hottest rows, chosen before the first epoch by sampling, by probability or by degree.

A hot row is needed by many batches, so it is worth a slot in the device's static cache. A table has the feature rows of
one node type. To *presample* is to sample batches before the first epoch, only to count their nodes. A loader calls
`heat_of_tables`, which returns a score per row, and `RowHeat.plan`, which takes the rows with the highest scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from gloader.cache import (
    RelationEdges,
    access_counts,
    inclusion_by_type,
    no_device_cache,
    plan_device_cache,
)
from gloader.core.order import RowOrder
from gloader.core.signals import run_together
from gloader.errors import ConfigError
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.cache import DeviceCachePlan
    from gloader.config import DeviceHotness
    from gloader.core.order import AnyOrder
    from gloader.samplers import HeteroGraph
    from gloader.types import AnySampler, IdArray

# Bounds for the number of batches to presample, which is normally one epoch's. The lower bound suffices to distinguish
# hot rows from cold rows. The upper bound keeps the work below a few seconds.
LEAST_PRESAMPLED: Final = 64
MOST_PRESAMPLED: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowHeat:
    """The scores of one table's rows: the higher the score, the more batches are expected to need the row."""

    # (N,) number of presampled batches with the row, the row's probability to be in a batch, or the node's out-degree.
    # All tables of a loader have the same kind of score, so that their scores are comparable.
    scores: NDArray[np.integer] | NDArray[np.floating]
    # If the scores count presampled batches, a function that returns the nodes' out-degrees (N,). They rank the rows
    # with the count 0. None for the other kinds of score.
    degrees: Callable[[], IdArray] | None = None

    def plan(self, num_rows: int) -> DeviceCachePlan:
        """Return the plan that holds the ``num_rows`` hottest rows."""
        if num_rows == 0:
            return no_device_cache(len(self.scores))
        if self.degrees is None:
            return plan_device_cache(self.scores, num_rows)
        counts = cast("IdArray", self.scores)
        # If fewer nodes were sampled than the cache holds, degrees rank the other nodes.
        # The counts are passed twice: they rank the rows, and the plan computes its expected hit rate from them.
        tail = None if np.count_nonzero(counts) >= num_rows else self.degrees()
        return plan_device_cache(counts, num_rows, tail=tail, accesses=counts)


def presampled_counts(
    sampler: AnySampler, order: AnyOrder, *, num_nodes: Mapping[int, int], threads: int = 1
) -> tuple[IdArray, ...]:
    """Count the presampled batches that contain each node (GNNLab, EuroSys'22, section 6.3). Pure.

    Parameters
    ----------
    sampler : the run's sampler
    order : the run's order; its first batches are counted
    num_nodes : N of each counted node type, by the type's number
    threads : number of sampling threads

    Returns
    -------
    (N,) int64 counts for each of these types

    Raises
    ------
    ThreadStartError
        The system allows no more threads.
    """
    per_epoch = order.num_batches
    num_batches = min(max(per_epoch, LEAST_PRESAMPLED), MOST_PRESAMPLED) if per_epoch else 0

    def nodes_of(number: int) -> tuple[IdArray, ...]:
        """Return the nodes of a batch for each type of the graph. ``number`` counts the batches of all epochs."""
        epoch, index = divmod(number, per_epoch)
        batch = BatchId(epoch=epoch, index=index)
        seeds: Any = order.seeds_of(batch)
        return sampler.sample(batch, seeds).node_arrays

    counts = tuple(np.zeros(count, dtype=np.int64) for count in num_nodes.values())
    # A round of batches is counted before the next round is sampled, so that few batches are held in memory.
    for start in range(0, num_batches, 2 * threads):
        numbers = range(start, min(start + 2 * threads, num_batches))
        for arrays in run_together(
            [partial(nodes_of, number) for number in numbers], threads=threads, name="gloader-presample"
        ):
            for type_number, type_counts in zip(num_nodes, counts, strict=True):
                type_counts[arrays[type_number]] += 1  # once per batch, even if the node occurs several times
    return counts


def heat_of_tables(
    hotness: DeviceHotness,
    types: Sequence[int],
    *,
    graph: HeteroGraph,
    sampler: AnySampler,
    order: AnyOrder,
    fanouts: Sequence[tuple[int, ...]],
    is_collective: bool,
    threads: int = 1,
) -> tuple[RowHeat, ...]:
    """Return the access frequency of each table's rows.

    Parameters
    ----------
    hotness : the kind of score. "presampled" is the number of presampled batches with the row. "vip" is the probability
        that a batch needs the row, by vertex inclusion probability analysis (SALIENT++, MLSys'23). "degree" is the
        node's out-degree over all relations
    types : each table's node type number
    graph : the graph; "vip" and "degree" read all of its edges
    sampler, order : the run's sampler and order. Its seeds have one numbering over all types, see
        `HeteroGraph.type_starts`
    fanouts : each relation's fan-outs, in the graph's order of relations; the first hop is next to the seeds
    is_collective : True if a node draws its fan-out from the in-edges of all relations together, False if from each
        relation separately
    threads : number of sampling threads

    Raises
    ------
    ConfigError
        "vip" was requested, and the seeds are edges.
    ThreadStartError
        The system allows no more threads.
    """
    num_nodes = list(graph.num_nodes.values())
    if hotness == "vip":
        chances = inclusion_by_type(
            num_nodes,
            _edges_of(graph, fanouts),
            seeds=_seeds_by_type(_node_seeds(order), graph.type_starts),
            batch_size=order.batch_size,
            is_collective=is_collective,
        )
        return tuple(RowHeat(scores=chances[number]) for number in types)
    degrees = [partial(_type_degrees, graph, number) for number in types]
    if hotness == "degree":
        return tuple(RowHeat(scores=of_type()) for of_type in degrees)
    counts = presampled_counts(
        sampler, order, num_nodes={number: num_nodes[number] for number in types}, threads=threads
    )
    return tuple(
        RowHeat(scores=type_counts, degrees=of_type)
        for type_counts, of_type in zip(counts, degrees, strict=True)
    )


def _type_degrees(graph: HeteroGraph, number: int) -> IdArray:
    """Return each node's out-degree for one type, over all relations."""
    name = graph.node_types[number]
    pieces = (
        topology.sources.pieces() for (source, _, _), topology in graph.relations.items() if source == name
    )
    # A node's out-degree is the number of edges whose source it is.
    return access_counts(chain.from_iterable(pieces), graph.num_nodes[name])


def _edges_of(graph: HeteroGraph, fanouts: Sequence[tuple[int, ...]]) -> list[RelationEdges]:
    """Return each relation's edges with its fan-outs, in graph order."""
    numbers = {name: number for number, name in enumerate(graph.node_types)}
    return [
        RelationEdges(
            source=numbers[source],
            destination=numbers[destination],
            offsets=topology.offsets,
            pieces=topology.sources.pieces,
            fanouts=hops,
        )
        for ((source, _, destination), topology), hops in zip(graph.relations.items(), fanouts, strict=True)
    ]


def _node_seeds(order: AnyOrder) -> IdArray:
    """Return an epoch's seeds.

    Raises
    ------
    ConfigError
        The seeds are edges, so that there is no list of seed nodes.
    """
    if isinstance(order, RowOrder):
        raise ConfigError(
            "device_hotness='vip' works with seeds that are nodes; for links or rows of a table use 'presampled' or "
            "'degree'"
        )
    return order.seeds


def _seeds_by_type(seeds: IdArray, starts: IdArray) -> list[IdArray]:
    """Return the ids within each type for ``seeds`` (n,), which are numbered over all types."""
    return [seeds[(seeds >= first) & (seeds < end)] - first for first, end in pairwise(starts)]
