"""Loaders of graphs of several types: one stream of batches wherever rows and edges are, and nothing vanishes."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gloader
from gloader import Dataset, Loader, collective
from gloader.errors import ConfigError, SeedError
from gloader.pipeline.open.disk import _largest_file
from gloader.pipeline.open.load_plan import _warn_once

from .typed import EDGES, FANOUTS, NUM_NODES, WIDTHS, TypedGraph, contents, expected, open_loader, write_typed

ROW = 4 * WIDTHS["paper"]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> TypedGraph:
    return write_typed(tmp_path_factory.mktemp("typed") / "graph")


@pytest.mark.parametrize(
    "settings",
    [
        {"features": "ram"},
        {"features": "ram", "device_cache": 40 * ROW},
        {"features": "ssd", "cache": 0, "io_strategy": "direct"},
        {"features": "ssd", "cache": 60 * ROW, "io_strategy": "staged", "topology": "direct"},
        {"features": "ssd", "cache": 60 * ROW, "io_strategy": "packed", "superbatch": 2},
        {"features": "ssd", "cache": 90 * ROW, "policy": "static", "device_cache": 30 * ROW},
        {"features": "ssd", "cache": 90 * ROW, "policy": "sieve", "threads": 4},
        {"features": "ssd", "cache": 10_000 * ROW, "io": "threads", "threads": 1},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_one_stream_wherever_rows_and_edges_are(
    typed: TypedGraph, settings: dict[str, Any], tmp_path: Path
) -> None:
    with open_loader(typed, spill_dir=tmp_path, **settings) as loader:
        found = [contents(batch) for _ in range(2) for batch in loader]
        stats = loader.stats
    assert found == list(expected(typed, epochs=2))
    assert stats.rows_gathered == stats.device_hits + stats.cache_hits + stats.rows_read
    rows = sum(len(one[f"x {name}"]) for one in found[7:] for name in WIDTHS)
    assert stats.rows_gathered == rows  # of the types that have features, in the second epoch


@pytest.mark.parametrize("layout", ["layered", "merged"])
@pytest.mark.parametrize("fanouts", [[3, 2], collective([4, 3]), "author:writes:paper=4,-1;*=0,2"])
def test_every_form_of_fan_outs_and_both_layouts(typed: TypedGraph, fanouts: Any, layout: Any) -> None:
    with open_loader(typed, fanouts=fanouts, layout=layout, features="ssd", cache=60 * ROW) as loader:
        assert [*map(contents, loader)] == list(expected(typed, fanouts=fanouts, layout=layout))


@pytest.mark.parametrize("features", ["auto", "ssd"])
def test_a_graph_of_nothing_but_nodes_has_batches_of_its_seeds(tmp_path: Path, features: Any) -> None:
    dataset = Dataset.from_numpy_hetero(
        tmp_path / "bare",
        num_nodes={"paper": 20, "author": 5},
        features={},
        edges={},
        labels={"paper": np.arange(20) % 3},
        train=np.arange(12),
        valid=np.arange(12, 16),
        test=np.arange(16, 20),
    )
    with gloader.HeteroLoader(
        dataset, fanouts=[2], batch_size=4, features=features, memory_budget="80MB"
    ) as loader:
        for batch in loader:
            assert batch.y.tolist() == (batch.nodes["paper"] % 3).tolist()
            assert {name: tuple(x.shape) for name, x in batch.x.items()} == {
                "paper": (4, 0),
                "author": (0, 0),
            }
        assert loader.stats.seeds == 12
        assert "no node type has any" in loader.explain()


def test_the_disk_is_judged_by_the_largest_file_that_is_read(typed: TypedGraph) -> None:
    dataset = typed.dataset
    tables = [rows for name in WIDTHS if (rows := dataset.node_tables[name].feature_rows) is not None]
    assert _largest_file(dataset, tables) == (dataset.node_tables["paper"].features_path, None)
    largest = max(dataset.edge_tables.values(), key=lambda table: table.topology_bytes)
    assert _largest_file(dataset, []) == (largest.root / largest.arrays["indices"].file, None)


def test_every_type_and_relation_is_in_every_batch(typed: TypedGraph) -> None:
    with open_loader(typed) as loader:
        for batch in loader:
            assert list(batch.x) == list(batch.nodes) == list(batch.num_seeds) == list(NUM_NODES)
            assert {name: x.shape[1] for name, x in batch.x.items()} == {
                **dict.fromkeys(NUM_NODES, 0),
                **WIDTHS,
            }
            assert [list(hop) for hop in batch.blocks] == [list(EDGES)] * 2
            empty = batch.blocks[0]["nobody", "reads", "paper"]
            assert (empty.num_src, len(empty.indices)) == (0, 0)
            assert len(empty.indptr) == empty.num_dst + 1


@pytest.mark.parametrize("at", [1, 3, 6, 7])
def test_a_position_is_returned_to(typed: TypedGraph, at: int) -> None:
    whole = list(expected(typed, epochs=2))
    with open_loader(typed, features="ssd", cache=60 * ROW) as loader:
        for number, _ in enumerate(loader, start=1):
            if number == at:
                break
        state = loader.state_dict()
    with open_loader(typed, features="ram") as loader:
        loader.load_state_dict(state)
        found = [contents(batch) for batch in loader]
    assert found == (whole[at:7] or whole[7:])


def test_seeds_may_be_of_several_types_and_labels_are_of_one(typed: TypedGraph) -> None:
    seeds = {"author": np.arange(40, 70), "paper": np.array([9, 3, 200]), "field": np.arange(5)}
    with open_loader(typed, seeds=seeds, features="ssd", cache=60 * ROW) as loader:
        found = [contents(batch) for batch in loader]
        numbers = loader.seeds
    starts = typed.dataset.type_starts
    assert sorted(numbers) == sorted(
        np.concatenate([ids + starts[list(NUM_NODES).index(name)] for name, ids in seeds.items()])
    )
    assert found == list(expected(typed, seeds=numbers))
    assert sum(len(one["y"]) for one in found) == 3


@pytest.mark.parametrize("features", ["ram", "ssd"])
def test_a_graph_without_features_has_batches_all_the_same(tmp_path: Path, features: Any) -> None:
    graph = write_typed(tmp_path / "bare", has_features=False)
    with open_loader(graph, features=features, epochs=2) as loader:
        held = [batch for _ in range(2) for batch in loader]  # nothing of a ring is kept by them
        assert [contents(batch) for batch in held] == list(expected(graph, epochs=2))
        assert loader.explain()
    assert all(x.shape[1] == 0 for batch in held for x in batch.x.values())


def test_a_dataset_of_one_type_gives_the_batches_of_its_own_loader(tmp_path: Path) -> None:
    rng = np.random.Generator(np.random.Philox(3))
    dataset = Dataset.from_numpy(
        tmp_path / "one",
        features=rng.standard_normal((200, 6)).astype(np.float32),
        edge_index=rng.integers(0, 200, (2, 1500)),
        labels=rng.integers(0, 3, 200),
        train=np.arange(90),
        valid=np.arange(90, 120),
        test=np.arange(120, 200),
    )
    settings: Any = {
        "fanouts": [4, 3],
        "batch_size": 20,
        "seed": 1,
        "features": "ssd",
        "memory_budget": "80MB",
    }
    with Loader(dataset, **settings) as one, gloader.HeteroLoader(dataset, **settings) as several:
        for plain, typed in zip(one, several, strict=True):
            np.testing.assert_array_equal(plain.x.numpy(), typed.x["node"].numpy())
            np.testing.assert_array_equal(plain.nodes, typed.nodes["node"])
            assert plain.y.tolist() == typed.y.tolist()
            for left, hop in zip(plain.blocks, typed.blocks, strict=True):
                right = hop["node", "to", "node"]
                for name in ("indptr", "indices", "edge_ids"):
                    assert getattr(left, name).tolist() == getattr(right, name).tolist()
                assert (left.num_src, left.num_dst) == (right.num_src, right.num_dst)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_rows_of_other_dtypes_are_widened(tmp_path: Path, dtype: str) -> None:
    graph = write_typed(tmp_path / dtype, dtype=dtype)
    for settings in ({"features": "ram"}, {"features": "ssd", "cache": 60 * ROW}):
        with open_loader(graph, **settings) as loader:
            assert [*map(contents, loader)] == list(expected(graph))


def test_a_batch_that_is_kept_by_one_of_its_types_keeps_its_rows(typed: TypedGraph) -> None:
    with open_loader(typed, features="ssd", cache=60 * ROW) as loader:
        kept = [(batch.nodes["field"], batch.x["field"]) for batch in loader]
        for nodes, x in kept:
            np.testing.assert_array_equal(x.numpy(), typed.features["field"][nodes])


def test_the_plan_names_every_table(typed: TypedGraph) -> None:
    with open_loader(typed, features="ssd", cache=100 * ROW) as loader:
        list(loader)
        text, plan = loader.explain(), loader.memory_plan
    assert len(plan.cache_rows) == len(WIDTHS)
    assert sum(plan.cache_rows) > 0
    for name in WIDTHS:
        assert f"host cache of {name}" in text
    assert "author" not in text  # no features, nothing to cache


def test_relations_that_no_seed_reaches_are_told_of(
    typed: TypedGraph, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_once.cache_clear()
    for _ in range(2):  # once of both
        with caplog.at_level(logging.WARNING, logger="gloader"), open_loader(typed, fanouts=[2]):
            pass
    (message,) = [
        record.getMessage() for record in caplog.records if "no batch has edges" in record.getMessage()
    ]
    assert "paper:written_by:author" in message
    assert "paper:has:field" in message
    assert "cites" not in message
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="gloader"), open_loader(typed, fanouts=FANOUTS):
        pass
    assert not caplog.records


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"seeds": {"venue": [1]}},
            SeedError,
            r"seeds name the node type 'venue'; .* has 'author', 'paper', 'field'",
        ),
        (
            {"seeds": {"field": [3, 20]}},
            SeedError,
            r"1 seeds of type 'field' are not in 0\.\.19, among them \[20\]",
        ),
        (
            {"seeds": np.array([500])},
            SeedError,
            r"1 seeds of type 'paper' are not in 0\.\.239, among them \[500\]",
        ),
        ({"fanouts": {"author:writes:paper": [2]}}, ConfigError, "paper:written_by:author"),
        ({"fanouts": {"a:b:c": [2], "*": [1]}}, ConfigError, "a:b:c"),
        ({"sampler": "fastgcn"}, ConfigError, "fastgcn"),
        (
            {"topology": "sweep", "fanouts": collective([3])},
            ConfigError,
            "fan-outs of all relations together .* use fan-outs of each relation",
        ),
        (
            {"topology": "sweep", "sampler": "labor:iterations=1"},
            ConfigError,
            "the sampler 'labor:iterations=0'",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    typed: TypedGraph, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_loader(typed, **settings)


def test_a_loader_of_one_type_says_which_one_to_use(typed: TypedGraph) -> None:
    with pytest.raises(
        ConfigError, match=r"4 node types \(author, paper, field, nobody\).*gloader.HeteroLoader"
    ):
        Loader(typed.dataset, fanouts=[2], batch_size=4)
