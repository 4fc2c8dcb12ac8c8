"""The checkpoints of a run folder: their names, and which of them a path stands for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gloader.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINT_NAME = "checkpoint.pt"
SHARDS_PATTERN = "checkpoint-*-*"  # folders, of runs on several ranks
RECORD_NAME = ".metadata"  # in such a folder; torch writes it last


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
    # Both kinds may be there where a run went on with another number of ranks.
    return max((*folders, *own), key=lambda path: _record(path).stat().st_mtime_ns, default=None)


def is_sharded_checkpoint(path: Path) -> bool:
    """Return whether ``path`` is a complete checkpoint that several ranks wrote."""
    return path.is_dir() and _record(path).is_file()


def _record(path: Path) -> Path:
    """Return the file whose appearance completes a checkpoint."""
    # A folder's own time changes with every part that a rank writes.
    return path / RECORD_NAME if path.is_dir() else path


def _best_run(result: Path) -> str:
    """Return the name of the best of several runs, the first where ``result`` cannot tell."""
    try:
        return f"run-{int(json.loads(result.read_bytes())['best_run'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return "run-0"
