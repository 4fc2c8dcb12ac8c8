"""A batch of several types written into memory and read back, and what another dataset's batch says."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gloader.distributed.shared_memory import (
    BatchShape,
    read_batch,
    shape_of,
    write_batch,
)
from gloader.errors import RankError
from gloader.types import BatchId, BatchTypes, Block, HeteroBatch, Links, Relation

NO_DEGREES = np.empty(0, dtype=np.float32)
NAMES = ("paper", "author", "term")
RELATIONS: tuple[Relation, ...] = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("term", "of", "author"),
)
COUNTS = st.integers(0, 9)


@st.composite
def _batches(draw: st.DrawFn) -> tuple[HeteroBatch, BatchTypes]:
    rng = np.random.Generator(np.random.Philox(draw(st.integers(0, 99))))
    names = NAMES[: draw(st.integers(1, 3))]
    relations = RELATIONS[: draw(COUNTS) % 4]

    def block() -> Block:
        num_edges, num_dst = draw(st.integers(0, 60)), draw(COUNTS)
        weights = rng.random(num_edges, dtype=np.float32)
        return Block(
            indptr=rng.integers(0, 99, num_dst + 1).astype(np.int32),
            indices=rng.integers(0, 99, num_edges).astype(np.int32),
            edge_ids=rng.integers(0, 2**60, num_edges),
            num_src=draw(COUNTS),
            num_dst=num_dst,
            edge_weight=weights if draw(st.booleans()) else None,
        )

    nodes = {name: rng.integers(0, 2**60, draw(COUNTS)) for name in names}
    num_pairs = draw(COUNTS)
    links = Links(
        pairs=rng.integers(0, 99, (num_pairs, 2)).astype(np.int32),
        labels=rng.integers(0, 99, num_pairs).astype(draw(st.sampled_from(["float32", "int64"]))),
        edge_ids=rng.integers(-1, 2**60, num_pairs),
        num_positives=num_pairs // 2,
    )
    trees = {name: rng.integers(0, 99, len(ids)).astype(np.int32) for name, ids in nodes.items()}
    batch = HeteroBatch(
        id=BatchId(epoch=draw(COUNTS), index=draw(COUNTS)),
        nodes=nodes,
        links=links if draw(st.booleans()) else None,
        trees=trees if draw(st.booleans()) else None,
        num_seeds={name: draw(COUNTS) for name in names},
        blocks=tuple({relation: block() for relation in relations} for _ in range(draw(st.integers(0, 3)))),
    )
    return batch, BatchTypes(nodes=names, relations=relations, are_named=True)


def _arrays(batch: HeteroBatch) -> list[NDArray[Any] | None]:
    found: list[NDArray[Any] | None] = [*batch.node_arrays]
    for block in batch.all_blocks:
        found += [block.indptr, block.indices, block.edge_ids, block.edge_weight]
    found += [None] if batch.trees is None else [*batch.trees.values()]
    links = batch.links
    return [*found, *([None] if links is None else [links.pairs, links.labels, links.edge_ids])]


@given(made=_batches())
def test_a_batch_of_several_types_comes_back_as_it_was(made: tuple[HeteroBatch, BatchTypes]) -> None:
    batch, types = made
    shape = shape_of(batch, NO_DEGREES)
    memory = np.full(shape.num_bytes + 8, 0xAB, dtype=np.uint8)
    write_batch(batch, NO_DEGREES, shape, memory)
    assert (memory[shape.num_bytes :] == 0xAB).all()
    parsed = BatchShape.from_json(json.loads(json.dumps(shape)))
    assert parsed == shape
    found, degrees = read_batch(parsed, memory, types)
    assert isinstance(found, HeteroBatch)
    assert degrees.shape == (0,)
    assert (found.id, found.num_seeds, list(found.nodes)) == (batch.id, batch.num_seeds, list(batch.nodes))
    assert list(found.trees or {}) == list(batch.trees or {})
    assert (found.links and found.links.num_positives) == (batch.links and batch.links.num_positives)
    assert [list(hop) for hop in found.blocks] == [list(hop) for hop in batch.blocks]
    assert [(b.num_src, b.num_dst) for b in found.all_blocks] == [
        (b.num_src, b.num_dst) for b in batch.all_blocks
    ]
    for ours, theirs in zip(_arrays(found), _arrays(batch), strict=True):
        if theirs is None:
            assert ours is None
            continue
        assert ours is not None
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def _small() -> BatchShape:
    return BatchShape.from_json([0, 0, [3, 0], [2, 0], [[], []], 0, False, []])


@pytest.mark.parametrize(
    ("types", "says"),
    [
        (BatchTypes(nodes=("a",), relations=()), "batch of 2 types, where the dataset has 1 types and 0"),
        (BatchTypes(nodes=("a", "b"), relations=(("a", "r", "b"),)), "has 2 types and 1 relations; use one"),
        (BatchTypes(), "has 1 types and 1 relations; use one dataset and one kind of loader on all ranks"),
    ],
)
def test_a_batch_of_another_dataset_is_refused(types: BatchTypes, says: str) -> None:
    shape = _small()
    with pytest.raises(RankError, match=says):
        read_batch(shape, np.zeros(shape.num_bytes, dtype=np.uint8), types)


def test_a_batch_that_is_longer_than_its_memory_is_refused() -> None:
    shape = _small()
    with pytest.raises(
        RankError, match=f"sent a batch of {shape.num_bytes} B in a segment of {shape.num_bytes - 1} B; use"
    ):
        read_batch(shape, np.zeros(shape.num_bytes - 1, dtype=np.uint8), BatchTypes())


@pytest.mark.parametrize(
    "sizes",
    [
        None,
        [0, 0, [1], [1], [], 1, False],
        [0, 0, 1, [1], [], 1, False, []],
        [0, 0, [1], 1, [], 1, False, []],
        [0, 0, [1], ["1"], [], 1, False, []],
        [0, 0, [1], [True], [], 1, False, []],
        [0, 0, [[]], [1], [], 1, False, []],
        [0, 0, [1], [1], [1], 1, False, []],
        [0, 0, [1], [1], [[1]], 1, False, []],
        [0, 0, [1], [1], [[[1, 1, 1]]], 1, False, []],
        [0, 0, [1], [1], [], True, False, []],
        [0, 0, [1], [1], [], 1, 0, []],
    ],
)
def test_what_are_no_sizes_of_a_batch_is_refused(sizes: object) -> None:
    with pytest.raises(ValueError, match=r"not the sizes of a (batch|block)"):
        BatchShape.from_json(sizes)


@given(_batches())
def test_ids_that_a_loop_keeps_hold_no_shared_memory(found: tuple[HeteroBatch, BatchTypes]) -> None:
    batch, types = found
    shape = shape_of(batch, NO_DEGREES)
    memory = np.zeros(shape.num_bytes, dtype=np.uint8)
    write_batch(batch, NO_DEGREES, shape, memory)
    shared, _ = read_batch(shape, memory, types)
    own, _ = read_batch(shape, memory, types, copies_ids=True)
    kept = [*own.node_arrays, *(block.edge_ids for block in own.all_blocks)]
    there = [*shared.node_arrays, *(block.edge_ids for block in shared.all_blocks)]
    assert [ids.tolist() for ids in kept] == [ids.tolist() for ids in there]
    assert all(ids.base is None for ids in kept)
