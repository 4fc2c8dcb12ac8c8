from __future__ import annotations

import inspect
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from unit.samplers.graphs import random_graph

from gloader.errors import ConfigError
from gloader.samplers import (
    LaborSampler,
    LayerSampler,
    MergedBlockSampler,
    NeighborSampler,
    make,
    make_sampler,
    poisson_kernels,
    preferred_layout,
)
from gloader.samplers.make import SAMPLER_NAMES
from gloader.types import BatchId, Sampler


def test_names() -> None:
    assert SAMPLER_NAMES == ("neighbor", "weighted", "labor", "ladies", "fastgcn")
    graph = random_graph(20, 5, weighted=True)
    made = [make_sampler(name, graph, [3, 2], 5) for name in SAMPLER_NAMES]
    assert [type(sampler) for sampler in made] == [
        NeighborSampler,
        NeighborSampler,
        LaborSampler,
        LayerSampler,
        LayerSampler,
    ]
    neighbor, weighted, _, ladies, fastgcn = made
    assert (neighbor.weighted, weighted.weighted) == (False, True)  # type: ignore[attr-defined]
    assert (ladies.method, fastgcn.method) == ("ladies", "fastgcn")  # type: ignore[attr-defined]
    assert {sampler.seed for sampler in made} == {5}  # type: ignore[attr-defined]


def test_options_reach_the_sampler() -> None:
    graph = random_graph(20, 5)
    assert make_sampler("labor", graph, [3], 0, iterations=2).iterations == 2  # type: ignore[attr-defined]
    assert make_sampler("ladies", graph, [3], 0, adjacency="gcn").adjacency == "gcn"  # type: ignore[attr-defined]
    assert make_sampler("neighbor", graph, [3], 0, replace=True).replace  # type: ignore[attr-defined]


def test_refused_names_and_options() -> None:
    graph = random_graph(20, 5)
    with pytest.raises(
        ConfigError, match="'labour' is not known; allowed: neighbor, weighted, labor, ladies, fastgcn"
    ):
        make_sampler("labour", graph, [3], 0)
    with pytest.raises(
        ConfigError,
        match="'labor' has no option 'replace'; allowed: iterations, share_layers, normalize",
    ):
        make_sampler("labor", graph, [3], 0, replace=True)
    with pytest.raises(ConfigError, match="'ladies' has no option 'method'; allowed: adjacency, normalize"):
        make_sampler("ladies", graph, [3], 0, method="fastgcn")
    with pytest.raises(ConfigError, match="needs a weight for each edge"):
        make_sampler("weighted", graph, [3], 0)


def test_options_in_the_name() -> None:
    graph = random_graph(20, 5)
    sampler = make_sampler("labor:iterations=-1,share-layers=true,normalize=false", graph, [3], 0)
    assert (sampler.iterations, sampler.share_layers, sampler.normalize) == (-1, True, False)  # type: ignore[attr-defined]
    assert make_sampler("ladies:adjacency=gcn", graph, [3], 0).adjacency == "gcn"  # type: ignore[attr-defined]
    assert make_sampler("labor:iterations=1", graph, [3], 0, iterations=2).iterations == 2  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="'replace' is not option=value, as in 'labor:iterations=1'"):
        make_sampler("neighbor:replace", graph, [3], 0)
    with pytest.raises(ConfigError, match="normalize is 'no'; allowed: true, false"):
        make_sampler("labor:normalize=no", graph, [3], 0)
    with pytest.raises(ConfigError, match="iterations is 'many'; allowed"):
        make_sampler("labor:iterations=many", graph, [3], 0)


def test_layouts() -> None:
    graph = random_graph(20, 5, weighted=True)
    for name in ("neighbor:replace=true", "weighted"):
        sampler = make_sampler(name, graph, [3, 2], 5, layout="merged")
        assert isinstance(sampler, MergedBlockSampler)
        assert (sampler.sampler.seed, sampler.sampler.weighted) == (5, name == "weighted")
        assert isinstance(make_sampler(name, graph, [3, 2], 5), NeighborSampler)
        assert preferred_layout(name) == "merged"
    for name in ("labor:iterations=1", "ladies", "fastgcn"):
        assert preferred_layout(name) == "layered"
        with pytest.raises(
            ConfigError,
            match=f"layout='merged' with sampler '{name.split(':')[0]}', which chooses for all nodes",
        ):
            make_sampler(name, graph, [3, 2], 5, layout="merged")
    with pytest.raises(ConfigError, match="layout='blocks' is not one of 'layered', 'merged'"):
        make_sampler("neighbor", graph, [3, 2], 5, layout="blocks")  # type: ignore[arg-type]


def test_a_sampler_says_itself_which_layouts_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is guessed of a new line of the table: "merged" is what it makes, or refused with words true of it."""
    graph = random_graph(20, 5)

    def use(**merged: Any) -> None:
        kind = make._SamplerKind(
            make=LaborSampler, options={}, node_bytes=4, kernels=poisson_kernels, **merged
        )
        monkeypatch.setitem(make._SAMPLERS, "labor", kind)

    use()
    assert preferred_layout("labor") == "layered"
    with pytest.raises(
        ConfigError,
        match="layout='merged' with sampler 'labor', which has layered hops only; use layout='layered', or",
    ):
        make_sampler("labor", graph, [3], layout="merged")
    use(to_merged=MergedBlockSampler)
    assert preferred_layout("labor") == "merged"
    wrong = make_sampler("labor", graph, [3], layout="merged")
    with pytest.raises(AttributeError, match="sample_merged"):
        wrong.sample(BatchId(epoch=0, index=0), np.arange(3))


def test_every_named_option_is_one_of_its_sampler() -> None:
    for kind in make._SAMPLERS.values():
        assert set(kind.options) <= set(inspect.signature(kind.make).parameters)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("weighted", {}),
    ("weighted", {"layout": "merged"}),
    ("labor", {}),
    ("labor", {"iterations": -1, "share_layers": True}),
    ("ladies", {"normalize": True}),
    ("fastgcn", {"adjacency": "gcn"}),
]


def sample_all(sampler: Sampler, order: list[int], threads: int) -> list[list[bytes]]:
    seeds = np.random.default_rng(7).permutation(1000)

    def one(i: int) -> list[bytes]:
        batch = sampler.sample(BatchId(epoch=1, index=i), seeds[i * 30 : (i + 1) * 30])
        arrays = [batch.nodes]
        for block in batch.blocks:
            assert block.edge_weight is not None
            arrays += [block.indptr, block.indices, block.edge_ids, block.edge_weight]
        return [array.tobytes() for array in arrays]

    with ThreadPoolExecutor(threads) as pool:
        results = dict(zip(order, pool.map(one, order), strict=True))
    return [results[i] for i in sorted(order)]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_threads_and_order_do_not_matter(name: str, options: dict[str, Any]) -> None:
    graph = random_graph(1000, 80, weighted=True)
    order = list(range(16))
    expected = sample_all(make_sampler(name, graph, [20, 10], 1, **options), order, 1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        sampler = make_sampler(name, graph, [20, 10], 1, **options)
        shuffled = np.random.default_rng(3).permutation(order).tolist()
        assert sample_all(sampler, shuffled, 4) == expected
        assert sample_all(sampler, order, 1) == expected
    finally:
        sys.setswitchinterval(interval)


def test_merged_hops_of_weighted_sampling_carry_their_weights() -> None:
    graph = random_graph(300, 30, weighted=True)
    seeds = np.arange(20)
    first = BatchId(epoch=0, index=0)
    sampler = NeighborSampler(graph, [4, 3], weighted=True)
    merged, layered = sampler.sample_merged(first, seeds), sampler.sample(first, seeds)
    assert merged.edge_weight is not None
    assert merged.edge_weight.shape == merged.edge_ids.shape
    expected = layered.blocks[-1].edge_weight
    assert expected is not None
    assert merged.edge_weight[: len(expected)].tolist() == expected.tolist()
    for options in ({}, {"weighted": True, "importance": False}):
        plain = NeighborSampler(graph, [4, 3], **options)
        assert plain.sample_merged(first, seeds).edge_weight is None
        assert plain.sample(first, seeds).blocks[0].edge_weight is None
