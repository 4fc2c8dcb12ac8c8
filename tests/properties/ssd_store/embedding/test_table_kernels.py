"""The first rows, the append buffer and the plan of merges against plain Python."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.core.hashing import GOLDEN, mix_int
from gloader.errors import ConfigError, ShapeError
from gloader.ssd_store import InitialRows
from gloader.ssd_store.embedding.row_buffer import RowBuffer
from gloader.ssd_store.embedding.run_merge import MAX_RUNS, MAX_TABLES, plan_merge
from gloader.ssd_store.embedding.table_kernels import normal_quantile

MASK = 2**64 - 1
STEP = int(GOLDEN)


def weights(initial, row):
    """The weights of a row, one by one."""
    key = mix_int((initial.seed + STEP) & MASK)
    address = mix_int(key ^ mix_int((row + STEP) & MASK))
    for column in range(initial.dim):
        unit = (mix_int((address + STEP * column) & MASK) >> 11) / 2**53
        if initial.kind == "zeros":
            yield 0.0
        elif initial.kind == "uniform":
            yield (2 * unit - 1) * initial.scale
        else:
            yield NormalDist().inv_cdf(unit + 0.5 / 2**53) * initial.scale


@given(
    seed=st.integers(0, 2**63 - 1),
    dim=st.integers(1, 5),
    kind=st.sampled_from(["uniform", "normal", "zeros"]),
    scale=st.floats(0, 100),
    state=st.lists(st.floats(-10, 10, width=32), max_size=3),
    ids=st.lists(st.integers(0, 2**62), max_size=5),
)
def test_the_first_rows_are_those_of_plain_python(seed, dim, kind, scale, state, ids):
    initial = InitialRows(seed=seed, dim=dim, kind=kind, scale=scale, state=tuple(state))
    out = np.full((len(ids) + 2, initial.width), 7, np.float32)
    at = np.arange(len(ids))[::-1] + 1
    initial.fill(np.array(ids, np.int64), out, at=at)
    expected = np.full_like(out, 7)
    for row, position in zip(ids, at, strict=True):
        expected[position] = [*weights(initial, row), *state]
    if (
        kind == "normal"
    ):  # Python's quantile is another form of the same algorithm, with the library's logarithm
        np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-12)
    else:
        assert np.array_equal(out, expected)


def test_the_bits_of_the_first_rows_never_change():
    """A table's rows that were never trained are in no file, so a build that made others would change the table."""
    out = np.empty((2, 4), np.float32)
    found = []
    for kind in ("uniform", "normal"):
        initial = InitialRows(seed=11, dim=3, kind=kind, scale=0.5, state=(0.25,))
        initial.fill(np.array([0, 10**12]), out)
        found.append(out.tobytes().hex())
    assert found == PINNED


PINNED = [
    "b2e465be54c5b3be207d953e0000803e853f7dbd033656be683b64bd0000803e",
    "aba598beec4605bfe432d03e0000803e26579fbdb90f8dbed07d8fbd0000803e",
]


@given(st.one_of(st.floats(2**-54, 1 - 2**-53), st.floats(2**-54, 1e-6), st.floats(0.07, 0.08)))
def test_the_normal_quantile_is_exact_to_a_few_units(p):
    assert normal_quantile(p) == pytest.approx(NormalDist().inv_cdf(p), rel=1e-13, abs=1e-15)


def test_many_rows_have_the_moments_of_the_distribution():
    out = np.empty((20_000, 6), np.float32)
    for kind, deviation in (("uniform", 3**-0.5), ("normal", 1)):
        InitialRows(seed=2, dim=5, kind=kind, scale=2.0, state=(9.0,)).fill(np.arange(20_000), out)
        assert abs(out[:, :5].mean()) < 0.02
        assert out[:, :5].std() == pytest.approx(2 * deviation, rel=0.01)
        assert abs(np.corrcoef(out[:, :5].T) - np.eye(5)).max() < 0.03
        assert (out[:, 5] == 9).all()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kind", "ones", "kind='ones' is unknown; choose one of uniform, normal, zeros"),
        ("seed", -1, r"seed=-1 must lie in 0..2\*\*63-1"),
        ("dim", 0, "dim=0 must be at least 1"),
        ("scale", float("nan"), "scale=nan must be a finite number from 0"),
        ("state", (float("inf"),), r"state=\(inf,\) must hold finite numbers"),
    ],
)
def test_a_wrong_formula_is_refused(field, value, message):
    fields = {"seed": 1, "dim": 2, "kind": "zeros", "scale": 1.0, "state": ()}
    with pytest.raises(ConfigError, match=message):
        InitialRows(**(fields | {field: value}))


def test_arrays_that_do_not_fit_the_formula_are_refused():
    initial = InitialRows(seed=1, dim=2, kind="zeros", scale=1.0, state=())
    ids = np.array([1, 2])
    with pytest.raises(
        ShapeError, match=r"out must be C-contiguous float32 of shape \(rows, 2\), got float64"
    ):
        initial.fill(ids, np.empty((2, 2)))
    with pytest.raises(ShapeError, match="at must give one of 2 rows for each of 2 ids"):
        initial.fill(ids, np.empty((2, 2), np.float32), at=np.array([0, 2]))
    with pytest.raises(ShapeError, match="at must give one of 1 rows for each of 2 ids"):
        initial.fill(ids, np.empty((1, 2), np.float32))


@given(
    capacity=st.integers(1, 40),
    batches=st.lists(st.lists(st.integers(0, 60), unique=True, max_size=30), max_size=12),
)
def test_a_buffer_is_a_dictionary_of_bounded_size(capacity, batches):
    buffer, kept, version = RowBuffer(capacity, 2), {}, 0.0
    assert buffer.capacity == capacity
    for ids in batches:
        version += 1
        rows = np.array([[row, version] for row in ids], np.float32).reshape(-1, 2)
        taken = buffer.put(np.array(ids, np.int64), rows)
        for row in ids[:taken]:
            kept[row] = version
        assert len(buffer) == len(kept) <= capacity
        assert taken == len(ids) or (len(kept) == capacity and ids[taken] not in kept)
        out = np.full((61, 2), -1, np.float32)
        missing = buffer.take(np.arange(61), np.arange(61), out)
        assert missing.tolist() == [row for row in range(61) if row not in kept]
        assert {row: out[row].tolist() for row in kept} == {row: [row, kept[row]] for row in kept}
        sorted_ids, sorted_rows = buffer.numbered(buffer.order())
        assert sorted_ids.tolist() == sorted(kept)
        assert sorted_rows[:, 1].tolist() == [kept[row] for row in sorted(kept)]
        if taken < len(ids):
            buffer.clear()
            kept = {}


@given(num_rows=st.integers(1, 10**6), sizes=st.lists(st.integers(1, 10**6), max_size=100))
def test_merges_bound_the_runs_and_their_rows(num_rows, sizes):
    sizes = [min(size, num_rows) for size in sizes]
    while (part := plan_merge(sizes, num_rows)) is not None:
        first, past = part
        assert 0 <= first < first + 2 <= past <= len(sizes)
        if sum(sizes) < MAX_TABLES * num_rows:  # the window with the fewest rows
            windows = [sum(sizes[at : at + MAX_RUNS // 2]) for at in range(len(sizes) - MAX_RUNS // 2 + 1)]
            assert sum(sizes[first:past]) == min(windows)
        sizes[first:past] = [min(sum(sizes[first:past]), num_rows)]
    assert len(sizes) <= MAX_RUNS
    assert len(sizes) <= 1 or sum(sizes) < MAX_TABLES * num_rows
