"""Writing and reading of checkpoints: the weights, their settings, and the position to resume from.

One rank writes a file with `save_checkpoint`. Several ranks, the processes that train together, write a folder with
`save_sharded_checkpoint`. `load_checkpoint` reads both, for a run that resumes and for predictions.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Self

import torch

from gloader.core.malformed import MALFORMED
from gloader.errors import CheckpointError, ConfigError
from gloader.ssd_store.format.manifest import is_plain_name
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.atomic_file import write_atomically
from gloader.training.checkpoint.files import (
    find_checkpoint,
    sealed,
    unsealed,
)
from gloader.training.model_spec import AnyModelSpec, AnyNetwork, parse_spec, spec_content

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.training.group import RankGroup


CHECKPOINT_VERSION = 3  # version of the content's entries, see `_content`


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEmbeddings:
    """The tables and records that a checkpoint names."""

    folder: Path  # it has a folder for each type
    present: str  # the record of the rows to resume from
    best: str  # the record of the rows that belong to the best weights

    def to_json(self) -> dict[str, str]:
        """Return the entry of a checkpoint; the folder is named as it is in the run's folder."""
        return {"folder": self.folder.name, "present": self.present, "best": self.best}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], root: Path) -> Self:
        """Return the inverse of `to_json`; ``root`` is the run's folder. KeyError or TypeError if it is malformed."""
        folder, present, best = (content[name] for name in ("folder", "present", "best"))
        if not all(map(is_plain_name, (folder, present, best))):
            raise TypeError(f"the embeddings are named {content!r}")
        return cls(folder=root / folder, present=present, best=best)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint file's content: plain tensors and JSON values."""

    run_id: str  # id of the run that wrote the checkpoint
    settings: Mapping[str, Any]  # settings that change a run's result, see `decisive_settings`
    spec: AnyModelSpec  # defines the names and shapes of the weights
    fingerprint: str  # the dataset's fingerprint
    weights: Mapping[str, torch.Tensor]  # the weights with the best validation figure so far
    progress: Mapping[str, Any]  # the state that `Trainer` needs to continue, with the present weights
    embeddings: SavedEmbeddings | None = None  # the tables beside the checkpoint; None without embeddings

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and index of the next training batch."""
        epoch, index = self.progress["loader"]["next"]
        return epoch, index

    @property
    def task(self) -> str:
        """The run's task, as recorded: "node" for classes, and for checkpoints from before there were other tasks."""
        return str(self.settings.get("task", "node"))

    @property
    def table(self) -> str | None:
        """The name of the task whose task tables the run learned, or None."""
        return self.settings.get("table")

    def model(self) -> AnyNetwork:
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


def save_checkpoint(path: Path, checkpoint: Checkpoint, *, os_io: OsIO = REAL_OS) -> None:
    """Write ``checkpoint`` to ``path``, atomically, with its digest.

    Raises
    ------
    StoreExistsError, StoreWriteError
        See `write_atomically`.
    """
    # torch is not given the file itself: it turns a Ctrl-C inside a writer's callback into a RuntimeError.
    buffer = io.BytesIO()
    torch.save(_content(checkpoint), buffer)
    write_atomically(path, sealed(buffer.getbuffer(), checkpoint.position), os_io=os_io)


def save_sharded_checkpoint(
    root: Path, checkpoint: Checkpoint, group: RankGroup, *, os_io: OsIO = REAL_OS
) -> Path:
    """Write ``checkpoint`` to a folder in ``root``, a part for each rank. Return the folder. All ranks must call it.

    Parameters
    ----------
    root : the run's folder, visible to all ranks
    checkpoint : the same on every rank
    group : the ranks that write together

    Raises
    ------
    StoreWriteError
        A rank could not write its part.
    """
    # The position names the folder. Ranks need not agree on a name, and an older checkpoint stays until the end.
    epoch, index = checkpoint.position
    folder = root / f"checkpoint-{epoch:05}-{index:07}"
    # This import takes 0.4 s and 30 MB.
    from gloader.training.checkpoint.sharded import save_shards

    save_shards(folder, _content(checkpoint), group, run_id=checkpoint.run_id, os_io=os_io)
    return folder


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint; never executes code from the file.

    Parameters
    ----------
    path : a checkpoint file or folder, or a run folder. A folder of several runs gives the run with the best
        validation figure

    Raises
    ------
    CheckpointError
        There is no checkpoint, or it is damaged, malformed or of another version.
    """
    file = find_checkpoint(Path(path))
    if file.is_dir():
        from gloader.training.checkpoint.sharded import load_shards

        return _parse(load_shards(file), file)
    try:
        # The file is read once, so that exactly the verified bytes are used.
        body, _ = unsealed(file.read_bytes(), file)
        # Without weights_only a pickle runs any code that the file names.
        content = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, UnpicklingError, *MALFORMED) as error:
        raise CheckpointError(f"{file} cannot be read as a checkpoint: {error}") from error
    return _parse(content, file)


def _content(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the stored form of a checkpoint. `_parse` is the inverse."""
    saved = checkpoint.embeddings
    return {
        "version": CHECKPOINT_VERSION,
        "run_id": checkpoint.run_id,
        "settings": dict(checkpoint.settings),
        "spec": spec_content(checkpoint.spec),
        "fingerprint": checkpoint.fingerprint,
        "weights": dict(checkpoint.weights),
        "progress": dict(checkpoint.progress),
        # Without embeddings there is no entry, as in checkpoints of earlier versions.
        **({} if saved is None else {"embeddings": saved.to_json()}),
    }


def _parse(content: Any, file: Path) -> Checkpoint:
    """Return the checkpoint in ``content``, read from ``file``. Raises CheckpointError for malformed content."""
    keys = {"version", "run_id", "settings", "spec", "fingerprint", "weights", "progress"}
    if not isinstance(content, dict) or set(content) - {"embeddings"} != keys:
        raise CheckpointError(f"{file} is not a gloader checkpoint: it has other entries than {sorted(keys)}")
    # The version is checked first, because another version's entries may have other meanings.
    if content["version"] != CHECKPOINT_VERSION:
        raise CheckpointError(
            f"{file} has version {content['version']!r}; this build reads version {CHECKPOINT_VERSION}"
        )
    weights = content["weights"]
    if not isinstance(weights, dict) or not all(
        isinstance(value, torch.Tensor) for value in weights.values()
    ):
        raise CheckpointError(f"the weights in {file} are not named tensors")
    texts = (content["fingerprint"], content["run_id"])
    mappings = (content["progress"], content["settings"])
    if not all(isinstance(value, str) for value in texts) or not all(
        isinstance(value, dict) for value in mappings
    ):
        raise CheckpointError(
            f"the progress, the settings, the run or the fingerprint in {file} is malformed"
        )
    return Checkpoint(
        run_id=content["run_id"],
        settings=content["settings"],
        spec=_parse_spec(content["spec"], file),
        fingerprint=content["fingerprint"],
        weights=weights,
        progress=content["progress"],
        embeddings=_parse_embeddings(content.get("embeddings"), file),
    )


def _parse_embeddings(content: Any, file: Path) -> SavedEmbeddings | None:
    try:
        return None if content is None else SavedEmbeddings.from_json(content, file.parent)
    except MALFORMED as error:
        raise CheckpointError(f"the embeddings in {file} are malformed: {error!r}") from error


def _parse_spec(content: Any, file: Path) -> AnyModelSpec:
    try:
        return parse_spec(content, file)
    except (ConfigError, *MALFORMED) as error:
        raise CheckpointError(f"the model in {file} is malformed: {error}") from error
