"""A loader's seeds: their order, their labels, and the stream of batches.

The seeds come before the pipeline's first step: `gloader.pipeline.sample` takes each batch's seeds from here. A loader
passes the user's arguments as `NodeSeeds` or `EdgeSeeds`. Their method `plan` checks them against the dataset, and
returns a `SeedPlan`. The loader then makes a `BatchStream` for each run of its threads.

- A seed is a node at which sampling starts. An epoch's items may be rows of a table instead: `LinkTask` turns rows
  of a link table (edges to predict) into seeds, and `RowTask` those of a task table (nodes to predict).
- An order cuts every epoch's items into steps. In a step each rank (training process) gets one batch.
- The stream is the sequence of one loader's batches across epochs; a position is an index in it.
- Numbered seeds are ids over all node types: the first number of the seed's type plus its id in the type.
- The labelled type is the node type whose labels are predicted. Batches name their types if they are mappings by type.
- A draw is an epoch's random choice of seeds, in which seeds may repeat.
- Facts are the values that determine the batches. Streams with equal facts and seeds are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from gloader.core.fanouts import checked_hops, plain_fanouts
from gloader.core.ids import as_ids, outside
from gloader.core.negatives import Uniform
from gloader.core.order import DrawnSeeds, EpochOrder, RowOrder
from gloader.core.signals import run_together
from gloader.errors import ConfigError, SeedError
from gloader.pipeline.link_task import LinkTask
from gloader.pipeline.row_task import Answers, RowTask
from gloader.samplers.arguments import resolve_fanouts
from gloader.types import BatchId, BatchTypes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from gloader.config import Exclude, LoaderSettings, SamplingSettings
    from gloader.core.negatives import Negatives
    from gloader.core.order import AnyOrder
    from gloader.dataset import Dataset
    from gloader.types import AnyBatch, Fanouts, IdArray


DEFAULT_NEGATIVES: Final = Uniform(1)  # one negative for each predicted edge


class BatchStream:
    """The batches from ``first`` on, across epochs; position 0 is ``first``. Thread-safe.

    The ranks' batches are interleaved: with n ranks, position t is step t // n of the rank with number t % n in
    ``ranks``.

    Parameters
    ----------
    order : each epoch's batches
    first : the first batch of the stream
    end_epoch : the stream ends before this epoch; None means that it never ends
    ranks : the batches' ranks; defaults to the order's rank
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
        self._per_epoch = order.num_batches  # steps per epoch
        epochs = None if end_epoch is None else max(end_epoch - first.epoch, 0)
        # Number of steps in the stream: 0 if epochs are empty, None if it never ends.
        self._end = (
            0 if self._per_epoch == 0 else None if epochs is None else epochs * self._per_epoch - first.index
        )

    def of_ranks(self, ranks: Sequence[int]) -> BatchStream:
        """Return the stream of the same steps with the batches of ``ranks``, interleaved."""
        return BatchStream(self._order, self._first, end_epoch=self._end_epoch, ranks=ranks)

    def has(self, position: int) -> bool:
        """Return whether there is a batch at ``position``."""
        return self._end is None or position < self._end * len(self._ranks)

    def id_of(self, position: int) -> BatchId:
        """Return the address (epoch and index) of the batch at ``position``."""
        epochs, index = divmod(self._first.index + position // len(self._ranks), self._per_epoch)
        return BatchId(epoch=self._first.epoch + epochs, index=index)

    @property
    def window(self) -> int:
        """Number of consecutive batches whose seeds are shuffled together, see `EpochOrder`; 1 without windows."""
        window = self._order.seed_window
        return 1 if window == 1 else window * len(self._ranks)

    def whole_windows(self, position: int, size: int) -> int:
        """Return the most batches from ``position`` on, up to ``size``, that end with a window or an epoch.

        If no window ends there, or without windows, the result is ``size``.
        """
        if self.window == 1:
            return size
        per_epoch = self._per_epoch * len(self._ranks)
        start = (self._first.index * len(self._ranks) + position) % per_epoch
        stop = start + size
        if stop >= per_epoch:
            return per_epoch - start
        last = stop - stop % self.window  # the end of the last window up to ``stop``
        return (last if last > start else stop) - start

    def seeds_at(self, position: int) -> Any:  # AnySeeds
        """Return the seeds (B,) of the batch at ``position``."""
        # Every rank can compute every rank's seeds: the order covers all ranks, and each rank takes a part of a step.
        return self._order.seeds_of(self.id_of(position), rank=self._ranks[position % len(self._ranks)])


@dataclass(frozen=True, slots=True)
class SeedLabels:
    """The labels of an epoch's seeds, cut into this rank's batches. Thread-safe."""

    order: EpochOrder  # each batch's positions in the seeds
    labels: NDArray[Any]  # one row per seed of ``order``: (n,) int64 classes, or (n, k) float32 values
    # (n,) whether a seed has the labelled type; None means that all seeds do.
    has_label: NDArray[np.bool_] | None = None

    def answers(self, sampled: AnyBatch) -> Answers:
        """Return the labels of a batch's seeds, without anything else."""
        return Answers(labels=self.of(sampled.id))

    def of(self, batch: BatchId) -> NDArray[Any]:
        """Return the labels (B,) or (B, k) of the seeds in ``batch`` that have the labelled type."""
        positions = self.order.batch_positions(batch)
        return self.labels[positions if self.has_label is None else positions[self.has_label[positions]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPlan:
    """Every epoch's seeds, with their labels and their task."""

    order: AnyOrder  # each batch's seeds, or its rows of a table
    # None for rows of a table, whose labels come with the batches, and for a loader that is only planned.
    labels: SeedLabels | None
    types: BatchTypes  # the batches' types
    task: LinkTask | RowTask | None = None  # the task, if the order contains a table's rows


def types_of(dataset: Dataset, *, are_named: bool) -> BatchTypes:
    """Return the types of the batches from ``dataset``; ``are_named`` is whether batches name their types."""
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
    """Return one rank's seed order for every epoch.

    Parameters
    ----------
    dataset : the dataset with the seeds
    sampling : batch size, seed and shuffling
    seeds : (n,) node ids; several types share one numbering
    times : (n,) each seed's query time; None allows edges of all times
    drawn : an epoch's draw with repeated seeds; None means that each seed comes once
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
        seed_window=sampling.seed_window,
        times=None if times is None else _checked_times(times, len(seeds)),
        may_repeat=drawn is not None,
        draws=None if drawn is None else drawn.draws,
    )


def order_rows(
    num_rows: int, sampling: SamplingSettings, *, noun: str = "edges", rank: int, world_size: int
) -> RowOrder:
    """Return one rank's order of a table's rows, for every epoch.

    Parameters
    ----------
    num_rows : the table's number of rows
    sampling : batch size, seed and shuffling
    noun : the rows, for messages
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
        seed_window=sampling.seed_window,
        noun=noun,
    )


def _checked_times(times: IdArray, num_seeds: int) -> IdArray:
    """Return ``times`` (n,) as int64, one for each seed; raise SeedError if their number differs."""
    checked = as_ids(np.array(times), noun="times", error=SeedError)
    if len(checked) != num_seeds:
        raise SeedError(
            f"{len(checked)} times for {num_seeds} seeds; pass one time, in seconds, for each seed"
        )
    return checked


def stream_facts(dataset: Dataset, order: AnyOrder, sampling: SamplingSettings) -> dict[str, Any]:
    """Return the facts that determine the batches, except the seeds and the facts that `LoaderState` has already.

    Parameters
    ----------
    dataset : the sampled dataset
    order : one rank's batches
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
        # Unused time settings are omitted, so that states from before these settings stay valid.
        **(
            {"time_strategy": sampling.time_strategy, "time_bound": sampling.bound}
            if sampling.is_temporal
            else {}
        ),
        **({} if sampling.time_window is None else {"time_window": sampling.time_window}),
        # Without windows there is no entry, so that states from before windows existed stay valid.
        **({} if order.seed_window == 1 else {"seed_window": order.seed_window}),
        **({} if isinstance(order, RowOrder) or order.draws is None else order.draws.facts()),
    }


def named_facts(
    dataset: Dataset, order: AnyOrder, sampling: SamplingSettings, task: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `stream_facts` and the seeds' digest, as JSON values by name. Pure.

    Parameters
    ----------
    dataset, order, sampling : as in `stream_facts`
    task : the task's facts, if the seeds are rows of a table
    """
    digest = hashlib.sha256()
    for array in _seed_arrays(order):
        digest.update(np.ascontiguousarray(array).data)
    return {
        **stream_facts(dataset, order, sampling),
        **(task or {}),
        "fanouts": plain_fanouts(sampling.fanouts),
        "seeds": digest.hexdigest()[:32],
    }


def stream_fingerprint(
    dataset: Dataset, order: AnyOrder, sampling: SamplingSettings, task: Mapping[str, Any] | None = None
) -> str:
    """Return 32 hexadecimal digits that identify `stream_facts` and the seeds. Pure.

    Parameters
    ----------
    dataset, order, sampling, task : as in `named_facts`
    """
    digest = hashlib.sha256()
    # The order of the facts is fixed: another order would invalidate saved states.
    for name, value in {**stream_facts(dataset, order, sampling), **(task or {})}.items():
        # The layout "layered" is omitted, so that states from before this setting stay valid.
        if (name, value) != ("layout", "layered"):
            digest.update(repr(value).encode())
    for array in _seed_arrays(order):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def _seed_arrays(order: AnyOrder) -> list[NDArray[Any]]:
    """Return the arrays that identify the seeds; a table's rows are identified by its name and the dataset."""
    if isinstance(order, RowOrder):
        return []
    weights, groups = (None, None) if order.draws is None else (order.draws.weights, order.draws.groups)
    return [array for array in (order.seeds, order.times, weights, groups) if array is not None]


def checked_seeds(seeds: ArrayLike, num_nodes: int) -> IdArray:
    """Return an int64 copy of the ids (n,), or the ids of a mask's True values (N,); `EpochOrder` checks the values."""
    if isinstance(seeds, str):
        raise SeedError(
            f"seeds={seeds!r} are not ids; for a split, pass dataset.train, dataset.valid or dataset.test"
        )
    # torch's samplers have a length but no items by index; numpy would make one object of a sampler.
    if hasattr(seeds, "__iter__") and hasattr(seeds, "__len__") and not hasattr(seeds, "__getitem__"):
        raise SeedError(
            f"seeds is a {type(seeds).__name__}; pass the ids of nodes. gloader.adapters.pyg.NeighborLoader takes "
            "torch's samplers, as sampler="
        )
    return as_ids(seeds, noun="seeds", error=SeedError, masked=num_nodes).copy()


# Ids, or ids by node type, or a pair (type, ids).
SeedsLike: TypeAlias = "ArrayLike | Mapping[str, ArrayLike]"


def number_seeds(dataset: Dataset, seeds: SeedsLike | None) -> IdArray:
    """Return the numbered seeds (n,): for each seed, its type's first number plus its id.

    Parameters
    ----------
    dataset : the dataset with the seeds
    seeds : (n,) ids of the labelled type, ids by type, or a pair (type, ids). A boolean mask of all nodes of a type may
        replace the ids. None means the training nodes

    Raises
    ------
    SeedError
        A type is unknown, or ids are not integers or not below the number of nodes.
    """
    labelled = dataset.labelled
    if seeds is None:
        seeds = labelled.train
    # PyG's loaders accept a pair (type, ids).
    if isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str):
        seeds = {seeds[0]: seeds[1]}
    by_type = seeds if isinstance(seeds, Mapping) else {labelled.name: seeds}
    starts = dataset.type_starts
    numbered = []
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
        numbered.append(checked + starts[table.number])
    return np.concatenate([np.empty(0, dtype=np.int64), *numbered])


def _labels_of(dataset: Dataset, order: EpochOrder) -> SeedLabels:
    """Return the seeds' labels; only seeds of the labelled type have a label."""
    table, seeds = dataset.labelled, order.seeds
    first = dataset.type_starts[table.number]
    has_label = (seeds >= first) & (seeds < first + table.num_nodes)
    if has_label.all():
        return SeedLabels(order, table.labels_of(seeds - first))
    of_type = table.labels_of(seeds[has_label] - first)
    # Seeds of other types have rows of -1, so that positions in the seeds index the labels. These rows are never read.
    labels = np.full((len(seeds), *of_type.shape[1:]), -1, dtype=of_type.dtype)
    labels[has_label] = of_type
    return SeedLabels(order, labels, has_label)


# Batches whose labels are in memory: two in the copy to the device, one waiting, one with the consumer.
_LABELS_IN_FLIGHT: Final = 4


def label_bytes(dataset: Dataset, order: EpochOrder) -> int:
    """Return the bytes of labels that are values, of all seeds and of the batches in flight; 0 for classes.

    The memory of classes is part of the demand per seed (`gloader.plan.demand`).
    """
    if dataset.label_kind == "classes":
        return 0
    row_bytes = 4 * dataset.label_width  # float32
    return row_bytes * (order.num_held + _LABELS_IN_FLIGHT * order.batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeeds:
    """The seeds that a user passes to a node loader, before they are checked."""

    seeds: SeedsLike | DrawnSeeds | None = None  # None means the training nodes
    times: IdArray | None = None  # (n,) int64 seconds, the query time of each seed; None for no times
    table: str | None = None  # the name of a task table, whose rows are the seeds; None for nodes
    have_types: bool  # whether batches name their types

    def plan(self, dataset: Dataset, settings: LoaderSettings, *, rank: int, world_size: int) -> SeedPlan:
        """Return every epoch's seeds with their labels.

        Parameters
        ----------
        dataset : the dataset with the seeds
        settings : the loader's settings
        rank, world_size : select this rank's part of each step

        Raises
        ------
        SeedError, ConfigError
            The dataset has no such seeds, or a setting does not fit the dataset or the seeds.
        """
        fanouts, seeds = settings.sampling.fanouts, self.seeds
        types = _checked_types(
            dataset, fanouts, are_named=self.have_types, instead="load it with gloader.HeteroLoader"
        )
        if self.table is not None:
            if seeds is not None or self.times is not None:
                raise ConfigError(
                    f"table={self.table!r} gives the seeds and their times; leave out seeds= and times="
                )
            return _plan_rows(dataset, self.table, settings.sampling, types, rank=rank, world_size=world_size)
        _check_times(settings.sampling, has_times=self.times is not None)
        drawn = None
        if isinstance(seeds, DrawnSeeds):
            if self.times is not None:
                raise ConfigError(
                    "times= does not go with DrawnSeeds; pass ids as seeds=, which may repeat if they have times"
                )
            drawn, seeds = seeds, seeds.nodes
        order = order_seeds(
            dataset,
            settings.sampling,
            number_seeds(dataset, seeds) if self.have_types else _ids_of(dataset, seeds),
            times=self.times,
            drawn=drawn,
            rank=rank,
            world_size=world_size,
        )
        # Both tasks take long for many seeds, and they are independent. The order keeps the positions.
        tasks: list[Callable[[], Any]] = [
            lambda: _labels_of(dataset, order),
            lambda: order.epoch_positions(0),
        ]
        labels, _ = run_together(tasks, threads=2, name="gloader-open")
        return SeedPlan(order=order, labels=labels, types=types)


def _checked_types(dataset: Dataset, fanouts: Fanouts, *, are_named: bool, instead: str) -> BatchTypes:
    """Return the batches' types; raise ConfigError, with advice, if dataset or fan-outs need other batches."""
    if are_named:
        resolve_fanouts(fanouts, dataset.relations)
    elif dataset.kind == "hetero":
        raise ConfigError(
            f"{dataset.location} has {len(dataset.node_types)} node types ({', '.join(dataset.node_types)}); {instead}"
        )
    else:
        checked_hops(fanouts)
    return types_of(dataset, are_named=are_named)


def _ids_of(dataset: Dataset, seeds: SeedsLike | None) -> IdArray:
    """Return the seeds' ids (n,) in a dataset of one type; raise SeedError if seeds name a type."""
    if isinstance(seeds, Mapping) or (isinstance(seeds, tuple) and seeds and isinstance(seeds[0], str)):
        raise SeedError("seeds by node type are for gloader.HeteroLoader; pass the ids of the nodes")
    return dataset.train if seeds is None else checked_seeds(seeds, dataset.num_nodes)


def _check_times(sampling: SamplingSettings, *, has_times: bool) -> None:
    """Raise ConfigError if seeds have times without a time strategy, or the reverse."""
    strategy = sampling.time_strategy
    if has_times and strategy == "none":
        raise ConfigError(
            "times are given, but time_strategy is 'none'; choose how a node samples among the edges before the time: "
            "time_strategy='uniform' or 'last'"
        )
    if strategy != "none" and not has_times:
        raise ConfigError(
            f"time_strategy={strategy!r} needs a query time for each seed: pass times=, in seconds, one for each seed"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSeeds:
    """The edges that a user passes to a link loader, before they are checked."""

    edges: str = "train"  # name of the link table
    negatives: Negatives | str | None = DEFAULT_NEGATIVES  # drawn for the edges; None draws none
    exclude: Exclude = "none"  # edges that batches leave out, see `LinkTask`
    exclude_duplicates: bool = False  # whether edges parallel to these are left out too
    # Whether batches name their types. None: they do if the dataset has several types.
    typed: bool | None = None

    def plan(self, dataset: Dataset, settings: LoaderSettings, *, rank: int, world_size: int) -> SeedPlan:
        """Return every epoch's edges, as table rows; parameters and errors as in `NodeSeeds.plan`."""
        sampling = settings.sampling
        types = _checked_types(
            dataset,
            sampling.fanouts,
            are_named=dataset.kind == "hetero" if self.typed is None else self.typed,
            instead="leave out typed=False, which needs a dataset of one type",
        )
        task = LinkTask.of(
            dataset,
            self.edges,
            negatives=self.negatives,
            exclude=self.exclude,
            duplicates=self.exclude_duplicates,
        )
        if sampling.time_strategy != "none" and not task.table.has_times:
            raise ConfigError(
                f"time_strategy={sampling.time_strategy!r} needs the time of each edge, and the table "
                f"{self.edges!r} of {dataset.location} has none; prepare it from a source with a column of times"
            )
        order = order_rows(task.table.num_rows, sampling, rank=rank, world_size=world_size)
        order.ready_epoch(0)  # computed now, so that the first batch does not wait for it
        return SeedPlan(order=order, labels=None, types=types, task=task)


def _plan_rows(
    dataset: Dataset, name: str, sampling: SamplingSettings, types: BatchTypes, *, rank: int, world_size: int
) -> SeedPlan:
    """Return every epoch's rows of the task table ``name``, see `plan_training_seeds`.

    Raises
    ------
    SeedError, ConfigError
        There is no such table, there are too few rows, or a setting does not fit the table.
    """
    table = dataset.task_table(name)
    if table.has_times != sampling.is_temporal:
        raise ConfigError(
            f"table {table.name!r} has times, and time_strategy='none' would sample what is later than the rows: use "
            "time_strategy='uniform' or 'last'"
            if table.has_times
            else f"time_strategy={sampling.time_strategy!r} needs the time of each row, and table {table.name!r} has "
            "none; use time_strategy='none'"
        )
    order = order_rows(table.num_rows, sampling, noun="rows", rank=rank, world_size=world_size)
    order.ready_epoch(0)  # computed now, so that the first batch does not wait for it
    return SeedPlan(order=order, labels=None, types=types, task=RowTask(dataset=dataset, table=table))


def plan_training_seeds(
    dataset: Dataset,
    sampling: SamplingSettings,
    *,
    are_named: bool,
    links: LinkTask | None = None,
    table: str | None = None,
    drawn: DrawnSeeds | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> SeedPlan:
    """Return the seeds for a loader that is only planned: without labels, as it delivers no batch.

    Parameters
    ----------
    dataset : the dataset with the training nodes
    sampling : the loader's sampling settings
    are_named : whether batches name their types
    links : the link task, if the seeds are edges; None if they are nodes
    table : the name of a task table, if the seeds are its rows
    drawn : the training nodes as an epoch draws them; None takes each once
    rank, world_size : select this rank's part of each step

    Raises
    ------
    SeedError, ConfigError
        The dataset has no such seeds.
    """
    types = types_of(dataset, are_named=are_named)
    if table is not None:
        return _plan_rows(dataset, table, sampling, types, rank=rank, world_size=world_size)
    order: AnyOrder
    if links is not None:
        order = order_rows(links.table.num_rows, sampling, rank=rank, world_size=world_size)
    else:
        seeds = number_seeds(dataset, None if drawn is None else drawn.nodes)
        order = order_seeds(dataset, sampling, seeds, drawn=drawn, rank=rank, world_size=world_size)
    return SeedPlan(order=order, labels=None, types=types, task=links)
