"""Seeds of several node types, numbered through: an epoch's order knows no types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gloader.core.ids import outside
from gloader.errors import SeedError
from gloader.pipeline.positions import LabelledSeeds, NoLabels
from gloader.pipeline.seed_order import SeedPlan, checked_seeds, order_rows, order_seeds

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from gloader.config import SamplingSettings
    from gloader.dataset import Dataset
    from gloader.pipeline.link_task import LinkTask
    from gloader.types import IdArray


SeedsLike: TypeAlias = (
    "ArrayLike | Mapping[str, ArrayLike]"  # ids, or ids by node type, or a pair (type, ids)
)


def number_seeds(dataset: Dataset, seeds: SeedsLike | None) -> IdArray:
    """Return the seeds (n,) as numbers: where the nodes of their type begin, plus their id.

    Parameters
    ----------
    dataset : whose nodes they are
    seeds : (n,) ids of the labelled type, ids by type, or a type and its ids; a mask of all nodes of a type for ids.
        None: the training nodes

    Raises
    ------
    SeedError
        A type is unknown, or ids are no integers or not of nodes of their type.
    """
    labelled = dataset.labelled
    if seeds is None:
        seeds = labelled.train
    if (
        isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str)
    ):  # as PyG's loaders take them
        seeds = {seeds[0]: seeds[1]}
    by_type = seeds if isinstance(seeds, Mapping) else {labelled.name: seeds}
    starts = dataset.type_starts
    found = []
    for name, ids in by_type.items():
        if name not in dataset.node_tables:
            raise SeedError(
                f"seeds name the node type {name!r}; {dataset.location} has {', '.join(map(repr, dataset.node_types))}"
            )
        table = dataset.node_tables[name]
        checked = checked_seeds(ids, table.num_nodes)
        if len(bad := outside(checked, table.num_nodes)):
            raise SeedError(
                f"{len(bad)} seeds of type {name!r} are not in 0..{table.num_nodes - 1}, among them {bad[:5].tolist()}"
            )
        found.append(checked + starts[table.number])
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def labels_of_numbered(dataset: Dataset, seeds: IdArray) -> LabelledSeeds:
    """Return the labels of ``seeds`` (n,), numbered through; those of other types than the labelled have none."""
    table = dataset.labelled
    first = dataset.type_starts[table.number]
    has_label = (seeds >= first) & (seeds < first + table.num_nodes)
    if has_label.all():
        return LabelledSeeds(labels=table.labels_of(seeds - first))
    labels = np.full(len(seeds), -1, dtype=np.int64)
    labels[has_label] = table.labels_of(seeds[has_label] - first)
    return LabelledSeeds(labels=labels, has_label=has_label)


def plan_training_seeds(
    dataset: Dataset,
    sampling: SamplingSettings,
    *,
    is_typed: bool,
    links: LinkTask | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> SeedPlan:
    """Return the seeds of a loader that is planned and hands no batch out: they have no labels.

    Parameters
    ----------
    dataset : whose training nodes they are
    sampling : of the loader
    is_typed : whether batches have several types
    links : whose table the rows are of; None: the seeds are nodes
    rank, world_size : the part of each step that is this rank's

    Raises
    ------
    SeedError, ConfigError
        There are no such seeds.
    """
    if links is not None:
        rows = order_rows(links.table.num_rows, sampling, rank=rank, world_size=world_size)
        return SeedPlan(order=rows, labels=NoLabels(), is_typed=is_typed, links=links)
    seeds = number_seeds(dataset, None) if is_typed else dataset.train
    nodes = order_seeds(dataset, sampling, seeds, rank=rank, world_size=world_size)
    return SeedPlan(order=nodes, labels=NoLabels(), is_typed=is_typed)
