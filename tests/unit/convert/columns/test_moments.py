"""Means, deviations and quantiles that come block by block."""

import numpy as np
import pytest

from gloader.convert.columns.moments import NUM_QUANTILES, Moments, Sample


def test_moments_are_stable_far_from_zero():
    values = 1e9 + np.random.default_rng(0).random((10_000, 2))
    moments = Moments.of_width(2)
    for start in range(0, len(values), 777):
        moments.add(values[start : start + 777])
    assert moments.count.tolist() == [10_000, 10_000]
    np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(moments.deviation(), values.std(axis=0), rtol=1e-6)


def test_missing_values_count_for_no_moment():
    moments = Moments.of_width(2)
    moments.add(np.array([[1.0, np.nan], [3.0, np.nan], [np.inf, np.nan]]))
    assert moments.count.tolist() == [2, 0]
    assert moments.mean.tolist() == [2.0, 0.0]
    assert moments.deviation().tolist() == [1.0, 1.0]


def test_equal_values_have_the_deviation_one():
    moments = Moments.of_width(1)
    for _ in range(7):
        moments.add(np.full((1000, 1), 0.1))
    assert moments.deviation().tolist() == [1.0]


def test_all_values_are_held_up_to_the_limit():
    sample = Sample(limit=5, num_rows=5)
    sample.add(np.array([3.0, np.nan, 1.0]), np.arange(3))
    sample.add(np.array([2.0]), np.array([3]))
    assert sample.is_whole
    assert sample.quantiles().tolist() == [1.0, 2.0, 3.0]


def test_beyond_the_limit_rows_are_sampled_by_their_number():
    values = np.random.default_rng(0).standard_normal(100_000)
    rows = np.arange(len(values))
    found = []
    for step in (100_000, 3001):
        sample = Sample(limit=20_000, num_rows=len(values))
        for start in range(0, len(values), step):
            sample.add(values[start : start + step], rows[start : start + step])
        assert not sample.is_whole
        found.append(sample.quantiles())
        assert len(sample.held[0]) == pytest.approx(20_000, rel=0.05)
    assert found[0].tolist() == found[1].tolist()
    assert len(found[0]) == NUM_QUANTILES
    middle = slice(100, 900)
    np.testing.assert_allclose(
        found[0][middle], np.quantile(values, np.linspace(0, 1, NUM_QUANTILES))[middle], atol=0.05
    )


def test_quantiles_of_few_values_are_the_values():
    values = np.array([1.0, 0, 1, 0, 0, -1])  # numpy's quantile at 3/5 is 4e-16 instead of 0
    sample = Sample(limit=9, num_rows=6)
    sample.add(values, np.arange(6))
    assert sample.quantiles().tolist() == sorted(values.tolist())


def test_quantiles_of_many_values_are_those_of_numpy():
    values = np.random.default_rng(0).standard_normal(12_345)
    sample = Sample(limit=len(values), num_rows=len(values))
    sample.add(values, np.arange(len(values)))
    expected = np.quantile(values, np.linspace(0, 1, NUM_QUANTILES))
    np.testing.assert_allclose(sample.quantiles(), expected, rtol=1e-12, atol=1e-12)
