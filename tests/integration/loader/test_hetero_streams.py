"""One stream of typed batches: whatever reads rows and edges, with any threads and ranks, from any step on."""

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gloader
from gloader import Dataset
from gloader.errors import StateError
from gloader.testing.resume import batch_digest, check_resume
from gloader.types import HeteroReadyBatch

from .typed import EDGES, WIDTHS, TypedGraph, open_loader, write_typed

ROW = 4 * WIDTHS["paper"]
FEATURES: dict[str, dict[str, Any]] = {
    "ram": {"features": "ram"},
    "ssd": {"features": "ssd", "cache": 60 * ROW},
    **{
        name: {"features": "ssd", "cache": 60 * ROW, "superbatch": size, "io_strategy": name}
        for name, size in (("packed", 2), ("staged", 3), ("direct", 4))
    },
}
SEEDS = {"paper": np.arange(0, 240, 4), "author": np.arange(20, 60), "field": np.arange(0, 20, 3)}
COMBINATIONS = list(itertools.product((1, 2, 8), FEATURES, ("ram", "direct", "sweep"), (1, 2)))
# So that each value meets each other one: a Latin square of features and topologies.
SHORT = [
    ((1, 2, 8)[(row + column) % 3], features, topology, 1 + (row + column) % 2)
    for row, features in enumerate(FEATURES)
    for column, topology in enumerate(("ram", "direct", "sweep"))
]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> TypedGraph:
    return write_typed(tmp_path_factory.mktemp("typed") / "graph")


@pytest.fixture(scope="module", autouse=True)
def _paged() -> Any:
    """Hold no relation in memory unless all are: the small ones are else, and those here are all small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gloader.dataset.topology.held_relations", lambda sizes, *, max_bytes: frozenset())
        yield


def common_digest(batches: Sequence[HeteroReadyBatch]) -> str:
    """Return a digest of what the batches of all ranks hold together, which is what one batch of one rank holds."""
    found = hashlib.sha256()
    found.update(np.concatenate([batch.y.numpy() for batch in batches]).tobytes())
    for name, width in {**dict.fromkeys(batches[0].nodes, 0), **WIDTHS}.items():
        seeds = [batch.nodes[name][: batch.num_seeds[name]] for batch in batches]
        found.update(np.concatenate(seeds).tobytes())
        nodes = np.concatenate([batch.nodes[name] for batch in batches])
        x = np.concatenate([batch.x[name].numpy() for batch in batches])
        assert x.shape == (len(nodes), width)
        _, first, inverse = np.unique(nodes, return_index=True, return_inverse=True)
        np.testing.assert_array_equal(x, x[first][inverse])  # ranks have the same rows of what they share
        found.update(nodes[first].tobytes() + x[first].tobytes())
    for number, relation in itertools.product(range(len(batches[0].blocks)), EDGES):
        found.update(repr((number, relation)).encode())
        edges = [batch.blocks[number][relation].edge_ids.numpy() for batch in batches]
        found.update(np.unique(np.concatenate(edges)).tobytes())
    return found.hexdigest()


def stream(
    graph: TypedGraph, spill: Path, *, threads: int, features: str, topology: str, ranks: int
) -> tuple[list[str], list[list[str]]]:
    """Return the digests of two epochs: of all ranks together, and of each one's batches, bit for bit."""
    settings = FEATURES[features] | {"threads": threads, "topology": topology, "memory_budget": "200MB"}
    parts: list[list[HeteroReadyBatch]] = []
    for rank in range(ranks):
        place: dict[str, Any] = {"rank": rank, "world_size": ranks, "batch_size": 16 // ranks, "seeds": SEEDS}
        with open_loader(graph, spill_dir=spill, **settings, **place) as loader:
            parts.append([batch for _ in range(2) for batch in loader])
    whole = [common_digest(group) for group in zip(*parts, strict=True)]
    return whole, [[batch_digest(batch) for batch in part] for part in parts]


@pytest.fixture(scope="module")
def in_memory(typed: TypedGraph, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    spill = tmp_path_factory.mktemp("spill")
    return {
        ranks: stream(typed, spill, threads=1, features="ram", topology="ram", ranks=ranks)
        for ranks in (1, 2)
    }


def check(
    typed: TypedGraph, in_memory: dict[int, Any], spill: Path, combination: tuple[int, str, str, int]
) -> None:
    threads, features, topology, ranks = combination
    whole, parts = stream(typed, spill, threads=threads, features=features, topology=topology, ranks=ranks)
    assert len(whole) == 14
    assert whole == in_memory[1][0]
    assert parts == in_memory[ranks][1]
    assert list(spill.iterdir()) == []


@pytest.mark.reliability("L13")
@pytest.mark.parametrize("combination", SHORT, ids=str)
def test_one_digest(
    typed: TypedGraph, in_memory: dict[int, Any], tmp_path: Path, combination: tuple[int, str, str, int]
) -> None:
    check(typed, in_memory, tmp_path, combination)


@pytest.mark.long
@pytest.mark.reliability("L13")
def test_one_digest_of_every_combination(
    typed: TypedGraph, in_memory: dict[int, Any], tmp_path: Path
) -> None:
    for combination in COMBINATIONS:
        check(typed, in_memory, tmp_path, combination)


@pytest.mark.reliability("L12")
@pytest.mark.parametrize(
    "place",
    [
        FEATURES["packed"],
        FEATURES["staged"] | {"topology": "sweep"},
        FEATURES["ssd"] | {"superbatch": 4, "policy": "s3fifo", "topology": "direct"},
    ],
    ids=["packed", "swept edges", "online policy"],
)
def test_resume_at_every_step_over_the_borders_of_superbatches(
    typed: TypedGraph, in_memory: dict[int, Any], tmp_path: Path, place: dict[str, Any]
) -> None:
    settings = place | {"seeds": SEEDS, "memory_budget": "200MB", "threads": 2, "spill_dir": tmp_path}
    found = check_resume(
        lambda: open_loader(typed, **settings), epochs=1, digest=batch_digest, returns_to=(3, 6, 0, 5, 1)
    )
    assert found == in_memory[1][1][0]


@pytest.mark.reliability("L12")
@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"fanouts": [2, 2]}, "fanouts"),
        ({"fanouts": gloader.collective([2, 2])}, "fanouts"),
        ({"seeds": {"author": np.arange(100)}}, "seeds"),
        ({"seed": 4}, "seed"),
        ({"sampler": "labor"}, "sampler"),
        ({"layout": "merged"}, "layout"),
    ],
)
def test_a_state_of_other_batches_is_refused_by_what_differs(
    typed: TypedGraph, other: dict[str, Any], field: str
) -> None:
    with (
        open_loader(typed, features="ram") as loader,
        open_loader(typed, features="ram", **other) as odd,
        pytest.raises(StateError, match=field),
    ):
        loader.load_state_dict(odd.state_dict())


@pytest.mark.reliability("L12")
def test_a_state_of_another_typed_dataset_is_refused(typed: TypedGraph, tmp_path: Path) -> None:
    other = write_typed(tmp_path / "other", seed=8)
    with (
        open_loader(typed, features="ram") as loader,
        open_loader(other, features="ram") as odd,
        pytest.raises(StateError, match="dataset"),
    ):
        loader.load_state_dict(odd.state_dict())
    again = TypedGraph(dataset=Dataset.open(typed.dataset.root), features=typed.features, labels=typed.labels)
    with open_loader(typed, features="ram") as loader, open_loader(again, features="ram") as same:
        loader.load_state_dict(same.state_dict())
