"""A batch written into memory and read back, and views that keep the memory."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.distributed.batch_layout import BatchShape, read_batch, write_batch
from gloader.pipeline.gather import HostBatch
from gloader.types import BatchId, Block, SampledBatch


def _batch(sizes: list[tuple[int, int, int]], *, weighted: bool, num_nodes: int = 9) -> HostBatch:
    rng = np.random.Generator(np.random.Philox(1))
    blocks = tuple(
        Block(
            indptr=rng.integers(0, 99, num_dst + 1).astype(np.int32),
            indices=rng.integers(0, 99, num_edges).astype(np.int32),
            edge_ids=rng.integers(0, 2**60, num_edges),
            num_src=num_src,
            num_dst=num_dst,
            edge_weight=rng.random(num_edges, dtype=np.float32) if weighted else None,
        )
        for num_src, num_dst, num_edges in sizes
    )
    nodes = rng.integers(0, 2**60, num_nodes)
    return HostBatch(
        sampled=SampledBatch(id=BatchId(epoch=3, index=5), nodes=nodes, num_seeds=2, blocks=blocks),
        x=(np.zeros((num_nodes, 1), dtype=np.float32),),
        src_degree=rng.random(num_nodes, dtype=np.float32),
        superbatch=0,
        ends_superbatch=False,
    )


def _arrays(batch: SampledBatch) -> list[Any]:
    found = [batch.nodes]
    for block in batch.blocks:
        found += [block.indptr, block.indices, block.edge_ids, block.edge_weight]
    return found


@given(
    sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 200)), max_size=4),
    weighted=st.booleans(),
)
def test_a_batch_comes_back_as_it_was(sizes: list[tuple[int, int, int]], weighted: bool) -> None:
    host = _batch(sizes, weighted=weighted)
    shape = BatchShape.of(host.sampled)
    memory = np.full(shape.num_bytes + 8, 0xAB, dtype=np.uint8)
    write_batch(host.sampled, host.src_degree, shape, memory)
    assert (memory[shape.num_bytes :] == 0xAB).all()
    parsed = BatchShape.from_json(shape.to_json())
    assert parsed == shape
    found, degrees = read_batch(parsed, memory)
    assert (found.id, found.num_seeds) == (host.sampled.id, 2)
    assert [(b.num_src, b.num_dst) for b in found.blocks] == [
        (b.num_src, b.num_dst) for b in host.sampled.blocks
    ]
    for ours, theirs in zip(_arrays(found), _arrays(host.sampled), strict=True):
        if theirs is None:
            assert ours is None
            continue
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(degrees, host.src_degree)


def test_an_array_of_another_dtype_is_refused() -> None:
    host = _batch([], weighted=False)
    shape = BatchShape.of(host.sampled)
    wrong: Any = host.src_degree.astype(np.float64)
    with pytest.raises(TypeError, match="float64"):
        write_batch(host.sampled, wrong, shape, np.zeros(shape.num_bytes, dtype=np.uint8))


@pytest.mark.parametrize(
    "sizes", [None, [0, 0, 1, 1], [0, 0, 1, "1", []], [0, 0, 1, 1, [[1, 1, 1]]], [0, 0, 1, 1, [1]]]
)
def test_what_are_no_sizes_of_a_batch_is_refused(sizes: object) -> None:
    with pytest.raises(ValueError, match=r"not the sizes of a (batch|block)"):
        BatchShape.from_json(sizes)
