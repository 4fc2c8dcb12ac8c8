"""Hot sets by out-degree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.cache import hottest_by_degree, out_degrees


@given(st.lists(st.integers(0, 9), max_size=50), st.integers(1, 7), st.sampled_from([np.int32, np.int64]))
def test_out_degrees_count_occurrences(ids: list[int], chunk: int, dtype: type) -> None:
    degrees = out_degrees(np.array(ids, dtype=dtype), 10, chunk_edges=chunk)
    assert degrees.tolist() == [ids.count(node) for node in range(10)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(-1, 35))
def test_hottest_are_the_largest_degrees(degrees: list[int], num_rows: int) -> None:
    hottest = hottest_by_degree(np.array(degrees, dtype=np.int64), num_rows).tolist()
    ranked = sorted((node for node, d in enumerate(degrees) if d), key=lambda node: (-degrees[node], node))
    assert hottest == sorted(ranked[: max(num_rows, 0)])


@pytest.mark.reliability("C6")
def test_a_graph_without_edges_has_no_hot_rows() -> None:
    assert hottest_by_degree(out_degrees(np.empty(0, dtype=np.int32), 5), 3).tolist() == []
