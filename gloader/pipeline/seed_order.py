"""Order of a loader's seeds, their labels, and the facts by which two streams of batches are told apart."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.fanouts import plain_fanouts
from gloader.core.ids import as_ids
from gloader.core.order import EpochOrder
from gloader.core.thread_start import run_together
from gloader.errors import SeedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.config import SamplingSettings
    from gloader.dataset import Dataset
    from gloader.pipeline.positions import LabelledSeeds
    from gloader.types import IdArray


def order_seeds(
    dataset: Dataset, sampling: SamplingSettings, seeds: IdArray, *, rank: int, world_size: int
) -> EpochOrder:
    """Return the order in which a rank takes the seeds of every epoch.

    Parameters
    ----------
    dataset : whose nodes they are
    sampling : batch size, seed and shuffling
    seeds : (n,) node ids; of several types, numbered through
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
    )


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


def stream_facts(dataset: Dataset, order: EpochOrder, sampling: SamplingSettings) -> dict[str, Any]:
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
        "num_seeds": len(order.seeds),
    }


def named_facts(dataset: Dataset, order: EpochOrder, sampling: SamplingSettings) -> dict[str, Any]:
    """Return `stream_facts` and a digest of the seeds, as JSON values by name. Pure.

    Parameters
    ----------
    dataset, order, sampling : see `stream_facts`
    """
    seeds = hashlib.sha256(np.ascontiguousarray(order.seeds).data).hexdigest()[:32]
    return {
        **stream_facts(dataset, order, sampling),
        "fanouts": plain_fanouts(sampling.fanouts),
        "seeds": seeds,
    }


def stream_fingerprint(dataset: Dataset, order: EpochOrder, sampling: SamplingSettings) -> str:
    """Return 32 hexadecimal digits that stand for `stream_facts` and the seeds. Pure.

    Parameters
    ----------
    dataset, order, sampling : see `stream_facts`
    """
    digest = hashlib.sha256()
    # In the order of the facts: with another one, saved states would be those of another stream.
    for name, value in stream_facts(dataset, order, sampling).items():
        # Left out where it is layered, so that states from before there was a choice stay valid.
        if (name, value) != ("layout", "layered"):
            digest.update(repr(value).encode())
    digest.update(np.ascontiguousarray(order.seeds).data)
    return digest.hexdigest()[:32]


def checked_seeds(seeds: IdArray) -> IdArray:
    """Return a copy of ``seeds`` (n,) as int64; `EpochOrder` checks the values."""
    return as_ids(np.array(seeds), noun="seeds", error=SeedError)
