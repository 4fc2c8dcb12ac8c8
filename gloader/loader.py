"""The loader: an iterable of ready mini-batches, with sampling and gathering overlapped behind it."""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
import torch

from gloader.cache import parse_hotness
from gloader.config import Features, IoStrategy, Layout, Policy
from gloader.core.ids import as_ids
from gloader.core.loader_state import LoaderState
from gloader.core.order import EpochOrder
from gloader.core.signals import close_in_finalizer, uninterrupted
from gloader.core.units import parse_bytes
from gloader.device.mkl_first_call import settle_vector_math
from gloader.distributed import Facts, RemoteTier, Sharing, assemble, find_place, open_shared, telling_others
from gloader.errors import ConfigError, ForkError, LoaderBusyError, LoaderClosedError, SeedError
from gloader.memory.available import default_budget_bytes
from gloader.observe.bottleneck import find_bottleneck
from gloader.observe.explain import explain_run
from gloader.observe.timeline import TimelineRecorder
from gloader.pipeline.consumer import EpochIterator
from gloader.pipeline.feedback import RunFeedback
from gloader.pipeline.open_device_tier import DeviceSettings
from gloader.pipeline.open_tiers import FeatureTier, TierSettings, open_feature_tier
from gloader.pipeline.positions import BatchStream, SeedLabels
from gloader.pipeline.run import PipelineRun
from gloader.pipeline.threads import run_together
from gloader.samplers.arguments import checked_fanouts
from gloader.samplers.make import require_layout
from gloader.types import BatchId, IdArray, ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from gloader.cache import DeviceHotness
    from gloader.config import LoaderConfig
    from gloader.dataset import Dataset
    from gloader.distributed import LoaderHost, Place
    from gloader.memory.plan import MemoryPlan
    from gloader.observe.epoch_stats import EpochStats
    from gloader.observe.explain import SuperbatchReport
    from gloader.pipeline.consumer import Consumer, Run
    from gloader.pipeline.open_device_tier import OtherDevices
    from gloader.samplers import CscGraph
    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.os_io import StrPath
    from gloader.ssd_store.read.read_settings import IoMode, Verify
    from gloader.types import FeatureSource

_CLOSER = "gloader-close"
_OF_THE_HOST = ("sampler_threads",)  # settings that may differ: those of the rank that loads count


class Loader:
    """Yields the mini-batches of one epoch each time it is iterated over; ``len()`` is the batches per epoch.

    Batches depend on the dataset, the seeds, ``fanouts``, ``layout``, ``batch_size``, ``seed`` and ``world_size``
    alone: threads, caches, the memory budget and where the features live never change a bit of them.

    Iterating again starts the next epoch, also after a ``break``. The stages run on over the end of an epoch, and end
    with a ``break``, an error, `close`, or when the loader is dropped. Owns their threads, the feature store, the
    caches and the buffers until then; also a context manager.

    Parameters
    ----------
    dataset : what to sample from
    fanouts : neighbours per node and hop, the hop next to the seeds first; -1 takes all
    batch_size : seeds per batch (of this rank)
    seeds : (n,) node ids; the dataset's training nodes where None
    shuffle, drop_last : as in ``torch.utils.data.DataLoader``
    seed : key of the order and of all sampling
    seed_blocks : seeds of neighbouring ids that stay together in a batch, see `EpochOrder`
    sampler : "neighbor", "weighted", "labor", "ladies" or "fastgcn", see `gloader.samplers.make_sampler`
    layout : "layered" lets every node found so far draw neighbours in each hop, as DGL does; "merged" lets each node
        draw once, as PyG does, and has fewer rows to read; "neighbor" and "weighted" have both
    features : "ram" holds them, "ssd" reads them, "auto" holds them where they fit the budget
    memory_budget : bytes of host memory for everything this loader holds, "8GB" or a number; half of what is free where
        None
    spill_budget : bytes of disk for packs; a share of what is free where None, 0 for none
    spill_dir : where packs go; $GLOADER_SPILL_DIR or the temporary folder where None
    cache : bytes of the host cache ("2GB" or a number); what the budget leaves where None
    policy : what the host cache keeps: "belady" plans it from the sampled future; "static" the rows of the nodes with
        the most out-edges; "lru", "fifo", "clock", "sieve" and "s3fifo" decide batch by batch; "none" has no cache
    io_strategy : how missing rows are read: "direct" by each batch, "staged" by one pass into memory, "packed" by one
        pass into a pack on the disk; "auto" takes the fastest of them for each superbatch
    max_gap : longest hole in bytes that one read goes over, 0 for none; what suits the device where None
    superbatch : batches that are planned together at most; what the budgets allow where None
    superbatch_reset : start each superbatch from an empty cache, as Ginex does, to compare with
    io, verify : how the feature store reads and checks, see `gloader.ssd_store.FeatureStore.open`
    device : where the batches are delivered
    device_cache : bytes of the device ("4GB" or a number) that hold the hottest rows for the whole run, 0 for none;
        "auto" takes what the model leaves free on a GPU, and nothing on the CPU, where a size is for tests: it is host
        memory beside ``memory_budget``. Ranks that share a loader all hold the same rows, as many as the least of them
        can
    device_hotness : which rows: "presampled" counts accesses in sampled batches, "vip" computes their probability,
        "degree" takes the nodes with the most out-edges
    device_dry_run : does one step of the model on a batch, to see how much it takes of the device, see
        `gloader.device.dry_step`; "auto" takes half of what is free where None
    threads : sampling threads; as many as there are cores where None
    stall_timeout_s : seconds after which a stage that does not come back raises StallError; 0 for never
    epochs : nothing is prepared behind this many epochs; the stages work ahead for ever where None
    trace : record what every stage does, for `write_trace`
    sharing : "shared" has one loader for the ranks of a machine, which memory_budget, spill_budget, cache and threads
        are then for; "private" has one for each rank; "auto" shares where a process group has several on a machine
    rank, world_size : this process's part of every step; seeds of a step are shared evenly among the ranks. Those of
        the process group where None; with these, all ranks build their loaders together, and check that they agree

    Raises
    ------
    ConfigError, SeedError, BudgetError
        At construction, before anything large is allocated.
    RankError
        Another rank cannot build its loader.
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
        seed_blocks: int = 1,
        sampler: str = "neighbor",
        layout: Layout = "layered",
        features: Features = "auto",
        memory_budget: str | int | None = None,
        spill_budget: str | int | None = None,
        spill_dir: StrPath | None = None,
        cache: str | int | None = None,
        policy: Policy = "belady",
        io_strategy: IoStrategy = "auto",
        max_gap: str | int | None = None,
        superbatch: int | None = None,
        superbatch_reset: bool = False,
        io: IoMode = "auto",
        verify: Verify = "read",
        device: str | torch.device = "cpu",
        device_cache: str | int = "auto",
        device_hotness: DeviceHotness = "presampled",
        device_dry_run: Callable[[ReadyBatch], object] | None = None,
        threads: int | None = None,
        stall_timeout_s: float = 300.0,
        epochs: int | None = None,
        trace: bool = False,
        sharing: Sharing = "auto",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        settle_vector_math()
        _require_choice("sharing", sharing, get_args(Sharing))
        place = find_place(sharing, rank, world_size)
        with telling_others(place):
            _require_choice("features", features, get_args(Features))
            _require_choice("policy", policy, get_args(Policy))
            _require_choice("io_strategy", io_strategy, get_args(IoStrategy))
            require_layout(sampler, layout)
            device_settings = DeviceSettings(
                place=torch.device(device),
                cache_bytes=None if device_cache == "auto" else parse_bytes(device_cache),
                hotness=parse_hotness(device_hotness),
                dry_run=device_dry_run,
            )
            for name, value, least in (
                ("threads", threads, 1),
                ("superbatch", superbatch, 1),
                ("epochs", epochs, 0),
            ):
                if value is not None and value < least:
                    raise ConfigError(f"{name} is {value}; it must be at least {least}")
            self._dataset = dataset
            self._fanouts = checked_fanouts(fanouts)
            self._sampler_name = sampler
            self._layout = layout
            self._order = EpochOrder(
                seeds=dataset.train if seeds is None else _checked_seeds(seeds),
                num_nodes=dataset.num_nodes,
                batch_size=batch_size,
                seed=seed,
                shuffle=shuffle,
                drop_last=drop_last,
                rank=place.rank,
                world_size=place.world_size,
                seed_blocks=seed_blocks,
            )
            self._num_samplers = threads if threads is not None else len(os.sched_getaffinity(0))
            self._end_epoch = epochs
            self._stall_timeout_s = stall_timeout_s
            self._timeline = TimelineRecorder() if trace else None
            self._labels = _labels_beside_order(dataset, self._order)
            settings = TierSettings(
                features=features,
                budget_bytes=_bytes_or_none(memory_budget),
                spill_bytes=_bytes_or_none(spill_budget),
                spill_dir=None if spill_dir is None else Path(spill_dir),
                policy=policy,
                cache_bytes=_bytes_or_none(cache),
                io_strategy=io_strategy,
                max_gap_bytes=_bytes_or_none(max_gap),
                superbatch=superbatch,
                superbatch_reset=superbatch_reset,
                sampler=sampler,
                layout=layout,
                sampler_threads=self._num_samplers,
                num_epochs=epochs,
                io=io,
                verify=verify,
            )
        self._num_ranks = 1
        self._held = self._open(place, settings, device_settings)
        self._feedback = RunFeedback(num_ranks=self._num_ranks)
        # Dropping the loader, or ending the process, closes what it holds; the threads know `_held` alone.
        self._finalizer = weakref.finalize(self, self._held.finalize)
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
            "spill_budget": config.spill_budget_bytes,
            "spill_dir": config.spill_dir,
            "cache": config.cache_bytes,
            "policy": config.policy,
            "io_strategy": config.io_strategy,
            "max_gap": config.max_gap_bytes,
            "superbatch": config.superbatch,
            "superbatch_reset": config.superbatch_reset,
            "seed_blocks": config.seed_blocks,
            "sampler": config.sampler,
            "layout": config.layout,
            "stall_timeout_s": config.stall_timeout_s,
            "device_cache": config.device_cache,
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
        self._require_open()
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
        position = self._state.next
        iterator = EpochIterator(
            self._run_from(position),
            epoch=position.epoch,
            num_left=len(self) - position.index,
            on_batch=self._on_batch,
            on_end=self._on_end,
        )
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
        return self._held.tier.plan

    @property
    def seeds(self) -> IdArray:
        """(n,) int64 the seeds of an epoch, in no particular order."""
        return self._order.seeds

    @property
    def graph(self) -> CscGraph:
        """The topology, where it is now."""
        return self._held.tier.topology.graph

    @property
    def features(self) -> FeatureSource:
        """All N feature rows, in memory where they are; usable beside the running stages, until `close`."""
        return self._held.tier.source

    @property
    def reports(self) -> tuple[SuperbatchReport, ...]:
        """What was predicted and measured for the superbatches executed so far; empty for features in memory."""
        return self._feedback.reports

    def explain(self) -> str:
        """Say which tiers are on, their sizes and why, and how the superbatches so far compared with predictions."""
        text = self._held.tier.explain()
        return f"{text}\n{explain_run(self.reports)}" if self.reports else text

    def bottleneck(self) -> str:
        """Say in a sentence what the running or the last epoch waited for, and what would help.

        Raises
        ------
        ConfigError
            No epoch was started yet.
        """
        stats, plan = self.stats, self.memory_plan
        row_bytes = 4 * self._dataset.feature_dim
        return find_bottleneck(
            stats,
            cores=len(os.sched_getaffinity(0)),
            sampler_threads=self._num_samplers,
            curve=self._held.tier.miss_curve(stats),
            row_bytes=row_bytes,
            cache_bytes=plan.cache_rows * row_bytes,
        ).sentence

    def write_trace(self, path: StrPath) -> None:
        """Write what every stage did so far as JSON that https://ui.perfetto.dev shows.

        Raises
        ------
        ConfigError
            The loader was built without ``trace=True``.
        """
        if self._timeline is None:
            raise ConfigError("nothing was recorded; build the loader with trace=True")
        self._timeline.write(Path(path))

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
        """Stop every thread and release the store, the caches and the buffers. Idempotent."""
        with uninterrupted():
            if (running := self._running()) is not None:
                running.close()
            self._finalizer.detach()
            self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> EpochIterator | None:
        iterator = self._active() if self._active is not None else None
        return iterator if iterator is not None and iterator.is_running else None

    def _require_open(self) -> None:
        if not self._finalizer.alive:
            raise LoaderClosedError("this loader is closed; build a new one")

    def _open(self, place: Place, settings: TierSettings, device: DeviceSettings) -> _Held:
        """Open what this rank loads with: tiers of its own, or those that the ranks of this machine share."""
        team = assemble(place, self._facts(settings, device)) if place.is_collective else None

        def open_tier(others: OtherDevices | None = None) -> FeatureTier:
            return open_feature_tier(
                self._dataset,
                order=self._order,
                fanouts=self._fanouts,
                settings=settings,
                device=device,
                num_ranks=self._num_ranks,
                others=others,
            )

        def open_store() -> FeatureStore:
            return self._dataset.open_features(
                io=settings.io, verify=settings.verify, gap_bytes=settings.max_gap_bytes
            )

        if team is not None and len(team.ranks) > 1:
            self._num_ranks = len(team.ranks)
            return _Held(
                *open_shared(
                    team,
                    self._dataset,
                    open_tier,
                    device=device,
                    open_store=open_store,
                    stall_timeout_s=self._stall_timeout_s,
                )
            )
        if team is not None:
            team.close()
            if settings.budget_bytes is None:  # every rank of this machine takes its part
                settings = replace(settings, budget_bytes=default_budget_bytes() // team.num_local)
        return _Held(open_tier())

    def _facts(self, settings: TierSettings, device: DeviceSettings) -> Facts:
        """Return what has to be the same on every rank."""
        order = self._order
        batches = {
            **self._stream_settings(),
            "seeds": hashlib.sha256(order.seeds.tobytes()).hexdigest()[:32],
            "batch_size": order.batch_size,
            "seed": order.seed,
            "epochs": self._end_epoch,
        }
        machine = {
            **{name: value for name, value in asdict(settings).items() if name not in _OF_THE_HOST},
            "device_hotness": device.hotness,
            "stall_timeout_s": self._stall_timeout_s,
        }
        return Facts(batches=batches, machine=machine)

    def _run_from(self, position: BatchId) -> Run:
        """Return the run that stands at ``position``: the one under way, or a new one."""
        held = self._held
        if held.run is not None and _stands_at(held.run.consumer, position):
            return held.run
        held.end_run()
        end_epoch = None if self._end_epoch is None else max(self._end_epoch, position.epoch + 1)
        stream = BatchStream(self._order, position, end_epoch=end_epoch)
        labels = SeedLabels(self._order, self._labels)
        if isinstance(held.tier, RemoteTier):
            held.run = held.tier.begin(
                stream=stream, labels=labels, timeline=self._timeline, feedback=self._feedback
            )
            return held.run
        tier, host = held.tier, held.host

        def start() -> PipelineRun:
            self._feedback.restart()
            return PipelineRun(
                tier,
                stream,
                labels,
                num_samplers=self._num_samplers,
                feedback=self._feedback,
                timeline=self._timeline,
                stall_timeout_s=self._stall_timeout_s,
                ranks=host,
            )

        held.run = start() if host is None else host.begin(position, start)
        return held.run

    def _on_batch(self, batch_id: BatchId) -> None:
        self._move_to(BatchId(epoch=batch_id.epoch, index=batch_id.index + 1))

    def _on_end(self, stats: EpochStats, *, is_complete: bool) -> None:
        self._stats = stats
        if is_complete:
            self._move_to(BatchId(epoch=stats.epoch + 1, index=0))
        self._is_mid_epoch = not is_complete
        if not is_complete or not self._is_needed():
            self._held.end_run()

    def _is_needed(self) -> bool:
        run = self._held.run
        return run is not None and len(self) > 0 and run.consumer.has_next()

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
        for name, value in self._stream_settings().items():
            # Left out where it is layered, so that states from before there was a choice stay valid.
            if (name, value) != ("layout", "layered"):
                digest.update(repr(value).encode())
        digest.update(np.ascontiguousarray(self._order.seeds).data)
        return digest.hexdigest()[:32]

    def _stream_settings(self) -> dict[str, Any]:
        """Return what batches follow from, beside the seeds themselves and what a state names."""
        order = self._order
        return {
            "dataset": self._dataset.fingerprint,
            "fanouts": self._fanouts,
            "shuffle": order.shuffle,
            "drop_last": order.drop_last,
            "seed_blocks": order.seed_blocks,
            "sampler": self._sampler_name,
            "layout": self._layout,
            "num_seeds": len(order.seeds),
        }


class _Held:
    """What a loader owns: its tier, what serves other ranks, and the run under way. Knows nothing of the loader."""

    def __init__(self, tier: FeatureTier | RemoteTier, host: LoaderHost | None = None) -> None:
        self.tier = tier
        self.host = host
        self.run: Run | None = None
        self._is_whole = True
        self._pid = os.getpid()

    def end_run(self) -> None:
        """Stop the run under way. Idempotent."""
        if self.run is not None:
            with uninterrupted():
                self._is_whole = self.run.close() and self._is_whole
                self.run = None

    def close(self) -> None:
        """Stop the run and release the tier, unless a stuck thread still uses it. Idempotent."""
        if os.getpid() != self._pid:
            return  # a forked child: neither threads nor descriptors are its own
        name = threading.current_thread().name
        if name.startswith("gloader-") and name != _CLOSER:
            # The garbage collector dropped the loader on a thread of its own, which cannot wait for itself.
            threading.Thread(target=self.close, name=_CLOSER).start()
            return
        with uninterrupted():
            self.end_run()
            if self.host is not None:
                self._is_whole = self.host.close() and self._is_whole
            if self._is_whole:
                self.tier.close()

    def finalize(self) -> None:
        """Close where nothing can be raised."""
        close_in_finalizer(self.close)

    def __del__(self) -> None:
        # A signal that arrived before the finalizer began lost its call.
        if hasattr(self, "_pid"):
            self.finalize()


def _stands_at(consumer: Consumer, position: BatchId) -> bool:
    return consumer.has_next() and consumer.next_id == position


def _bytes_or_none(value: str | int | None) -> int | None:
    return None if value is None else parse_bytes(value)


def _checked_seeds(seeds: IdArray) -> IdArray:
    """Return a copy of ``seeds`` (n,) as int64; `EpochOrder` checks the values."""
    return as_ids(np.array(seeds), noun="seeds", error=SeedError)


def _labels_beside_order(dataset: Dataset, order: EpochOrder) -> IdArray:
    """Return the labels (n,) of the seeds; the order of the first epoch, asked for next, is worked out meanwhile."""
    labels, _ = run_together(
        [lambda: dataset.labels_of(order.seeds), lambda: order.epoch_positions(0)],
        threads=2,
        name="gloader-open",
    )
    return labels


def _require_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))} in this version")
