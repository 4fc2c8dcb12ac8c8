"""Order of a loader's seeds, their labels, and the facts by which two streams of batches are told apart."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.fanouts import plain_fanouts
from gloader.core.ids import as_ids
from gloader.core.order import EpochOrder
from gloader.core.row_order import RowOrder
from gloader.core.thread_start import run_together
from gloader.errors import SeedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike, NDArray

    from gloader.config import SamplingSettings
    from gloader.core.draws import DrawnSeeds
    from gloader.core.row_order import AnyOrder
    from gloader.dataset import Dataset
    from gloader.pipeline.link_task import LinkTask
    from gloader.pipeline.positions import BatchLabels, LabelledSeeds
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPlan:
    """The seeds of every epoch, and what goes with them."""

    order: AnyOrder
    labels: BatchLabels
    is_typed: bool  # whether batches have several types
    links: LinkTask | None = None  # what is predicted, where the order is of the rows of a link table


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
    """Return the order in which a rank takes the seeds of every epoch.

    Parameters
    ----------
    dataset : whose nodes they are
    sampling : batch size, seed and shuffling
    seeds : (n,) node ids; of several types, numbered through
    times : (n,) at which each of them asks; None: edges of all times are taken
    drawn : how an epoch draws them, where they may repeat; None: each once
    rank, world_size : the part of each step that is this rank's

    Raises
    ------
    SeedError, ConfigError
        Seeds are no node ids, or a setting is not allowed.
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
    """Return the order in which a rank takes the rows of a link table in every epoch.

    Parameters
    ----------
    num_rows : of the table
    sampling : batch size, seed and shuffling
    rank, world_size : the part of each step that is this rank's

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
    """Return ``times`` (n,) as int64, one for each seed; raise SeedError where they are not."""
    checked = as_ids(np.array(times), noun="times", error=SeedError)
    if len(checked) != num_seeds:
        raise SeedError(
            f"{len(checked)} times for {num_seeds} seeds; pass one time, in seconds, for each seed"
        )
    return checked


def labels_beside_order(order: EpochOrder, read_labels: Callable[[], LabelledSeeds]) -> LabelledSeeds:
    """Return what ``read_labels`` does; the order of the first epoch, asked for next, is worked out meanwhile."""
    # Both take long where there are many seeds, and neither needs the other.
    found: list[LabelledSeeds] = []
    run_together(
        [lambda: found.append(read_labels()), lambda: order.epoch_positions(0)],
        threads=2,
        name="gloader-open",
    )
    return found[0]


def stream_facts(dataset: Dataset, order: AnyOrder, sampling: SamplingSettings) -> dict[str, Any]:
    """Return what batches follow from, beside the seeds themselves and what a state names.

    Parameters
    ----------
    dataset : what is sampled
    order : the batches of a rank
    sampling : how they are sampled
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
        # Only where they are not as ever, so that states of before there was a choice stay valid.
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
    links : what is predicted, where the seeds are edges
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
    """Return 32 hexadecimal digits that stand for `stream_facts` and the seeds. Pure.

    Parameters
    ----------
    dataset, order, sampling, links : see `named_facts`
    """
    digest = hashlib.sha256()
    # In the order of the facts: with another one, saved states would be those of another stream.
    for name, value in {**stream_facts(dataset, order, sampling), **(links or {})}.items():
        # Left out where it is layered, so that states from before there was a choice stay valid.
        if (name, value) != ("layout", "layered"):
            digest.update(repr(value).encode())
    for array in _seed_arrays(order):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def _seed_arrays(order: AnyOrder) -> list[NDArray[Any]]:
    """Return what seeds are told apart by; the rows of a table are by its name and the dataset."""
    if isinstance(order, RowOrder):
        return []
    weights = None if order.draws is None else order.draws.weights
    return [array for array in (order.seeds, order.times, weights) if array is not None]


def checked_seeds(seeds: ArrayLike, num_nodes: int) -> IdArray:
    """Return a copy of ``seeds`` (n,), or where a mask (num_nodes,) is True, as int64; `EpochOrder` checks values."""
    if isinstance(seeds, str):
        raise SeedError(
            f"seeds={seeds!r} are no ids; of a split give dataset.train, dataset.valid or dataset.test"
        )
    return as_ids(seeds, noun="seeds", error=SeedError, masked=num_nodes).copy()
