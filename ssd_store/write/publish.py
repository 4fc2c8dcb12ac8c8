"""The moves that give a finished folder its final name, atomically and durably."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from gloader.errors import StoreExistsError
from gloader.ssd_store.os_io import REAL_OS, OsIO, is_unsupported
from gloader.ssd_store.write.lock import remove_tree

if TYPE_CHECKING:
    from pathlib import Path

_LOG = logging.getLogger(__name__)
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR})


def exists_error(target: Path, reason: str = "it exists already") -> StoreExistsError:
    """Return the error that says why ``target`` is not created. Pure."""
    return StoreExistsError(
        errno.EEXIST, f"cannot create: {reason}; pass overwrite=True or choose another path", str(target)
    )


def publish_new(new: Path, target: Path, *, os_io: OsIO = REAL_OS) -> None:
    """Rename the folder ``new`` to ``target``, which must not exist; durable on return.

    Parameters
    ----------
    new : the finished folder
    target : its final name, in the same parent folder

    Raises
    ------
    StoreExistsError
        ``target`` appeared meanwhile.
    OSError
        The rename or its fsync failed; ``new`` has its old name again.
    """
    try:
        os_io.rename_noreplace(new, target)
    except OSError as error:
        if error.errno in _TAKEN:
            raise exists_error(target) from error
        raise
    os_io.kill_point("publish.after_rename")
    try:
        os_io.fsync_dir(target.parent)
    except BaseException:
        # A name that may be gone after a power loss is no commit: it is taken back, and the error is told.
        os_io.replace(target, new)
        raise


def publish_over(new: Path, target: Path, *, os_io: OsIO = REAL_OS) -> Path:
    """Give ``new`` the name ``target``, whose folder is replaced; durable on return.

    One atomic exchange of names where the file system has it. Elsewhere two renames: a crash between them
    leaves the old folder as ``.<name>.replaced``, which `restore_replaced` puts back.

    Parameters
    ----------
    new : the finished folder
    target : the folder to replace, in the same parent folder

    Returns
    -------
    Where the replaced folder is now, for the caller to remove

    Raises
    ------
    OSError
        A rename or its fsync failed; both folders have their old names again.
    """
    try:
        # At every moment one of the two folders has the name.
        os_io.exchange(new, target)
    except OSError as error:
        if not is_unsupported(error):
            raise
        return _publish_in_two_steps(new, target, os_io)
    os_io.kill_point("publish.after_exchange")
    try:
        os_io.fsync_dir(target.parent)
    except BaseException:
        os_io.exchange(new, target)
        raise
    return new


def restore_replaced(target: Path, *, os_io: OsIO = REAL_OS) -> None:
    """Finish or undo a replacement in two steps that a crash cut in the middle."""
    replaced = replaced_path(target)
    try:
        os_io.stat(replaced)
    except FileNotFoundError:
        return
    # Without replacing: if both are there, the target is the newer one.
    try:
        os_io.rename_noreplace(replaced, target)
        _LOG.warning("restored %s, whose replacement was cut by a crash", target)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        # The target is there: the second rename was done, or somebody made it anew. The old folder goes.
        remove_tree(replaced, os_io=os_io)


def replaced_path(target: Path) -> Path:
    """Return where the old folder waits while it is replaced in two steps. Pure."""
    return target.with_name(f".{target.name}.replaced")


def _publish_in_two_steps(new: Path, target: Path, os_io: OsIO) -> Path:
    replaced = replaced_path(target)
    os_io.replace(target, replaced)
    try:
        os_io.kill_point("publish.between_renames")
        os_io.replace(new, target)
        try:
            os_io.fsync_dir(target.parent)
        except BaseException:
            os_io.replace(target, new)
            raise
    except BaseException:
        os_io.replace(replaced, target)
        raise
    return replaced
