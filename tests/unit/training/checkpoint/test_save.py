from __future__ import annotations

import io
import json
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gloader.config import ModelConfig
from gloader.errors import CheckpointError
from gloader.training.checkpoint.files import sealed, unsealed
from gloader.training.checkpoint.save import Checkpoint, load_checkpoint, save_checkpoint
from gloader.training.model_spec import ModelSpec

if TYPE_CHECKING:
    from pathlib import Path

SPEC = ModelSpec(
    config=ModelConfig(name="gcn", hidden=8), in_dim=5, out_dim=3, num_layers=2, add_self_loops=False
)


def _checkpoint() -> Checkpoint:
    return Checkpoint(
        run_id="0123",
        settings={"lr": 0.1, "fanouts": [3, 2]},
        spec=SPEC,
        fingerprint="abc",
        weights=SPEC.build().state_dict(),
        progress={"loader": {"next": [1, 2]}, "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}}},
    )


def test_everything_comes_back(tmp_path) -> None:
    saved = _checkpoint()
    save_checkpoint(tmp_path / "checkpoint.pt", saved)
    loaded = load_checkpoint(tmp_path)
    assert loaded.spec == saved.spec
    assert (loaded.fingerprint, loaded.run_id, loaded.settings) == ("abc", "0123", saved.settings)
    assert loaded.position == (1, 2)
    assert loaded.progress == saved.progress
    for name, value in loaded.model().state_dict().items():
        assert torch.equal(value, saved.weights[name])
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_folder_of_several_runs_stands_for_the_best_of_them(tmp_path) -> None:
    for run in range(3):
        (tmp_path / f"run-{run}").mkdir()
        save_checkpoint(
            tmp_path / f"run-{run}" / "checkpoint.pt", replace(_checkpoint(), fingerprint=f"{run}")
        )
    assert load_checkpoint(tmp_path).fingerprint == "0"
    (tmp_path / "result.json").write_text(json.dumps({"best_run": 2}))
    assert load_checkpoint(tmp_path).fingerprint == "2"


def test_a_folder_without_checkpoint_says_what_to_give(tmp_path) -> None:
    with pytest.raises(
        CheckpointError, match=r"holds no checkpoint\.pt; give the --out folder of a training run"
    ):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="holds no"):
        load_checkpoint(tmp_path / "missing")


def _seal(content: Any, path: Path, **options: Any) -> None:
    """Write a file whose digest is right, whatever it holds."""
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    path.write_bytes(sealed(buffer.getbuffer(), (0, 0)))


class _Payload:
    def __init__(self, target) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.reliability("H3")
@pytest.mark.parametrize("is_zip", [True, False])
def test_code_in_a_checkpoint_is_never_executed(tmp_path, is_zip) -> None:
    path = tmp_path / "checkpoint.pt"
    _seal(_Payload(tmp_path / "pwned"), path, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint: Weights only load failed"):
        load_checkpoint(path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("length", [0, 10, 1000])
def test_a_truncated_file_is_refused(tmp_path, length) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, _checkpoint())
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint: it ends without a digest"):
        load_checkpoint(path)


@pytest.mark.reliability("J14")
def test_one_flipped_bit_anywhere_in_a_file_is_refused(tmp_path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, _checkpoint())
    content = path.read_bytes()
    draw = random.Random(0)  # noqa: S311 - positions, not secrets
    refusal = r"it ends without a digest|its bytes do not match its digest"
    # Every bit of the seal at the end, and a sample of what it covers.
    for bit in range(8 * (len(content) - 110), 8 * len(content)):
        with pytest.raises(CheckpointError, match=refusal):
            unsealed(_flipped(content, bit), path)
    for bit in (draw.randrange(8 * len(content)) for _ in range(100)):
        path.write_bytes(_flipped(content, bit))
        with pytest.raises(CheckpointError, match=refusal):
            load_checkpoint(tmp_path)


def _flipped(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_a_checkpoint_of_an_earlier_version_says_what_to_do(tmp_path) -> None:
    torch.save(_content() | {"version": 2}, tmp_path / "checkpoint.pt")
    message = r"ends without a digest; it is damaged, or not written by this version .* train again"
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path)


def test_a_checkpoint_is_still_a_file_of_torch(tmp_path) -> None:
    save_checkpoint(tmp_path / "checkpoint.pt", _checkpoint())
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["run_id"] == "0123"


def _content() -> dict[str, object]:
    return {
        "version": 3,
        "run_id": "0123",
        "settings": {},
        "spec": {
            "config": {"name": "mlp"}, "in_dim": 5, "num_classes": 3, "num_layers": 2, "add_self_loops": True,
        },
        "fingerprint": "abc",
        "weights": {},
        "progress": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 7}, "has version 7; this build reads version 3"),
        ({"extra": 1}, "is not a gloader checkpoint"),
        ({"weights": {"a": 1}}, "are not named tensors"),
        ({"progress": 3}, "the progress, the settings, the run or the fingerprint"),
        ({"settings": []}, "the progress, the settings, the run or the fingerprint"),
        ({"run_id": 7}, "the progress, the settings, the run or the fingerprint"),
        ({"spec": {"config": {}}}, "has the wrong entries"),
        ({"spec": _content()["spec"] | {"config": {"depth": 3}}}, "is malformed"),
    ],
)
def test_malformed_content_is_named(tmp_path, change, message) -> None:
    _seal(_content() | change, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path)


def test_a_file_of_something_else_is_refused(tmp_path) -> None:
    _seal([1, 2, 3], tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="is not a gloader checkpoint"):
        load_checkpoint(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path) -> None:
    save_checkpoint(tmp_path / "checkpoint.pt", replace(_checkpoint(), spec=replace(SPEC, in_dim=6)))
    with pytest.raises(CheckpointError, match="do not fit its model"):
        load_checkpoint(tmp_path).model()
