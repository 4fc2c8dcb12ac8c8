"""The anonymous memory of commands, above a bare `import torch`, against their budgets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import gloader
from gloader.cli.main import main

MACHINES = Path(__file__).parents[2] / "machine_command.py"
MB = 1_000_000
NODES, DIM = 30_000, 1024  # 123 MB of features
SPEC = f"synthetic:community,nodes={NODES},edges=300000,dim={DIM},classes=4,seed=1,train=0.1,valid=0.1"
BARE = "import sys, torch; print(flush=True); sys.stdin.read()"


def anonymous_bytes(pid: int) -> int:
    """Return the memory of no file that a process and those that it started have now, 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace").splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    own = sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return own + sum(anonymous_bytes(int(child)) for child in children)


def largest_child_bytes(pid: int) -> int:
    """Return the anonymous memory of the largest process that one has started, with those that it started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return max((anonymous_bytes(int(child)) for child in children), default=0)


def measured(
    *words: str,
    env: dict[str, str] | None = None,
    module: Sequence[str] = ("gloader",),
    look: Callable[[int], int] = anonymous_bytes,
) -> tuple[int, str, str]:
    """Run a command; return the peak of its anonymous memory, its output, and its errors.

    Parameters
    ----------
    words : of the command line
    env : beside this process's
    module : what is run, and words before those of the command
    look : returns the memory that counts, of a process
    """
    checkout = str(Path(gloader.__path__[0]).parent)
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, [checkout, os.environ.get("PYTHONPATH")]))}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", *module, *words],
            stdout=output, stderr=errors, env=os.environ | paths | (env or {}),
        )  # fmt: skip
        try:
            peak = 0
            while child.poll() is None:
                peak = max(peak, look(child.pid))
                time.sleep(0.004)
        finally:
            child.kill()
            child.wait()
        output.seek(0), errors.seek(0)
        said = errors.read()
        assert child.returncode == 0, said
        return peak, output.read(), said


@pytest.fixture(scope="module")
def bare() -> int:
    """Return the anonymous memory of an interpreter that has imported torch."""
    with subprocess.Popen(
        [sys.executable, "-c", BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        found = anonymous_bytes(child.pid)
        child.stdin.close()
    return found


@pytest.fixture(scope="module")
def graph(bare: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset, prepared within a budget."""
    out = tmp_path_factory.mktemp("prepared") / "graph"
    peak, _, _ = measured("prepare", SPEC, str(out), "--memory-budget", "300MB")
    assert peak - bare <= 300 * MB
    return out


@pytest.mark.reliability("J11")
def test_preparing_edge_columns_and_a_split_stays_within_its_budget(tmp_path: Path, bare: int) -> None:
    """Features of edges, times, and tables of all edges are each larger than the budget, or near it."""
    nodes, edges, dim, budget_mb = 50_000, 1_000_000, 48, 60
    folder, random = tmp_path / "in", np.random.default_rng(0)
    folder.mkdir()
    ends = random.integers(0, nodes, (edges, 2), np.int32)
    ends[: edges // 10, 1] = 7  # a hub
    np.save(folder / "edges.npy", ends)
    np.save(folder / "edge_time.npy", random.integers(0, 10**9, edges))
    np.save(folder / "edge_features.npy", random.random((edges, dim), np.float32))  # 192 MB
    np.save(folder / "features.npy", random.random((nodes, 4), np.float32))
    peak, output, _ = measured(
        "prepare", f"npy:{folder}", str(tmp_path / "out"), "--edge-split", "80/10/10", "--edge-split-by", "time",
        "--memory-budget", f"{budget_mb}MB", "--json",
    )  # fmt: skip
    report = json.loads(output)
    assert report["edge_feature_dim"] == dim
    assert report["has_edge_times"]
    assert sum(table["num_rows"] for table in report["links"].values()) == edges
    assert report["links"]["train"]["spilled_bytes"]
    assert report["spilled_bytes"]
    assert peak - bare <= budget_mb * MB


@pytest.mark.reliability("J11")
@pytest.mark.parametrize(
    ("budget_mb", "words"),
    [
        (230, []),  # two slabs on the SSD
        pytest.param(300, ["--labels"], marks=pytest.mark.long),
        # 3,075 columns, whose entries in the footer of the file are in memory until its end
        pytest.param(400, ["--table"], marks=pytest.mark.long),
    ],
)
def test_a_propagation_stays_within_its_budget(
    graph: Path, tmp_path: Path, bare: int, budget_mb: int, words: list[str]
) -> None:
    out = [str(tmp_path / "hops"), *words]
    if words == ["--table"]:
        out = ["--out", str(tmp_path / "hops.parquet")]
    peak, output, _ = measured(
        "propagate", str(graph), *out, "--hops", "2", "--memory-budget", f"{budget_mb}MB", "--json"
    )
    assert json.loads(output)["measured"]["rows_written"] > 200 * MB
    assert peak - bare <= budget_mb * MB


def train(graph: Path, out: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, dict, str]:
    """Train with few batches; return the peak, the result and what was said."""
    peak, output, errors = measured(
        "train", "--json", "--dataset", str(graph), "--out", str(out), "--fanout", "10,5", "--hidden", "64",
        "--epochs", "1", *words, env=env,
    )  # fmt: skip
    return peak, json.loads(output), errors


@pytest.mark.reliability("J11")
@pytest.mark.parametrize(
    ("budget_mb", "model", "features"),
    [
        (300, "graphsage", "ssd"),  # a cache of some of the rows
        pytest.param(450, "gat", "ssd", marks=pytest.mark.long),  # a step takes much of it
        (350, "gcn", "ram"),
    ],
)
def test_a_run_and_its_evaluation_stay_within_their_budget(
    graph: Path, tmp_path: Path, bare: int, budget_mb: int, model: str, features: str
) -> None:
    peak, result, _ = train(
        graph, tmp_path / "run", "--memory-budget", f"{budget_mb}MB", "--model", model, "--features", features,
        "--batch-size", "256",
    )  # fmt: skip
    assert result["features"] == features
    assert peak - bare <= budget_mb * MB
    # What the run says of itself is what it took.
    assert result["memory_budget_bytes"] == budget_mb * MB
    assert abs(result["peak_anonymous_bytes"] - (peak - bare)) <= 32 * MB
    assert result["peak_anonymous_bytes"] < result["peak_rss_bytes"]


@pytest.mark.long
@pytest.mark.reliability("J11")
@pytest.mark.reliability("N12")
def test_machines_that_exchange_rows_stay_within_their_budget_each(tmp_path: Path, bare: int) -> None:
    spec = "synthetic:community,nodes=200000,edges=4000000,dim=128,classes=16,seed=1,train=0.15,valid=0.01"
    for part, machine in enumerate("ab"):
        assert main(["prepare", spec, str(tmp_path / machine), "--ranges", f"{part}/2"]) == 0
    module = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(MACHINES), "a,b"]
    peak, output, _ = measured(
        "train", "--json", "--dataset", f"{tmp_path}/MACHINE", "--out", str(tmp_path / "run"), "--fanout", "10,5",
        "--epochs", "1", "--memory-budget", "380MB", "--batch-size", "512", "--device", "cpu",
        module=module, look=largest_child_bytes, env={"GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    result = json.loads(output)
    assert peak - bare <= 380 * MB
    # That of the first rank, which may be the smaller one.
    assert abs(result["peak_anonymous_bytes"] - (peak - bare)) <= 32 * MB


@pytest.mark.long
@pytest.mark.reliability("J11")
def test_a_first_run_stays_within_its_budget_too(graph: Path, tmp_path: Path, bare: int) -> None:
    """Kernels are compiled, in another process that has ended when the run takes memory."""
    peak, _, errors = train(
        graph, tmp_path / "run", "--memory-budget", "300MB", "--model", "graphsage", "--features", "ssd",
        "--batch-size", "256", env={"NUMBA_CACHE_DIR": str(tmp_path / "kernels")},
    )  # fmt: skip
    assert "compiling kernels" in errors
    assert peak - bare <= 300 * MB


@pytest.mark.reliability("J11")
@pytest.mark.reliability("S11")
@pytest.mark.parametrize(
    "words",
    [
        ("--dataset", "builtin:digits", "--fanout", "5,5"),
        pytest.param(
            ("--dataset", "builtin:digits", "--fanout", "5,5", "--model", "gat"), marks=pytest.mark.long
        ),
        pytest.param(
            ("--dataset", "builtin:digits", "--fanout", "10,10", "--features", "ssd"), marks=pytest.mark.long
        ),
    ],
)
def test_the_budget_that_a_refusal_names_works_and_holds(
    tmp_path: Path, bare: int, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    line = ["train", "--json", "--epochs", "1", "--out", str(tmp_path / "run"), *words]
    assert main([*line, "--memory-budget", "60MB"]) == 2
    refused = capsys.readouterr().err
    named = re.search(r"Give --memory-budget (\w+) or more", refused)
    assert named is not None, refused
    peak, output, _ = measured(*line, "--memory-budget", named[1])
    result = json.loads(output)
    assert peak - bare <= result["memory_budget_bytes"]
    assert result["peak_anonymous_bytes"] <= result["memory_budget_bytes"]


@pytest.mark.long
@pytest.mark.reliability("J11")
@pytest.mark.reliability("S11")
def test_the_budget_that_a_refusal_of_infer_names_works_and_holds(
    graph: Path, tmp_path: Path, bare: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Predictions within the least budget make layers in many parts, each of which is read anew."""
    train(graph, tmp_path / "run", "--memory-budget", "300MB", "--features", "ssd", "--batch-size", "256")
    line = [
        "infer",
        "--dataset",
        str(graph),
        "--checkpoint",
        str(tmp_path / "run"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*line, "--memory-budget", "60MB"]) == 2
    refused = capsys.readouterr().err
    named = re.search(r"Give --memory-budget ([\d.]+)MB or more", refused)
    assert named is not None, refused
    peak, output, _ = measured(*line, "--memory-budget", f"{named[1]}MB")
    assert "exceeded" not in output
    assert peak - bare <= float(named[1]) * MB
