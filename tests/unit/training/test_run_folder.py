from __future__ import annotations

import json

import yaml

from gloader.training.run_folder import RunFolder


def test_the_config_is_plain_yaml(tmp_path) -> None:
    RunFolder(tmp_path / "a" / "b").write_config({"loader": {"fanouts": (15, 10), "cache": None}, "runs": 1})
    text = (tmp_path / "a" / "b" / "config.yaml").read_text()
    assert yaml.safe_load(text) == {"loader": {"fanouts": [15, 10], "cache": None}, "runs": 1}


def test_metrics_start_with_what_is_behind_and_gain_a_line_per_epoch(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    folder.start_metrics([{"epoch": 0}])
    folder.append_metrics({"epoch": 1})
    folder.append_metrics({"epoch": 2})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]
    folder.start_metrics([])
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_one_run_uses_the_folder_itself_and_several_get_their_own(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.of_run(0, num_runs=1).root == tmp_path
    assert folder.of_run(1, num_runs=2).root == tmp_path / "run-1"
    assert (tmp_path / "run-1").is_dir()


def test_a_run_without_checkpoint_has_none(tmp_path) -> None:
    assert RunFolder(tmp_path).load_checkpoint() is None


def test_the_result_is_json(tmp_path) -> None:
    RunFolder(tmp_path).write_result({"test_acc": 0.5, "epoch_seconds": (1.0, 2.0)})
    assert json.loads((tmp_path / "result.json").read_text()) == {
        "test_acc": 0.5,
        "epoch_seconds": [1.0, 2.0],
    }


def test_activations_of_a_killed_run_are_removed(tmp_path) -> None:
    (tmp_path / "gloader-infer-abc" / "layer-0").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    RunFolder(tmp_path).remove_residue()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
