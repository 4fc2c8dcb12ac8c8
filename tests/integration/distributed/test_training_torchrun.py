"""The command line under torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_scenarios import train

from gloader.cli.main import main
from gloader.dataset import Dataset

WORDS = [
    "--fanout", "4,3", "--hidden", "8", "--dropout", "0", "--epochs", "3", "--lr", "0.01", "--batch-size", "16",
    "--memory-budget", "600MB", "--checkpoint-every", "2", "--device", "cpu", "--json",
]  # fmt: skip
CHILD = Path(__file__).parents[2] / "elastic_train.py"
MACHINES = CHILD.with_name("machine_command.py")


def _torchrun(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run two ranks on this machine, and wait for them."""
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", **environ},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.reliability("G5")
def test_a_group_that_lost_a_rank_is_started_again_and_ends_as_one_that_did_not(
    dataset: Path, tmp_path: Path
) -> None:
    whole = train(str(dataset), loader={"batch_size": 32})
    words = ["--dataset", str(dataset), *WORDS, "--explain", "--out", str(tmp_path)]
    ended = _torchrun("--max-restarts", "1", str(CHILD), *words, KILLED="1 1 3")
    assert ended.returncode == 0, ended.stderr
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == pytest.approx(whole["losses"], rel=1e-4)
    result = json.loads(ended.stdout)  # one rank wrote, and only that
    assert result["test_acc"] == whole["test_acc"]
    assert len(result["rank_peak_rss_bytes"]) == 2
    assert result["seeds_per_second"] > 0
    assert ended.stderr.count("parameters on 2 ranks (cpu)") == 2
    assert ended.stderr.count("continuing after epoch 1") == 1
    assert "rank 1: rank 0 loads for all ranks of this machine" in ended.stderr
    assert ended.stderr.index("rank 1 ended") < ended.stderr.index("continuing")


def test_a_mistake_is_one_line_of_each_rank_and_the_status_is_not_zero(dataset: Path, tmp_path: Path) -> None:
    ended = _torchrun(
        "--max-restarts", "0", "-m", "gloader", "train", "--dataset", str(dataset), *WORDS, "--patience=-1"
    )
    assert ended.returncode == 1
    assert "error: patience is -1; allowed: 0 or more" in ended.stderr
    assert "on rank 0" in ended.stderr
    assert 'File "' not in ended.stderr.partition("ChildFailedError")[0].partition("Traceback")[0]


def test_infer_predicts_over_machines_that_have_a_part_of_the_rows_each(
    dataset: Path, tmp_path: Path
) -> None:
    arrays = Dataset.open(dataset).to_numpy()
    for part, machine in enumerate(("b", "a")):  # not in the order of the ranks
        Dataset.from_numpy(tmp_path / machine, **arrays, num_classes=5, ranges=(part, 2))
    train(str(dataset), out=str(tmp_path / "run"), optim={"epochs": 1})
    words = ["infer", "--checkpoint", str(tmp_path / "run"), "--memory-budget", "400MB", "--device", "cpu"]
    assert main([*words, "--dataset", str(dataset), "--out", str(tmp_path / "whole.npy")]) == 0
    own = [*words, "--dataset", f"{tmp_path}/MACHINE", "--out", str(tmp_path / "parts.npy")]
    ended = _torchrun(str(MACHINES), "a,b", *own)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "parts.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_infer_of_a_part_alone_says_how_to(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Dataset.from_numpy(tmp_path / "part", **Dataset.open(dataset).to_numpy(), num_classes=5, ranges="0/2")
    assert main(["infer", "--dataset", str(tmp_path / "part"), "--checkpoint", str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "rows 300 to 600 of 'node' are on no machine of this run" in said
    assert "start it with torchrun on the machines of all parts, or prepare a copy with all rows" in said
