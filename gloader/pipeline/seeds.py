"""The seeds of a loader: their order, their labels, and the stream of batches that they form.

The stream runs from epoch to epoch; every batch in it has a position. Seeds of several node types share one
numbering, so that an epoch's order is independent of types. `stream_facts` names the facts that equal streams share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from gloader.core.fanouts import plain_fanouts
from gloader.core.ids import as_ids, outside
from gloader.core.order import EpochOrder, RowOrder
from gloader.core.signals import run_together
from gloader.errors import SeedError
from gloader.types import BatchId, BatchTypes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from gloader.config import SamplingSettings
    from gloader.core.order import AnyOrder, DrawnSeeds
    from gloader.dataset import Dataset
    from gloader.pipeline.link_task import LinkTask
    from gloader.types import IdArray


class BatchStream:
    """The batches from ``first`` on, across epochs; position 0 is ``first``. Thread-safe.

    The steps of L ranks are interleaved: position t is step t // L of rank number t % L.

    Parameters
    ----------
    order : the batches of each epoch
    first : the first batch of the stream
    end_epoch : the stream ends before this epoch; None means that it never ends
    ranks : the ranks of the batches; defaults to the rank of ``order`` alone
    """

    def __init__(
        self,
        order: AnyOrder,
        first: BatchId,
        *,
        end_epoch: int | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._ranks = (order.rank,) if ranks is None else tuple(ranks)
        self._order = order
        self._first = first
        self._end_epoch = end_epoch
        self._per_epoch = order.num_batches
        epochs = None if end_epoch is None else max(end_epoch - first.epoch, 0)
        self._end = (
            0 if self._per_epoch == 0 else None if epochs is None else epochs * self._per_epoch - first.index
        )

    def of_ranks(self, ranks: Sequence[int]) -> BatchStream:
        """Return the same steps, the batches of ``ranks`` interleaved."""
        return BatchStream(self._order, self._first, end_epoch=self._end_epoch, ranks=ranks)

    def has(self, position: int) -> bool:
        """Return whether there is a batch at ``position``."""
        return self._end is None or position < self._end * len(self._ranks)

    def id_of(self, position: int) -> BatchId:
        """Return the address of the batch at ``position``."""
        epochs, index = divmod(self._first.index + position // len(self._ranks), self._per_epoch)
        return BatchId(epoch=self._first.epoch + epochs, index=index)

    def seeds_at(self, position: int) -> Any:  # AnySeeds
        """Return the seeds (B,) of the batch at ``position``."""
        # Every rank can compute every rank's seeds: the order covers all ranks, and each takes its part of a step.
        return self._order.seeds_of(self.id_of(position), rank=self._ranks[position % len(self._ranks)])


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSeeds:
    """The labels of an epoch's seeds, in the order's own order."""

    labels: IdArray  # (n,) int64
    has_label: NDArray[np.bool_] | None = None  # (n,) of the labelled type; None: all


class BatchLabels(Protocol):
    """The labels that accompany a batch."""

    def of(self, batch: BatchId, /) -> IdArray:
        """Return the labels of the seeds of ``batch``."""
        ...


@dataclass(frozen=True, slots=True)
class NoLabels:
    """Seeds without labels of their own: their targets come with the batch."""

    def of(self, batch: BatchId) -> IdArray:  # noqa: ARG002 - as of `BatchLabels`
        """Return an empty array."""
        return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SeedLabels:
    """The labels of an epoch's seeds, cut into the batches of this rank. Thread-safe."""

    order: EpochOrder
    seeds: LabelledSeeds

    def of(self, batch: BatchId) -> IdArray:
        """Return the labels (B,) of those seeds of ``batch`` that are of the labelled type."""
        positions = self.order.batch_positions(batch)
        has_label = self.seeds.has_label
        return self.seeds.labels[positions if has_label is None else positions[has_label[positions]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPlan:
    """The seeds of every epoch, with their labels and their task."""

    order: AnyOrder
    labels: BatchLabels
    types: BatchTypes  # those of the batches
    links: LinkTask | None = None  # the link task, if the order is of a link table's rows

    @property
    def is_typed(self) -> bool:
        """True if batches name their types."""
        return self.types.are_named


def types_of(dataset: Dataset, *, are_named: bool) -> BatchTypes:
    """Return the types of batches of ``dataset``, which name them or not."""
    return BatchTypes(nodes=dataset.node_types, relations=dataset.relations, are_named=are_named)


def order_seeds(
    dataset: Dataset,
    sampling: SamplingSettings,
    seeds: IdArray,
    *,
    times: IdArray | None = None,
    drawn: DrawnSeeds | None = None,
    rank: int,
    world_size: int,
) -> EpochOrder:
    """Return the order of the seeds of every epoch for one rank.

    Parameters
    ----------
    dataset : the dataset with the seeds
    sampling : batch size, seed and shuffling
    seeds : (n,) node ids; of several types in one numbering
    times : (n,) query time of each seed; None means that edges of all times are sampled
    drawn : an epoch's draw of seeds with repeats; None means that each seed comes once
    rank, world_size : select this rank's part of each step

    Raises
    ------
    SeedError, ConfigError
        Seeds are not node ids, or a setting is not allowed.
    """
    return EpochOrder(
        seeds=seeds,
        num_nodes=dataset.num_nodes,
        batch_size=sampling.batch_size,
        seed=sampling.seed,
        shuffle=sampling.shuffle,
        drop_last=sampling.drop_last,
        rank=rank,
        world_size=world_size,
        seed_blocks=sampling.seed_blocks,
        times=None if times is None else _checked_times(times, len(seeds)),
        may_repeat=drawn is not None,
        draws=None if drawn is None else drawn.draws,
    )


def order_rows(num_rows: int, sampling: SamplingSettings, *, rank: int, world_size: int) -> RowOrder:
    """Return the order of a link table's rows in every epoch for one rank.

    Parameters
    ----------
    num_rows : rows of the table
    sampling : batch size, seed and shuffling
    rank, world_size : select this rank's part of each step

    Raises
    ------
    SeedError, ConfigError
        There are too few rows, or a setting is not allowed.
    """
    return RowOrder(
        num_items=num_rows,
        batch_size=sampling.batch_size,
        seed=sampling.seed,
        shuffle=sampling.shuffle,
        drop_last=sampling.drop_last,
        rank=rank,
        world_size=world_size,
        seed_blocks=sampling.seed_blocks,
    )


def _checked_times(times: IdArray, num_seeds: int) -> IdArray:
    """Return ``times`` (n,) as int64, one for each seed; raise SeedError if they do not match the seeds."""
    checked = as_ids(np.array(times), noun="times", error=SeedError)
    if len(checked) != num_seeds:
        raise SeedError(
            f"{len(checked)} times for {num_seeds} seeds; pass one time, in seconds, for each seed"
        )
    return checked


def labels_beside_order(order: EpochOrder, read_labels: Callable[[], LabelledSeeds]) -> LabelledSeeds:
    """Return the result of ``read_labels``; meanwhile the order of the first epoch is computed, which comes next."""
    # Both take long for many seeds, and they are independent.
    found: list[LabelledSeeds] = []
    run_together(
        [lambda: found.append(read_labels()), lambda: order.epoch_positions(0)],
        threads=2,
        name="gloader-open",
    )
    return found[0]


def stream_facts(dataset: Dataset, order: AnyOrder, sampling: SamplingSettings) -> dict[str, Any]:
    """Return the facts that determine the batches, except the seeds and the facts that a state names.

    Parameters
    ----------
    dataset : the sampled dataset
    order : the batches of a rank
    sampling : the sampling settings
    """
    return {
        "dataset": dataset.fingerprint,
        "fanouts": sampling.fanouts if isinstance(sampling.fanouts, tuple) else str(sampling.fanouts),
        "shuffle": order.shuffle,
        "drop_last": order.drop_last,
        "seed_blocks": order.seed_blocks,
        "sampler": sampling.sampler,
        "layout": sampling.layout,
        "num_seeds": order.num_items,
        # Only other values than the defaults are listed, so that older states without these settings stay valid.
        **{
            name: value
            for name in ("time_strategy", "time_bound", "time_window")
            if sampling.time_strategy != "none" and (value := getattr(sampling, name)) is not None
        },
        **({} if isinstance(order, RowOrder) or order.draws is None else order.draws.facts()),
    }


def named_facts(
    dataset: Dataset, order: AnyOrder, sampling: SamplingSettings, links: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `stream_facts` and a digest of the seeds, as JSON values by name. Pure.

    Parameters
    ----------
    dataset, order, sampling : see `stream_facts`
    links : facts of the link task, if the seeds are edges
    """
    digest = hashlib.sha256()
    for array in _seed_arrays(order):
        digest.update(np.ascontiguousarray(array).data)
    return {
        **stream_facts(dataset, order, sampling),
        **(links or {}),
        "fanouts": plain_fanouts(sampling.fanouts),
        "seeds": digest.hexdigest()[:32],
    }


def stream_fingerprint(
    dataset: Dataset, order: AnyOrder, sampling: SamplingSettings, links: Mapping[str, Any] | None = None
) -> str:
    """Return 32 hexadecimal digits that identify `stream_facts` and the seeds. Pure.

    Parameters
    ----------
    dataset, order, sampling, links : see `named_facts`
    """
    digest = hashlib.sha256()
    # The order of the facts is fixed: another order would invalidate saved states.
    for name, value in {**stream_facts(dataset, order, sampling), **(links or {})}.items():
        # Omitted for layered blocks, so that older states without this setting stay valid.
        if (name, value) != ("layout", "layered"):
            digest.update(repr(value).encode())
    for array in _seed_arrays(order):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def _seed_arrays(order: AnyOrder) -> list[NDArray[Any]]:
    """Return the arrays that identify the seeds; for a table's rows, its name and the dataset identify them."""
    if isinstance(order, RowOrder):
        return []
    weights = None if order.draws is None else order.draws.weights
    return [array for array in (order.seeds, order.times, weights) if array is not None]


def checked_seeds(seeds: ArrayLike, num_nodes: int) -> IdArray:
    """Return ``seeds`` (n,) as an int64 copy, or the True places of a mask (N,); `EpochOrder` checks values."""
    if isinstance(seeds, str):
        raise SeedError(
            f"seeds={seeds!r} are no ids; of a split give dataset.train, dataset.valid or dataset.test"
        )
    return as_ids(seeds, noun="seeds", error=SeedError, masked=num_nodes).copy()


SeedsLike: TypeAlias = (
    "ArrayLike | Mapping[str, ArrayLike]"  # ids, or ids by node type, or a pair (type, ids)
)


def number_seeds(dataset: Dataset, seeds: SeedsLike | None) -> IdArray:
    """Return the seeds (n,) in the numbering of all types: the first number of their type, plus their id.

    Parameters
    ----------
    dataset : the dataset with the seeds
    seeds : (n,) ids of the labelled type, ids by type, or a type and its ids. A mask of all nodes of a type may replace
        ids. None means the training nodes

    Raises
    ------
    SeedError
        A type is unknown, or ids are not integers or exceed the nodes of their type.
    """
    labelled = dataset.labelled
    if seeds is None:
        seeds = labelled.train
    if (
        isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str)
    ):  # the form of PyG's loaders
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
    """Return the labels of ``seeds`` (n,) in the numbering of all types; only those of the labelled type have one."""
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
    """Return the seeds of a loader that is only planned, and hands out no batch: they have no labels.

    Parameters
    ----------
    dataset : the dataset with the training nodes
    sampling : of the loader
    is_typed : whether batches have several types
    links : the link task, if the seeds are edges; None if they are nodes
    rank, world_size : select this rank's part of each step

    Raises
    ------
    SeedError, ConfigError
        The dataset has no such seeds.
    """
    types = types_of(dataset, are_named=is_typed)
    order: AnyOrder
    if links is not None:
        order = order_rows(links.table.num_rows, sampling, rank=rank, world_size=world_size)
    else:
        seeds = number_seeds(dataset, None)
        order = order_seeds(dataset, sampling, seeds, rank=rank, world_size=world_size)
    return SeedPlan(order=order, labels=NoLabels(), types=types, links=links)
