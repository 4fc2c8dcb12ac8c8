"""What a run leaves behind in its ``--out`` folder."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import yaml

from gloader.training.atomic_file import write_atomically
from gloader.training.checkpoint import CHECKPOINT_NAME, Checkpoint, load_checkpoint, save_checkpoint
from gloader.training.layerwise import SCRATCH_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


class RunFolder:
    """``config.yaml``, ``metrics.jsonl``, ``result.json`` and the checkpoint of a run. Creates the folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def remove_residue(self) -> None:
        """Delete the activations that a killed run left here; nobody else uses a run's folder."""
        for folder in self.root.glob(f"{SCRATCH_PREFIX}*"):
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
        with (self.root / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(_plain(record)) + "\n")

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        save_checkpoint(self.root / CHECKPOINT_NAME, checkpoint)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint, None where the run never wrote one."""
        path = self.root / CHECKPOINT_NAME
        return load_checkpoint(path) if path.exists() else None


def _plain(value: Any) -> Any:
    """Return ``value`` with tuples as lists, as JSON and safe YAML have no tuples."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
