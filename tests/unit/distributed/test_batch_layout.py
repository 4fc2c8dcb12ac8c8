"""A batch written into memory and read back, and views that keep the memory."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.distributed.shared_memory import BatchShape, read_batch, shape_of, write_batch
from gloader.errors import RankError
from gloader.pipeline.gather import HostBatch
from gloader.types import BatchId, BatchTypes, Block, Links, SampledBatch

PLAIN = BatchTypes()


def _links(num_pairs: int, dtype: str, *, has_times: bool = False, num_shared: int = 0) -> Links:
    rng = np.random.Generator(np.random.Philox(2))
    return Links(
        pairs=rng.integers(0, 99, (num_pairs, 2)).astype(np.int32),
        labels=rng.integers(0, 99, num_pairs).astype(dtype),
        edge_ids=rng.integers(-1, 2**60, num_pairs),
        num_positives=num_pairs // 3,
        times=rng.integers(-(2**40), 2**40, num_pairs // 3) if has_times else None,
        shared=rng.integers(0, 99, (2, num_shared)).astype(np.int32) if num_shared else None,
    )


LINKS = st.none() | st.builds(
    _links,
    st.integers(0, 50),
    st.sampled_from(["float32", "int64"]),
    has_times=st.booleans(),
    num_shared=st.integers(0, 9),
)


def _batch(
    sizes: list[tuple[int, int, int]],
    *,
    weighted: bool,
    num_nodes: int = 9,
    links: Links | None = None,
    has_trees: bool = False,
) -> HostBatch:
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
    nodes = rng.integers(0, 2**60, num_nodes) // (2**58 if has_trees else 1)  # of trees, nodes repeat
    return HostBatch(
        sampled=SampledBatch(
            id=BatchId(epoch=3, index=5),
            nodes=nodes,
            num_seeds=2,
            blocks=blocks,
            links=links,
            trees=rng.integers(0, 2, num_nodes).astype(np.int32) if has_trees else None,
        ),
        x=(np.zeros((num_nodes, 1), dtype=np.float32),),
        src_degree=rng.random(num_nodes, dtype=np.float32),
        superbatch=0,
        ends_superbatch=False,
    )


def _shape(host: HostBatch) -> BatchShape:
    return shape_of(host.sampled, host.src_degree)


def _sent(shape: BatchShape) -> list[Any]:
    """Return the sizes that the other side receives."""
    return json.loads(json.dumps(shape))


def _arrays(batch: SampledBatch) -> list[Any]:
    found = [batch.nodes]
    for block in batch.blocks:
        found += [block.indptr, block.indices, block.edge_ids, block.edge_weight]
    links = batch.links
    told = [] if links is None else [links.pairs, links.labels, links.edge_ids, links.times, links.shared]
    return [*found, batch.trees, *told]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 200)), max_size=4),
    weighted=st.booleans(),
    links=LINKS,
    has_trees=st.booleans(),
)
def test_a_batch_comes_back_as_it_was(
    sizes: list[tuple[int, int, int]], weighted: bool, links: Links | None, has_trees: bool
) -> None:
    host = _batch(sizes, weighted=weighted, links=links, has_trees=has_trees)
    shape = _shape(host)
    memory = np.full(shape.num_bytes + 8, 0xAB, dtype=np.uint8)
    write_batch(host.sampled, host.src_degree, shape, memory)
    assert (memory[shape.num_bytes :] == 0xAB).all()
    parsed = BatchShape.from_json(_sent(shape))
    assert parsed == shape
    found, degrees = read_batch(parsed, memory, PLAIN)
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
    assert (found.links is None) == (links is None)
    if found.links is not None and links is not None:
        assert found.links.num_positives == links.num_positives


def test_a_batch_of_nodes_has_the_sizes_that_it_had() -> None:
    host = _batch([(3, 2, 5)], weighted=False)
    assert _sent(_shape(host)) == [3, 5, [9], [2], [[[3, 2, 5, False]]], 9, False, []]
    linked = _batch([(3, 2, 5)], weighted=False, links=_links(4, "int64"))
    sizes = [3, 5, [9], [2], [[[3, 2, 5, False]]], 9, False, [[4, 1, "int64", False, 0]]]
    assert _sent(_shape(linked)) == sizes


def test_links_that_a_loop_keeps_hold_no_shared_memory() -> None:
    host = _batch([], weighted=False, links=_links(4, "float32", has_times=True), has_trees=True)
    shape = _shape(host)
    memory = np.zeros(shape.num_bytes, dtype=np.uint8)
    write_batch(host.sampled, host.src_degree, shape, memory)
    sampled, _ = read_batch(shape, memory, PLAIN, copies_ids=True)
    assert isinstance(sampled, SampledBatch)
    own = sampled.links
    assert own is not None
    assert host.sampled.links is not None
    assert not np.shares_memory(sampled.trees, memory)
    np.testing.assert_array_equal(sampled.trees, host.sampled.trees)
    for name in ("pairs", "labels", "edge_ids", "times"):
        kept = getattr(own, name)
        assert not np.shares_memory(kept, memory)
        np.testing.assert_array_equal(kept, getattr(host.sampled.links, name))


def test_labels_of_another_dtype_are_refused() -> None:
    host = _batch([], weighted=False, links=_links(4, "float64"))
    with pytest.raises(
        TypeError, match=r"^labels of links have dtype float64; they must be float32 or int64$"
    ):
        _shape(host)


def test_an_array_of_another_dtype_is_refused() -> None:
    host = _batch([], weighted=False)
    shape = _shape(host)
    wrong: Any = host.src_degree.astype(np.float64)
    with pytest.raises(TypeError, match="float64"):
        write_batch(host.sampled, wrong, shape, np.zeros(shape.num_bytes, dtype=np.uint8))


NODES_ALONE: list[Any] = [0, 0, [1], [1], [], 1, False, []]


@pytest.mark.parametrize(
    "links",
    [
        None,
        [[]],
        [None],
        [[1, 1, "int64"]],
        [[1, 1, "int64", 0, 0]],
        [[1, 1, "int64", True, None]],
        [[1, 2, "int64", False, 0]],
        [[1, 1, "int64", False]],
        [[1, 1, "int64", False, -1]],
        [[1, -1, "int64", False, 0]],
        [[-1, -1, "int64", False, 0]],
        [[True, 0, "int64", False, 0]],
        [[1, 1, "float64", False, 0]],
        [[1, 1, ["int64"], False]],
        [{"num_pairs": 1}],
        [[1, 1, "int64", True, 0], [1, 1, "int64", True, 0]],
    ],
)
def test_what_are_no_sizes_of_links_is_refused(links: Any) -> None:
    BatchShape.from_json([*NODES_ALONE[:-1], [[1, 1, "int64", True, 0]]])
    with pytest.raises(ValueError, match=r"not the sizes of (links|a batch)"):
        BatchShape.from_json([*NODES_ALONE[:-1], links])


def test_links_that_are_longer_than_their_memory_are_refused() -> None:
    shape = _shape(_batch([], weighted=False, links=_links(4, "float32")))
    large = [*_sent(shape)[:-1], [[2**40, 0, "float32", False, 0]]]
    with pytest.raises(RankError, match=r"sent a batch of \d+ B in"):
        read_batch(BatchShape.from_json(large), np.zeros(shape.num_bytes, dtype=np.uint8), PLAIN)
