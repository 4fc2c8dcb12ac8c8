"""The folder of a run, read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gloader.errors import FormatError
from gloader.lab.report import make_report
from gloader.lab.report.build_page import read_training
from gloader.lab.report.score_pictures import pictures_of
from gloader.lab.report.training import read_settings

EPOCH = {
    "epoch": 0, "loss": 1.5, "train_acc": 0.5, "valid_acc": 0.25, "lr": 0.1, "seconds": 2.0, "evaluate_seconds": 1.0,
    "rows_per_second": 5.0, "bottleneck": "compute", "rows_gathered": 1000, "hit_rate": 0.25, "bytes_read": 4096,
    "bytes_written": 0,
}  # fmt: skip
# What later versions add.
NEWER = {
    "stage_seconds": {"compute": 1.5, "wait": 0.5}, "edge_bytes_read": 100, "edge_bytes_written": 7,
    "memory_bytes": [5, 9] * 8,
}  # fmt: skip
CONFIG = "loader: {seed: 3, memory_budget_bytes: 100}\noptim: {epochs: 2}\n"


def _run(folder: Path, *epochs: dict[str, Any], config: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
    if config:
        (folder / "config.yaml").write_text(config)
    return folder


def test_a_run_of_today(tmp_path: Path) -> None:
    folder = _run(
        tmp_path / "r", EPOCH | NEWER, EPOCH | NEWER | {"epoch": 1, "valid_acc": 0.5}, config=CONFIG
    )
    result = {"features": "ram", "memory_budget_bytes": 200, "peak_anonymous_bytes": 11}
    (folder / "result.json").write_text(json.dumps(result))
    found = read_training(folder)
    assert (found.name, found.seed, found.budget_bytes, found.peak_bytes) == ("r", "3", 200, 11)
    assert (found.bytes_read, found.bytes_written) == (2 * 4196, 2 * 7)
    assert (found.best, found.test, found.waiting, found.epoch_s) == (0.5, None, 0.25, 2.0)
    assert found.epochs[1].number == 2
    assert sum(found.epochs[1].parts) == 3.0
    assert found.total_seconds == 6.0
    assert found.settings == {"memory budget": "100 B", "epochs": "2"}


def test_a_run_that_is_not_finished_has_what_it_saw(tmp_path: Path) -> None:
    found = read_training(_run(tmp_path / "r", EPOCH | NEWER, config=CONFIG))
    assert (found.peak_bytes, found.budget_bytes) == (9, 100)


def test_a_run_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    found = read_training(_run(tmp_path / "r", EPOCH))
    (epoch,) = found.epochs
    assert (epoch.parts, epoch.memory_bytes, epoch.wait_s) == ((), (), None)
    assert (found.peak_bytes, found.budget_bytes, found.waiting, found.seed) == (None, None, None, "")


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    folder = _run(tmp_path / "r", EPOCH)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 1, "lo')
    assert len(read_training(folder).epochs) == 1


def test_each_of_several_runs_has_the_settings_of_all_and_a_seed_of_its_own(tmp_path: Path) -> None:
    _run(tmp_path / "r", config=CONFIG)
    found = read_training(_run(tmp_path / "r" / "run-2", EPOCH))
    assert (found.name, found.seed, found.settings["epochs"]) == ("r/run-2", "5", "2")


def test_of_an_error_less_is_better(tmp_path: Path) -> None:
    line = {name: value for name, value in EPOCH.items() if name != "valid_acc"}
    folder = _run(tmp_path / "r", line | {"valid_rmse": 2.0}, line | {"epoch": 1, "valid_rmse": 3.0})
    assert (read_training(folder).metric, read_training(folder).best) == ("rmse", 2.0)


def test_malformed_figures_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"metrics\.jsonl is not what `gloader train` writes: KeyError"):
        read_training(_run(tmp_path / "r", {"epoch": 0}))
    (_run(tmp_path / "s", EPOCH) / "result.json").write_text('{"features": "ssd"}')
    with pytest.raises(FormatError, match=r"result\.json is not what"):
        read_training(tmp_path / "s")
    with pytest.raises(FormatError, match=r"config\.yaml is not what"):
        read_training(_run(tmp_path / "t", EPOCH, config="loader: {memory_budget_bytes: many}"))


RESULT = {
    "features": "ssd", "policy": "belady", "io_strategy": "auto", "test_acc": 0.5, "memory_budget_bytes": 100,
    "peak_anonymous_bytes": 50, "peak_rss_bytes": 60, "total_seconds": 5.0, "versions": {"gloader": "1"},
    "machine": {"device": "cpu", "processor": "x", "cores": 2, "memory_bytes": 10**9},
    "tables": {"a": {"hit_rate": 0.5, "rows_gathered": 5, "bytes_read": 6}},
}  # fmt: skip
SCORES = {
    "classes": {
        "num": 3, "kind": "classes", "metrics": {"acc": 0.5}, "num_classes": 2, "classes": [["a", 2, 1, 1]],
        "matrix": [[1, 1], [0, 1]], "names": ["a", "b"], "split": "test",
    },
    "many": {
        "num": 3, "kind": "classes", "metrics": {}, "num_classes": 60, "classes": [["a", 2, 1, 1]], "num_counted": 60,
        "confused": [["a", "b", 1]],
    },
    "binary": {
        "num": 3, "kind": "binary", "metrics": {"auroc": 0.5}, "num_labels": 1,
        "labels": [{"name": "a", "num": 3, "num_ones": 1, "auroc": 0.5, "ap": 0.5}],
        "curves": [
            {
                "name": "a", "roc": [[0, 0], [1, 1]], "precision_recall": [[0.5, 1], [1, 0.5]], "share": 0.4,
                "calibration": [[0.5, 0.4, 3]],
            }
        ],
    },
    "values": {
        "num": 3, "kind": "values", "metrics": {"r2": 0.5}, "num_columns": 2,
        "columns": [{"name": "a", "num": 3, "mae": 0.5, "rmse": 0.5, "r2": None}],
        "grids": [{"name": "a", "low": 0.5, "high": 2.5, "num_beyond": 1, "counts": [[1, 0], [2, 0]]}],
    },
}  # fmt: skip
SETTINGS = {"loader": {"seed": 3, "memory_budget_bytes": 100, "fanouts": [5, 5]}, "dataset": {"name": "d"}}
HOSTILE = ("[" * 20_000, "1" + "0" * 400, "9" * 5000, "0x" + "f" * 5000, "Infinity", "NaN", "[]", '"\\ud800"')


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _places(each, (*path, key))


def _put(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    changed = value.copy()
    changed[path[0]] = _put(value[path[0]], path[1:], odd)
    return changed


@pytest.mark.reliability("J10")
@pytest.mark.parametrize("odd", HOSTILE, ids=lambda text: text[:8])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", EPOCH | NEWER),
        ("result.json", RESULT),
        ("config.yaml", SETTINGS),
        *(("scores.json", content) for content in SCORES.values()),
    ],
)
def test_a_value_that_no_run_has_anywhere_is_shown_or_refused(
    name: str, content: dict[str, Any], odd: str, tmp_path: Path
) -> None:
    folder = _run(tmp_path / "r", EPOCH | NEWER, EPOCH | NEWER | {"epoch": 1}, config=json.dumps(SETTINGS))
    (folder / "result.json").write_text(json.dumps(RESULT))
    for path in _places(content):
        text = json.dumps(_put(content, path, "@@")).replace('"@@"', odd) + "\n"
        (folder / name).write_text(text)
        with suppress(FormatError):
            read_training(folder)
        with suppress(FormatError):
            make_report([folder], tmp_path / "page.html", png=tmp_path / "pictures")


@pytest.mark.parametrize("kind", SCORES)
def test_the_scores_of_a_run_are_drawn(kind: str, tmp_path: Path) -> None:
    folder = _run(tmp_path / "r", EPOCH)
    (folder / "scores.json").write_text(json.dumps(SCORES[kind]))
    scores = pictures_of(read_training(folder))
    assert len(scores.charts) == {"classes": 1, "many": 0, "binary": 3, "values": 1}[kind]
    (section,) = make_report([folder], tmp_path / "page.html")
    assert section.charts[: len(scores.charts)] == scores.charts
    assert [name for name, _ in section.folded_tables] == [*(name for name, _ in scores.tables), "Each epoch"]


def test_scores_that_are_malformed_name_the_file(tmp_path: Path) -> None:
    folder = _run(tmp_path / "r", EPOCH)
    for wrong in ("{", "[]", json.dumps(SCORES["classes"] | {"matrix": [[1], [2]]})):
        (folder / "scores.json").write_text(wrong)
        with pytest.raises(FormatError, match=r"scores\.json is not what `gloader train` writes: "):
            read_training(folder)
    (folder / "scores.json").write_text(json.dumps(SCORES["binary"] | {"labels": [0] * 1000}))
    with pytest.raises(FormatError, match=r"a list of 1,000 entries, where a summary has at most 256"):
        read_training(folder)


@pytest.mark.reliability("J10")
def test_settings_alone_are_refused_as_they_are_with_a_run(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"optim: {{lr: 0x{'f' * 5000}}}\n")
    with pytest.raises(FormatError, match=r"config\.yaml is not what `gloader train` writes"):
        read_settings(path)


def test_a_validation_that_is_no_number_is_not_the_best(tmp_path: Path) -> None:
    epochs = [EPOCH | {"valid_acc": float("nan")}, EPOCH | {"epoch": 1}]
    assert read_training(_run(tmp_path / "r", *epochs)).best == 0.25
    assert read_training(_run(tmp_path / "s", epochs[0])).best is None
