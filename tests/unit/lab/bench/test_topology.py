"""The edge benchmark: its runs on a tiny graph, and its arithmetic."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import control_group
import numpy as np
import pytest
import topology
import topology_child
import topology_summary
from topology_graphs import make_graph, thin_view

from gloader import Dataset
from gloader.types import BatchId

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("topology")


@pytest.fixture(scope="module")
def graph(workdir: Path) -> Path:
    return make_graph(workdir, scale=0.0001, dim=16, memory_budget=50_000_000)


@pytest.fixture(scope="module")
def options(workdir: Path, graph: Path) -> Any:
    return topology.read_arguments(["--quick", "--workdir", str(workdir), "--dataset", str(graph)])


@pytest.fixture(scope="module")
def jobs(options: Any, graph: Path, workdir: Path) -> dict[str, Any]:
    return topology.sampling_jobs(options, graph, workdir, str(workdir))


def _epoch_run(seconds: float, **values: Any) -> dict[str, Any]:
    names = ("first_batch_s", "bytes_read", "bytes_written", "cpu_s")
    run = dict.fromkeys(names, 1.0) | {
        "batch_s": seconds,
        "mapped_files": [],
        "thread_cpu_s": {},
        "is_full": True,
    }
    return run | values


def test_a_view_is_the_same_graph_with_rows_of_a_byte_or_two_and_takes_no_disk(
    graph: Path, workdir: Path
) -> None:
    view, whole = Dataset.open(thin_view(graph, workdir)), Dataset.open(graph)
    assert (view.feature_dim, view.feature_bytes) == (1, 2 * whole.num_nodes)
    assert np.array_equal(view.load_graph().indices, whole.load_graph().indices)
    assert np.array_equal(view.labels, whole.labels)
    assert np.array_equal(view.train, whole.train)
    assert (view.root / "indices.npy").stat().st_ino == (graph / "indices.npy").stat().st_ino
    assert thin_view(graph, workdir) == view.root
    assert not list(workdir.glob("gloader-thin-*"))


@pytest.mark.parametrize("way", ["sweep", "direct", "ram", "mapped", "memmap"])
def test_a_run_counts_what_a_batch_takes_and_says_what_was_mapped(jobs: dict[str, Any], way: str) -> None:
    run = topology_child.mapped_run if way in {"mapped", "memmap"} else topology_child.loader_run
    found = run(jobs[way])
    size = found.get("topology_superbatch") or 0
    assert (found["is_full"], size > 1) == (True, way == "sweep")
    assert found["batches"] >= 4
    assert found["first"] >= max(1, 2 * size)
    assert 0 < found["first_batch_s"] <= found["start_s"] < found["seconds"]
    assert found["bytes_written"] > 0 if way == "sweep" else found["bytes_written"] == 0
    assert found["mapped_files"] == (["indices.npy", "indptr.npy"] if way in {"mapped", "memmap"} else [])


def test_numpy_over_a_mapping_takes_all_of_short_lists_and_a_part_of_long_ones(graph: Path) -> None:
    dataset = Dataset.open(graph)
    held = dataset.load_graph()
    seeds = dataset.train[:50]

    def sample(fanout: int) -> set[int]:
        batch_id = BatchId(epoch=0, index=0)
        return set(
            topology_child.sample_memmap(held.indptr, held.indices, seeds, [fanout], batch_id).tolist()
        )

    near = {int(v) for seed in seeds for v in held.indices[held.indptr[seed] : held.indptr[seed + 1]]}
    everything = near | set(seeds.tolist())
    assert sample(held.num_nodes) == everything
    assert set(seeds.tolist()) < sample(2) < everything


def test_what_a_batch_took_lies_between_two_moments() -> None:
    def at(batches: int, scale: float) -> topology_child.Moment:
        return topology_child.Moment(
            batches=batches,
            seconds=scale,
            cpu_s=2 * scale,
            thread_cpu_s={"gloader-sweep": scale} | ({"gloader-sample": 1.0} if scale > 1 else {}),
            bytes_read=int(100 * scale),
            bytes_written=int(10 * scale),
        )

    found = topology_child.between(at(2, 1.0), at(6, 3.0))
    assert found == {
        "batches": 4, "first": 2, "batch_s": 0.5, "cpu_s": 1.0, "bytes_read": 50.0, "bytes_written": 5.0,
        "thread_cpu_s": {"gloader-sample": 0.25, "gloader-sweep": 0.5},
    }  # fmt: skip
    assert topology_summary.sampler_seconds(found) == 0.75


def test_batches_that_read_for_themselves_are_looked_at_in_quarters() -> None:
    looks = topology_child.borders(None, 3, {"warm": 2, "batches": 8})
    assert list(islice(looks, 4)) == [2, 4, 6, 8]


def test_sweeps_are_looked_at_where_superbatches_end_and_count_once_the_wavefront_is_full() -> None:
    # 1, 2 and 4 batches while it fills, then 8 each; the first 8 are read while nobody is served.
    looks = list(islice(topology_child.borders(8, 3, {"warm": 0, "batches": 8}), 6))
    assert looks == [1, 3, 7, 15, 23, 31]
    moments = [
        topology_child.Moment(
            batches=look, seconds=0.0, cpu_s=0.0, thread_cpu_s={}, bytes_read=0, bytes_written=0
        )
        for look in looks
    ]
    *window, is_full = topology_child.steady_window(moments, 8)
    assert ([one.batches for one in window], is_full) == ([23, 31], True)
    *window, is_full = topology_child.steady_window(moments[:5], 8)
    assert ([one.batches for one in window], is_full) == ([15, 23], False)


def test_ratios_are_those_of_the_rounds_and_aims_are_held_against_them() -> None:
    every = {"bytes_written": 8, "seconds": 1.0, "way": "full"}
    passes = [every | {"batches": batches, "bytes_read": read} for batches, read in ((1, 9), (6, 104))]
    passes.append({"batches": 6, "seconds": 0.1})  # cancelled
    sweep = [
        _epoch_run(s, bytes_written=4.0e6, passes=passes, thread_cpu_s={"gloader-sweep": 0.06})
        for s in (1.0, 2.0)
    ]
    runs = {"sweep": sweep, "direct": [_epoch_run(30.0), _epoch_run(50.0)], "mapped": [{"failed": "no"}]}
    result = {
        "graph": {"edge_bytes": 100},
        "summary": {
            "sampling": topology_summary.summarize("sampling", runs),
            "epoch": topology_summary.summarize(
                "epoch", {"sweep": sweep, "ram": [_epoch_run(1.0), _epoch_run(1.0)]}
            ),
        },
    }
    sampling = result["summary"]["sampling"]
    assert sampling["direct_over_sweep"] == {"median": 27.5, "least": 25.0, "most": 30.0}
    assert list(sampling["rows"]) == ["sweep", "direct"]
    met = {what: is_met for what, _, _, is_met in topology_summary.aims(result)}
    assert met == {
        "direct / sweep, a batch": True,
        "first batch, sweep / direct": True,
        "read by a pass / file": True,
        "written, a batch": True,
        "processors of sampling, a batch": False,
        "epoch with features, sweep / ram": False,
    }


def test_without_control_groups_a_run_goes_on_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    with control_group.limited(tmp_path / "nowhere", 1000) as group:
        assert group is None
        watch = control_group.GroupWatch(group, tmp_path)
        watch.look()
    assert watch.stop() == {"peak_disk_bytes": 12288}
    assert "no memory control group" in capsys.readouterr().out
