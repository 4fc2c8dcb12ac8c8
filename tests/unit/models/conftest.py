from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from gloader.types import DeviceBlock

if TYPE_CHECKING:
    from collections.abc import Iterator


def _block(indptr, indices, *, num_src, src_degree=None):
    indptr = torch.as_tensor(np.asarray(indptr, dtype=np.int32))
    indices = torch.as_tensor(np.asarray(indices, dtype=np.int32))
    if src_degree is None:
        src_degree = torch.zeros(num_src)
        src_degree[: len(indptr) - 1] = indptr.diff().float()
    return DeviceBlock(
        indptr=indptr,
        indices=indices,
        edge_ids=torch.arange(len(indices)),
        src_degree=torch.as_tensor(src_degree, dtype=torch.float32),
        num_src=num_src,
        num_dst=len(indptr) - 1,
    )


@pytest.fixture
def make_block():
    """Build a `DeviceBlock`; the degrees of the destinations are their edges unless given."""
    return _block


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tensors this small only lose by being shared between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
