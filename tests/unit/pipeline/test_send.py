"""The verb "send": a gathered batch in, tensors with their labels out, and the buffer is free again."""

import numpy as np

from gloader.device import CpuDevice, DeviceTier
from gloader.pipeline.gather import HostBatch
from gloader.pipeline.positions import SeedLabels
from gloader.pipeline.send import Send
from gloader.pipeline.transfer import Transfer
from gloader.types import BatchId, SampledBatch

from .items import DIM, FEATURES, ORDER, instruments, ring, seconds_of

LABELS = np.arange(100, 120)


def test_a_batch_comes_with_its_labels_and_leaves_its_buffer() -> None:
    buffers, found = ring(num_buffers=1), instruments()
    x = buffers.acquire(4)
    x[:] = FEATURES[:4]
    batch_id = BatchId(epoch=2, index=1)
    sampled = SampledBatch(id=batch_id, nodes=np.arange(4), num_seeds=4, blocks=())
    host = HostBatch(
        sampled=sampled,
        x=x,
        src_degree=np.ones(4, dtype=np.float32),
        superbatch=5,
        ends_superbatch=True,
    )
    send = Send(Transfer(DeviceTier(device=CpuDevice(rehearses=True))), SeedLabels(ORDER, LABELS), found)
    sent = send.process(host)
    del host, x
    assert buffers.acquire(4).shape == (4, DIM)  # the only one
    ready = sent.receive()
    np.testing.assert_array_equal(ready.x.numpy(), FEATURES[:4])
    positions = ORDER.batch_seeds(ORDER.epoch_positions(2), 1)
    np.testing.assert_array_equal(ready.y.numpy(), LABELS[positions])
    assert (sent.superbatch, sent.ends_superbatch) == (5, True)
    assert seconds_of(found, "transfer", epoch=2) > 0
