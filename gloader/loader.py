"""The loader: an iterable of ready mini-batches, with sampling and gathering overlapped behind it."""

from __future__ import annotations

import hashlib
import os
import weakref
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
import torch

from gloader.config import Policy
from gloader.epoch import EpochIterator, EpochRun
from gloader.errors import ConfigError, ForkError, LoaderBusyError, LoaderClosedError, SeedError
from gloader.feature_tier import FeatureTier, open_feature_tier
from gloader.order import EpochOrder
from gloader.samplers.neighbor import checked_fanouts
from gloader.state import LoaderState
from gloader.types import BatchId, IdArray, ReadyBatch
from gloader.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from gloader.budget import MemoryPlan
    from gloader.config import Features, LoaderConfig
    from gloader.dataset import Dataset
    from gloader.ssd_store.engine import IoMode
    from gloader.ssd_store.reader import Verify
    from gloader.stats import EpochStats


class Loader:
    """Yields the mini-batches of one epoch each time it is iterated over; ``len()`` is the batches per epoch.

    Batches depend on the dataset, the seeds, ``fanouts``, ``batch_size``, ``seed`` and ``world_size`` alone: threads,
    caches, the memory budget and where the features live never change a bit of them.

    Iterating again starts the next epoch, also after a ``break``. Owns threads only while an iterator is alive, and the
    feature store, the cache and the buffers until `close`; also a context manager.

    Parameters
    ----------
    dataset : what to sample from
    fanouts : neighbours per node and hop, the hop next to the seeds first; -1 takes all
    batch_size : seeds per batch (of this rank)
    seeds : (n,) node ids; the dataset's training nodes where None
    shuffle, drop_last : as in ``torch.utils.data.DataLoader``
    seed : key of the order and of all sampling
    features : "ram" holds them, "ssd" reads them, "auto" holds them where they fit the budget
    memory_budget : bytes of host memory for everything this loader holds, "8GB" or a number; half of what is free where
        None
    cache : bytes of the host cache ("2GB" or a number); what the budget leaves where None
    policy : what the host cache keeps: "static" the rows of the nodes with the most out-edges; "lru", "fifo", "clock",
        "sieve" and "s3fifo" decide batch by batch; "none" has no cache
    io_strategy : "auto" or "direct": each batch's missing rows are read by the batch, sorted and merged
    io, verify : how the feature store reads and checks, see `gloader.ssd_store.FeatureStore.open`
    device : where the batches are delivered
    device_cache : "auto" or 0; this version keeps no rows on the device
    threads : sampling threads; as many as there are cores where None
    rank, world_size : this process's part of every step; seeds of a step are shared evenly among the ranks

    Raises
    ------
    ConfigError, SeedError, BudgetError
        At construction, before anything large is allocated.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        fanouts: Sequence[int],
        batch_size: int,
        seeds: IdArray | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        features: Features = "auto",
        memory_budget: str | int | None = None,
        cache: str | int | None = None,
        policy: Policy = "static",
        io_strategy: str = "auto",
        io: IoMode = "auto",
        verify: Verify = "read",
        device: str | torch.device = "cpu",
        device_cache: str | int = "auto",
        threads: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _require_choice("features", features, ("auto", "ram", "ssd"))
        _require_choice("policy", policy, get_args(Policy))
        _require_choice("io_strategy", io_strategy, ("auto", "direct"))
        _require_choice("device_cache", device_cache, ("auto", 0, "0"))
        self._is_closed = False
        self._dataset = dataset
        self._device = torch.device(device)
        self._fanouts = checked_fanouts(fanouts)
        self._order = EpochOrder(
            seeds=dataset.train if seeds is None else _checked_seeds(seeds),
            num_nodes=dataset.num_nodes,
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        self._num_samplers = threads if threads is not None else len(os.sched_getaffinity(0))
        if self._num_samplers < 1:
            raise ConfigError(f"threads is {threads}; at least one thread samples")
        self._tier: FeatureTier = open_feature_tier(
            dataset,
            fanouts=self._fanouts,
            order=self._order,
            features=features,
            budget_bytes=None if memory_budget is None else parse_bytes(memory_budget),
            policy=policy,
            cache_bytes=None if cache is None else parse_bytes(cache),
            sampler_threads=self._num_samplers,
            io=io,
            verify=verify,
        )
        self._state = LoaderState(
            next=BatchId(epoch=0, index=0),
            seed=seed,
            global_batch_size=self._order.global_batch_size,
            fingerprint=self._fingerprint(),
        )
        self._is_mid_epoch = False  # a break left the epoch unfinished: the next iteration starts another
        self._stats: EpochStats | None = None
        self._active: weakref.ref[EpochIterator] | None = None
        self._pid = os.getpid()

    @classmethod
    def from_config(cls, dataset: Dataset, config: LoaderConfig, **overrides: Any) -> Loader:
        """Build a loader from the settings of a run; ``overrides`` are further keyword arguments of `Loader`."""
        settings: dict[str, Any] = {
            "fanouts": config.fanouts,
            "batch_size": config.batch_size,
            "seed": config.seed,
            "features": config.features,
            "memory_budget": config.memory_budget_bytes,
            "cache": config.cache_bytes,
            "policy": config.policy,
            "threads": config.threads,
        }
        return cls(dataset, **(settings | overrides))

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self._order.num_batches

    def __iter__(self) -> Iterator[ReadyBatch]:
        """Start an epoch, or go on in the one that `load_state_dict` points into.

        Raises
        ------
        LoaderClosedError, LoaderBusyError, ForkError
            After `close`; while another iterator is alive; in a forked child.
        """
        if self._is_closed:
            raise LoaderClosedError("this loader is closed; build a new one")
        if os.getpid() != self._pid:
            raise ForkError(
                "this loader belongs to the process that built it; start workers with 'spawn' and build it there"
            )
        if self._running() is not None:
            raise LoaderBusyError(
                "an iterator of this loader is still alive; finish, break out of or delete it first"
            )
        if self._is_mid_epoch or self._state.next.index >= len(self):
            self._move_to(BatchId(epoch=self._state.next.epoch + 1, index=0))
        iterator = EpochIterator(self._start_run(), on_batch=self._on_batch, on_end=self._on_end)
        self._active = weakref.ref(iterator)
        return iterator

    @property
    def epoch(self) -> int:
        """The epoch that is running, or that comes next."""
        return self._state.next.epoch

    @property
    def stats(self) -> EpochStats:
        """What the running or the last epoch moved so far.

        Raises
        ------
        ConfigError
            No epoch was started yet.
        """
        running = self._running()
        if running is not None:
            return running.stats
        if self._stats is None:
            raise ConfigError("no epoch was started yet: there are no statistics")
        return self._stats

    @property
    def memory_plan(self) -> MemoryPlan:
        """Who gets how many bytes of the memory budget."""
        return self._tier.plan

    def explain(self) -> str:
        """Say which tiers are on, their sizes and why, a line each."""
        return self._tier.explain()

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON: the first batch that was not handed out, and what the stream depends on."""
        return self._state.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position that `state_dict` returned, from this or another process.

        Raises
        ------
        StateError
            The state is malformed or belongs to another stream of batches.
        LoaderBusyError
            An iterator is alive.
        """
        parsed = LoaderState.from_json(state)
        self._state.require_same_stream(parsed)
        if self._running() is not None:
            raise LoaderBusyError("load_state_dict while an iterator is alive; finish or delete it first")
        self._state = parsed
        self._is_mid_epoch = False

    def close(self) -> None:
        """Stop every thread and release the store, the cache and the buffers. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if (running := self._running()) is not None:
            running.close()
        self._tier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> EpochIterator | None:
        iterator = self._active() if self._active is not None else None
        return iterator if iterator is not None and iterator.is_running else None

    def _start_run(self) -> EpochRun:
        return EpochRun(
            tier=self._tier,
            order=self._order,
            labels=self._dataset.labels,
            device=self._device,
            first=self._state.next,
            num_samplers=self._num_samplers,
        )

    def _on_batch(self, batch_id: BatchId) -> None:
        self._move_to(BatchId(epoch=batch_id.epoch, index=batch_id.index + 1))

    def _on_end(self, stats: EpochStats, *, is_complete: bool) -> None:
        self._stats = stats
        if is_complete:
            self._move_to(BatchId(epoch=stats.epoch + 1, index=0))
        self._is_mid_epoch = not is_complete

    def _move_to(self, position: BatchId) -> None:
        self._state = LoaderState(
            next=position,
            seed=self._state.seed,
            global_batch_size=self._state.global_batch_size,
            fingerprint=self._state.fingerprint,
        )
        self._is_mid_epoch = False

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        order = self._order
        for part in (
            self._dataset.fingerprint,
            self._fanouts,
            order.shuffle,
            order.drop_last,
            len(order.seeds),
        ):
            digest.update(repr(part).encode())
        digest.update(order.seeds.tobytes())
        return digest.hexdigest()[:32]


def _checked_seeds(seeds: IdArray) -> IdArray:
    """Return a copy of ``seeds`` (n,) as int64; `EpochOrder` checks the values."""
    ids = np.array(seeds)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise SeedError(f"seeds must be one-dimensional integers, got {ids.dtype} of shape {ids.shape}")
    if ids.dtype == np.uint64 and ids.size and ids.max() > np.iinfo(np.int64).max:
        raise SeedError(f"seeds must be node ids, got {ids.max()}")
    return ids.astype(np.int64)


def _require_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))} in this version")
