"""The steps of several ranks as one stream, and their buffers in turn."""

import numpy as np
import pytest

from gloader.core.order import EpochOrder
from gloader.errors import ChannelClosedError
from gloader.pipeline.buffers import BufferRing, InterleavedRings, RowForm
from gloader.pipeline.seeds import BatchStream
from gloader.types import BatchId


def _order(rank: int, **settings: object) -> EpochOrder:
    return EpochOrder(
        seeds=np.arange(53), num_nodes=60, batch_size=4, seed=1, rank=rank, world_size=3, **settings
    )


@pytest.mark.parametrize("seed_blocks", [1, 4])
@pytest.mark.parametrize("ranks", [(0, 1, 2), (1, 2)])
def test_a_position_is_a_step_of_one_rank(ranks: tuple[int, ...], seed_blocks: int) -> None:
    first = BatchId(epoch=2, index=3)
    stream = BatchStream(_order(ranks[0], seed_blocks=seed_blocks), first, end_epoch=4, ranks=ranks)
    own = [BatchStream(_order(rank, seed_blocks=seed_blocks), first, end_epoch=4) for rank in ranks]
    position = 0
    while stream.has(position):
        step, turn = divmod(position, len(ranks))
        assert stream.id_of(position) == own[turn].id_of(step)
        np.testing.assert_array_equal(stream.seeds_at(position), own[turn].seeds_at(step))
        position += 1
    assert position == len(ranks) * (2 * _order(0).num_batches - 3)
    assert not own[0].has(position // len(ranks))


def _rings() -> InterleavedRings:
    return InterleavedRings(
        [BufferRing(forms=[RowForm(dim=1)], rows=[10], max_bytes=40 * count) for count in (2, 1)]
    )


def test_buffers_come_from_one_ring_after_the_other() -> None:
    rings = _rings()
    first = rings.acquire([10])[0]
    second = rings.acquire([10])[0]
    address = second.ctypes.data
    third = rings.acquire([10])[0]
    del second
    assert rings.acquire([10])[0].ctypes.data == address
    assert first.ctypes.data != third.ctypes.data
    assert rings.blocked_on is None


def test_a_cancelled_wait_names_whom_it_waited_for_and_the_next_run_begins_with_the_first() -> None:
    rings = _rings()
    rings.acquire([1])[0]
    rings.cancel()
    with pytest.raises(ChannelClosedError):
        rings.acquire([1])[0]
    assert rings.blocked_on == 1
    rings.resume()
    held = [rings.acquire([10])[0] for _ in range(3)]
    assert len(held) == 3
