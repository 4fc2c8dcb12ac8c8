"""One epoch under way: its stages, and the iterator that the consumer holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from gloader.errors import ChannelClosedError
from gloader.gather import HostBatch
from gloader.pipeline import EpochPipeline, EpochTasks
from gloader.stats import EpochStats, StatsRecorder
from gloader.transfer import transfer
from gloader.types import BatchId, IdArray, ReadyBatch, SampledBatch

if TYPE_CHECKING:
    import torch

    from gloader.feature_tier import FeatureTier
    from gloader.order import EpochOrder


class OnEnd(Protocol):
    """Told once how an epoch ended."""

    def __call__(self, stats: EpochStats, *, is_complete: bool) -> None:
        """Take the statistics and whether every batch was handed out."""


class _Stages:
    """What the stage threads of one epoch do. Holds neither the pipeline nor the iterator: no cycle, no leak."""

    def __init__(self, tier: FeatureTier, order: EpochOrder, epoch: int, recorder: StatsRecorder) -> None:
        self._tier = tier
        self._order = order
        self._ordered = order.epoch_seeds(epoch)
        self._epoch = epoch
        self._recorder = recorder

    def sample(self, index: int) -> SampledBatch:
        """Sample batch ``index``."""
        seeds = self._order.batch_seeds(self._ordered, index)
        with self._recorder.stage("sample"):
            return self._tier.sampler.sample(BatchId(epoch=self._epoch, index=index), seeds)

    def gather(self, batch: SampledBatch) -> HostBatch:
        """Gather the features of ``batch``."""
        x = self._tier.gather.gather(batch.nodes, self._recorder)
        return HostBatch(sampled=batch, x=x, src_degree=self._tier.graph.in_degrees(batch.nodes))


class EpochRun:
    """One epoch from batch ``first`` on. Owns the pipeline's threads until `close`."""

    def __init__(
        self,
        *,
        tier: FeatureTier,
        order: EpochOrder,
        labels: IdArray,
        device: torch.device,
        first: BatchId,
        num_samplers: int,
    ) -> None:
        self.first = first
        self.recorder = StatsRecorder(first.epoch)
        self._tier = tier
        self._labels = labels
        self._device = device
        stages = _Stages(tier, order, first.epoch, self.recorder)
        tasks = EpochTasks(
            epoch=first.epoch,
            first=first.index,
            end=order.num_batches,
            sample=stages.sample,
            gather=stages.gather,
        )
        tier.ring.resume()
        self._pipeline = EpochPipeline(
            tasks,
            num_samplers=num_samplers,
            window=tier.batches_in_flight,
            prefetch=1,
            on_close=tier.ring.cancel,
        )
        self._pipeline.start()

    def next_batch(self) -> ReadyBatch:
        """Return the next batch on the compute device; ChannelClosedError when the epoch is over."""
        with self.recorder.stage("wait"), self._tier.ring.consumer_waits():
            host = self._pipeline.get()
        with self.recorder.stage("transfer"):
            return transfer(host, self._labels, self._device)

    def close(self) -> None:
        """Stop and join the stage threads. Idempotent."""
        self._pipeline.close()


class EpochIterator(Iterator[ReadyBatch]):
    """What ``iter(loader)`` returns. Ends its run when the epoch ends, fails, or the iterator is dropped."""

    def __init__(self, run: EpochRun, *, on_batch: Callable[[BatchId], None], on_end: OnEnd) -> None:
        self._run = run
        self._on_batch = on_batch
        self._on_end = on_end
        self._handed_out_at: float | None = None
        self.is_running = True

    @property
    def stats(self) -> EpochStats:
        """What the epoch moved so far."""
        return self._run.recorder.snapshot()

    def __next__(self) -> ReadyBatch:
        """Return the next batch; an error of any stage is raised here, with a note on where it happened."""
        if not self.is_running:
            raise StopIteration
        if self._handed_out_at is not None:
            self._run.recorder.add_seconds("compute", time.perf_counter() - self._handed_out_at)
        try:
            batch = self._run.next_batch()
        except ChannelClosedError:
            self._finish(is_complete=True)
            raise StopIteration from None
        except BaseException:
            self._finish(is_complete=False)
            raise
        self._run.recorder.add_batch(batch.num_seeds)
        self._on_batch(batch.id)
        self._handed_out_at = time.perf_counter()
        return batch

    def close(self) -> None:
        """Stop the epoch where it is. Idempotent."""
        if self.is_running:
            self._finish(is_complete=False)

    def _finish(self, *, is_complete: bool) -> None:
        self.is_running = False
        self._run.close()
        self._on_end(self._run.recorder.snapshot(), is_complete=is_complete)

    def __del__(self) -> None:
        if getattr(self, "is_running", False):
            self.close()
