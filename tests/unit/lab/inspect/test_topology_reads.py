"""The reads of each way of reading edges, counted in plain Python from the blocks of a sampler in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gloader
from gloader.core.order import EpochOrder
from gloader.dataset.topology import open_topology
from gloader.errors import BudgetError, ConfigError
from gloader.lab.bench.graphs import synthetic_graph
from gloader.lab.inspect import GapBytes, ReadDemand, TopologyReads, inspect_topology, mark_pages
from gloader.plan.topology_home import choose_home
from gloader.samplers import CscGraph, NeighborSampler
from gloader.ssd_store.cost.io_rates import IoRates
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Sequence

N, EDGE_BYTES, PER_PAGE = 1500, 8, 512
SEEDS = np.arange(0, N, 3)
GAPS = GapBytes(alone=4096, of_passes=3 * 4096)
RATES = IoRates(
    random_reads_per_s=50_000, read_bytes_per_s=1e9, write_bytes_per_s=4e8, pack_read_bytes_per_s=1e9
)
MOST_PAGES = 32  # of a request


@pytest.fixture(scope="module")
def graph() -> CscGraph:
    return synthetic_graph("powerlaw", num_nodes=N, num_edges=60_000)


def _demand(graph: CscGraph, *, budget: int = 10**6, spill: int = 10**9) -> ReadDemand:
    home = choose_home("auto", topology_bytes=10**6, budget_bytes=budget, obstacle=None)
    return ReadDemand(
        edge_bytes=EDGE_BYTES,
        num_nodes=N,
        num_edges=graph.num_edges,
        home=home,
        budget_bytes=budget,
        spill_bytes=spill,
    )


def _requests(pages: set[int], gap: int) -> list[tuple[int, int]]:
    """The reads of ``pages``, first and last page, holes of up to ``gap`` pages read through."""
    found: list[tuple[int, int]] = []
    for page in sorted(pages):
        if found and page - found[-1][1] - 1 <= gap and page - found[-1][0] < MOST_PAGES:
            found[-1] = (found[-1][0], page)
        else:
            found.append((page, page))
    return found


def _pages_read(pages: set[int], gap: int) -> int:
    return sum(last - first + 1 for first, last in _requests(pages, gap))


def _touched(
    graph: CscGraph, order: EpochOrder, fanouts: Sequence[int], batches: int
) -> list[list[set[int]]]:
    """The pages of every hop of every batch, by the ids of the edges that a sampler took."""
    sampler, seeds = NeighborSampler(graph, fanouts, seed=3), order.epoch_seeds(0)
    found = []
    for index in range(batches):
        batch = sampler.sample(BatchId(epoch=0, index=index), order.batch_seeds(seeds, index))
        found.append([{int(edge) // PER_PAGE for edge in block.edge_ids} for block in reversed(batch.blocks)])
    return found


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fanouts=st.lists(st.sampled_from([1, 3, -1]), min_size=1, max_size=3),
    batch_size=st.sampled_from([1, 7, 100]),
    batches=st.integers(1, 9),
    budget=st.sampled_from([None, 40_000]),
)
def test_every_count_is_that_of_plain_python(
    graph: CscGraph, fanouts: list[int], batch_size: int, batches: int, budget: int | None
) -> None:
    order = EpochOrder(seeds=SEEDS, num_nodes=N, batch_size=batch_size, seed=3)
    marks = mark_pages(
        NeighborSampler(graph, fanouts, seed=3),
        order,
        edge_bytes=EDGE_BYTES,
        batches=batches,
        budget_bytes=budget,
    )
    touched = _touched(graph, order, fanouts, marks.num_batches)
    num_hops, count = len(fanouts), len(touched)
    assert count == min(batches, order.num_batches)
    found = inspect_topology(marks, _demand(graph), RATES, GAPS)
    assert [hop.pages for hop in found.hops] == pytest.approx(
        [np.mean([len(batch[hop]) for batch in touched]) for hop in range(num_hops)]
    )
    assert found.faults == pytest.approx(np.mean([len(set().union(*batch)) for batch in touched]))
    alone = [sum(_pages_read(hop, 1) for hop in batch) for batch in touched]
    assert found.direct.num_bytes == pytest.approx(4096 * np.mean(alone))
    assert found.direct.requests == pytest.approx(
        np.mean([sum(len(_requests(hop, 1)) for hop in batch) for batch in touched])
    )
    assert [entry.num_batches for entry in found.passes] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    for entry in found.passes:
        size = entry.num_batches
        assert entry.ways["full"].num_bytes == pytest.approx(4096 * found.num_pages / size)
        if size > count:
            assert (entry.pages, set(entry.ways)) == (None, {"full"})
            continue
        groups = [
            [set().union(*(batch[hop] for batch in touched[first : first + size])) for hop in range(num_hops)]
            for first in range(0, count // size * size, size)
        ]
        wanted = [
            set().union(
                *(groups[(at + ahead) % len(groups)][num_hops - 1 - ahead] for ahead in range(num_hops))
            )
            for at in range(len(groups))
        ]
        assert entry.pages == pytest.approx(np.mean([len(pages) for pages in wanted]))
        for way, gap in (("direct", 0), ("merged", 3)):
            reads = entry.ways[way]
            requests, pages = ([f(of, gap) for of in wanted] for f in (_requests, _pages_read))
            assert reads.num_bytes == pytest.approx(4096 * np.mean(pages) / size)
            assert reads.requests == pytest.approx(np.mean([len(found) for found in requests]) / size)
        assert entry.ways[entry.fastest].seconds == min(reads.seconds for reads in entry.ways.values())


def _inspect(graph: CscGraph, **demand: int) -> TopologyReads:
    order = EpochOrder(seeds=SEEDS, num_nodes=N, batch_size=50, seed=3)
    marks = mark_pages(NeighborSampler(graph, [5, 5]), order, edge_bytes=EDGE_BYTES, batches=4)
    return inspect_topology(marks, _demand(graph, **demand), RATES, GAPS)


def test_the_choice_is_that_of_a_loader(graph: CscGraph) -> None:
    held, swept, without = (
        _inspect(graph, budget=10**9), _inspect(graph, spill=2 * 10**6), _inspect(graph, spill=0)
    )  # fmt: skip
    assert (held.home, swept.home) == ("ram", "sweep")
    assert held.sweep is not None
    assert swept.sweep is not None
    assert held.sweep.num_batches == 512
    assert swept.sweep.num_batches < 512
    assert swept.sweep.spill_bytes <= 2 * 10**6
    assert without.sweep is None
    assert "on the spill disk for 2 batches, and 0 B are allowed" in without.refusal


def test_a_graph_that_does_not_fit_is_marked_alike_and_its_last_hop_is_not_read(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    dataset = gloader.Dataset.from_numpy(
        tmp_path / "graph",
        features=np.zeros((N, 1), np.float32),
        labels=np.zeros(N, np.int64),
        edge_index=random.integers(0, N, (2, 30_000)),
        train=SEEDS,
        valid=SEEDS[:1] + 1,
        test=SEEDS[:1] + 2,
    )
    order = EpochOrder(seeds=SEEDS, num_nodes=N, batch_size=60, seed=3)
    expected = mark_pages(
        NeighborSampler(dataset.load_graph(), [4, 4, 4]), order, edge_bytes=4, batches=8, budget_bytes=None
    )
    asked: list[int] = []
    with open_topology(dataset, max_bytes=0) as topology:
        true = topology.sources.at

        def at(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            asked.append(len(positions))
            return true(positions)

        topology.sources.at = at  # type: ignore[method-assign]
        found = mark_pages(
            NeighborSampler(topology, [4, 4, 4]), order, edge_bytes=4, batches=8, budget_bytes=200_000
        )
    for name in ("bits", "nodes", "edges"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    assert sum(asked) == expected.edges[:, :2].sum()
    assert len(asked) > 2  # some batches at a time, as the budget has it


def test_what_cannot_be_marked_is_refused(graph: CscGraph) -> None:
    order = EpochOrder(seeds=SEEDS, num_nodes=N, batch_size=1, seed=0)
    with pytest.raises(
        BudgetError, match=r"the marks of 500 batches take 16 KB; allowed are 4\.1 KB.* --batches 128$"
    ):
        mark_pages(
            NeighborSampler(graph, [3, 3]), order, edge_bytes=EDGE_BYTES, batches=500, budget_bytes=8192
        )
    with pytest.raises(ConfigError, match="0 batches of 500 training nodes: there is nothing to sample"):
        mark_pages(NeighborSampler(graph, [3]), order, edge_bytes=EDGE_BYTES, batches=0)
