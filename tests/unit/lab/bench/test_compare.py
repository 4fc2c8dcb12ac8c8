"""The comparison's arithmetic, and each system's blocks in our form."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import compare_runs
import compare_summary
import numpy as np
import pytest
import torch
from compare_contenders import CONTENDERS, QUICK, choose
from compare_streams import dgl_block, pyg_blocks

from gloader.errors import ConfigError


def _epoch(number: int, seconds: float, *, batches: int = 10, **values: float) -> dict[str, Any]:
    return {"epoch": number, "seconds": seconds, "batches": batches, "num_batches": 10, **values}


def _run(*epochs: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {"epochs": list(epochs), "outcome": "done", "is_limited": True, "settings": {}, **values}


def test_contenders_are_chosen_by_name_in_the_order_asked_for() -> None:
    assert [c.name for c in choose("dgl-memory, gloader")] == ["dgl-memory", "gloader"]
    assert choose("all") == CONTENDERS
    assert len(choose(",".join(QUICK))) == len(QUICK)
    with pytest.raises(ConfigError, match=r"contender 'gdl' is not known; allowed: all, gloader, "):
        choose("gloader,gdl")


def test_every_policy_strategy_and_peer_is_a_contender() -> None:
    settings = [c.settings for c in CONTENDERS if c.system == "gloader"]
    assert {s.get("policy") for s in settings} >= {"belady", "static", "lru", "sieve"}
    assert {s.get("io_strategy") for s in settings} >= {"auto", "direct", "staged", "packed"}
    (ginex,) = (c.settings for c in CONTENDERS if c.name == "gloader-ginex")
    assert ginex == {"policy": "belady", "io_strategy": "direct", "max_gap": 0, "superbatch_reset": True}
    assert len({c.name for c in CONTENDERS}) == len(CONTENDERS)
    assert all(c.is_limited == (c.home != "memory" or c.name.endswith("limited")) for c in CONTENDERS)


def test_a_child_is_read_line_by_line_also_when_it_was_killed() -> None:
    lines = [
        {"event": "start", "seconds": 2.0, "bytes_read": 5},
        {"event": "epoch", **_epoch(0, 3.0)},
        {"event": "end", "peak_resident_bytes": 7},
    ]
    text = "\n".join(["a warning", *map(json.dumps, lines)])
    whole = compare_runs.read_events(text)
    assert (whole["setup_s"], whole["peak_resident_bytes"], len(whole["epochs"])) == (2.0, 7, 1)
    assert "has_ended" not in compare_runs.read_events(text.rsplit("\n", 1)[0])


@pytest.mark.parametrize(
    ("found", "code", "was_killed", "outcome"),
    [
        (_run(_epoch(0, 1.0)), 0, False, "done"),
        (_run(), 137, True, "killed at the limit"),
        (_run(), None, False, "stopped: it did not end in time"),
        (_run(), 1, False, "failed with status 1: ValueError: no"),
        (_run(_epoch(0, 1.0), _epoch(1, 1.0, batches=3)), 0, False, "out of time in epoch 2"),
        (_run(cannot="no such package"), 0, False, "cannot run: no such package"),
    ],
)
def test_how_a_run_ended_is_said_in_words(
    found: dict[str, Any], code: int | None, was_killed: bool, outcome: str
) -> None:
    assert compare_runs._outcome(found, code, "Traceback\nValueError: no\n", was_killed=was_killed) == outcome


def test_a_run_counts_with_the_mean_of_later_epochs_and_a_row_with_the_median_of_runs() -> None:
    later = [
        _epoch(i, seconds, wait_s=wait) for i, seconds, wait in ((1, 2.0, 0.2), (2, 3.0, 0.3), (3, 7.0, 1.0))
    ]
    runs = [
        _run(_epoch(0, 9.0, wait_s=1.0), *later),
        _run(_epoch(0, 7.0, wait_s=1.0), _epoch(1, 6.0, wait_s=0.1)),
        _run(_epoch(0, 8.0, wait_s=1.0), _epoch(1, 50.0, wait_s=0.9)),
    ]
    row = compare_summary.summarize(CONTENDERS[0], runs, runs[:1], target=None)
    assert row["first_epoch_s"] == {"median": 8.0, "least": 7.0, "most": 9.0}
    assert row["later_epoch_s"] == {"median": 6.0, "least": 4.0, "most": 50.0}
    assert row["wait_s"] == pytest.approx(0.5)
    assert (row["is_extrapolated"], row["repeats"], row["outcome"]) == (False, 3, "done")
    assert row["tried"][0]["later_epoch_s"] == 4.0


def test_an_unfinished_epoch_counts_in_proportion_only_where_no_other_does() -> None:
    alone = _run(_epoch(0, 6.0, batches=3, bytes_read=30), outcome="out of time in epoch 1")
    row = compare_summary.summarize(CONTENDERS[0], [alone], [alone], target=0.5)
    assert row["first_epoch_s"]["median"] == pytest.approx(20.0)
    assert row["later_epoch_s"] is None
    assert row["bytes_read"] == pytest.approx(100.0)
    assert (row["is_extrapolated"], row["outcome"]) == (True, "out of time in epoch 1")
    after_others = _run(_epoch(0, 6.0), _epoch(1, 5.0), _epoch(2, 1.0, batches=1))
    row = compare_summary.summarize(CONTENDERS[0], [after_others], [], target=None)
    assert (row["later_epoch_s"]["median"], row["is_extrapolated"]) == (5.0, False)


def test_a_contender_without_an_epoch_has_a_row_without_figures() -> None:
    killed = _run(outcome="killed at the limit", group_peak_bytes=5)
    row = compare_summary.summarize(CONTENDERS[0], [killed], [killed], target=0.5)
    figures = (
        "first_epoch_s",
        "later_epoch_s",
        "wait_s",
        "seconds_to_target",
        "setup_s",
        "peak_resident_bytes",
    )
    assert [row[name] for name in figures] == [None] * len(figures)
    assert (row["outcome"], row["group_peak_bytes"], row["accuracy"]) == ("killed at the limit", 5, [])
    assert row["tried"][0]["later_epoch_s"] is None
    json.dumps(row, allow_nan=False)


def test_the_time_to_a_target_is_training_up_to_the_end_of_that_epoch() -> None:
    run = _run(_epoch(0, 3.0), _epoch(1, 2.0), _epoch(2, 1.0), accuracy=[0.2, 0.6, 0.7])
    assert [compare_summary.seconds_to(t, run) for t in (0.1, 0.6, 0.65, 0.8)] == [3.0, 5.0, 6.0, None]
    rows = {"gloader-memory": [run], "dgl-memory": [_run(accuracy=[0.9])]}
    assert compare_summary.choose_target(rows) == pytest.approx(0.99 * 0.7)
    assert compare_summary.choose_target({"dgl-memory": rows["dgl-memory"]}) == pytest.approx(0.99 * 0.9)
    assert compare_summary.choose_target({"dgl-memory": [_run()]}) is None


def test_a_dgl_block_keeps_its_edges() -> None:
    dgl = pytest.importorskip("dgl", reason="the comparison says itself where DGL is missing")
    block = dgl.create_block(
        (torch.tensor([3, 0, 1]), torch.tensor([1, 0, 1])), num_src_nodes=4, num_dst_nodes=2
    )
    ours = dgl_block(block)
    assert ours.indptr.tolist() == [0, 1, 3]
    assert (ours.indices[:1].tolist(), sorted(ours.indices[1:].tolist())) == ([0], [1, 3])
    assert (ours.num_src, ours.num_dst, ours.indices.dtype) == (4, 2, torch.int32)


def test_pyg_hops_are_trimmed_to_the_nodes_that_still_matter() -> None:
    # Seeds 0, 1; the first hop brings 2, 3 and the second 4.
    edges = torch.tensor([[2, 3, 0, 4, 1], [0, 1, 1, 2, 3]])
    batch = SimpleNamespace(
        edge_index=edges,
        n_id=torch.arange(5),
        batch_size=2,
        num_sampled_nodes=[2, 2, 1],
        num_sampled_edges=[3, 2],
    )
    outer, inner = pyg_blocks(batch, 2)
    assert (outer.num_src, outer.num_dst, inner.num_src, inner.num_dst) == (5, 4, 4, 2)
    assert (outer.indptr.tolist(), outer.indices.tolist()) == ([0, 1, 3, 4, 5], [2, 3, 0, 4, 1])
    assert (inner.indptr.tolist(), inner.indices.tolist()) == ([0, 1, 3], [2, 3, 0])
    del batch.num_sampled_nodes, batch.num_sampled_edges
    outer, inner = pyg_blocks(batch, 2)
    assert (outer.num_src, outer.num_dst, inner.num_src, inner.num_dst) == (5, 5, 5, 2)
    assert inner.indices.tolist() == [2, 3, 0]
    assert np.diff(outer.indptr.numpy()).tolist() == [1, 2, 1, 1, 0]
