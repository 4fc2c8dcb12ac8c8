"""Small arrays go to the device as one block and come out as they were."""

import numpy as np
import torch

from gloader.device.host_memory import pack, pack_offsets, unpack


def test_every_array_comes_out_as_it_was() -> None:
    arrays = [
        np.arange(5, dtype=np.int64),
        np.arange(3, dtype=np.int32),
        np.empty(0, dtype=np.int32),
        np.linspace(0, 1, 7, dtype=np.float32),
        np.arange(12, dtype=np.float64).reshape(3, 4),
        np.arange(20, dtype=np.int32)[::2],
    ]
    offsets = pack_offsets(arrays)
    assert all(offset % 16 == 0 for offset in offsets)
    block = np.full(offsets[-1], 255, dtype=np.uint8)
    pack(arrays, offsets, block)
    tensors = unpack(torch.from_numpy(block), arrays, offsets)
    for array, tensor in zip(arrays, tensors, strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array)
        array[...] = 0  # a copy: the sampler's arrays may go
    assert tensors[0].tolist() == [0, 1, 2, 3, 4]


def test_nothing_packs_into_nothing() -> None:
    assert pack_offsets([]) == (0,)
    assert unpack(torch.empty(0, dtype=torch.uint8), [], (0,)) == ()
