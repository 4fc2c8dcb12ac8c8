"""Rows of a task table as seeds: each with its own label, weight and tree, wherever rows, times and edges live."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from row_worlds import World, world
from tasks import task_arrays, write_tasks

import gloader
from gloader import Dataset, HeteroLoader, Loader
from gloader.errors import ChecksumError, ConfigError, StateError
from gloader.pipeline import row_task
from gloader.pipeline.row_task import RowTask, distinct_nodes, row_ages
from gloader.pipeline.seeds import order_rows
from gloader.testing.resume import batch_digest, check_resume
from gloader.types import NO_TIME

if TYPE_CHECKING:
    from pathlib import Path

FANOUTS = [3, 2]
TIMED, PLAIN = task_arrays(90, seed=1), task_arrays(70, kind="values", times=False, seed=2)
PLACES: dict[str, dict[str, Any]] = {
    "ram": {},
    "edges read": {"topology": "direct"},
    "packed": {
        "features": "ssd",
        "topology": "direct",
        "io_strategy": "packed",
        "cache": 4096,
        "superbatch": 3,
    },
    "static": {"features": "ssd", "policy": "static", "cache": 4096},
}


@pytest.fixture(scope="module", name="dataset")
def _dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    tables = {
        "churn.train": TIMED,
        "churn.valid": task_arrays(9, kind=None, weights=False),
        "plain.train": PLAIN,
    }
    return write_tasks(tmp_path_factory.mktemp("rows") / "d", tables)


def open_loader(dataset: Dataset, kind: Any = Loader, table: str = "churn", **settings: Any) -> Any:
    given = {"fanouts": FANOUTS, "batch_size": 16, "memory_budget": "150MB", "threads": 2, **settings}
    return kind(dataset, table=table, **given)


@pytest.mark.parametrize("kind", [Loader, HeteroLoader])
def test_each_row_is_a_seed_with_its_label_and_weight(dataset: Dataset, kind: Any) -> None:
    with open_loader(dataset, kind) as loader:
        assert (len(loader), loader.table.name) == (6, "churn.train")
        for _ in range(2):
            seen = []
            for batch in loader:
                typed, rows = batch.typed, batch.row_ids
                assert typed.num_seeds["node"] == len(rows)
                assert batch.row_seeds is None
                np.testing.assert_array_equal(typed.nodes["node"][: len(rows)], TIMED.nodes[rows])
                np.testing.assert_array_equal(typed.trees["node"][: len(rows)], np.arange(len(rows)))
                np.testing.assert_array_equal(batch.y.numpy(), np.asarray(TIMED.labels)[rows])
                np.testing.assert_array_equal(batch.weights.numpy(), np.asarray(TIMED.weights)[rows])
                seen += rows.tolist()
            assert sorted(seen) == list(range(90))
            assert seen != sorted(seen)
        assert loader.stats.seeds == 90


def test_a_table_without_labels_has_unknown_ones(dataset: Dataset) -> None:
    with open_loader(dataset, table="churn.valid", batch_size=4) as loader:
        for batch in loader:
            assert batch.y.tolist() == [-1] * len(batch.row_ids)
            assert batch.weights is None
            assert batch.row_age is not None


@pytest.mark.parametrize("kind", [Loader, HeteroLoader])
def test_rows_without_times_share_the_seeds_of_their_distinct_nodes(dataset: Dataset, kind: Any) -> None:
    num_repeats = 0
    with open_loader(dataset, kind, "plain") as loader:
        seen = []
        for batch in loader:
            typed, rows = batch.typed, batch.row_ids
            count = typed.num_seeds["node"]
            seeds = typed.nodes["node"][:count]
            assert len(np.unique(seeds)) == count
            assert (typed.trees, batch.row_age) == (None, None)
            which = np.arange(len(rows)) if batch.row_seeds is None else batch.row_seeds.numpy()
            np.testing.assert_array_equal(seeds[which], PLAIN.nodes[rows])
            np.testing.assert_array_equal(batch.y.numpy(), np.asarray(PLAIN.labels)[rows])
            num_repeats += len(rows) - count
            seen += rows.tolist()
        assert loader.stats.seeds == 70
    assert sorted(seen) == list(range(70))
    assert num_repeats > 5


@pytest.fixture(scope="module", name="database")
def _database() -> World:
    return world(3, num_tables=4, most_rows=60, num_times=50, num_predicted=23)


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("layout", ["layered", "merged"])
def test_batches_are_the_same_wherever_rows_times_and_edges_live(
    tmp_path: Path, database: World, layout: str, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_held:  # the table and the row times are then read page by page
        monkeypatch.setattr(row_task, "_HELD_SHARE", 0)
    dataset = database.write(tmp_path / "d")
    expected = None
    for place in PLACES.values():
        with open_loader(dataset, HeteroLoader, "task", batch_size=4, layout=layout, **place) as loader:
            parts = dict(loader.memory_plan.parts)
            found = [batch_digest(batch) for batch in loader]
        table_bytes = dataset.task_table("task").num_bytes
        time_bytes = sum(nodes.row_time_bytes for nodes in dataset.node_tables.values())
        least = table_bytes + time_bytes if is_held else 2 * 2**20
        assert parts["rows to predict"] > least
        assert parts["ages of rows"] > 0
        expected = expected or found
        assert found == expected
    assert len(expected or []) > 2


def test_rows_without_times_are_the_same_with_swept_edges(dataset: Dataset, tmp_path: Path) -> None:
    found = []
    for place in ({}, {"topology": "sweep", "features": "ssd", "cache": 640, "spill_dir": tmp_path}):
        with open_loader(dataset, table="plain", batch_size=8, **place) as loader:
            found.append([batch_digest(batch) for _ in range(2) for batch in loader])
    assert found[0] == found[1]


def test_a_loader_of_rows_resumes_at_every_step(dataset: Dataset) -> None:
    stream = check_resume(
        lambda: open_loader(dataset, epochs=4, batch_size=30),
        epochs=2,
        digest=batch_digest,
        returns_to=(4, 1),
    )
    assert len(stream) == len(set(stream)) == 12


def test_a_state_of_another_table_is_refused(dataset: Dataset) -> None:
    with open_loader(dataset) as loader:
        state = loader.state_dict()
        assert state["stream"]["table"] == "churn.train"
    with (
        open_loader(dataset, table="churn.valid", batch_size=9) as other,
        pytest.raises(StateError, match="global_batch_size 16"),
    ):
        other.load_state_dict(state)
    with (
        open_loader(dataset, table="plain") as other,
        pytest.raises(StateError, match="num_seeds 90, this loader has 70"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": "chrn"}, "no table 'chrn' of rows to predict; it has 'churn.train'"),
        (
            {"seeds": np.arange(3)},
            "table='churn' gives the seeds and their times; leave out seeds= and times=",
        ),
        ({"times": np.arange(3)}, "leave out seeds= and times="),
        (
            {"time_strategy": "none"},
            "table 'churn.train' has times, and time_strategy='none' would sample what is",
        ),
        (
            {"table": "plain", "time_strategy": "last"},
            "time_strategy='last' needs the time of each row, and table 'plain.train' has none",
        ),
        ({"batch_size": 91}, "batch_size 91 is larger than the 90 rows; lower batch_size"),
        ({"topology": "sweep"}, "topology='sweep' is not possible, as a node with a time"),
        ({"sampler": "labor"}, "takes edges of all times"),
        ({"seed_blocks": 2}, "rows of a table have no neighbours"),
    ],
)
def test_what_contradicts_a_table_is_refused(dataset: Dataset, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_loader(dataset, **given)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({}, ("uniform", "<=")),
        ({"time_bound": "<"}, ("uniform", "<")),
        ({"time_strategy": "last"}, ("last", "<=")),
        ({"time_strategy": "last", "time_bound": None}, ("last", "<=")),
        ({"time_strategy": "last", "time_bound": "<"}, ("last", "<")),
    ],
)
def test_explicit_settings_of_time_win(
    dataset: Dataset, given: dict[str, Any], rule: tuple[str, str]
) -> None:
    with open_loader(dataset, **given) as loader:
        facts = loader.state_dict()["stream"]
    assert (facts["time_strategy"], facts["time_bound"]) == rule


def test_settings_of_a_run_name_the_time_strategy(dataset: Dataset) -> None:
    settings = gloader.config.LoaderSettings.of(
        fanouts=FANOUTS, batch_size=16, memory_budget="150MB", **dataset.task_table("churn").time_settings
    )
    with Loader.from_settings(dataset, settings, table="churn") as loader, open_loader(dataset) as other:
        assert loader.state_dict() == other.state_dict()
    with pytest.raises(ConfigError, match="time_strategy='none' would sample"):
        Loader.from_settings(dataset, settings.changed(time_strategy="none"), table="churn")


def test_a_loader_of_rows_has_no_list_of_seeds(dataset: Dataset) -> None:
    with (
        open_loader(dataset) as loader,
        pytest.raises(ConfigError, match="are the rows of a table; each batch"),
    ):
        _ = loader.seeds
    with Loader(dataset, fanouts=FANOUTS, batch_size=4, memory_budget="150MB") as loader:
        assert loader.table is None
        assert next(iter(loader)).row_ids is None


@pytest.mark.reliability("M1")
def test_damaged_times_of_rows_are_told_in_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_task, "_HELD_SHARE", 0)
    dataset = write_tasks(tmp_path / "d", {"t": task_arrays(40)})
    with open_loader(dataset, table="t") as loader:
        with (dataset.root / "row_time.npy").open("r+b") as file:
            file.seek(4096)
            file.write(b"\x01\x02\x03")
        with pytest.raises(ChecksumError, match=r"row_time\.npy: page 0"):
            list(loader)


def test_ages_are_exact_differences_rounded_once() -> None:
    times = np.array([5, 5, 2**62, -(2**62), 2**24 + 1, 0, 2**63 - 1], np.int64)
    rows = np.array([2, 9, -(2**62) + 1, 2**62, 0, NO_TIME, -(2**63) + 1], np.int64)
    expected = [
        np.nan if row == NO_TIME else np.float32(time - row)
        for time, row in zip(times.tolist(), rows.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(row_ages(times, rows), np.array(expected, np.float32))


def test_distinct_nodes_keep_the_order_of_their_first_rows() -> None:
    nodes, seeds = distinct_nodes(np.array([7, 3, 7, 9, 3]))
    assert nodes.tolist() == [7, 3, 9]
    assert seeds is not None
    assert seeds.tolist() == [0, 1, 0, 2, 1]
    assert distinct_nodes(np.array([4, 2]))[1] is None


def test_the_ranks_of_a_machine_divide_the_memory_for_rows(dataset: Dataset) -> None:
    task = RowTask(dataset=dataset, table=dataset.task_table("churn"))
    settings = gloader.config.LoaderSettings.of(fanouts=FANOUTS, batch_size=4)
    order = order_rows(task.table.num_rows, settings.sampling, rank=0, world_size=2)
    fits_once = int(task.table.num_bytes / row_task._HELD_SHARE)
    with ExitStack() as stack:
        alone, half = (task.open(stack, budget_bytes=fits_once, num_ranks=n, io="auto").table for n in (1, 2))
        one, two = (task.bind(order, None, settings, stack, budget_bytes=10**9, num_ranks=n) for n in (1, 2))
    assert alone.held_bytes == task.table.num_bytes < half.held_bytes  # the half has a buffer for reading
    assert two.held_bytes == 2 * one.held_bytes > 0


def test_row_times_of_all_types_share_the_memory_that_the_table_leaves(tmp_path: Path) -> None:
    dataset = world(3, num_tables=4, most_rows=60, num_predicted=23).write(tmp_path / "d")
    task = RowTask(dataset=dataset, table=dataset.task_table("task"))
    sizes = [nodes.row_time_bytes for nodes in dataset.node_tables.values() if nodes.has_row_times]
    fits = int((task.table.num_bytes + max(sizes)) / row_task._HELD_SHARE)
    with ExitStack() as stack:
        opened = task.open(stack, budget_bytes=fits, num_ranks=1, io="auto").row_times
    held = [each.held_bytes for each in opened if each is not None]
    assert len(held) == len(sizes) > 1
    # Columns that are read page by page have a buffer of 2 MiB instead.
    assert sum(num_bytes for num_bytes in held if num_bytes < 2**20) <= max(sizes)
