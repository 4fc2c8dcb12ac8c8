"""A malformed topology is refused at the door, with the position and the value in the message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.errors import GloaderError, GraphError
from gloader.samplers import CscGraph, graph
from gloader.samplers.graph import float_in_degrees, in_degrees

if TYPE_CHECKING:
    from pathlib import Path

INDPTR = np.array([0, 2, 2, 5], dtype=np.int64)
INDICES = np.array([1, 2, 0, 1, 1], dtype=np.int32)


def build(**changes: Any) -> CscGraph:
    return CscGraph(**({"indptr": INDPTR, "indices": INDICES} | changes))


def test_sizes_and_degrees() -> None:
    built = build()
    assert (built.num_nodes, built.num_edges) == (3, 5)
    assert built.in_degrees(np.array([2, 0, 2, 1])).tolist() == [3, 2, 3, 0]
    assert built.in_degrees(np.array([2], dtype=np.int8)).dtype == np.int64
    assert built.in_degrees(np.empty(0, dtype=np.int64)).shape == (0,)


@pytest.mark.parametrize("nodes", [[3], [-1], [0, 2**40]])
def test_degrees_of_foreign_nodes_are_refused(nodes: list[int]) -> None:
    for count in (in_degrees, float_in_degrees):
        with pytest.raises(GraphError, match=r"node ids \[.*\] are not in 0\.\.2"):
            count(build().offsets, np.array(nodes))


def test_degrees_for_message_passing_are_float32() -> None:
    found = float_in_degrees(build().offsets, np.array([2, 0, 2, 1]))
    assert (found.dtype, found.tolist()) == (np.dtype(np.float32), [3, 2, 3, 0])


def test_degrees_of_fractions_are_refused() -> None:
    with pytest.raises(GraphError, match="in_degrees takes integers"):
        build().in_degrees(np.array([0.5]))


def test_the_arrays_are_used_in_place_and_cannot_be_written() -> None:
    built = build()
    assert np.shares_memory(built.indices, INDICES)
    with pytest.raises(ValueError, match="read-only"):
        built.indices[0] = 2
    assert INDICES.flags.writeable


def test_memory_mapped_arrays(tmp_path: Path) -> None:
    for name, array in (("indptr", INDPTR), ("indices", INDICES)):
        np.save(tmp_path / f"{name}.npy", array)
    built = CscGraph(
        **{name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices")}
    )
    assert built.in_degrees(np.arange(3)).tolist() == [2, 0, 3]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_both_id_dtypes(dtype: type) -> None:
    assert build(indices=INDICES.astype(dtype)).indices.dtype == dtype


@pytest.mark.reliability("C6")
def test_graphs_without_nodes_or_edges() -> None:
    nothing = CscGraph(indptr=np.zeros(1, dtype=np.int64), indices=np.empty(0, dtype=np.int32))
    assert (nothing.num_nodes, nothing.num_edges) == (0, 0)
    isolated = CscGraph(indptr=np.zeros(2, dtype=np.int64), indices=np.empty(0, dtype=np.int32))
    assert (isolated.num_nodes, isolated.num_edges) == (1, 0)


@pytest.mark.reliability("C2")
@pytest.mark.parametrize(
    ("indptr", "message"),
    [
        ([], "indptr is empty; it must have N \\+ 1 entries"),
        ([1, 2, 5], r"indptr\[0\] is 1; it must be 0"),
        ([0, 2, 4], r"indptr\[2\], its end, is 4; it must be the length of indices, 5"),
        ([0, 2, 6], r"indptr\[2\], its end, is 6; it must be the length of indices, 5"),
        ([0, 3, 2, 5], r"indptr is not monotone: indptr\[2\] = 2 is smaller than indptr\[1\] = 3"),
        ([0, -1, 2, 5], r"indptr is not monotone: indptr\[1\] = -1"),
        ([0, 9, 9, 5], r"indptr is not monotone: indptr\[3\] = 5"),
        ([[0, 5]], r"indptr has shape \(1, 2\)"),
    ],
)
def test_malformed_indptr(indptr: list[int], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        build(indptr=np.array(indptr, dtype=np.int64))


@pytest.mark.reliability("C2")
@pytest.mark.parametrize("bad", [-1, 3, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("position", [0, 3, 4])
def test_neighbour_ids_out_of_range(bad: int, position: int) -> None:
    indices = INDICES.copy()
    indices[position] = bad
    with pytest.raises(
        GraphError, match=rf"indices\[{position}\] = {bad} is not a node: ids must be in 0\.\.2"
    ):
        build(indices=indices)


def test_every_chunk_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "CHUNK", 2)
    build(edge_weight=np.ones(5))
    with pytest.raises(GraphError, match=r"indices\[4\] = 7"):
        build(indices=np.array([1, 2, 0, 1, 7]))
    with pytest.raises(GraphError, match=r"indptr\[3\] = 5 is smaller than indptr\[2\] = 6"):
        build(indptr=np.array([0, 2, 6, 5]))
    with pytest.raises(GraphError, match=r"edge_weight\[4\] = -2"):
        build(edge_weight=np.array([1.0, 1, 1, 1, -2]))


@pytest.mark.reliability("C2")
def test_offsets_whose_differences_no_integer_holds_are_seen() -> None:
    indptr = np.full(12_001, len(INDICES))
    indptr[:4000] = 0
    indptr[4000:9000] = 5
    indptr[5000:9000] = -(2**63)
    with pytest.raises(
        GraphError, match=r"indptr\[5000\] = -9223372036854775808 is smaller than indptr\[4999\] = 5"
    ):
        build(indptr=indptr, indices=np.zeros(5, np.int32))


def test_validation_can_be_left_out() -> None:
    assert build(indices=np.array([9, 9, 9, 9, 9]), validate=False).num_edges == 5


@pytest.mark.reliability("C3")
@pytest.mark.parametrize(
    "dtype", ["float64", "float32", ">i8", ">i4", "uint64", "uint32", "int32", "int16", "bool", "O", "U1"]
)
def test_indptr_of_a_wrong_dtype(dtype: str) -> None:
    with pytest.raises(
        GraphError, match=r"indptr has dtype .*; it must be native int64: check that its values fit"
    ):
        build(indptr=INDPTR.astype(dtype))


@pytest.mark.reliability("C3")
@pytest.mark.parametrize(
    "dtype", ["float64", "float32", ">i8", ">i4", "uint64", "uint32", "int16", "bool", "O", "U1"]
)
def test_indices_of_a_wrong_dtype(dtype: str) -> None:
    with pytest.raises(GraphError, match=r"indices has dtype .*; it must be native int32 or int64"):
        build(indices=INDICES.astype(dtype))


@pytest.mark.reliability("C3")
def test_the_message_names_a_foreign_byte_order() -> None:
    with pytest.raises(GraphError, match=r"in foreign byte order \(>i8\)"):
        build(indptr=INDPTR.astype(">i8"))


@pytest.mark.parametrize("name", ["indptr", "indices"])
def test_lists_are_refused(name: str) -> None:
    with pytest.raises(GraphError, match=rf"{name} is a list; it must be a numpy array of int"):
        build(**{name: [0]})


def test_strided_and_unaligned_arrays_are_refused() -> None:
    with pytest.raises(GraphError, match=r"indices is strided or unaligned; pass np.ascontiguousarray"):
        build(indices=np.repeat(INDICES, 2)[::2])
    raw = np.frombuffer(b"\0" + INDICES.tobytes(), dtype=np.uint8)
    with pytest.raises(GraphError, match="strided or unaligned"):
        build(indices=raw[1:].view(np.int32))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(4), "edge_weight has 4 entries; it must have one per edge, 5"),
        (np.ones(6), "edge_weight has 6 entries; it must have one per edge, 5"),
        (np.array([1, 1, -0.5, 1, 1]), r"edge_weight\[2\] = -0.5; weights must be finite and not negative"),
        (np.array([1, 1, 1, 1, np.nan]), r"edge_weight\[4\] = nan"),
        (np.array([np.inf, 1, 1, 1, 1], dtype=np.float32), r"edge_weight\[0\] = inf"),
        (np.ones(5, dtype=np.int64), "edge_weight has dtype int64 .*; it must be native float32 or float64"),
        (np.ones(5, dtype=np.float16), "edge_weight has dtype float16"),
    ],
)
@pytest.mark.reliability("C2")
def test_malformed_weights(weights: np.ndarray, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        build(edge_weight=weights)


def test_graph_errors_are_ours_and_value_errors() -> None:
    assert issubclass(GraphError, GloaderError)
    assert issubclass(GraphError, ValueError)
