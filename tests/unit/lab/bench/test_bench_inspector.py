"""The inspector benchmark on a graph of a few thousand edges: its figures' shape, not their size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gloader.cli.main import main
from gloader.errors import ConfigError
from gloader.lab.bench import inspector
from gloader.lab.bench.graphs import GraphSpec
from gloader.lab.bench.inspector import bench_inspector

TINY: dict[str, Any] = {
    "graph": GraphSpec(num_nodes=2000, num_edges=20_000),
    "fanouts": (3, 2),
    "batch_size": 20,
    "superbatch": 4,
    "repeats": 2,
}


def test_the_result_is_json_with_speeds_and_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "_COPY_ROWS", 500)
    result = json.loads(json.dumps(bench_inspector(**TINY)))
    assert result["best_accesses_per_second"] >= result["accesses_per_second"] > 0
    assert result["plan_bytes_per_access"] < 10
    assert (result["table_kind"], result["table_bytes"]) == ("direct", 8000)
    spread = result["spread_over_more_nodes"]
    assert (spread["num_nodes"], spread["accesses_per_superbatch"]) == (
        50_000,
        result["accesses_per_superbatch"],
    )
    for coded in (result["coded"], spread["coded"]):
        assert coded["accesses_per_superbatch"] == result["accesses_per_superbatch"]
        assert 1 <= coded["trace_bytes_per_access"] < 3
        assert min(coded["ids_encoded_per_second"], coded["ids_decoded_per_second"]) > 0
    assert result["copy"]["ratio_to_numpy_take"] > 0
    policies = result["policies"]
    ratios = policies["misses_per_access"]
    assert ratios["none"] == 1
    assert policies["ratio_to_lru"] == ratios["belady"] / ratios["lru"] <= 1
    assert result["workload"]["batches"] == 12


def test_the_command_shows_the_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(inspector, "_COPY_ROWS", 500)
    words = ["--num-nodes", "2000", "--num-edges", "20000", "--fanout", "3,2", "--batch-size", "20"]
    out = tmp_path / "new" / "report.json"
    assert main(["bench", "inspector", *words, "--superbatch", "4", "--repeats", "1", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "accesses/s" in shown
    assert "misses, lru" in shown
    assert json.loads(out.read_text())["benchmark"] == "inspector"


def test_policies_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "_COPY_ROWS", 500)
    assert "policies" not in bench_inspector(policies=False, **TINY)


@pytest.mark.parametrize("settings", [{"repeats": 0}, {"cache_share": 0}, {"superbatch": 90}])
def test_an_impossible_workload_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        bench_inspector(**(TINY | settings))
