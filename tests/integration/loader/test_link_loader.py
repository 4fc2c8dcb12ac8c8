"""Batches of links: the same for every setting, without what was excluded, with the rows of nodes and of edges."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gloader
from gloader import Binary, InBatch, LinkLoader, Uniform
from gloader.errors import BudgetError, ConfigError, SeedError
from gloader.pipeline import link_task
from gloader.testing.resume import batch_digest
from gloader.types import NO_EDGE, LinkBatch, ReadyBatch

from .linked import NUM_ROWS, LinkedGraph, check_rows, link_contents, write_linked

SSD: dict[str, Any] = {"features": "ssd", "cache": 900}
PLACES: dict[str, dict[str, Any]] = {
    "ram": {"features": "ram"},
    "direct": {**SSD, "io_strategy": "direct"},
    "staged": {**SSD, "io_strategy": "staged", "superbatch": 3, "threads": 1},
    "packed": {**SSD, "io_strategy": "packed", "superbatch": 4},
    "lru": {**SSD, "policy": "lru"},
    "no cache": {"features": "ssd", "policy": "none"},
    "static": {**SSD, "policy": "static"},
    "edges read": {**SSD, "topology": "direct"},
    "edges swept": {**SSD, "topology": "sweep"},
    "edges swept, rows held": {"features": "ram", "topology": "sweep"},
}


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> LinkedGraph:
    return write_linked(tmp_path_factory.mktemp("linked") / "graph")


def _open(graph: LinkedGraph, **changes: Any) -> LinkLoader:
    settings: dict[str, Any] = {"fanouts": [4, 3], "batch_size": 64, "seed": 3, "epochs": 2, "threads": 2}
    return LinkLoader(graph.dataset, **(settings | changes))


def _ready(batch: LinkBatch) -> ReadyBatch:
    assert isinstance(batch.batch, ReadyBatch)
    return batch.batch


@pytest.mark.parametrize("layout", ["layered", "merged"])
@pytest.mark.parametrize("exclude", ["none", "reverse"])
def test_batches_are_the_same_wherever_rows_and_edges_live(
    linked: LinkedGraph, tmp_path: Path, exclude: str, layout: str
) -> None:
    settings: dict[str, Any] = {"exclude": exclude, "layout": layout, "spill_dir": tmp_path}
    with _open(linked, features="ram", **settings) as loader:
        expected = [link_contents(batch) for _ in range(2) for batch in loader]
        assert len(expected) == 2 * -(-NUM_ROWS // 64)
    # One place for each of the four streams, and all of them for one.
    places = PLACES if (exclude, layout) == ("reverse", "layered") else {"packed": PLACES["packed"]}
    for name, place in places.items():
        with _open(linked, **settings, **place) as loader:
            found = [link_contents(batch) for _ in range(2) for batch in loader]
        assert found == expected, name


@pytest.mark.parametrize("place", ["ram", "packed"])
def test_rows_of_nodes_and_edges_are_those_that_were_written(linked: LinkedGraph, place: str) -> None:
    with _open(linked, **PLACES[place]) as loader:
        seen: list[int] = []
        for batch in loader:
            ready = _ready(batch)
            check_rows(linked, ready)
            rows = batch.edge_ids[: batch.num_positives]
            seen += rows.tolist()
            ends = ready.nodes[batch.pairs.numpy()]
            assert np.array_equal(ends[: batch.num_positives], linked.pairs[rows, :2])
            # Of the same sources, and not of the table.
            assert np.array_equal(ends[batch.num_positives :, 0], linked.pairs[rows, 0])
            assert (batch.edge_ids[batch.num_positives :] == NO_EDGE).all()
            assert batch.labels.tolist() == [1.0] * len(rows) + [0.0] * len(rows)
            assert batch.labels is ready.y
        assert sorted(seen) == list(range(NUM_ROWS))


def test_edges_that_are_excluded_are_in_no_hop(linked: LinkedGraph) -> None:
    met = {"none": 0, "self": 0, "reverse": 0}
    for exclude, place in itertools.product(met, ["ram", "packed", "edges swept"]):
        with _open(linked, exclude=exclude, fanouts=[-1, 4], epochs=1, **PLACES[place]) as loader:
            for batch in loader:
                rows = batch.edge_ids[: batch.num_positives]
                out = linked.pairs[rows, 2:] if exclude == "reverse" else linked.pairs[rows, 2]
                taken = np.concatenate([block.edge_ids.numpy() for block in _ready(batch).blocks])
                met[exclude] += int(np.isin(taken, out[out != NO_EDGE]).sum())
    assert met["none"] > 100  # else the others show nothing
    assert met["self"] == met["reverse"] == 0


@pytest.mark.parametrize("strategy", ["direct", "staged", "packed"])
def test_the_disk_reads_the_bytes_that_were_predicted(linked: LinkedGraph, strategy: str) -> None:
    with _open(linked, io_strategy=strategy, superbatch=4, **SSD) as loader:
        for _ in loader:
            pass
        for name in ("node", "edges"):
            found = [report for report in loader.reports if report.table == name]
            measured = sum(report.measured_bytes for report in found)
            predicted = sum(report.choice.read_bytes for report in found)
            assert found
            assert measured <= 1.1 * predicted
            assert predicted <= 1.1 * measured


@pytest.mark.parametrize("negatives", [Uniform(3), Uniform(1, strict=True), Binary(0.5), InBatch()], ids=str)
def test_every_kind_of_negatives_is_drawn_alike_in_every_place(linked: LinkedGraph, negatives: Any) -> None:
    streams = []
    for place in ("ram", "edges read", "edges swept"):
        with _open(linked, negatives=negatives, epochs=1, **PLACES[place]) as loader:
            streams.append([link_contents(batch) for batch in loader])
    assert streams[0] == streams[1] == streams[2]


@pytest.mark.parametrize("place", ["ram", "packed"])
def test_a_state_in_the_middle_goes_on_bit_for_bit(linked: LinkedGraph, place: str) -> None:
    with _open(linked, **PLACES[place]) as loader:
        expected = [link_contents(batch) for _ in range(2) for batch in loader]
    for cut in (0, 3, len(expected) // 2):
        with _open(linked, **PLACES[place]) as loader:
            found = [link_contents(batch) for batch in itertools.islice(loader, cut)]
            state = loader.state_dict()
        with _open(linked, **PLACES[place]) as loader:
            loader.load_state_dict(state)
            while len(found) < len(expected):
                found += map(link_contents, loader)
        assert found == expected


def test_a_state_of_other_negatives_is_refused(linked: LinkedGraph) -> None:
    with _open(linked) as loader:
        state = loader.state_dict()
    for changes in ({"negatives": Uniform(2)}, {"exclude": "self"}, {"batch_size": 32}):
        with _open(linked, **changes) as loader, pytest.raises(gloader.errors.StateError):
            loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("field", "value"),
    [("time_strategy", "last"), ("time_bound", "<="), ("time_window", 300), ("time_window", None)],
)
def test_a_state_of_another_time_rule_is_refused(linked: LinkedGraph, field: str, value: Any) -> None:
    rule = {"time_strategy": "uniform", "time_bound": "<", "time_window": 400}
    with _open(linked, **rule) as loader:
        state = loader.state_dict()
    with (
        _open(linked, **(rule | {field: value})) as loader,
        pytest.raises(gloader.errors.StateError, match=f"the state was saved with {field} "),
    ):
        loader.load_state_dict(state)


def test_ranks_take_their_parts_of_the_same_steps(linked: LinkedGraph) -> None:
    with _open(linked, batch_size=64, shuffle=True) as loader:
        whole = [batch.edge_ids[: batch.num_positives].tolist() for batch in loader]
    parts = []
    for rank in range(2):
        with _open(linked, batch_size=32, rank=rank, world_size=2, sharing="private") as loader:
            parts.append([batch.edge_ids[: batch.num_positives].tolist() for batch in loader])
    assert [first + second for first, second in zip(*parts, strict=True)] == whole


def test_features_of_edges_are_left_out_on_request(linked: LinkedGraph) -> None:
    with _open(linked, edge_features="none", epochs=1) as loader:
        assert all(block.edge_x is None for batch in loader for block in _ready(batch).blocks)
        assert [*loader.features] == ["node"]


def test_the_loader_of_nodes_brings_features_of_edges_too(linked: LinkedGraph) -> None:
    settings: dict[str, Any] = {"fanouts": [4, 3], "batch_size": 50, "epochs": 1}
    for place in ("ram", "packed"):
        with gloader.Loader(linked.dataset, **settings, **PLACES[place]) as loader:
            for batch in loader:
                check_rows(linked, batch)


def test_explain_says_what_is_predicted_and_what_features_of_edges_cost(linked: LinkedGraph) -> None:
    with _open(linked, exclude="reverse", **PLACES["packed"]) as loader:
        for _ in loader:
            pass
        text = loader.explain()
    assert re.search(
        r"links: 500 edges of 'train' \(node:to:node, 20 KB held\), negatives uniform:1, left out: these edges and "
        r"their reverses",
        text,
    )
    assert re.search(
        r"edges: [\d.,]+ rows .* of 12 B; (about [\d.]+ \w+ are|nothing is) read from the SSD", text
    )


def test_a_table_that_does_not_fit_is_read_by_each_batch(
    linked: LinkedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _open(linked, memory_budget="4GB", epochs=1) as loader:
        expected = [link_contents(batch) for batch in loader]
    monkeypatch.setattr(link_task, "_HELD_SHARE", 0.0)
    with _open(linked, memory_budget="4GB", epochs=1) as loader:
        assert "rows of 20 KB are read by each batch" in loader.explain()
        assert [link_contents(batch) for batch in loader] == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": "valid"}, r"valid.*train"),
        ({"exclude": "all"}, r"exclude='all' is not one of 'none', 'self', 'reverse'"),
        ({"seed_blocks": 4}, r"seed_blocks is 4; rows of a table have no neighbours"),
        ({"batch_size": NUM_ROWS + 1}, r"larger than the 500 edges"),
        ({"negatives": gloader.Table("valid")}, r"valid"),
        ({"sampler": "ladies", "fanouts": [64, 64], "exclude": "self"}, r"ladies"),
        ({"sampler": "labor", "exclude": "reverse"}, r"labor"),
        ({"typed": False, "fanouts": "*=4;a:b:c=3"}, r"relation"),
    ],
)
def test_what_cannot_be_is_refused_at_the_door(
    linked: LinkedGraph, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, SeedError, BudgetError), match=message):
        _open(linked, **changes)


@pytest.mark.parametrize("place", ["ram", "direct", "packed", "edges read"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_no_edge_is_as_late_as_its_seed(linked: LinkedGraph, place: str, strategy: str) -> None:
    num_edges = 0
    with _open(linked, time_strategy=strategy, time_window=400, epochs=1, **PLACES[place]) as loader:
        for batch in loader:
            ready = _ready(batch)
            check_rows(linked, ready)
            count = batch.num_positives
            times = linked.times[batch.edge_ids[:count]]
            pairs = batch.pairs.numpy()
            asked = np.zeros(ready.num_seeds, np.int64)
            for column in (0, 1):
                asked[pairs[:count, column]] = times
                asked[pairs[count:, column]] = np.repeat(times, len(pairs) // count - 1)
            assert np.array_equal(ready.nodes[pairs[:count]], linked.pairs[batch.edge_ids[:count], :2])
            # Every node of a tree has its seed's time: followed from the seeds outwards.
            of_node = np.full(len(ready.nodes), -1, np.int64)
            of_node[: ready.num_seeds] = asked
            for block in reversed(ready.blocks):
                source, destination = block.edge_index.numpy()
                time = linked.time[block.edge_ids.numpy()]
                assert (time < of_node[destination]).all()
                assert (time >= of_node[destination] - 400).all()
                of_node[source] = of_node[destination]
                num_edges += len(time)
    assert num_edges > 1000


def test_batches_with_times_are_the_same_wherever_rows_and_edges_live(linked: LinkedGraph) -> None:
    streams = []
    for place in ("ram", "direct", "packed", "static", "edges read"):
        with _open(linked, time_strategy="uniform", epochs=1, **PLACES[place]) as loader:
            streams.append([link_contents(batch) for batch in loader])
    assert all(stream == streams[0] for stream in streams)


def test_seeds_that_are_nodes_may_ask_at_times_and_repeat(linked: LinkedGraph) -> None:
    seeds, times = np.array([7, 7, 7, 30]), np.array([0, 500, 1000, 1000])
    with gloader.Loader(
        linked.dataset,
        seeds=seeds,
        times=times,
        time_strategy="uniform",
        fanouts=[-1],
        batch_size=4,
        shuffle=False,
        **PLACES["packed"],
    ) as loader:
        (batch,) = loader
        check_rows(linked, batch)
        degrees = batch.blocks[0].indptr.diff().tolist()
    lists = [linked.time[linked.indptr[node] : linked.indptr[node + 1]] for node in seeds]
    assert degrees == [int((of < time).sum()) for of, time in zip(lists, times, strict=True)]
    assert batch.y.tolist() == (seeds % 2).tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times": np.arange(3)}, "time_strategy is 'none'"),
        ({"time_strategy": "last"}, "needs a query time for each seed"),
        ({"times": np.arange(2), "time_strategy": "last"}, "2 times for 3 seeds"),
        ({"times": np.arange(3.0), "time_strategy": "last"}, "times"),
        ({"times": np.arange(3), "time_strategy": "first"}, "time_strategy='first'"),
        ({"times": np.arange(3), "time_strategy": "last", "time_window": 0}, "time_window"),
        ({"times": np.arange(3), "time_strategy": "last", "topology": "sweep"}, "sweep"),
    ],
)
def test_times_that_cannot_be_are_refused(linked: LinkedGraph, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, SeedError), match=message):
        gloader.Loader(linked.dataset, seeds=np.arange(3), fanouts=[2], batch_size=3, **changes)


@pytest.mark.parametrize("is_typed", [False, True])
def test_a_budget_with_room_for_one_batch_of_rows_of_edges_suffices_for_a_loop(
    linked: LinkedGraph, is_typed: bool
) -> None:
    """The variable of the loop still names the last batch, and views of its rows, while it asks for the next one."""
    with _open(linked, features="ram", epochs=1, typed=is_typed) as loader:
        ring = loader._held.tier.ring
        ring._patience_s = 1.0
        ring._max_bytes = ring._buffer_bytes() * 3 // 2
        assert ring.has_one
        count = 0
        for _batch in loader:
            count += 1
    assert count == len(loader)


def test_the_digest_of_the_public_suite_sees_pairs_and_features_of_edges(linked: LinkedGraph) -> None:
    def first(**changes: Any) -> str:
        with _open(linked, epochs=1, **changes) as loader:
            return batch_digest(next(iter(loader)))

    plain = first()
    assert plain == first(features="ssd", cache=900)
    assert len({plain, first(edge_features="none"), first(negatives=Uniform(2)), first(exclude="self")}) == 4


def test_order_and_figures_of_an_epoch_are_those_of_rows(linked: LinkedGraph, tmp_path: Path) -> None:
    with _open(linked, shuffle=False, drop_last=True, trace=True, epochs=1, **PLACES["packed"]) as loader:
        rows = [row for batch in loader for row in batch.edge_ids[: batch.num_positives].tolist()]
        assert len(loader) == NUM_ROWS // 64
        assert rows == list(range(len(loader) * 64))
        assert loader.stats.seeds == len(rows)
        assert loader.bottleneck()
        loader.write_trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").stat().st_size > 1000
