"""The base of every loader: an iterable of ready mini-batches, sampled and gathered ahead of the training loop.

`gloader.loader.loaders` derives the public loaders from `BatchLoader`. A loader opens a tier, which has the memory
plan, the files, the caches and the buffers. A rank is one of several processes that train together. If another rank of
this machine loads for this one, the tier is a `RemoteTier`, a connection to that process.

Each iteration is an epoch. A position is an epoch and the index of its next batch. A run is a sequence of epochs
without interruption: its threads work ahead from one position, and continue from one epoch to the next. A stream is
the sequence of all batches, which the dataset, the seeds and the sampling settings determine.
"""

from __future__ import annotations

import inspect
import os
import time
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeVar

from gloader.cache import parse_hotness
from gloader.config import LoaderSettings, OptionalKeywords, loader_defaults
from gloader.core.fanouts import plain_fanouts
from gloader.core.loader_state import LoaderState
from gloader.core.near_names import near_attributes, require_keywords
from gloader.core.order import RowOrder
from gloader.core.signals import expect_signals_at_exit, uninterrupted
from gloader.core.units import format_bytes
from gloader.device import place_of
from gloader.device.seam import settle_vector_math
from gloader.distributed import HostRun, RemoteTier, find_membership, open_for_rank, telling_others
from gloader.errors import ConfigError, LoaderBusyError, LoaderClosedError, NotPicklableError, ReplayError
from gloader.loader.node_embedding import given_embeddings
from gloader.observe.bottleneck import find_bottleneck, spinning_advice
from gloader.observe.compile_clock import say_compiling
from gloader.observe.explain import explain_passes, explain_run
from gloader.observe.peak_memory import peak_rss_bytes
from gloader.observe.timeline import RecentTimeline, TimelineRecorder
from gloader.pipeline.advisor import Advisor
from gloader.pipeline.consumer import EpochIterator, require_same_process
from gloader.pipeline.embed import try_with_rows
from gloader.pipeline.row_task import RowAnswers, RowTask
from gloader.pipeline.run import PipelineRun, run_header
from gloader.pipeline.seeds import BatchStream, named_facts, stream_fingerprint
from gloader.pipeline.superbatch import RunFeedback
from gloader.samplers.arguments import checked_fanouts
from gloader.samplers.make import require_layout
from gloader.types import BatchId, HeteroReadyBatch, LinkBatch, ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Never, Unpack

    from gloader.core.fanouts import FanoutsLike
    from gloader.dataset import Dataset
    from gloader.distributed.agree import Membership
    from gloader.distributed.open import PartsGuard
    from gloader.loader.node_embedding import Embeddings
    from gloader.observe.bottleneck import Bottleneck, BottleneckKind
    from gloader.observe.epoch_stats import EpochStats
    from gloader.observe.explain import SuperbatchReport
    from gloader.pipeline.consumer import Consumer, Run
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.seeds import EdgeSeeds, NodeSeeds, SeedLabels
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.ssd_store.os_io import StrPath


def with_settings(constructor: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a class with this ``constructor``, for ``help`` and editors. Pure.

    The signature names every setting with its default. The constructors themselves take ``**keywords``, so that none
    of them repeats the settings.
    """
    parameters = inspect.signature(constructor).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind != inspect.Parameter.VAR_KEYWORD]
    keywords = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=loader_defaults()[name],
            annotation=hint.__forward_arg__,
        )
        for name, hint in OptionalKeywords.__annotations__.items()
    ]
    return inspect.Signature([*named[1:], *keywords])


T = TypeVar("T")
B = TypeVar("B", ReadyBatch, HeteroReadyBatch, LinkBatch)

# The bottlenecks, as named in `find_bottleneck`, that other settings may remove.
_ADVISED: Final = frozenset({"cpu", "sweep", "sample", "inspect", "stage", "read", "gather", "startup"})
_MOST_ADVICE_SHARE: Final = 0.01  # largest share of the loader's lifetime that advice may take


@near_attributes
class BatchLoader(Generic[B]):
    """The base of `Loader`, `HeteroLoader` and `LinkLoader`. These classes document the parameters and errors."""

    def __new__(cls, *_given: Any, **keywords: Any) -> Self:
        """Raise for unknown keywords before Python reports a missing one: the unknown one may be its misspelling."""
        require_keywords(cls.__name__, keywords, inspect.signature(cls).parameters)
        return super().__new__(cls)

    _seeds_of: ClassVar[Callable[..., NodeSeeds | EdgeSeeds]]  # makes seeds from the constructor's arguments
    __signature__: ClassVar[inspect.Signature]  # result of `with_settings`

    def __init__(
        self,
        dataset: Dataset,
        seeds: NodeSeeds | EdgeSeeds,
        *,
        fanouts: FanoutsLike,
        batch_size: int,
        embeddings: Embeddings | None,
        device_dry_run: DryRun | None,
        **keywords: Unpack[OptionalKeywords],
    ) -> None:
        require_dataset(dataset)
        membership = find_membership(
            keywords.get("sharing", "auto"), keywords.get("rank"), keywords.get("world_size")
        )
        with telling_others(membership):
            settings = LoaderSettings.of(fanouts=fanouts, batch_size=batch_size, **keywords)
        self._open(dataset, seeds, settings, membership, embeddings, device_dry_run)

    @classmethod
    def from_settings(
        cls,
        dataset: Dataset,
        settings: LoaderSettings,
        *,
        embeddings: Embeddings | None = None,
        device_dry_run: DryRun | None = None,
        **given: Any,
    ) -> Self:
        """Build a loader with ``settings``.

        Parameters
        ----------
        dataset : the dataset to sample from
        settings : all settings; they raise the same errors as in the constructor
        embeddings, device_dry_run, given : the constructor's other arguments
        """
        require_dataset(dataset)
        # The constructor is not called, because it would make the settings from keywords.
        loader = cls.__new__(cls, **given)
        ranks = settings.ranks
        membership = find_membership(ranks.sharing, ranks.rank, ranks.world_size)
        cls._open(loader, dataset, cls._seeds_of(**given), settings, membership, embeddings, device_dry_run)
        return loader

    def _open(
        self,
        dataset: Dataset,
        seeds: NodeSeeds | EdgeSeeds,
        settings: LoaderSettings,
        membership: Membership,
        embeddings: Embeddings | None,
        device_dry_run: DryRun | None,
    ) -> None:
        """Check the settings, plan the seeds, open the tier, and set every attribute. Both constructors end here."""
        # These calls come before several threads call torch, see docs/adr/0015-first-square-root.md.
        say_compiling()
        settle_vector_math()
        expect_signals_at_exit()
        self._membership = membership  # this process's rank, and the other ranks
        # From here on, the other ranks wait for this rank, and receive its errors.
        with telling_others(membership):
            sampling = replace(settings.sampling, fanouts=checked_fanouts(settings.sampling.fanouts))
            settings = replace(settings, sampling=sampling)
            settings.check()
            require_layout(sampling.sampler, sampling.layout)
            parse_hotness(settings.device.device_hotness)
            place_of(settings.device.device)
            self._dataset = dataset
            self._settings = settings
            # The plan of the seeds; the tier has the plan of the memory.
            self._plan = seeds.plan(dataset, settings, rank=membership.rank, world_size=membership.world_size)
            self._order = self._plan.order  # each batch's seeds
            given = given_embeddings(dataset, embeddings)
        self._timeline = RecentTimeline(TimelineRecorder() if settings.stages.trace else None)
        task = self._plan.task  # the edges or rows of a table, or None
        if isinstance(task, RowTask) and device_dry_run is not None:
            device_dry_run = partial(task.try_step, device_dry_run)
        if given.dims and device_dry_run is not None:
            device_dry_run = partial(try_with_rows, given.dims, device_dry_run)
        # The tier, the present run, and the connections to other ranks.
        self._guard: PartsGuard | None = open_for_rank(
            membership,
            dataset,
            self._plan,
            settings,
            dry_run=device_dry_run,
            embeddings=given,
        )
        self._held = self._guard.parts
        tier = self._held.tier
        # Measures the runs, and learns the disk's rates from them.
        self._feedback = RunFeedback(
            num_ranks=self._held.num_ranks,
            table_names=tier.table_names,
            learner=None if isinstance(tier, RemoteTier) else tier.load.files.learner,
        )
        # Dropping the loader, or ending the process, closes its parts. The threads reference only `_held`, so they do
        # not keep a dropped loader alive.
        self._finalizer: weakref.finalize[..., Any] = weakref.finalize(self, self._guard.finalize)
        facts = None if task is None else task.facts()  # the settings of the task
        rows = tier.rows if isinstance(tier, RemoteTier) else tier.load.rows
        # The labels of this rank's batches; None for links, which have their own.
        self._labels: SeedLabels | RowAnswers | None = self._plan.labels
        if rows is not None and isinstance(self._order, RowOrder):
            self._labels = RowAnswers(order=self._order, rows=rows)
        self._state = LoaderState(
            next=BatchId(epoch=0, index=0),
            seed=settings.sampling.seed,
            global_batch_size=self._order.global_batch_size,
            fingerprint=stream_fingerprint(dataset, self._order, settings.sampling, facts),
            stream=named_facts(dataset, self._order, settings.sampling, facts),
        )
        self._recorded_from: LoaderState | None = None  # state at the first run's start, for `write_trace`
        self._whole_since = 0  # the first epoch that the present run makes from its first batch on
        self._advice: dict[BottleneckKind, str] = {}  # by bottleneck, see `_advice_for`
        self._advised_s = 0.0  # seconds spent on advice
        self._opened_s = time.perf_counter()  # time of the opening, in seconds of this clock
        self._starved_before = 0.0  # `_starved_s` at the start of the epoch
        self._is_mid_epoch = False  # a break left the epoch unfinished: the next iteration starts another
        self._stats: EpochStats | None = None  # of the last ended epoch
        # The last iterator. The reference is weak, so that the loop may drop the iterator.
        self._active: weakref.ref[EpochIterator[B]] | None = None
        self._pid = os.getpid()  # a forked child has another process id, and no threads

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self._order.num_batches

    def __iter__(self) -> Iterator[B]:
        """Start an epoch, or continue the epoch at the position from `load_state_dict`.

        Raises
        ------
        LoaderClosedError, LoaderBusyError, ForkError
            After `close`; while another iterator is alive; in a forked child.
        ConfigError
            The loader was built for all seeds, before the process became one of several ranks.
        """
        self._require_open()
        require_same_process(self._pid)
        self._membership.require_own_part()
        if self._running() is not None:
            raise LoaderBusyError(
                "an iterator of this loader is still alive; finish, break out of or delete it first"
            )
        if self._is_mid_epoch or self._state.next.index >= len(self):
            self._move_to(BatchId(epoch=self._state.next.epoch + 1, index=0))
        position = self._state.next
        self._starved_before = self._starved_s
        iterator: EpochIterator[B] = EpochIterator(
            self._run_from(position),
            epoch=position.epoch,
            num_left=len(self) - position.index,
            on_batch=self._on_batch,
            on_end=self._on_end,
        )
        self._active = weakref.ref(iterator)
        return iterator

    def __repr__(self) -> str:
        """Return the class, the dataset, the fan-outs, and the sizes of a batch and an epoch."""
        cut = self._order.cut  # the division of the seeds into batches and ranks
        ranks = f", rank={cut.rank}, world_size={cut.world_size}" if cut.world_size > 1 else ""
        return (
            f"{type(self).__name__}({self._dataset!r}, fanouts={plain_fanouts(self._settings.sampling.fanouts)}, "
            f"batch_size={cut.batch_size}{ranks}: {cut.num_items:,} seeds in {len(self):,} batches)"
        )

    @property
    def epoch(self) -> int:
        """The running epoch, or the next one."""
        return self._state.next.epoch

    @property
    def stats(self) -> EpochStats:
        """Statistics of the running epoch so far, or of the last epoch.

        Raises
        ------
        ConfigError
            No epoch has started yet.
        ForkError
            In a forked child.
        """
        require_same_process(self._pid)
        running = self._running()
        if running is not None:
            return running.stats
        if self._stats is None:
            raise ConfigError("no epoch was started yet: there are no statistics")
        return self._stats

    @property
    def dataset(self) -> Dataset:
        """The sampled dataset."""
        return self._dataset

    @property
    def memory_plan(self) -> MemoryPlan:
        """The division of the memory budget, in bytes."""
        return self._held.tier.plan

    @property
    def borrowed_bytes(self) -> int:
        """Bytes of another process's memory that this process maps; 0 if this process loads for itself.

        The rank that loads for this process counts these bytes in its budget.
        """
        tier = self._held.tier
        return tier.borrowed_bytes if isinstance(tier, RemoteTier) else 0

    @property
    def reports(self) -> tuple[SuperbatchReport, ...]:
        """Predictions and measurements of the superbatches so far; empty for features in memory.

        Raises
        ------
        ForkError
            In a forked child.
        """
        require_same_process(self._pid)
        return self._feedback.reports

    def explain(self) -> str:
        """Return text on the place of each part of the data, with sizes and reasons, and on the run so far.

        The text ends with `explain_run` and the peak memory of this process.

        Raises
        ------
        ForkError
            In a forked child.
        """
        require_same_process(self._pid)
        mirrored = self._dataset.mirrored
        mirror = "" if mirrored is None else mirrored.explain()
        peak, budget = format_bytes(peak_rss_bytes()), format_bytes(self.memory_plan.budget_bytes)
        memory = (
            f"peak memory of this process: {peak}, Python, torch, your model and your own data included; "
            f"the memory budget of {budget} is what the loader alone may hold"
        )
        return "\n".join(filter(None, [self._held.tier.explain(), mirror, self.explain_run(), memory]))

    def explain_run(self) -> str:
        """Return lines that compare superbatches and edge passes with their predictions; "" without any.

        A superbatch is a group of batches that are loaded together. The lines include the row exchanges between
        machines, with reasons, and the traffic of a dataset at a URL.

        Raises
        ------
        ForkError
            In a forked child.
        """
        require_same_process(self._pid)
        reports, passes = self._feedback.reports, self._feedback.passes
        parts = [explain_passes(passes) if passes else "", explain_run(reports) if reports else ""]
        tier = self._held.tier
        if not isinstance(tier, RemoteTier):
            parts.append("" if tier.exchange is None else tier.exchange.explain_run())
            parts += [embedding.explain_run(tier.facts.rates) for embedding in tier.trained]
        if self._dataset.mirrored is not None:
            parts.append(self._dataset.mirrored.explain_traffic())
        return "\n".join(filter(None, parts))

    def bottleneck(self) -> str:
        """Return a sentence on the slowest part of the running or the last epoch, and its remedy.

        Raises
        ------
        ConfigError
            No epoch has started yet.
        ForkError
            In a forked child.
        """
        tier = self._held.tier
        threads = self._settings.stages.sampler_threads
        found = find_bottleneck(
            self.stats,
            cores=len(os.sched_getaffinity(0)),
            sampler_threads=threads if isinstance(tier, RemoteTier) else tier.sampler_threads,
            store_s=self._starved_s - self._starved_before,
        )
        spinning = spinning_advice(
            found.kind,
            load=os.getloadavg()[0],
            cores=os.cpu_count() or 1,
            wait_policy=os.environ.get("OMP_WAIT_POLICY"),
        )
        return "; ".join(filter(None, [found.sentence, self._advice_for(found), spinning]))

    def _advice_for(self, found: Bottleneck) -> str:
        """Return advice for shorter epochs; "" if the loop hardly waits, or no advice is known."""
        if found.kind not in _ADVISED:
            return ""
        began = time.perf_counter()
        # Training calls this after every epoch. Advice is computed once per cause of waits, and again only while all
        # advice has taken less than a hundredth of the loader's lifetime.
        if not self._advice.get(found.kind) or self._advised_s < _MOST_ADVICE_SHARE * (
            began - self._opened_s
        ):
            self._advice[found.kind] = self.advice()
            self._advised_s += time.perf_counter() - began
        return self._advice[found.kind]

    def advice(self) -> str:
        """Return the best change of settings and its gain, from a replay of the last epoch.

        A replay predicts the time of an epoch with changed settings from the recorded work. Settings within the same
        budget come first, then more hardware or memory. The result is "" for a run's first epoch, on a GPU, and if
        other processes or machines load rows for this one. It is also "" if the replay explains too little.

        Raises
        ------
        ForkError
            In a forked child.
        """
        require_same_process(self._pid)
        tier = self._held.tier
        # The first epoch of a run begins with nothing prepared, so its times do not represent later epochs.
        if self._stats is None or self._stats.epoch <= self._whole_since:
            return ""
        if isinstance(tier, RemoteTier) or tier.exchange is not None or tier.device.is_asynchronous:
            return ""
        if tier.trained:  # advice changes the plan, and trained rows are not planned again
            return ""
        state = replace(self._state, next=BatchId(epoch=self._stats.epoch - 1, index=0))
        header = run_header(tier, self._settings, state, self._dataset, num_ranks=self._held.num_ranks)
        try:
            recording = self._timeline.recording(header)
        except ReplayError:
            return ""
        return Advisor(tier.load, tier.plan, self._settings).advise(recording)

    @property
    def _starved_s(self) -> float:
        """Seconds that readers have waited for the dataset's URL."""
        return 0.0 if self._dataset.mirrored is None else self._dataset.mirrored.starved_s

    def write_trace(self, path: StrPath) -> None:
        """Write the events of every stage so far as JSON for https://ui.perfetto.dev and `gloader.replay`.

        A rank that receives its batches from another process records only its loop, which cannot be replayed.

        Raises
        ------
        ConfigError
            The loader was built without ``trace=True``.
        ForkError
            In a forked child.
        """
        require_same_process(self._pid)
        whole = self._timeline.whole
        if whole is None:
            raise ConfigError("nothing was recorded; build the loader with trace=True")
        tier, header = self._held.tier, None
        if not isinstance(tier, RemoteTier):
            state = self._recorded_from or self._state
            header = run_header(tier, self._settings, state, self._dataset, num_ranks=self._held.num_ranks)
        whole.write(Path(path), header=header)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON: the next batch to hand out, and the facts that identify the stream."""
        return self._state.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position from `state_dict`, of this or another process.

        Raises
        ------
        StateError
            The state is malformed or belongs to another stream of batches.
        LoaderBusyError
            An iterator is alive.
        ForkError
            In a forked child.
        """
        require_same_process(self._pid)
        parsed = LoaderState.from_json(state)
        self._state.require_same_stream(parsed)
        if self._running() is not None:
            raise LoaderBusyError("load_state_dict while an iterator is alive; finish or delete it first")
        self._state = replace(self._state, next=parsed.next)
        self._is_mid_epoch = False

    def close(self) -> None:
        """Stop all threads; release the store, the caches and the buffers. Idempotent; no effect in a forked child."""
        if os.getpid() != self._pid:
            return
        with uninterrupted():
            if (running := self._running()) is not None:
                running.close()
            self._held.close()
            # The guard's finalizer runs here, where signals wait.
            self._finalizer.detach()
            self._guard = None

    def __enter__(self) -> Self:
        return self

    def __reduce__(self) -> Never:
        """Raise NotPicklableError. ``pickle`` and ``copy`` call this method."""
        raise NotPicklableError(
            "a loader has threads and open files, and is neither copied nor sent to another process: build it there "
            "(with Lightning in train_dataloader()); a gloader.Dataset may be sent"
        )

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _by_table(self, values: Iterable[T]) -> dict[str, T]:
        """Return ``values``, one per table, as a dict by the table's node type or relation."""
        return dict(zip(self._held.tier.table_names, values, strict=False))

    def _running(self) -> EpochIterator[B] | None:
        """Return the iterator whose epoch has not ended, or None."""
        iterator = self._active() if self._active is not None else None
        return iterator if iterator is not None and iterator.is_running else None

    def _require_open(self) -> None:
        if not self._finalizer.alive:
            raise LoaderClosedError("this loader is closed; build a new one")

    def _run_from(self, position: BatchId) -> Run:
        """Return the run in progress if its next batch is at ``position``. Otherwise end it and begin a new run."""
        held = self._held
        if held.run is not None and _is_at(held.run.consumer, position):
            return held.run
        held.end_run()
        self._recorded_from = self._recorded_from or replace(self._state, next=position)
        self._whole_since = position.epoch + (position.index > 0)
        epochs = self._settings.stages.epochs
        end_epoch = None if epochs is None else max(epochs, position.epoch + 1)
        labels = self._labels
        if isinstance(held.tier, RemoteTier):
            # The loading rank makes the batches, so this rank needs only their numbers.
            stream = BatchStream(self._order, position, end_epoch=end_epoch)
            held.run = held.tier.begin(
                stream=stream, labels=labels, timeline=self._timeline, feedback=self._feedback
            )
            return held.run
        tier, host = held.tier, held.host
        stream = BatchStream(tier.order, position, end_epoch=end_epoch)

        def start() -> PipelineRun:
            """Begin a run. With several ranks, the host calls this when all ranks have asked for ``position``."""
            self._feedback.restart()
            return PipelineRun(
                tier,
                stream,
                labels,
                feedback=self._feedback,
                timeline=self._timeline,
                stall_timeout_s=self._settings.stages.stall_timeout_s,
                ranks=host,
            )

        held.run = start() if host is None else HostRun(host, position, start)
        return held.run

    def _on_batch(self, batch_id: BatchId) -> None:
        """Move the position past a batch that the loop takes."""
        self._move_to(BatchId(epoch=batch_id.epoch, index=batch_id.index + 1))

    def _on_end(self, stats: EpochStats, *, is_complete: bool) -> None:
        """Keep an ended epoch's statistics. End the run, unless the next epoch continues it."""
        self._stats = stats
        if is_complete:
            self._move_to(BatchId(epoch=stats.epoch + 1, index=0))
        self._is_mid_epoch = not is_complete
        if not is_complete or not self._is_needed():
            self._held.end_run()

    def _is_needed(self) -> bool:
        """Return True if the run has or will have batches of a later epoch."""
        run = self._held.run
        return run is not None and len(self) > 0 and run.consumer.has_next()

    def _move_to(self, position: BatchId) -> None:
        """Make ``position`` the next batch, and forget a break."""
        self._state = replace(self._state, next=position)
        self._is_mid_epoch = False


def require_dataset(dataset: object) -> None:
    """Raise ConfigError if a path is given in place of a dataset."""
    if isinstance(dataset, str | os.PathLike):
        raise ConfigError(
            f"a loader takes a dataset, and {os.fspath(dataset)!r} is a path: pass "
            f"gloader.Dataset.open({os.fspath(dataset)!r})"
        )


def _is_at(consumer: Consumer, position: BatchId) -> bool:
    """Return True if the consumer's next batch is at ``position``."""
    return consumer.has_next() and consumer.next_id == position
