from __future__ import annotations

import hashlib

import numpy as np
import pytest

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source
from gloader.convert.sources.synthetic import parse_spec
from gloader.convert.sources.synthetic.generators import (
    community_starts,
    degree_quantiles,
    make_permutation,
    node_traits,
    num_traits,
    permute_range,
)
from gloader.errors import BudgetError

COMMUNITY = "synthetic:community,nodes=3000,edges=40000,dim=24,classes=6,seed=3,homophily=0.7"
RMAT = "synthetic:rmat,nodes=3000,edges=40000,dim=24,classes=6,seed=3"


def opened(spec, **options):
    return open_source(spec, SourceOptions(**options))


def all_edges(source, max_edges=1 << 20):
    chunks = list(source.edges.chunks(max_edges))
    empty = [np.empty(0, np.int64)]
    return np.concatenate(empty + [c.src for c in chunks]), np.concatenate(empty + [c.dst for c in chunks])


def all_rows(source, max_rows=1 << 20):
    return np.concatenate(list(source.features.chunks(max_rows)))


@pytest.mark.parametrize("spec", [COMMUNITY, RMAT])
def test_counts_and_ranges_are_exact(spec):
    source = opened(spec)
    src, dst = all_edges(source)
    assert src.dtype == dst.dtype == np.int64
    assert len(src) == len(dst) == source.edges.num_edges == 40_000
    assert min(src.min(), dst.min()) >= 0
    assert max(src.max(), dst.max()) < source.num_nodes == 3000
    assert all_rows(source).shape == (3000, 24)
    assert all_rows(source).dtype == source.features.dtype == np.float32
    assert source.labels.shape == (3000,)
    assert np.array_equal(np.unique(source.labels), np.arange(6))
    assert not source.edges.has_weights


@pytest.mark.parametrize("spec", [COMMUNITY, RMAT])
def test_splits_are_exact_disjoint_and_complete(spec):
    splits = opened(spec + ",train=0.5,valid=0.1").splits
    assert [len(part) for part in (splits.train, splits.valid, splits.test)] == [1500, 300, 1200]
    joined = np.concatenate([splits.train, splits.valid, splits.test])
    assert np.array_equal(np.sort(joined), np.arange(3000))


@pytest.mark.parametrize("spec", [COMMUNITY, RMAT])
def test_the_seed_decides_everything(spec):
    first, same, other = opened(spec), opened(spec), opened(spec.replace("seed=3", "seed=4"))
    assert np.array_equal(all_edges(first), all_edges(same))
    assert np.array_equal(all_rows(first), all_rows(same))
    assert not np.array_equal(all_edges(first), all_edges(other))
    assert not np.array_equal(all_rows(first), all_rows(other))
    assert not np.array_equal(first.splits.train, other.splits.train)


def digest(spec):
    source = opened(spec)
    splits = source.splits
    arrays = [*all_edges(source), source.labels, splits.train, splits.valid, splits.test, all_rows(source)]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [(COMMUNITY, "6e870c213479594d"), (RMAT, "1b421db0eb966fd6")],
    ids=["community", "rmat"],
)
def test_graphs_do_not_change_between_versions(spec, expected):
    # Deliberate changes only: whoever compares runs on a synthetic graph relies on it.
    assert digest(spec) == expected


def test_community_lists_both_directions_and_no_self_loops():
    src, dst = all_edges(opened(COMMUNITY))
    assert np.array_equal(src[0::2], dst[1::2])
    assert np.array_equal(dst[0::2], src[1::2])
    assert not np.any(src == dst)


def test_homophily_is_the_share_of_edges_inside_a_community():
    for homophily in (0.0, 0.4, 1.0):
        source = opened(COMMUNITY.replace("homophily=0.7", f"homophily={homophily}"))
        src, dst = all_edges(source)
        assert np.mean(source.labels[src] == source.labels[dst]) == pytest.approx(homophily, abs=0.02)


def test_several_communities_share_a_class():
    source = opened(COMMUNITY + ",communities=18")
    assert np.array_equal(np.unique(source.labels), np.arange(6))
    starts = community_starts(parse_spec(COMMUNITY.partition(":")[2] + ",communities=18"))
    assert len(starts) == 19
    assert np.all(np.diff(starts) > 0)
    assert (starts[0], starts[-1]) == (0, 3000)


def test_ids_are_shuffled():
    labels = opened(COMMUNITY).labels
    assert np.mean(labels[1:] == labels[:-1]) < 0.3  # sorted by class it would be nearly 1


def test_degrees_follow_the_power_law():
    """The count of nodes of degree above d falls like d**-(exponent - 1): compare two exponents' tails."""

    def tail(exponent):
        spec = f"synthetic:community,nodes=50000,edges=1000000,classes=4,dim=1,exponent={exponent}"
        degree = np.bincount(all_edges(opened(spec))[1], minlength=50_000)
        large = degree[degree >= 40]
        return 1 + len(large) / np.log(large / 39.5).sum()  # Hill's estimate of the exponent

    assert tail(2.3) == pytest.approx(2.3, abs=0.25)
    assert tail(3.0) == pytest.approx(3.0, abs=0.35)


def test_degree_quantiles_rise_and_keep_to_the_cutoff():
    for exponent, ratio in ((2.05, 1000.0), (2.3, 50.0), (3.0, 5.0), (2.5, 1.0)):
        quantiles = degree_quantiles(exponent=exponent, max_ratio=ratio)
        assert quantiles[0] == 0.0
        assert quantiles[-1] == pytest.approx(1.0, abs=1e-6)
        steps = np.diff(quantiles)
        assert np.all(steps > 0)
        assert 1 / (steps[0] * len(steps)) <= ratio * 1.01 + 0.01  # density at the head over the mean


def test_rmat_degrees_are_skewed_and_labels_follow_neighbourhoods():
    source = opened(RMAT)
    src, dst = all_edges(source)
    degree = np.bincount(dst, minlength=3000)
    assert degree.max() > 20 * degree.mean()
    traits = node_traits(parse_spec(RMAT.partition(":")[2]))
    for trait in range(num_traits(6)):  # a plain-numpy twin of the vote
        sign = 2 * ((traits >> trait) & 1) - 1
        votes = np.bincount(dst, weights=sign[src], minlength=3000)
        bit = np.where(votes == 0, (traits >> trait) & 1, votes > 0)
        expected = bit << trait if trait == 0 else expected | (bit.astype(np.int64) << trait)  # noqa: F821
    assert np.array_equal(source.labels, expected % 6)


def test_features_are_a_centre_and_noise_of_deviation_one():
    source = opened(COMMUNITY.replace("nodes=3000", "nodes=20000") + ",signal=2")
    rows = all_rows(source)
    centers = np.stack([rows[source.labels == k].mean(axis=0) for k in range(6)])
    assert np.allclose(np.linalg.norm(centers, axis=1), 2.0, atol=0.2)
    noise = rows - centers[source.labels]
    assert noise.std() == pytest.approx(1.0, abs=0.01)
    assert abs(np.corrcoef(noise[:, :2].T)[0, 1]) < 0.03
    assert abs(np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1]) < 0.03


def test_neighbours_tell_more_than_the_node_itself():
    """A linear stand-in for the claim of the demo: averaged neighbours beat the own features."""
    source = opened("synthetic:community,nodes=20000,edges=400000,dim=64,classes=8,seed=1")
    src, dst = all_edges(source)
    rows = all_rows(source)
    order = np.argsort(dst, kind="stable")
    degree = np.bincount(dst, minlength=20_000)
    sums = np.add.reduceat(rows[src[order]], np.minimum(np.cumsum(degree) - degree, len(src) - 1), axis=0)
    mean = sums / np.maximum(degree, 1)[:, None]
    both = rows + mean * np.sqrt(np.maximum(degree, 1))[:, None]

    def accuracy(features):
        train, test = source.splits.train, source.splits.test
        centers = np.stack([features[train][source.labels[train] == k].mean(axis=0) for k in range(8)])
        distance = ((features[test][:, None] - centers) ** 2).sum(axis=2)
        return np.mean(distance.argmin(axis=1) == source.labels[test])

    assert 0.4 < accuracy(rows) < 0.7
    assert accuracy(both) > accuracy(rows) + 0.2


@pytest.mark.reliability("C6")
@pytest.mark.parametrize("kind", ["community", "rmat"])
@pytest.mark.parametrize(("nodes", "edges"), [(1, 0), (1, 4), (2, 6), (5, 0)])
def test_the_smallest_graphs(kind, nodes, edges):
    source = opened(f"synthetic:{kind},nodes={nodes},edges={edges},dim=1,classes=1")
    src, dst = all_edges(source)
    assert len(src) == edges
    assert np.all((src >= 0) & (src < nodes) & (dst >= 0) & (dst < nodes))
    assert len(all_rows(source)) == nodes


def test_a_permutation_is_one_for_every_size():
    for size in [*range(1, 70), 1000, 4097]:
        out = permute_range(0, size, size, make_permutation(size, 1, "ids"))
        assert np.array_equal(np.sort(out), np.arange(size))


def test_a_permutation_mixes():
    out = permute_range(0, 50_000, 50_000, make_permutation(50_000, 1, "ids"))
    counts = np.histogram(out[:5000], bins=50)[0]
    assert ((counts - 100) ** 2 / 100).sum() < 120  # chi-square, 49 degrees of freedom
    assert abs(np.corrcoef(out[:-1], out[1:])[0, 1]) < 0.03


@pytest.mark.reliability("C14")
def test_a_budget_below_the_labels_is_refused_before_they_are_made():
    with pytest.raises(BudgetError, match=r"needs 96 KB of memory .* budget is 50 KB"):
        opened(COMMUNITY, memory_budget_bytes=50_000)
    opened(COMMUNITY, memory_budget_bytes=96_000)
