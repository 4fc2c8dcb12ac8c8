"""Seeds, budgets and processes that are at the edge of what a loader of several types is for."""

import gc
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forking import in_child

import gloader
from gloader import Dataset
from gloader.errors import BudgetError, ForkError, SeedError

from .typed import EDGES, NUM_NODES, WIDTHS, TypedGraph, contents, expected, open_loader, write_typed

ROW = 4 * WIDTHS["paper"]
PACKED: dict[str, Any] = {"features": "ssd", "cache": 60 * ROW, "superbatch": 2, "io_strategy": "packed"}
PLACES: list[dict[str, Any]] = [{"features": "ram"}, PACKED]
# Packs of the first table fit for a batch or two; its packs and those of the second do not.
SPILL = 9000


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> TypedGraph:
    return write_typed(tmp_path_factory.mktemp("typed") / "graph")


@pytest.mark.reliability("L8")
@pytest.mark.parametrize("place", PLACES, ids=["ram", "packed"])
@pytest.mark.parametrize("rows", [(1, 1), (240, 1), (1, 20)])
def test_batches_that_are_larger_than_their_buffer_in_some_type_get_larger_ones(
    typed: TypedGraph, tmp_path: Path, place: dict[str, Any], rows: tuple[int, int]
) -> None:
    with open_loader(typed, spill_dir=tmp_path, **place) as loader:
        ring = loader._held.tier.ring
        ring._rows = ring._largest = rows
        assert [*map(contents, loader)] == list(expected(typed))
        assert min(ring.rows) > 1


@pytest.mark.reliability("L8")
def test_a_ring_that_no_batch_fits_says_needed_and_allowed(typed: TypedGraph) -> None:
    with open_loader(typed, features="ram") as loader:
        ring = loader._held.tier.ring
        ring._max_bytes = 50 * ROW
        with pytest.raises(
            BudgetError, match=r"a batch needs a buffer of .* rows of 48 B and \d+ rows of 20 B"
        ):
            list(loader)


@pytest.mark.reliability("L9")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory_budget": "20KB"}, r"\d.*the memory budget is 20 KB"),
        ({"memory_budget": "20KB", "topology": "direct"}, "20 KB"),
        ({"memory_budget": "40KB", "features": "ram"}, "40 KB|budget"),
        ({**PACKED, "memory_budget": "2MB"}, r"budget"),
        ({**PACKED, "spill_budget": 0}, "spill_budget"),
    ],
)
def test_budgets_that_are_too_small_are_refused_at_once(
    typed: TypedGraph, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BudgetError, match=message) as caught:
        open_loader(typed, spill_dir=tmp_path, **settings)
    assert re.search(r" need[s ].*(B|bytes)|needs disk", str(caught.value))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("L9")
def test_a_spill_budget_for_one_table_alone_says_needed_and_allowed(
    typed: TypedGraph, tmp_path: Path
) -> None:
    with open_loader(typed, spill_dir=tmp_path, spill_budget=SPILL, **PACKED) as loader:
        with pytest.raises(
            BudgetError, match=r"needs \d+ bytes .* and \d+ \(.*\) are allowed; raise spill_b"
        ) as caught:
            list(loader)
        assert "while rows of field were staged" in caught.value.__notes__
        assert loader._held.tier.require_ssd()[0].retrieval._spill.used_bytes == 0  # type: ignore[union-attr]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("L10")
@pytest.mark.parametrize("place", PLACES, ids=["ram", "packed"])
def test_two_loaders_in_one_folder_leave_each_other_alone(
    typed: TypedGraph, tmp_path: Path, place: dict[str, Any]
) -> None:
    whole = list(expected(typed))
    with open_loader(typed, spill_dir=tmp_path, **place) as one:
        with open_loader(typed, spill_dir=tmp_path, **PACKED) as other:
            for first, second, right in zip(one, other, whole, strict=True):
                assert contents(first) == contents(second) == right
        assert [contents(batch) for batch in one] == list(expected(typed, epochs=2))[7:]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("L10")
@pytest.mark.parametrize(
    "place",
    [*PLACES, PACKED | {"topology": "sweep", "memory_budget": "200MB"}],
    ids=["ram", "packed", "swept"],
)
def test_a_forked_child_is_refused_and_the_parent_goes_on(
    typed: TypedGraph, tmp_path: Path, place: dict[str, Any]
) -> None:
    whole = list(expected(typed))

    def use() -> None:
        for call in (
            lambda: next(batches),
            lambda: iter(loader),
            lambda: loader.stats,
            loader.explain,
            lambda: loader.load_state_dict(loader.state_dict()),
        ):
            with pytest.raises(ForkError, match="start workers with 'spawn' and build it there"):
                call()
        assert list(loader.graph.relations) == list(EDGES)
        assert loader.state_dict()["next"] == [0, 1]
        for name, width in WIDTHS.items():
            out = np.empty((NUM_NODES[name], width), np.float32)
            loader.features[name].read_into(np.arange(len(out)), out)
            np.testing.assert_array_equal(out, typed.features[name])
        batches.close()  # type: ignore[attr-defined]
        loader.close()
        gc.collect()

    with open_loader(typed, spill_dir=tmp_path, spill_budget="64MB", **place) as loader:
        batches = iter(loader)
        assert contents(next(batches)) == whole[0]
        assert in_child(use) == 0
        assert [*map(contents, batches)] == whole[1:]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("L11")
@pytest.mark.parametrize("place", PLACES, ids=["ram", "packed"])
def test_batches_without_seeds_of_the_labelled_type(
    typed: TypedGraph, tmp_path: Path, place: dict[str, Any]
) -> None:
    """Few papers among many authors and fields: some batches have labels, others have none."""
    seeds = {"author": np.arange(90), "paper": np.array([7, 100]), "field": np.arange(20)}
    with open_loader(typed, seeds=seeds, spill_dir=tmp_path, **place) as loader:
        found = [contents(batch) for batch in loader]
        numbers = loader.seeds
    assert found == list(expected(typed, seeds=numbers))
    counts = [len(one["y"]) for one in found]
    assert (0 in counts, sum(counts)) == (True, 2)
    assert all(len(one["y"]) == one["num_seeds"]["paper"] for one in found)


@pytest.mark.reliability("L11")
@pytest.mark.parametrize("place", PLACES, ids=["ram", "packed"])
def test_seeds_of_a_type_that_no_edge_leads_to(tmp_path: Path, place: dict[str, Any]) -> None:
    """Batches are their seeds, and every type and relation is there."""
    rng = np.random.default_rng(0)
    dataset = Dataset.from_numpy_hetero(
        tmp_path / "graph",
        num_nodes={"paper": 50, "author": 30, "venue": 4},
        features={"author": rng.random((30, 3), np.float32), "paper": rng.random((50, 2), np.float32)},
        edges={
            ("author", "writes", "paper"): np.stack([rng.integers(0, 30, 200), rng.integers(0, 50, 200)]),
            ("author", "to", "venue"): np.empty((2, 0), np.int64),
        },
        labels={"paper": rng.integers(0, 2, 50)},
        train=np.arange(20),
        valid=np.arange(20, 30),
        test=np.arange(30, 50),
    )
    whole = dataset.node_tables["author"].all_features()
    spill = tmp_path / "spill"
    spill.mkdir()
    settings: dict[str, Any] = {
        "fanouts": [3, 2],
        "batch_size": 4,
        "memory_budget": "80MB",
        "spill_budget": "64MB",
    }
    for name, count in (("author", 30), ("venue", 4)):
        with gloader.HeteroLoader(
            dataset, seeds={name: np.arange(count)}, spill_dir=spill, **settings, **place
        ) as loader:
            batches = list(loader)
        assert sum(batch.num_seeds[name] for batch in batches) == count
        for batch in batches:
            assert {each: len(nodes) for each, nodes in batch.nodes.items()} == dict(batch.num_seeds)
            assert len(batch.y) == 0
            assert all(len(block.indices) == 0 for hop in batch.blocks for block in hop.values())
            assert [list(hop) for hop in batch.blocks] == [list(dataset.relations)] * 2
            np.testing.assert_array_equal(batch.x["author"].numpy(), whole[batch.nodes["author"]])
    assert list(spill.iterdir()) == []


@pytest.mark.reliability("L11")
@pytest.mark.parametrize("place", [*PLACES, {"topology": "sweep", "features": "ram"}], ids=str)
def test_without_a_training_node_there_is_no_batch_and_no_thread(
    tmp_path: Path, place: dict[str, Any]
) -> None:
    graph = write_typed(tmp_path / "graph", num_train=0)
    spill = tmp_path / "spill"
    spill.mkdir()
    for seeds in (None, {}, {"author": np.empty(0, np.int64)}):
        with open_loader(graph, seeds=seeds, spill_dir=spill, **place) as loader:
            assert len(loader) == 0
            assert list(itertools.chain(loader, loader)) == []
            assert loader.explain()
    assert list(spill.iterdir()) == []


@pytest.mark.reliability("L11")
def test_a_hop_that_asks_for_nothing_is_empty(typed: TypedGraph) -> None:
    with open_loader(typed, fanouts={"*": [0, 0]}, features="ram") as loader:
        for batch in loader:
            assert {each: len(nodes) for each, nodes in batch.nodes.items()} == dict(batch.num_seeds)


def test_seeds_by_type_are_refused_by_the_loader_of_one_type(tmp_path: Path) -> None:
    dataset = Dataset.from_numpy(
        tmp_path / "one",
        features=np.zeros((4, 2), np.float32),
        edge_index=np.array([[0, 1], [1, 2]]),
        labels=np.zeros(4, np.int64),
        train=np.arange(4),
        valid=np.empty(0, np.int64),
        test=np.empty(0, np.int64),
    )
    with pytest.raises(SeedError, match=re.escape("seeds by node type are for gloader.HeteroLoader")):
        gloader.Loader(dataset, fanouts=[1], batch_size=1, seeds={"node": np.arange(2)})
