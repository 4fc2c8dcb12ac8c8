"""Passes over the edges of several relations on the SSD: the batches of the sampler in memory, whatever is read how."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.core.signals import NEVER, Cancellation
from gloader.dataset import Dataset
from gloader.dataset.edge_passes import PassSettings
from gloader.dataset.hetero_passes import HeteroHops, HeteroPasses
from gloader.errors import BudgetError, ChannelClosedError, ChecksumError, SpillError
from gloader.samplers import CscGraph, make_hetero_sampler
from gloader.ssd_store.cost.io_rates import IoRates
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.os_io import REAL_OS
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.testing.hetero_sampler_suite import hetero_batch_bytes, make_hetero_graph
from gloader.testing.sampler_suite import edges_to_exclude
from gloader.types import BatchId, BatchSeeds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.samplers import HeteroGraph
    from gloader.types import AnySeeds

RATES = IoRates(
    random_reads_per_s=1e5, read_bytes_per_s=1e9, write_bytes_per_s=1e9, pack_read_bytes_per_s=1e9
)
FANOUTS: Any = {"paper:cites:paper": [4, 0, 3], "*": [3, 5, 2]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, graph = tmp_path_factory.mktemp("passes") / "typed", make_hetero_graph()
    with Dataset.create_hetero(
        path, name="d", num_nodes=graph.num_nodes, relations=tuple(graph.relations), num_classes=2
    ) as writer:
        for relation, topology in graph.relations.items():
            assert isinstance(topology, CscGraph)
            edges = writer.edges(relation)
            with edges.indptr() as column:
                column.append(topology.indptr)
            # Ids of both widths; one relation has no weights.
            dtype = "int64" if relation[1] == "writes" else "int32"
            with edges.indices(topology.num_edges, dtype) as column:
                column.append(topology.indices.astype(dtype))
            if relation[1] != "of" and topology.edge_weight is not None:
                with edges.edge_weight(topology.num_edges) as column:
                    column.append(topology.edge_weight.astype(np.float32))
        papers = writer.nodes("paper")
        papers.labels(np.zeros(graph.num_nodes["paper"], np.int64))
        papers.splits(train=np.arange(9), valid=np.arange(9, 12), test=np.arange(12, 15))
    return path


@contextmanager
def opened(
    path: Path, tmp_path: Path, *, spec: str = "neighbor", layout: Any = "layered", **settings: Any
) -> Iterator[tuple[HeteroPasses, Any, HeteroGraph, SpillFolder]]:
    budget = settings.pop("budget_bytes", 10**9)
    graph = Dataset.open(path).load_hetero_graph()
    sampler: Any = make_hetero_sampler(spec, graph, FANOUTS, 1, layout=layout)
    dataset = Dataset.open(path, os_io=settings.pop("os_io", REAL_OS))
    with SpillFolder(tmp_path, budget_bytes=budget) as folder:
        settings = {"memory_bytes": 24 * 2**20, "rates": RATES} | settings
        passes = HeteroPasses(dataset, sampler.rule, folder, PassSettings(**settings))
        try:
            yield passes, sampler, graph, folder
        finally:
            passes.close()
        assert folder.used_bytes == 0


def seeds_of(index: int, graph: HeteroGraph) -> np.ndarray:
    """Of several types, of one, or none."""
    random = np.random.default_rng(index)
    if index % 4 == 3:
        return np.arange(0 if index == 3 else 20, dtype=np.int64)
    return random.permutation(graph.type_starts[-1])[:50]


def given_of(index: int, graph: HeteroGraph, spec: str) -> AnySeeds:
    """Of every other batch of uniform picks some edges are excluded."""
    seeds = seeds_of(index, graph)
    if index % 2 == 0 or not spec.startswith("neighbor"):
        return seeds
    parts = graph.relations.values()
    excluded = tuple(edges_to_exclude(of, np.arange(of.num_nodes), index) for of in parts)  # type: ignore[arg-type]
    return BatchSeeds(nodes=seeds, excluded=excluded)


def wavefront(
    passes: HeteroPasses, sampler: Any, graph: HeteroGraph, num_batches: int, spec: str = "neighbor"
) -> list[Any]:
    """Sample batches by passes that each serve hops of several superbatches, and give back what is done with."""
    num_hops, size = sampler.rule.num_hops, 3
    batches = [(BatchId(epoch=1, index=b), given_of(b, graph, spec)) for b in range(num_batches)]
    waiting: list[list[tuple[int, Any]]] = []
    brought: dict[int, list[tuple[HeteroHops, int]]] = {b: [] for b in range(num_batches)}
    found = {}
    for turn in count():
        begun = [
            (b, sampler.rule.begin(*batches[b])) for b in range(num_batches)[turn * size : (turn + 1) * size]
        ]
        waiting = [group for group in [*waiting, begun] if group]
        if not waiting:
            return [found[b] for b in range(num_batches)]
        owners = [owner for group in waiting for owner in group]
        hops = passes.sweep([frontier for _, frontier in owners], label=f"pass {turn}", cancellation=NEVER)
        drawn = {}
        for owner, (b, frontier) in enumerate(owners):
            brought[b].append((hops, owner))
            drawn[b] = sampler.rule.extend(frontier, hops.read(owner))
        waiting = [[(b, drawn[b]) for b, _ in group if drawn[b].hop < num_hops] for group in waiting]
        for b in [b for b, frontier in drawn.items() if frontier.hop == num_hops]:
            values = [hops.read(owner) for hops, owner in brought[b]]
            found[b] = hetero_batch_bytes(sampler.replay(*batches[b], values))
            for of_b, owner in brought[b]:
                of_b.release(owner)
    raise AssertionError


@pytest.mark.parametrize(
    ("spec", "layout", "way"),
    [
        ("neighbor", "layered", None),
        ("neighbor", "merged", "full"),
        ("neighbor:replace=true", "layered", "direct"),
        ("weighted", "layered", "merged"),
        ("weighted", "merged", None),
        ("labor", "layered", "full"),
    ],
)
def test_batches_are_those_of_the_sampler_in_memory(
    spec: str, layout: str, way: Any, path: Path, tmp_path: Path
) -> None:
    with opened(path, tmp_path, spec=spec, layout=layout, way=way) as (passes, sampler, graph, folder):
        found = wavefront(passes, sampler, graph, 8, spec)
        expected = [
            hetero_batch_bytes(sampler.sample(BatchId(epoch=1, index=b), given_of(b, graph, spec)))
            for b in range(8)
        ]
        assert found == expected
        assert folder.used_bytes == 0  # everything was released


def test_a_report_sums_up_the_relations(path: Path, tmp_path: Path) -> None:
    with opened(path, tmp_path, way="full") as (passes, sampler, graph, folder):
        frontiers = [sampler.rule.begin(BatchId(epoch=0, index=b), seeds_of(b, graph)) for b in (0, 1)]
        hops = passes.sweep(frontiers, label="a pass", cancellation=NEVER)
        drawn = [values for owner in range(2) for values in hops.read(owner)]
        assert hops.report.cost.read.rows == sum(map(len, drawn)) > 0
        assert hops.report.cost.read.bytes_read >= sum(
            topology.num_edges * (8 if relation[1] == "writes" else 4)
            for relation, topology in graph.relations.items()
        )
        assert hops.report.cost.bytes_written >= sum(values.nbytes for values in drawn)
        assert (hops.report.way, hops.report.predicted_s > 0, hops.report.pages_wanted > 0) == (
            "full",
            True,
            True,
        )
        assert folder.used_bytes > 0
        hops.close()
        hops.close()
        assert folder.used_bytes == 0


def test_where_nobody_draws_nothing_is_read(path: Path, tmp_path: Path) -> None:
    with opened(path, tmp_path) as (passes, sampler, _, folder):
        frontier = sampler.rule.begin(BatchId(epoch=0, index=0), np.empty(0, np.int64))
        hops = passes.sweep([frontier], label="a pass", cancellation=NEVER)
        assert [len(values) for values in hops.read(0)] == [0] * 6
        assert hops.report.cost.read.bytes_read == hops.report.cost.bytes_written == folder.used_bytes == 0
        hops.release(0)


def test_damage_of_one_relation_is_named_and_leaves_nothing(path: Path, tmp_path: Path) -> None:
    file = path / "relations" / "field__of__paper" / "indices.npy"
    whole = file.read_bytes()
    try:
        with opened(path, tmp_path, way="full") as (passes, sampler, graph, folder):
            file.write_bytes(whole[:DATA_OFFSET] + bytes([whole[DATA_OFFSET] ^ 1]) + whole[DATA_OFFSET + 1 :])
            frontier = sampler.rule.begin(BatchId(epoch=0, index=0), seeds_of(0, graph))
            with pytest.raises(ChecksumError, match="field__of__paper"):
                passes.sweep([frontier], label="a pass", cancellation=NEVER)
            assert folder.used_bytes == 0  # also of the relations before it
    finally:
        file.write_bytes(whole)


def test_a_cancelled_pass_leaves_nothing(path: Path, tmp_path: Path) -> None:
    looks = count()
    with opened(path, tmp_path) as (passes, sampler, graph, folder):
        frontier = sampler.rule.begin(BatchId(epoch=0, index=0), seeds_of(0, graph))
        with pytest.raises(ChannelClosedError, match=r"author__writes__paper.* was cancelled"):
            passes.sweep(
                [frontier], label="the first pass", cancellation=Cancellation(lambda: next(looks) > 5)
            )
        assert folder.used_bytes == 0


def test_too_little_memory_or_disk_is_told(path: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(BudgetError, match="passes over the edges need"),
        opened(path, tmp_path, memory_bytes=2**20),
    ):
        pass
    with opened(path, tmp_path, budget_bytes=4096) as (passes, sampler, graph, _):
        frontier = sampler.rule.begin(BatchId(epoch=0, index=0), seeds_of(0, graph))
        with pytest.raises((BudgetError, SpillError)):
            passes.sweep([frontier], label="a pass", cancellation=NEVER)
