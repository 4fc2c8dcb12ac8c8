"""Every command on a real graph, as a new user would run them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from reliability_report import Namespace

from gloader.cli import screen, train
from gloader.cli.main import main
from gloader.cli.run_view import RunView
from gloader.cli.screen import Screen
from gloader.errors import SourceError
from gloader.training.metrics import EpochRecord

DIGITS = "builtin:digits"
SMALL = ["--fanout", "5,5", "--hidden", "32", "--batch-size", "256", "--lr", "0.01", "--memory-budget", "1GB"]
PROMISED = {
    "test_acc", "valid_acc", "epoch_seconds", "batches", "seeds_per_second", "hit_rate", "rows_read", "bytes_read",
    "bytes_written", "stage_seconds", "overlap_efficiency", "peak_rss_bytes", "policy", "io_strategy", "versions",
}  # fmt: skip
STAGES = {"sweep", "sample", "inspect", "stage", "gather", "transfer", "compute", "wait"}

Json = dict[str, Any]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits, prepared once."""
    out = tmp_path_factory.mktemp("prepared") / "digits"
    assert main(["prepare", DIGITS, str(out)]) == 0
    return out


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., Json]:
    """Return a function that runs a command with --json and parses what it wrote to stdout."""

    def run(*words: str | Path, status: int = 0) -> Json:
        capsys.readouterr()
        assert main([*map(str, words), "--json"]) == status
        parsed = json.loads(capsys.readouterr().out)
        assert isinstance(parsed, dict)
        return parsed

    return run


def test_prepare_reports_what_it_wrote(tmp_path: Path, run_json: Callable[..., Json]) -> None:
    report = run_json("prepare", DIGITS, tmp_path / "out", "--self-loops", "--dtype", "float16")
    info = run_json("info", tmp_path / "out")
    assert (info["num_nodes"], info["feature_dim"], info["feature_dtype"]) == (1797, 64, "float16")
    assert report["num_edges"] == info["num_edges"]
    assert info["has_self_loops"] is True
    assert sum(info["splits"].values()) == 1797


def test_prepare_into_an_existing_folder_needs_overwrite(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", DIGITS, str(digits)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["prepare", DIGITS, str(digits), "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prepare", "builtin:digit", "OUT"], "builtin:digits"),
        (["prepare", "nyp:here", "OUT"], "did you mean npy:...?"),
        (["prepare", "npy:/nowhere", "OUT"], "/nowhere"),
        (["info", "builtin:digits"], "no dataset yet: gloader prepare builtin:digits FOLDER"),
        (
            ["info", "/nowhere"],
            "/nowhere: there is nothing here; a dataset is made once: gloader prepare SOURCE /nowhere",
        ),
        (
            ["info", f"{__file__}.csv"],
            "there is nothing here; a dataset is made once: gloader prepare SOURCE",
        ),
        (
            ["info", __file__],
            "this is not a folder, but a dataset is one; make it once: gloader prepare SOURCE",
        ),
        (["verify", "/nowhere"], "there is nothing here"),
        (["train", "--dataset", "digits"], "'digits' is neither a folder nor a source"),
        (["train", "--dataset", DIGITS, "--device", "cuda:99"], "cuda:99"),
        (["train", "--dataset", DIGITS, "--device", "gpu"], "device 'gpu' is not known"),
        (
            ["train", "--dataset", DIGITS, "--sampler", "no such"],
            "sampler 'no such' is not known; allowed: neigh",
        ),
        (["train", "--dataset", DIGITS, "--sampler", "labor:x"], "'x' is not option=value"),
        (
            ["train", "--dataset", DIGITS, "--sampler", "labor:iteration=1"],
            "'labor' has no option 'iteration'",
        ),
        (
            ["train", "--dataset", DIGITS, "--sampler", "labor", "--layout", "merged"],
            "--layout merged with sampler 'labor'",
        ),
        (["train", "--dataset", DIGITS, "--dropout", "1.5"], "--dropout is 1.5"),
        (["train", "--dataset", DIGITS, "--seed-blocks", "0"], "--seed-blocks is 0; it must be 1 or more"),
        (["train", "--dataset", DIGITS, "--superbatch", "0"], "--superbatch is 0; it must be 1 or more"),
        (
            ["train", "--dataset", DIGITS, "--stall-timeout", "0"],
            "--stall-timeout is 0.0; it must be a number",
        ),
        (["train", "--dataset", DIGITS, "--batch-size", "0"], "--batch-size is 0; it must be 1 or more"),
        (["infer", "--dataset", DIGITS, "--checkpoint", "/nowhere"], "/nowhere holds no checkpoint.pt"),
    ],
)
def test_mistakes_end_in_one_line_and_leave_nothing(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([word.replace("OUT", str(tmp_path / "out")) for word in words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("J17")
@pytest.mark.parametrize(
    "words",
    [
        ["infer", "--dataset", DIGITS, "--checkpoint", "/nowhere", "--out", "OUT"],
        ["report", "/nowhere", "--out", "OUT"],
    ],
)
def test_an_output_that_is_no_regular_file_is_refused_before_any_work(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    os.mkfifo(out)
    assert main([word.replace("OUT", str(out)) for word in words]) == 2
    assert f"error: {out}: is a FIFO, which is never replaced by a file; give another path" in (
        " ".join(capsys.readouterr().err.split())
    )
    assert out.is_fifo()


@pytest.mark.reliability("J17")
def test_a_link_in_the_folder_of_an_inspection_is_not_followed(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "inspect.json").symlink_to(tmp_path / "theirs")
    words = ["inspect", "--dataset", str(digits), "--fanout", "3", "--batches", "1", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "is a symbolic link, which is never replaced" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "theirs").read_text() == "theirs"


@pytest.mark.reliability("C14")
def test_budget_that_is_too_small_says_needed_and_allowed(
    tmp_path: Path, digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--dataset", str(digits), "--memory-budget", "1MB", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert "memory budget" in capsys.readouterr().err


def test_train_then_infer(
    digits: Path,
    tmp_path: Path,
    run_json: Callable[..., Json],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, predictions = tmp_path / "run", tmp_path / "deep" / "predictions.npy"
    result = run_json("train", "--dataset", digits, *SMALL, "--epochs", "4", "--out", out, "--compare-mlp")
    assert result["test_acc"] > 0.8
    assert result["mlp"]["test_acc"] > 0.5
    written = json.loads((out / "result.json").read_text())
    assert set(written) >= PROMISED
    assert set(written["stage_seconds"]) == STAGES
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 4
    assert yaml.safe_load((out / "config.yaml").read_text())
    monkeypatch.setattr(screen, "_LINE_EVERY_S", 0.0)
    assert main(["infer", "--dataset", str(digits), "--checkpoint", str(out), "--out", str(predictions)]) == 0
    assert "predicting: 100%\n" in capsys.readouterr().out  # as long as there is no terminal with a bar
    predicted = np.load(predictions)
    assert (predicted.shape, predicted.dtype) == ((1797,), np.int64)
    from gloader import Dataset

    opened = Dataset.open(digits)
    accuracy = float((predicted[opened.test] == opened.labels[opened.test]).mean())
    assert accuracy == pytest.approx(result["test_acc"])


def test_run_is_repeated_by_its_resolved_configuration(
    digits: Path, tmp_path: Path, run_json: Callable[..., Json]
) -> None:
    words = [
        "--dataset",
        digits,
        *SMALL,
        "--epochs",
        "2",
        "--seed",
        "3",
        "--features",
        "ssd",
        "--cache",
        "25%",
        "--layout",
        "merged",
        "--topology",
        "direct",
    ]
    first = run_json("train", *words, "--model", "gcn", "--out", tmp_path / "a")
    second = run_json("train", "--config", tmp_path / "a" / "config.yaml", "--out", tmp_path / "b")
    for name in ("test_acc", "valid_acc", "hit_rate", "rows_read", "num_parameters"):
        assert first[name] == second[name]
    configs = [yaml.safe_load((tmp_path / name / "config.yaml").read_text()) for name in ("a", "b")]
    assert configs[0]["loader"]["topology"] == "direct"
    assert configs[0].pop("run") != configs[1].pop("run")
    assert configs[0] == configs[1]


def test_resumed_run_continues_after_its_last_epoch(
    digits: Path, tmp_path: Path, run_json: Callable[..., Json]
) -> None:
    words = ["train", "--dataset", digits, *SMALL, "--out", tmp_path / "run"]
    run_json(*words, "--epochs", "1")
    run_json(*words, "--epochs", "3", "--resume", "--tensorboard")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]
    assert list((tmp_path / "run" / "tensorboard").rglob("events*"))


@pytest.mark.reliability("J15", "S10")
def test_a_folder_with_a_run_is_refused_before_anything_is_prepared(
    digits: Path, tmp_path: Path, run_json: Callable[..., Json], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", "--dataset", str(digits), *SMALL, "--epochs", "1", "--out", str(out)]
    run_json(*words)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for dataset in (str(digits), "synthetic:demo"):  # which takes seconds to prepare
        assert main(["train", "--dataset", dataset, *words[3:]]) == 2
        captured = capsys.readouterr()
        assert captured.err == (
            f"error: {out}: holds a run already; --resume goes on with it, --overwrite replaces it\n"
        )
        assert captured.out == ""
    assert main([*words, "--resume", "--overwrite"]) == 2
    assert "give one of them" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    run_json(*words, "--overwrite")
    assert (out / "config.yaml").read_bytes() != before["config.yaml"]  # with the id of another run


@pytest.mark.parametrize(
    ("stop", "status", "said"),
    [(KeyboardInterrupt(), 130, "interrupted"), (SystemExit(143), 143, "terminated")],
)
def test_a_run_that_a_signal_ended_says_how_to_go_on_and_leaves_its_trace(
    digits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stop: BaseException,
    status: int,
    said: str,
) -> None:
    out = tmp_path / "run"
    words = ["train", "--dataset", str(digits), *SMALL, "--epochs", "3", "--out", str(out)]

    def interrupted(_: RunView, record: EpochRecord) -> None:
        if record.epoch == 1:
            raise stop

    with monkeypatch.context() as patch:
        patch.setattr(RunView, "on_epoch", interrupted)
        assert main([*words, "--trace"]) == status
    assert capsys.readouterr().err == (
        f"error: {said} (stopped in epoch 3; {out} holds epochs 1 and 2; go on: the same command with --out {out} "
        "--resume)\n"
    )
    assert (out / "trace.json").is_file()
    assert main([*words, "--resume"]) == 0
    assert "continuing after epoch 2" in capsys.readouterr().out


@pytest.mark.reliability("J15")
def test_the_disk_of_spills_is_looked_for_before_anything_is_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "not-mounted"
    assert main(["train", "--dataset", "synthetic:demo", *SMALL, "--spill-dir", str(missing / "spill")]) == 2
    assert capsys.readouterr().err == (
        f"error: --spill-dir (in Python spill_dir=) is {missing / 'spill'}, and {missing} does not exist: mount its "
        "disk, or make the folder first\n"
    )
    assert not missing.exists()


def test_features_on_the_ssd_with_a_share_in_memory(
    digits: Path, tmp_path: Path, run_json: Callable[..., Json]
) -> None:
    words = ["train", "--dataset", digits, *SMALL, "--epochs", "1", "--features", "ssd", "--cache", "25%"]
    result = run_json(*words, "--out", tmp_path / "run")
    assert result["features"] == "ssd"
    assert 0.2 < result["hit_rate"] < 0.6
    assert result["rows_read"] > 0


def test_the_hit_rate_of_a_run_counts_the_device_as_its_epochs_do(
    digits: Path, tmp_path: Path, run_json: Callable[..., Json]
) -> None:
    words = ["train", "--dataset", digits, *SMALL, "--epochs", "1", "--features", "ssd", "--cache", "10%"]
    result = run_json(*words, "--device-cache", "100KB", "--out", tmp_path / "run")
    (epoch,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert epoch["device_hits"] > 0
    assert result["hit_rate"] == epoch["hit_rate"]
    assert result["hit_rate"] == pytest.approx(1 - result["rows_read"] / result["rows_gathered"])


def test_run_is_explained_and_traced_where_asked_for(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train",
        "--dataset",
        str(digits),
        *SMALL,
        "--epochs",
        "2",
        "--features",
        "ssd",
        "--cache",
        "10%",
        "--topology",
        "sweep",
        "--spill-budget",
        "100MB",
    ]
    out = tmp_path / "run"
    assert main([*words, "--explain", "--trace", "--superbatch", "4", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    for part in (
        "memory budget 1 GB (Python and torch come on top: about 330 MB a process): loader",
        "rows (10.",
        "on the SSD, read in sweeps (as asked for)",
        "superbatches, predicted and measured:",
        "passes over the edges, predicted for the disk and measured:",
        " over the edges: ",  # in the line of an epoch
        f"trace in {out / 'trace.json'}",
    ):
        assert part in text
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    result = json.loads((out / "result.json").read_text())
    assert result["edge_passes"] > 0
    assert result["edge_bytes_read"] > result["edge_bytes_written"] > 0
    assert {"sweep", "sample", "gather"} <= {
        event["name"].split()[0] for event in events if event["ph"] == "X"
    }


def test_trace_without_out_lies_in_the_folder_of_the_run(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--dataset", str(digits), *SMALL, "--epochs", "1", "--trace"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "trace.json").is_file()


@pytest.mark.parametrize("strategy", ["direct", "staged", "packed"])
def test_a_forced_strategy_is_the_one_of_the_result(
    digits: Path, tmp_path: Path, run_json: Callable[..., Json], strategy: str
) -> None:
    words = ["train", "--dataset", digits, *SMALL, "--epochs", "1", "--features", "ssd", "--cache", "10%"]
    more = ["--io-strategy", strategy, "--spill-budget", "50MB", "--spill-dir", tmp_path, "--max-gap", "0"]
    result = run_json(*words, *more, "--out", tmp_path / "run")
    assert (result["io_strategy"], result["policy"]) == (strategy, "belady")
    assert (result["bytes_written"] > 0) == (strategy == "packed")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_source_is_prepared_once_under_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))
    words = ["train", "--dataset", DIGITS, *SMALL, "--epochs", "1"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    (prepared,) = (tmp_path / "home" / "datasets").iterdir()
    assert prepared.name.startswith("builtin-digits-")
    assert "writing features" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "b")]) == 0
    assert "writing features" not in capsys.readouterr().out
    assert list((tmp_path / "home" / "datasets").iterdir()) == [prepared]


@pytest.mark.reliability("J11")
def test_what_would_compile_is_prepared_by_another_process_and_its_errors_are_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Compiled code stays in a process, beside what its budget is for."""
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path))
    monkeypatch.setattr(train, "lacks_kernels", lambda *modules: True)
    screen = Screen.open(is_json=False)
    with monkeypatch.context() as patch:
        patch.setattr("gloader.convert.prepare.prepare", None)  # this process converts nothing
        path = Path(train.prepare("builtin:digits", screen, memory_budget=None))
    assert (path / "dataset.json").is_file()
    assert "writing features" in capfd.readouterr().out
    with pytest.raises(SourceError, match="no-such-file"):
        train.prepare(f"edges:{tmp_path / 'no-such-file.csv'}", screen, memory_budget=None)
    assert capfd.readouterr().err == ""


def test_a_sampler_that_is_unknown_is_refused_before_a_source_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))
    words = ["train", "--dataset", DIGITS, "--sampler", "no such", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert "sampler 'no such' is not known; allowed: neighbor" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_screen_of_a_log_has_a_row_per_epoch_and_no_control_codes(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["train", "--dataset", str(digits), *SMALL, "--epochs", "2", "--out", str(tmp_path / "run")])
        == 0
    )
    out = capsys.readouterr().out
    assert "\x1b" not in out
    rows = [line for line in out.splitlines() if line.lstrip()[:2] in ("1 ", "2 ")]
    assert len(rows) == 2
    assert "test accuracy" in out


def test_verify_finds_one_flipped_bit(digits: Path, tmp_path: Path, run_json: Callable[..., Json]) -> None:
    assert run_json("verify", digits)["ok"] is True
    copy = tmp_path / "copy"
    shutil.copytree(digits, copy)
    with (copy / "features.npy").open("r+b") as file:
        file.seek(9000)
        byte = file.read(1)[0]
        file.seek(9000)
        file.write(bytes([byte ^ 4]))
    report = run_json("verify", copy, status=1)
    assert report["ok"] is False
    assert report["problems"][0]["file"] == "features.npy"


def test_doctor_finds_this_machine_usable(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    run_json: Callable[..., Json],
) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("GLOADER_HOME", str(home))
    report = run_json("doctor", "--path", tmp_path)
    assert report["usable"] is True
    assert len(list((home / "devices").iterdir())) == 1  # stores on this device are read by its profile now
    found = {finding["name"]: finding for finding in report["findings"]}
    assert {"python", "torch", "cores", "memory", "disk rates", "O_DIRECT", "io_uring", "cuda"} <= set(found)
    assert all(finding["fix"] for finding in report["findings"] if finding["severity"] != "ok")
    assert list(tmp_path.iterdir()) == []


def test_bench_sampler_prints_its_promised_keys(run_json: Callable[..., Json]) -> None:
    size = [
        "--num-nodes",
        "2000",
        "--num-edges",
        "20000",
        "--batches",
        "2",
        "--repeats",
        "1",
        "--batch-size",
        "64",
    ]
    report = run_json("bench", "sampler", *size, "--no-dgl")
    assert report["edges_per_second"] > 0
    assert "ratio_to_dgl" in report


def test_bench_sampler_prints_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    size = [
        "--num-nodes",
        "2000",
        "--num-edges",
        "20000",
        "--batches",
        "2",
        "--repeats",
        "1",
        "--batch-size",
        "64",
    ]
    assert main(["bench", "sampler", *size, "--no-dgl"]) == 0
    out = capsys.readouterr().out
    assert "gloader, 1 thread" in out
    assert "not measured" in out


@pytest.mark.long
def test_bench_gather_prints_a_result_for_each_width(run_json: Callable[..., Json], tmp_path: Path) -> None:
    size = ["--dims", "4", "--dims", "16", "--rows", "100", "--table", "64KiB", "--repeats", "1"]
    report = run_json("bench", "gather", *size, "--out", str(tmp_path / "gather.json"))
    assert [result["row_bytes"] for result in report["results"]] == [16, 64]
    assert json.loads((tmp_path / "gather.json").read_text()) == report


def test_bench_epoch_prints_seconds_from_the_ssd_and_in_memory(run_json: Callable[..., Json]) -> None:
    size = ["--dataset", "builtin:digits", "--fanout", "3,2", "--batch-size", "256", "--epochs", "1"]
    report = run_json("bench", "epoch", *size)
    assert min(report["seconds_per_epoch"], report["ram_seconds_per_epoch"]) > 0
    assert report["workload"]["dataset"] == "digits"


def _signature(folder: Path) -> dict[str, tuple[int, ...]]:
    files = [folder, *folder.rglob("*")]
    stats = {str(file): file.stat() for file in files}
    return {
        name: (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats.items()
    }


READ_ONLY = """
import sys
from pathlib import Path
from gloader.cli.main import main

dataset, out = sys.argv[1:3]
try:
    (Path(dataset) / "probe").touch()
except OSError:
    pass
else:
    sys.exit("the dataset is writable: this proves nothing")
small = ["--fanout", "3", "--hidden", "8", "--epochs", "1", "--features", "ssd", "--memory-budget", "1GB"]
for words in (["info", dataset], ["verify", dataset], ["train", "--dataset", dataset, "--out", out, *small]):
    if main(words):
        sys.exit(f"{words[0]} failed")
"""


@pytest.mark.reliability("B9")
def test_readers_never_write(digits: Path, tmp_path: Path, namespace: Namespace) -> None:
    """On a read-only mount where namespaces are allowed, else without write permission."""
    before = _signature(digits)
    words = [sys.executable, "-c", READ_ONLY, str(digits), str(tmp_path / "run")]
    prefix = namespace(f"mount --bind '{digits}' '{digits}' && mount -o remount,ro,bind '{digits}'")
    if prefix is not None:
        words = [*prefix, *words]
    else:
        assert os.geteuid() != 0, "root needs mount namespaces for this test"
        for path in (digits, *digits.iterdir()):
            path.chmod(path.stat().st_mode & ~0o222)
        before = _signature(digits)
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert _signature(digits) == before
