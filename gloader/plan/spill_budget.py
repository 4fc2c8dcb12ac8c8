"""Spill folder of a loader, and its budget where nobody names one."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.core.paths import require_parent
from gloader.errors import SpillError
from gloader.ssd_store.spill.folder import SpillFolder, spill_parent
from gloader.ssd_store.write.atomic_file import make_output_folder
from gloader.ssd_store.write.disk_errors import spill_errors

if TYPE_CHECKING:
    from gloader.ssd_store.os_io import StrPath

logger = logging.getLogger("gloader")

# A quarter of what is free: others use the disk too.
_FREE_SHARE = 4

# Of what is read: of the features, where larger superbatches gain little, and of edges, if they are swept.
_MULTIPLE = 4

_IN_MEMORY = ("tmpfs", "ramfs")

_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks in the names of folders


def open_spill(
    parent: StrPath | None, budget_bytes: int | None, *, data_bytes: int, num_loaders: int = 1
) -> SpillFolder | None:
    """Open a spill folder, or return None where there is none to have and none was asked for.

    Parameters
    ----------
    parent : where; None: the default of `SpillFolder`
    budget_bytes : what it may hold, 0 for no spill folder; None: a share of the free disk
    data_bytes : of what is read from the disk, to which the default is in proportion
    num_loaders : loaders on this host, which share that disk; what is asked for is of each

    Raises
    ------
    ConfigError
        The folder above ``parent`` does not exist.
    SpillError
        A budget was asked for and the folder cannot be made.
    """
    if budget_bytes == 0:
        return None
    if parent is not None:
        require_parent(Path(parent), flag="--spill-dir", keyword="spill_dir=")
        with spill_errors(Path(parent), "creating the folder of --spill-dir"):
            make_output_folder(Path(parent))
    try:
        folder = spill_parent(parent)
        budget = _default_bytes(folder, data_bytes, num_loaders) if budget_bytes is None else budget_bytes
        return SpillFolder(folder, budget_bytes=budget) if budget else None
    except SpillError as error:
        if budget_bytes is not None:
            raise
        logger.info("no packs: %s", error)
        return None


def _default_bytes(folder: Path, data_bytes: int, num_loaders: int = 1) -> int:
    """Return the budget of whoever names none: nothing where the temporary folder is itself in memory."""
    if _file_system(folder) in _IN_MEMORY:
        return 0
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return 0
    return int(min(free // (_FREE_SHARE * num_loaders), _MULTIPLE * data_bytes))


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds ``folder``, or nothing where that cannot be found out."""
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    # A later mount covers an earlier one of the same folder.
    mounts = {
        Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), words[1])): words[2]
        for words in map(str.split, lines)
    }
    for parent in (folder.resolve(), *folder.resolve().parents):
        if parent in mounts:
            return mounts[parent]
    return ""
