"""A client's loader: its view of the host's tiers, and its runs' batches.

The host is the rank that loads for all ranks of its machine; the other ranks are its clients. The tiers of an opened
loader are its graph, its caches and its feature rows. On a client, `RemoteTier` replaces them, and `ClientRun` replaces
the pipeline. A run is a sequence of batches from one position on. The client's device still holds rows, and the
client's own thread sends batches to the device.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, cast

from gloader.core.signals import close_in_finalizer, uninterrupted
from gloader.dataset.topology import FEW_BYTES
from gloader.distributed.client import LoaderClient
from gloader.distributed.device_agreement import FollowerDevice
from gloader.distributed.embedding_steps import ClientRows
from gloader.errors import ChannelClosedError, RankError
from gloader.observe.instruments import Instruments
from gloader.observe.watchdog import Watchdog
from gloader.pipeline.consumer import SENT_AHEAD, Consumer
from gloader.pipeline.embed import Embed
from gloader.pipeline.open.disk import feature_rows, open_edges, open_store
from gloader.pipeline.open.row_slots import NO_EMBEDDINGS
from gloader.pipeline.row_task import RowTask
from gloader.pipeline.send import Send, SendFeed, Transfer
from gloader.pipeline.threads import Channel, Failures, Pipeline, stage_thread, weak_method
from gloader.pipeline.trained_embedding import TrainedEmbedding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.config import LoaderSettings
    from gloader.dataset import Dataset
    from gloader.device import Device, DeviceTier
    from gloader.distributed.agree import Team
    from gloader.observe.timeline import RecentTimeline
    from gloader.pipeline.embedding_rows import EmbeddingRows
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.open.row_slots import GivenEmbeddings
    from gloader.pipeline.row_task import OpenRows, RowAnswers
    from gloader.pipeline.seeds import BatchStream, SeedLabels, SeedPlan
    from gloader.pipeline.send import SentBatch
    from gloader.pipeline.superbatch import RunFeedback
    from gloader.samplers import HeteroGraph, Topology
    from gloader.types import FeatureSource


class ClientRun:
    """The batches of this rank in a run. Owns its thread until `close`.

    With a GPU, a thread receives batches and sends them to the GPU; otherwise the consumer's thread receives them.

    Parameters
    ----------
    client : the connection to the host
    stream : this rank's batches
    labels : labels for the batches
    device : this rank's device
    tiers : for each table, the rows that the device holds, or reads from host memory itself
    types : the numbers of the tables: node types first, then relations
    timeline : records the work of every stage, or None
    feedback : receives the times of every step
    stall_timeout_s : maximum seconds of a transfer to the device; 0 means no limit
    embed : puts the rows of embeddings into the batches
    """

    def __init__(  # noqa: PLR0913 - what a run consists of, each a keyword
        self,
        client: LoaderClient,
        *,
        stream: BatchStream,
        labels: SeedLabels | RowAnswers | None,
        device: Device,
        tiers: Sequence[DeviceTier],
        types: Sequence[int],
        timeline: RecentTimeline | None,
        feedback: RunFeedback,
        stall_timeout_s: float,
        embed: Embed,
    ) -> None:
        self._client = client
        inbox = _Inbox(client, stream)
        self._sent: Channel[SentBatch] = Channel(SENT_AHEAD)  # batches on the device, ahead of the consumer
        # The reference is weak: the timer and the watchdog must not keep a dropped run alive.
        self._failures = Failures(weak_method(self._end_with))
        self._watchdog = Watchdog(stall_timeout_s, self._failures.stall)
        # The host's watchdog watches this rank's waits, so that a stall is reported once, at its place.
        instruments = Instruments(timeline=timeline, watchdog=self._watchdog, watches_waits=False)
        send = Send(Transfer(tiers, device=device, types=types), labels, instruments)
        is_sending = device.is_asynchronous
        self.consumer = Consumer(
            self._sent if is_sending else inbox,
            stream=stream,
            send=send,
            observer=client,
            failures=self._failures,
            instruments=instruments,
            feedback=feedback,
            embed=embed,
        )
        self._has_reported = False
        self._is_closed = False
        self._pid = os.getpid()
        self._has_ended_well = True  # False after a thread did not end
        # `begin` comes before any thread starts: it receives in this thread, and only one thread may receive.
        client.begin(self.consumer.next_id, copies_ids=is_sending)

        def release() -> None:
            # Pending copies must end first: the host fills the buffers again as soon as `leave` releases them.
            send.close()
            client.leave()
            embed.restart()

        feed = SendFeed(inbox, send)
        self._pipeline = Pipeline(
            [stage_thread(send, feed, self._sent, self._failures)] if is_sending else [],
            cancels=[client, send.pace, self._sent],
            failures=self._failures,
            on_joined=release,
        )
        try:
            self._watchdog.start()
            self._pipeline.start()
        except BaseException:
            self.close()
            raise

    def close(self, error: BaseException | None = None) -> bool:
        """Leave the run, and report ``error`` to the other ranks; return whether the thread ended. Idempotent."""
        with uninterrupted():
            if error is not None:
                self._report(error)
            if not self._is_closed:
                self._has_ended_well = self._pipeline.close() and self._has_ended_well
                self._watchdog.close()
                self._is_closed = True
            return self._has_ended_well

    def __del__(self) -> None:
        # If a signal comes before the caller stores a reference to the run, only this finalizer closes the run. A
        # forked child does not own the run.
        if hasattr(self, "_pipeline") and os.getpid() == self._pid:
            close_in_finalizer(self.close)

    def _end_with(self, error: BaseException) -> None:
        """Pass the failure of a thread to the consumer, and report it to the other ranks."""
        self._sent.fail(error)
        self._report(error)

    def _report(self, error: BaseException) -> None:
        """Report this rank's failure to the other ranks, once."""
        # A RankError is another rank's failure, which all ranks have received already.
        if not self._has_reported and not isinstance(error, RankError | ChannelClosedError):
            self._has_reported = True
            self._client.report_failure(error)


class _Inbox:
    """The arriving batches in order.

    It has no reference to the run: a thread holds this object, and would keep a dropped run alive.

    Parameters
    ----------
    client : receives the batches
    stream : this rank's batches
    """

    def __init__(self, client: LoaderClient, stream: BatchStream) -> None:
        self._client = client
        self._stream = stream
        self._position = 0

    def has_next(self) -> bool:
        """Return whether `get` would return a batch without waiting."""
        return self._stream.has(self._position) and self._client.has_batch()

    def get(self) -> HostBatch:
        """Wait for the next batch, and return it; errors as in `LoaderClient.next_batch`.

        Raises
        ------
        ChannelClosedError
            The stream is over.
        """
        if not self._stream.has(self._position):
            raise ChannelClosedError("the stream is over")
        batch = self._client.next_batch(self._stream.id_of(self._position))
        self._position += 1
        return batch


class RemoteTier:
    """A client's replacement for a `FeatureTier`, which belongs to the host. Owns its connection until `close`.

    Topology and features are opened at their first use, and read from the SSD.

    Parameters
    ----------
    dataset : the host's dataset
    team : the ranks of this machine
    settings : the loader's settings
    dry_run : one step of the model, to measure its memory on this rank's device
    seeds : the seeds of this rank's batches
    embeddings : the embeddings that this rank trains together with the host, or reads

    Raises
    ------
    RankError
        Another rank is gone, or could not open its part.
    BaseException
        The device could not be opened or filled.
    """

    def __init__(
        self,
        dataset: Dataset,
        team: Team,
        settings: LoaderSettings,
        *,
        dry_run: DryRun | None,
        seeds: SeedPlan,
        embeddings: GivenEmbeddings = NO_EMBEDDINGS,
    ) -> None:
        self._dataset = dataset
        self._types = seeds.types
        self._stall_timeout_s = settings.stages.stall_timeout_s
        self._host = team.ranks[0]
        tables = feature_rows(dataset, settings)
        self.types = tuple(rows.number for rows in tables)
        self.table_names = tuple(rows.name for rows in tables)
        self._tables, self._reading = tables, settings.reading
        follower = FollowerDevice(settings, tables=tables, types=seeds.types, dry_run=dry_run)
        with ExitStack() as stack:
            stack.callback(follower.close)
            # The constructor answers the host's requests through `follower`, which then holds the device's rows.
            self._client = LoaderClient(team, follower, stall_timeout_s=self._stall_timeout_s)
            stack.callback(self._client.close)
            self.device_tiers = follower.tiers
            self._device = follower.device
            self.plan = self._client.welcome.plan
            # The task table, open for this rank's labels; the host's plan counts its memory.
            self.rows: OpenRows | None = None
            if isinstance(seeds.task, RowTask):
                self.rows = seeds.task.open(
                    stack,
                    budget_bytes=self.plan.budget_bytes,
                    num_ranks=len(team.ranks),
                    io=settings.reading.io,
                )
            self.trained = self._train(embeddings, stack, num_ranks=len(team.ranks))
            self._frozen = embeddings.frozen
            self._stack = stack.pop_all()

    def _train(
        self, embeddings: GivenEmbeddings, stack: ExitStack, *, num_ranks: int
    ) -> tuple[TrainedEmbedding, ...]:
        """Attach the host's slots to ``embeddings``, until ``stack`` closes."""
        trained = []
        for number, each in enumerate(embeddings.trained):
            rows = ClientRows(self._client, number, self._client.slots[number], num_ranks=num_ranks)
            embedding = TrainedEmbedding(
                name=each.node_type,
                number=self._dataset.node_types.index(each.node_type),
                # A rank that does not load uses no more of the rows than `ClientRows` has.
                rows=cast("EmbeddingRows", rows),
            )
            each.attach(embedding)
            stack.callback(each.detach)
            trained.append(embedding)
        return tuple(trained)

    @cached_property
    def topology(self) -> Topology | HeteroGraph:
        """The graph, read from the SSD for the few batches that this rank samples; the host has it in memory."""
        return self._stack.enter_context(open_edges(self._dataset, self._types, max_bytes=FEW_BYTES))

    @cached_property
    def sources(self) -> tuple[FeatureSource, ...]:
        """All feature rows of each table, on the SSD."""
        return tuple(self._stack.enter_context(open_store(rows, self._reading)) for rows in self._tables)

    @property
    def borrowed_bytes(self) -> int:
        """Bytes of the host's memory that this rank maps: features in place, and slots; the plan counts them once."""
        slots = sum(embedding.rows.num_bytes for embedding in self.trained)
        return slots + sum(
            tier.features.rows.nbytes for tier in self.device_tiers if tier.features is not None
        )

    def explain(self) -> str:
        """Return lines with the loading rank, its tiers, and the rows on this rank's device."""
        host = f"rank {self._host} loads for all ranks of this machine:\n{self._client.welcome.text}"
        return "\n".join(filter(None, [host, *(tier.explain() for tier in self.device_tiers)]))

    def begin(
        self,
        *,
        stream: BatchStream,
        labels: SeedLabels | RowAnswers | None,
        timeline: RecentTimeline | None,
        feedback: RunFeedback,
    ) -> ClientRun:
        """Begin a run at the start of ``stream``, together with the machine's other ranks.

        Parameters
        ----------
        stream, labels, timeline, feedback : as in `ClientRun`
        """
        return ClientRun(
            self._client,
            stream=stream,
            labels=labels,
            device=self._device,
            tiers=self.device_tiers,
            types=self.types,
            timeline=timeline,
            feedback=feedback,
            stall_timeout_s=self._stall_timeout_s,
            embed=Embed(self.trained, self._frozen, self._device.place),
        )

    def close(self) -> None:
        """Release everything. Idempotent."""
        self._stack.close()
