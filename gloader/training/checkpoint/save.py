"""A run on disk: the weights, what they belong to, and where training goes on."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch

from gloader.config import ModelConfig
from gloader.errors import CheckpointError, ConfigError
from gloader.models import GraphNetwork, build_model
from gloader.ssd_store.write.atomic_file import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.training.group import RankGroup

CHECKPOINT_NAME = "checkpoint.pt"
SHARDS_PATTERN = "checkpoint-*-*"  # folders, of runs on several ranks
RECORD_NAME = ".metadata"  # in such a folder; torch writes it last
CHECKPOINT_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Everything that fixes the shape and meaning of the weights."""

    config: ModelConfig
    in_dim: int
    num_classes: int
    num_layers: int
    add_self_loops: bool

    def build(self) -> GraphNetwork:
        """Return the network, freshly initialised."""
        return build_model(
            self.config,
            in_dim=self.in_dim,
            num_classes=self.num_classes,
            num_layers=self.num_layers,
            add_self_loops=self.add_self_loops,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The content of a checkpoint file: plain tensors and JSON values."""

    spec: ModelSpec
    fingerprint: str  # of the dataset
    weights: Mapping[str, torch.Tensor]  # best on the validation nodes so far
    progress: Mapping[str, Any]  # what `Trainer` needs to go on

    def model(self) -> GraphNetwork:
        """Return the network with the best weights, on the CPU.

        Raises
        ------
        CheckpointError
            The weights do not fit the model.
        """
        model = self.spec.build()
        try:
            model.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            raise CheckpointError(f"the weights of the checkpoint do not fit its model: {error}") from error
        return model


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write ``checkpoint`` to ``path``, atomically."""
    # Not straight into the file: torch turns a Ctrl-C inside a callback of its writer into a RuntimeError.
    buffer = io.BytesIO()
    torch.save(_content(checkpoint), buffer)
    write_atomically(path, buffer.getbuffer())


def save_sharded_checkpoint(root: Path, checkpoint: Checkpoint, group: RankGroup) -> Path:
    """Write ``checkpoint``, the same on every rank, to a folder in ``root``; collective. Return the folder.

    Raises
    ------
    StoreWriteError
        A rank could not write its part.
    """
    from gloader.training.checkpoint.sharded import save_shards  # its import takes 0.4 s

    epoch, index = checkpoint.progress["loader"]["next"]
    folder = root / f"checkpoint-{epoch:05}-{index:07}"
    save_shards(folder, _content(checkpoint), group)
    return folder


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint; never executes code from the file.

    Parameters
    ----------
    path : a checkpoint file or folder, or a run folder: its own checkpoint, or of several runs the one that was
        best on the validation nodes

    Raises
    ------
    CheckpointError
        There is no checkpoint, it is malformed, or of another version.
    """
    file = find_checkpoint(Path(path))
    if file.is_dir():
        from gloader.training.checkpoint.sharded import load_shards

        return _parse(load_shards(file), file)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, UnpicklingError, EOFError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be read as a checkpoint: {error}") from error
    return _parse(content, file)


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint that ``path``, itself one or a run folder, stands for; CheckpointError if none.

    It is a file, or a folder where several ranks wrote it.
    """
    if path.is_file() or is_sharded_checkpoint(path):
        return path
    found = newest_checkpoint(path) or newest_checkpoint(path / _best_run(path / "result.json"))
    if found is None:
        raise CheckpointError(f"{path} holds no {CHECKPOINT_NAME}; give the --out folder of a training run")
    return found


def newest_checkpoint(root: Path) -> Path | None:
    """Return the complete checkpoint in the run folder ``root`` that was written last; None without one."""
    folders = [folder for folder in root.glob(SHARDS_PATTERN) if is_sharded_checkpoint(folder)]
    own = [file for file in (root / CHECKPOINT_NAME,) if file.is_file()]
    return max((*folders, *own), key=lambda path: _record(path).stat().st_mtime_ns, default=None)


def is_sharded_checkpoint(path: Path) -> bool:
    """Return whether ``path`` is a complete checkpoint that several ranks wrote."""
    return path.is_dir() and _record(path).is_file()


def _record(path: Path) -> Path:
    """Return the file whose appearance completes a checkpoint."""
    return path / RECORD_NAME if path.is_dir() else path


def _best_run(result: Path) -> str:
    """Return the name of the best of several runs, the first where ``result`` cannot tell."""
    try:
        return f"run-{int(json.loads(result.read_bytes())['best_run'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return "run-0"


def _content(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "version": CHECKPOINT_VERSION,
        "spec": asdict(checkpoint.spec),
        "fingerprint": checkpoint.fingerprint,
        "weights": dict(checkpoint.weights),
        "progress": dict(checkpoint.progress),
    }


def _parse(content: Any, file: Path) -> Checkpoint:
    keys = {"version", "spec", "fingerprint", "weights", "progress"}
    if not isinstance(content, dict) or set(content) != keys:
        raise CheckpointError(f"{file} is not a gloader checkpoint: it has other entries than {sorted(keys)}")
    if content["version"] != CHECKPOINT_VERSION:
        raise CheckpointError(
            f"{file} has version {content['version']!r}; this build reads version {CHECKPOINT_VERSION}"
        )
    weights = content["weights"]
    if not isinstance(weights, dict) or not all(
        isinstance(value, torch.Tensor) for value in weights.values()
    ):
        raise CheckpointError(f"the weights in {file} are not named tensors")
    if not isinstance(content["progress"], dict) or not isinstance(content["fingerprint"], str):
        raise CheckpointError(f"the progress or the fingerprint in {file} is malformed")
    return Checkpoint(
        spec=_parse_spec(content["spec"], file),
        fingerprint=content["fingerprint"],
        weights=weights,
        progress=content["progress"],
    )


def _parse_spec(content: Any, file: Path) -> ModelSpec:
    try:
        if {field.name for field in fields(ModelSpec)} != set(content):
            raise CheckpointError(f"the model in {file} has the wrong entries: {sorted(content)}")
        return ModelSpec(**(content | {"config": ModelConfig(**content["config"])}))
    except (TypeError, ConfigError) as error:
        raise CheckpointError(f"the model in {file} is malformed: {error}") from error
