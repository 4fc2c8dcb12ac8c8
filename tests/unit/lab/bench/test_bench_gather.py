"""The gather benchmark on a small table: its figures' shape, not their size."""

from __future__ import annotations

import json

import pytest
import torch

from gloader.errors import ConfigError
from gloader.lab.bench import features
from gloader.lab.bench.features import bench_gather


def test_the_result_is_json_with_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_BYTES_PER_ROUND", 1)
    threads = torch.get_num_threads()
    report = json.loads(json.dumps(bench_gather(dims=(3, 16), rows=50, table_bytes=1 << 12, repeats=3)))
    assert [result["row_bytes"] for result in report["results"]] == [12, 64]
    for result in report["results"]:
        assert set(result["rows_per_s"]) == {"gloader", "index_select"}
        assert min(result["rows_per_s"].values()) > 0
        assert len(result["ratios"]) == 3
        assert min(result["ratios"]) <= result["ratio"] <= max(result["ratios"])
    assert report["machine"]["cores"] >= 1
    assert torch.get_num_threads() == threads


def test_the_rounds_take_turns() -> None:
    calls: list[str] = []
    contenders = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    seconds = features.in_turns(contenders, 2, num_calls=2)
    assert "".join(calls) == "ab" + "bbaa" + "aabb"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    "workload",
    [{"dims": ()}, {"dims": (4, 0)}, {"rows": 0}, {"repeats": 0}, {"dims": (4,), "table_bytes": 15}],
)
def test_impossible_workloads_are_refused(workload: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="must be at least 1, and table_bytes must hold a row"):
        bench_gather(**workload)  # type: ignore[arg-type]
