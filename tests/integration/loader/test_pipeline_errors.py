"""A stage that raises: first error wins, with a note, and every thread is joined."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gloader.errors import ChannelClosedError
from gloader.gather import HostBatch
from gloader.pipeline import EpochPipeline, EpochTasks
from gloader.types import BatchId, SampledBatch


def _batch(index: int) -> Any:
    return SampledBatch(id=BatchId(epoch=3, index=index), nodes=None, num_seeds=0, blocks=())  # type: ignore[arg-type]


def _pipeline(
    sample: Callable[[int], Any] = _batch, gather: Callable[[Any], Any] = lambda batch: batch
) -> EpochPipeline:
    tasks = EpochTasks(epoch=3, first=0, end=20, sample=sample, gather=gather)
    pipeline = EpochPipeline(tasks, num_samplers=3, window=4, prefetch=1, on_close=lambda: None)
    pipeline.start()
    return pipeline


def _drain(pipeline: EpochPipeline) -> tuple[list[int], BaseException]:
    delivered: list[int] = []
    try:
        while True:
            batch: HostBatch | SampledBatch = pipeline.get()
            delivered.append(batch.id.index)  # type: ignore[union-attr]
    except BaseException as error:
        return delivered, error
    finally:
        pipeline.close()
        assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")] == []


def test_batches_come_in_order_and_the_end_is_closed() -> None:
    delivered, error = _drain(_pipeline(lambda i: (time.sleep(0.002 * (i % 3)), _batch(i))[1]))
    assert delivered == list(range(20))
    assert isinstance(error, ChannelClosedError)


@pytest.mark.reliability("D1")
@pytest.mark.reliability("D3")
@pytest.mark.parametrize("at", [0, 9, 19])
@pytest.mark.parametrize("kind", [ValueError, MemoryError, SystemExit, KeyboardInterrupt])
def test_a_sampler_that_raises_reaches_the_consumer(at: int, kind: type[BaseException]) -> None:
    boom = kind("boom")

    def sample(index: int) -> Any:
        if index == at:
            raise boom
        return _batch(index)

    delivered, error = _drain(_pipeline(sample))
    assert error is boom
    assert delivered == list(range(at))
    assert error.__notes__ == [f"in stage sample, epoch 3, batch {at}"]
    assert error.__traceback__ is not None


@pytest.mark.reliability("D2")
@pytest.mark.parametrize("at", [0, 9, 19])
def test_a_gather_that_raises_reaches_the_consumer(at: int) -> None:
    def gather(batch: Any) -> Any:
        if batch.id.index == at:
            raise OSError("disk")
        return batch

    delivered, error = _drain(_pipeline(gather=gather))
    assert isinstance(error, OSError)
    assert error.__notes__ == [f"in stage gather, epoch 3, batch {at}"]
    assert delivered == list(range(at))


def test_close_with_everything_in_flight_joins_at_once() -> None:
    pipeline = _pipeline()
    pipeline.get()
    started = time.monotonic()
    pipeline.close()
    pipeline.close()
    assert time.monotonic() - started < 5
    with pytest.raises(ChannelClosedError):
        pipeline.get()
