"""The ``--out`` folder of a run: its settings, metrics, result and checkpoints."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import yaml

from gloader.ssd_store.os_io import REAL_OS
from gloader.ssd_store.write.atomic_file import remove_dead_drafts, write_atomically
from gloader.training.checkpoint.find import (
    CHECKPOINT_NAME,
    RECORD_NAME,
    SHARDS_PATTERN,
    is_sharded_checkpoint,
    newest_checkpoint,
)
from gloader.training.checkpoint.save import (
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
    save_sharded_checkpoint,
)
from gloader.training.inference.layerwise_inference import SCRATCH_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gloader.training.group import RankGroup


class RunFolder:
    """``config.yaml``, ``metrics.jsonl``, ``result.json`` and the checkpoint of a run. Creates the folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def remove_residue(self) -> None:
        """Delete the activations and the unfinished files that a killed run left; nobody else uses its folder."""
        for folder in self.root.glob(f"{SCRATCH_PREFIX}*"):
            shutil.rmtree(folder)
        for name in (CHECKPOINT_NAME, "config.yaml", "metrics.jsonl", "result.json"):
            remove_dead_drafts(self.root / name)
        # Without its record a folder of shards is one that a killed run was still writing.
        for folder in self.root.glob(SHARDS_PATTERN):
            if not is_sharded_checkpoint(folder):
                shutil.rmtree(folder)

    def of_run(self, run: int, *, num_runs: int) -> RunFolder:
        """Return the folder of one of several runs; this folder where there is only one."""
        return self if num_runs == 1 else RunFolder(self.root / f"run-{run}")

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the resolved settings."""
        text = yaml.safe_dump(_plain(config), sort_keys=False)
        write_atomically(self.root / "config.yaml", text.encode())

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the figures of the finished run."""
        write_atomically(self.root / "result.json", (json.dumps(_plain(result), indent=1) + "\n").encode())

    def start_metrics(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Begin ``metrics.jsonl`` with the epochs that a resumed run has behind it."""
        lines = "".join(json.dumps(_plain(record)) + "\n" for record in records)
        write_atomically(self.root / "metrics.jsonl", lines.encode())

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add the line of one epoch."""
        # Not atomic: a torn last line is written anew by `start_metrics` when the run is resumed.
        with (self.root / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(_plain(record)) + "\n")

    def save_checkpoint(self, checkpoint: Checkpoint, *, group: RankGroup) -> None:
        """Replace the checkpoint; collective. Several ranks write it together, see `sharded_checkpoint`."""
        if group.is_alone:
            save_checkpoint(self.root / CHECKPOINT_NAME, checkpoint)
            # The new one is complete first: there is a checkpoint at every moment.
            self._remove_checkpoints(but=CHECKPOINT_NAME)
            return
        folder = save_sharded_checkpoint(self.root, checkpoint, group)
        # Before the old one is removed: a power loss must not take the new name and the old files.
        if group.is_first:
            REAL_OS.fsync_dir(self.root)
            self._remove_checkpoints(but=folder.name)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint; None if the run never wrote one."""
        path = newest_checkpoint(self.root)
        return None if path is None else load_checkpoint(path)

    def discard_checkpoints(self) -> None:
        """Delete what another run left, which a restart of this one would take for its own."""
        self._remove_checkpoints(but=None)

    def _remove_checkpoints(self, *, but: str | None) -> None:
        for path in (self.root / CHECKPOINT_NAME, *self.root.glob(SHARDS_PATTERN)):
            if path.name == but:
                continue
            if path.is_dir():
                _remove_shards(path)
            else:
                path.unlink(missing_ok=True)


def _remove_shards(folder: Path) -> None:
    """Delete a checkpoint, its record first: what is left when this is interrupted is none any more."""
    (folder / RECORD_NAME).unlink(missing_ok=True)
    shutil.rmtree(folder)


def _plain(value: Any) -> Any:
    """Return ``value`` with tuples as lists, as JSON and safe YAML have no tuples."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
