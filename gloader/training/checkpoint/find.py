"""The checkpoints of a run folder: their names, and which of them a path stands for."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from gloader.core.malformed import MALFORMED
from gloader.errors import CheckpointError
from gloader.training.checkpoint.digest import SUMS_NAME, unsealed

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINT_NAME = "checkpoint.pt"
MARK_NAME = "gloader-run"  # in a folder of shards, written first: the id of the run that made the folder
TORCH_RECORD_NAME = ".metadata"  # in such a folder: names every tensor and its place; torch writes it last
_SHARDS = re.compile(r"checkpoint-(\d{5,})-(\d{7,})")  # folders, of runs on several ranks

_REMOVED = re.compile(rf"\.{_SHARDS.pattern}\.removed")


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint that ``path``, itself one or a run folder, stands for; CheckpointError if none.

    It is a file, or a folder where several ranks wrote it.
    """
    if path.is_file() or is_sharded_checkpoint(path):
        return path
    if _is_torch_checkpoint(path):
        raise CheckpointError(
            f"{path} has no {SUMS_NAME}: it was never completed, or not written by this version of gloader train; "
            "train again"
        )
    found = newest_checkpoint(path) or newest_checkpoint(path / _best_run(path / "result.json"))
    if found is None:
        raise CheckpointError(f"{path} holds no {CHECKPOINT_NAME}; give the --out folder of a training run")
    return found


def newest_checkpoint(root: Path) -> Path | None:
    """Return the complete checkpoint in the run folder ``root`` that is furthest in training; None without one."""
    folders = [folder for folder in shard_folders(root) if is_sharded_checkpoint(folder)]
    own = [file for file in (root / CHECKPOINT_NAME,) if file.is_file()]
    found = [*own, *folders]
    if len(found) < 2:
        return found[0] if found else None
    # Of a run that was killed before it deleted the older one, or that went on with another number of ranks. Not by
    # time: clocks are set, and copies have new times.
    return max(found, key=_position)


def is_sharded_checkpoint(path: Path) -> bool:
    """Return whether ``path`` is a complete checkpoint that several ranks wrote."""
    return (path / SUMS_NAME).is_file()


def shard_folders(root: Path) -> list[Path]:
    """Return the folders in ``root`` that ranks wrote parts of checkpoints to, complete or not.

    A folder that another program gave such a name has no mark, or other files before it.
    """
    named = [path for path in root.iterdir() if _SHARDS.fullmatch(path.name)] if root.is_dir() else []
    return [path for path in named if path.is_dir() and not path.is_symlink() and _is_marked(path)]


def foreign_folders(root: Path) -> list[Path]:
    """Return checkpoints in ``root`` that are named like ours and have no mark, as those of earlier versions."""
    ours = shard_folders(root)
    return [
        path
        for path in root.iterdir()
        if _SHARDS.fullmatch(path.name) and _is_torch_checkpoint(path) and path not in ours
    ]


def removed_name(folder: Path) -> str:
    """Return the name that a folder of shards gets before its files are deleted. Pure."""
    return f".{folder.name}.removed"


def removed_folders(root: Path) -> list[Path]:
    """Return the folders in ``root`` whose deletion was cut."""
    return [path for path in root.iterdir() if _REMOVED.fullmatch(path.name) and path.is_dir()]


def _is_torch_checkpoint(path: Path) -> bool:
    return (path / TORCH_RECORD_NAME).is_file()


def _is_marked(folder: Path) -> bool:
    # One that was made and not yet marked is ours too: it is empty, or holds the mark in the making.
    names = {path.name for path in folder.iterdir()}
    return MARK_NAME in names or all(name.startswith(f".{MARK_NAME}.") for name in names)


def _position(path: Path) -> tuple[int, int]:
    """Return epoch and index of the batch that training would go on with; CheckpointError for a damaged file."""
    named = _SHARDS.fullmatch(path.name)
    return (int(named[1]), int(named[2])) if named else unsealed(path.read_bytes(), path)[1]


def _best_run(result: Path) -> str:
    """Return the name of the best of several runs, the first where ``result`` cannot tell."""
    try:
        return f"run-{int(json.loads(result.read_bytes())['best_run'])}"
    except (OSError, *MALFORMED):
        return "run-0"
