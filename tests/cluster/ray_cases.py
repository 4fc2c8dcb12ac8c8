"""`gloader.ray.train` on a Ray cluster of two nodes on this machine; run by `make test-cluster`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

import gloader
import gloader.ray

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

SETTINGS: dict[str, Any] = {
    "model": "graphsage",
    "fanouts": (4, 3),
    "hidden": 8,
    "epochs": 3,
    "lr": 0.01,
    "batch_size": 16,
    "memory_budget": "600MB",
    "threads": 1,
    "checkpoint_every": 5,
    "stall_timeout_s": 60.0,
}
FLAGS = [
    "--model", "graphsage", "--fanout", "4,3", "--hidden", "8", "--epochs", "3", "--lr", "0.01",
    "--batch-size", "16", "--memory-budget", "600MB", "--threads", "1", "--checkpoint-every", "5", "--device", "cpu",
]  # fmt: skip
NUM_BATCHES = 34  # of an epoch: 1,078 training nodes of the digits, 32 a step
SNAPSHOT = "checkpoint_manager_snapshot.json"  # in which Ray notes what was reported
LONG_S = 240.0


@pytest.fixture(scope="module", autouse=True)
def surroundings(private_home: Path) -> Iterator[None]:
    """Give Ray a temporary folder of a short name, as its sockets need, and send nothing to anybody."""
    variables = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # how soon a report, or a lost worker, is noticed
        "RAY_memory_monitor_refresh_ms": "0",  # what others take on this machine is not ours
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    with TemporaryDirectory(prefix="ray-", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        for name, value in (variables | {"RAY_TMPDIR": folder}).items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two nodes of one CPU each; this process is connected to the first."""
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        started.add_node(num_cpus=1)
        ray.init(address=started.address)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The epochs of the same run under torchrun, from its ``metrics.jsonl``."""
    out = tmp_path_factory.mktemp("torchrun") / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*torchrun, "-m", "gloader", "train", "--dataset", "builtin:digits", *FLAGS, "--out", str(out)],
        env=dict(os.environ),
        capture_output=True,
        timeout=LONG_S,
        check=True,
    )
    return _epochs(out)


def _epochs(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _learned(epochs: list[dict[str, Any]]) -> list[tuple[float, float, float]]:
    return [(epoch["loss"], epoch["train_acc"], epoch["valid_acc"]) for epoch in epochs]


def _reported(snapshot: Path) -> tuple[int, int]:
    """Return the position of the last checkpoint that Ray noted; (-1, 0) before the first."""
    try:
        latest = json.loads(snapshot.read_text())["latest_checkpoint_result"]
    except (FileNotFoundError, json.JSONDecodeError):  # not yet there, or being written
        return -1, 0
    metrics = (latest or {}).get("metrics", {})
    return metrics.get("epoch", -1), metrics.get("batch", 0)


def test_a_run_on_two_nodes_has_the_losses_of_torchrun(
    cluster: Cluster, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Bit for bit; a call of the same name finds the run finished, and says the same, or refuses to be another run."""
    call = {
        "dataset": "builtin:digits",
        "num_workers": 2,
        "storage_path": tmp_path,
        "name": "two",
        **SETTINGS,
    }
    result = gloader.ray.train(**call)
    folder = Path(result.checkpoint.path)
    assert folder.parent == tmp_path / "two"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint.pt", "config.yaml", "metrics.jsonl", "result.json", "scores.json",
    ]  # fmt: skip
    assert _learned(_epochs(folder)) == _learned(undisturbed)
    written = json.loads((folder / "result.json").read_text())
    assert result.return_value["world_size"] == written["world_size"] == 2
    assert result.metrics["test_acc"] == written["test_acc"] == result.return_value["test_acc"]
    assert list((tmp_path / "two").glob("checkpoint_2*")) == [folder]
    again = gloader.ray.train(**call)
    assert again.return_value["test_acc"] == written["test_acc"]
    with pytest.raises(ray.train.TrainingFailedError, match="hidden is 8 there and 9 here"):
        gloader.ray.train(**call | {"hidden": 9})


def test_a_node_that_is_removed_costs_the_batches_since_the_last_checkpoint(
    cluster: Cluster, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    # Not this thread: a node may be added by the main one alone.
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(
            gloader.ray.train,
            dataset="builtin:digits",
            num_workers=2,
            storage_path=tmp_path,
            name="cut",
            max_failures=1,
            **SETTINGS,
        )
        while not (position := _reported(tmp_path / "cut" / SNAPSHOT)) >= (1, 10):
            assert not training.done()
            time.sleep(0.02)
        (node,) = cluster.worker_nodes
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=1)
        result = training.result(LONG_S)
    assert position < (1, NUM_BATCHES)
    epochs = _epochs(Path(result.checkpoint.path))
    assert _learned(epochs) == _learned(undisturbed)
    begun_at = NUM_BATCHES - epochs[1]["batches"]  # what was trained before is not trained again
    assert begun_at >= position[1]
    assert begun_at % SETTINGS["checkpoint_every"] == 0
    assert [epoch["batches"] for epoch in epochs] == [NUM_BATCHES, NUM_BATCHES - begun_at, NUM_BATCHES]


def test_what_a_worker_refuses_is_in_the_error_of_the_run(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ray.train.TrainingFailedError) as caught:
        gloader.ray.train(dataset=tmp_path / "none", num_workers=2, storage_path=tmp_path, **SETTINGS)
    assert "is neither a folder nor a source" in str(caught.value)


def test_a_ray_of_our_own_is_small_and_silent_and_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    with gloader.ray._connected():
        assert ray.cluster_resources()["object_store_memory"] <= 100_000_000
        services = [process for process in psutil.Process().children() if process.name() == "gcs_server"]
        assert [process.environ()["RAY_USAGE_STATS_ENABLED"] for process in services] == ["0"]
        with gloader.ray._connected():  # whoever is connected already stays so
            pass
        assert ray.is_initialized()
    assert not ray.is_initialized()
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ
