"""The warning about relations that no seed can reach."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

from gloader.core.row_order import RowOrder
from gloader.dataset.schema import relation_text
from gloader.samplers import unreachable_relations

if TYPE_CHECKING:
    from gloader.core.row_order import AnyOrder
    from gloader.pipeline.seed_order import SeedPlan
    from gloader.samplers import HeteroGraph

logger = logging.getLogger("gloader")


def tell_unreachable(graph: HeteroGraph, seeds: SeedPlan, *, num_hops: int, where: str) -> None:
    """Say once of a dataset which relations no seed can reach, which else would be empty in every batch without a word.

    Parameters
    ----------
    graph : the topology
    seeds : of every epoch
    num_hops : L
    where : the dataset
    """
    relations = tuple(graph.relations)
    seed_types = _seed_types(graph, seeds.order) if seeds.links is None else seeds.links.seed_types
    unreachable = unreachable_relations(relations, seed_types, num_hops)
    if not unreachable or not seed_types:
        return
    # As many hops as there are relations reach whatever any number of hops does.
    lost = unreachable_relations(relations, seed_types, len(relations))
    advice = (
        "messages go from source to destination, so that a relation that leads away from the seeds needs its reverse "
        "(gloader prepare --add-reverse)"
        if lost == unreachable
        else f"one more number in --fanout (fanouts=), for one more hop, comes nearer to "
        f"{_listed(tuple(one for one in unreachable if one not in lost))}"
        + (f"; no number of hops reaches {_listed(lost)}, which needs its reverse" if lost else "")
    )
    hops = "1 hop" if num_hops == 1 else f"{num_hops} hops"
    reached = f"seeds of type {', '.join(seed_types)} do not reach them in {hops}"
    _warn_once(where, f"no batch has edges of {_listed(unreachable)}: {reached}; {advice}")


@cache
def _warn_once(where: str, text: str) -> None:
    """Log ``text``, which each of several loaders over the dataset ``where`` would repeat."""
    del where
    logger.warning("%s", text)


def _listed(relations: tuple[tuple[str, str, str], ...]) -> str:
    return ", ".join(map(relation_text, relations))


def _seed_types(graph: HeteroGraph, order: AnyOrder) -> tuple[str, ...]:
    if isinstance(order, RowOrder):
        return ()
    starts = graph.type_starts
    return tuple(
        name
        for number, name in enumerate(graph.node_types)
        if ((order.seeds >= starts[number]) & (order.seeds < starts[number + 1])).any()
    )
