"""One stream of batches of links: for any settings that are no part of the batches, from any step on, for all ranks."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gloader import Binary, InBatch, LinkLoader, Uniform
from gloader.types import ReadyBatch

from .linked import NUM_ROWS, LinkedGraph, link_contents, write_linked

PLACES: list[dict[str, Any]] = [
    {"features": "ram"},
    {"features": "ssd", "cache": 0},
    *(
        {"features": "ssd", "cache": cache, "io_strategy": strategy, "policy": policy}
        for cache, strategy, policy in (
            (900, "direct", "belady"),
            (2000, "staged", "belady"),
            (900, "packed", "belady"),
            (3000, "packed", "lru"),
            (900, "direct", "s3fifo"),
            (900, "staged", "static"),
        )
    ),
]
BATCHES: list[dict[str, Any]] = [
    {"negatives": negatives, "exclude": exclude, "layout": layout, "edge_features": edges}
    for negatives, exclude, layout, edges in (
        (Uniform(2, strict=True), "reverse", "layered", "auto"),
        (Binary(1.5), "self", "merged", "auto"),
        (InBatch(), "none", "layered", "none"),
        (Uniform(3), "reverse", "merged", "none"),
    )
]
TIMED: list[dict[str, Any]] = [
    {"negatives": Uniform(1), "time_strategy": "uniform", "time_window": 500},
    {"negatives": InBatch(), "time_strategy": "last", "layout": "merged", "exclude": "reverse"},
]
KINDS = BATCHES + TIMED


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> LinkedGraph:
    return write_linked(tmp_path_factory.mktemp("linked") / "graph")


def open_links(graph: LinkedGraph, **settings: Any) -> LinkLoader:
    given: dict[str, Any] = {"fanouts": [3, 2], "seed": 5, "epochs": 2, "memory_budget": "200MB"}
    return LinkLoader(graph.dataset, **(given | {"batch_size": 96} | settings))


def draw(dice: random.Random, *, is_timed: bool) -> dict[str, Any]:
    """Return settings that are no part of the batches."""
    return {
        **dice.choice(PLACES),
        "threads": dice.choice([1, 2, 5]),
        "superbatch": dice.choice([1, 2, 5]),
        "topology": dice.choice(["ram", "direct"] if is_timed else ["ram", "direct", "sweep"]),
        # A plan sets 50 MB aside for each thread that samples in-batch negatives with times: 18,000 seeds a batch.
        "memory_budget": dice.choice(["500MB", "1GB"] if is_timed else ["150MB", "400MB"]),
        # Packs of a graph of so few rows need more than the default, four times their bytes.
        "spill_budget": "10MB",
        "io": dice.choice(["auto", "buffered"]),
    }


def whole_of(parts: list[list[Any]]) -> list[tuple[Any, ...]]:
    """Return of each step what all ranks predict together: the rows of the table, in order."""
    return [
        (step[0].id, np.concatenate([batch.edge_ids[: batch.num_positives] for batch in step]).tolist())
        for step in zip(*parts, strict=True)
    ]


def check(graph: LinkedGraph, spill: Path, kind: dict[str, Any], dice: random.Random, count: int) -> None:
    is_timed = "time_strategy" in kind
    with open_links(graph, **kind) as loader:
        batches = [batch for _ in range(2) for batch in loader]
        stream = [link_contents(batch) for batch in batches]
    assert len({*map(repr, stream)}) == len(stream) == 12
    for _ in range(count):
        settings = draw(dice, is_timed=is_timed) | kind | {"spill_dir": spill}
        at = dice.randrange(len(stream))
        with open_links(graph, **settings) as loader:
            found = []
            for epoch in (loader, loader):
                for batch in epoch:
                    found.append(link_contents(batch))
                    if len(found) == at:
                        break
                if len(found) == at:
                    break
            state = loader.state_dict()
        assert found == stream[: len(found)], settings
        with open_links(graph, **(draw(dice, is_timed=is_timed) | kind | {"spill_dir": spill})) as loader:
            loader.load_state_dict(state)
            found += [link_contents(batch) for _ in range(3) for batch in loader if len(found) < 12]
        assert found[:12] == stream, settings
    for ranks in (2, 3):
        settings = draw(dice, is_timed=is_timed) | kind | {"spill_dir": spill, "batch_size": 96 // ranks}
        parts = []
        for rank in range(ranks):
            with open_links(graph, rank=rank, world_size=ranks, sharing="private", **settings) as loader:
                parts.append([batch for _ in range(2) for batch in loader])
        for (batch_id, rows), batch in zip(whole_of(parts), batches, strict=True):
            assert batch_id == batch.id
            expected = batch.edge_ids[: batch.num_positives].tolist()
            # The last step of an epoch may not part evenly.
            assert rows == expected if len(expected) == 96 else {*rows} == {*expected}
        for part in parts:
            assert all(isinstance(batch.batch, ReadyBatch) for batch in part)
    assert list(spill.iterdir()) == []


@pytest.mark.reliability("M15")
@pytest.mark.parametrize("number", range(len(KINDS)))
def test_one_stream_of_links(linked: LinkedGraph, tmp_path: Path, number: int) -> None:
    check(linked, tmp_path, KINDS[number], random.Random(number), count=1)  # noqa: S311 - dice


@pytest.mark.long
@pytest.mark.reliability("M15")
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("number", range(len(KINDS)))
def test_one_stream_of_links_for_many_settings(
    linked: LinkedGraph, tmp_path: Path, number: int, seed: int
) -> None:
    check(linked, tmp_path, KINDS[number], random.Random(100 + 10 * seed + number), count=5)  # noqa: S311


def steps(graph: LinkedGraph, negatives: Any, world_size: int) -> list[set[tuple[int, ...]]]:
    """Return what each step of all ranks learns: (source, destination, label) of its pairs, 64 positives a step."""
    learned: list[set[tuple[int, ...]]] = []
    for rank in range(world_size):
        size = {"batch_size": 64 // world_size, "rank": rank, "world_size": world_size}
        with open_links(graph, negatives=negatives, threads=1, epochs=1, **size) as loader:
            for number, batch in enumerate(loader):
                assert isinstance(batch.batch, ReadyBatch)
                ends = batch.batch.nodes[batch.pairs.numpy()]
                rows = {
                    (*pair, label) for pair, label in zip(ends.tolist(), batch.labels.tolist(), strict=True)
                }
                if rank == 0:
                    learned.append(rows)
                else:
                    learned[number] |= rows
    return learned


@pytest.mark.parametrize("negatives", [Uniform(2), Binary(2)])
def test_two_ranks_learn_of_drawn_negatives_what_one_does_with_twice_the_batch(
    linked: LinkedGraph, negatives: Any
) -> None:
    whole = NUM_ROWS // 64  # steps that are full
    assert steps(linked, negatives, 2)[:whole] == steps(linked, negatives, 1)[:whole]


def test_negatives_of_the_batch_are_those_of_the_rank_s_own_batch(linked: LinkedGraph) -> None:
    two, one = (steps(linked, InBatch(), world_size)[0] for world_size in (2, 1))
    assert two < one  # the positives are the same, and each has half as many negatives beside it
    count = [len([pair for pair in pairs if pair[2] == 0]) for pairs in (one, two)]
    assert 1.8 < count[0] / count[1] < 2.2
