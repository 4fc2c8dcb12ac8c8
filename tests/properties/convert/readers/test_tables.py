import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gloader.convert.readers.table_streams import regroup


@given(lengths=st.lists(st.integers(0, 9)), max_rows=st.integers(1, 12))
def test_groups_hold_the_same_rows_in_order(lengths, max_rows):
    rows = np.arange(sum(lengths))
    pieces = np.split(rows, np.cumsum(lengths)[:-1]) if lengths else []
    groups = list(regroup(((piece, -piece) for piece in pieces), max_rows))
    assert all(len(group[0]) == max_rows for group in groups[:-1])
    assert all(0 < len(group[0]) <= max_rows for group in groups[-1:])
    for column, sign in ((0, 1), (1, -1)):
        joined = np.concatenate([group[column] for group in groups]) if groups else np.empty(0)
        assert np.array_equal(joined, sign * rows)
