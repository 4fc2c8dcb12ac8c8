"""A directory of arrays while it is created: all of it appears under its name, or nothing does.

`StagedDirectory` writes into ``.<name>.staging`` beside the target, which one process at a time holds, and
commits by one rename.
"""

from __future__ import annotations

import errno
import logging
import stat
from typing import TYPE_CHECKING, Any, Final, Self

from gloader.errors import StoreExistsError
from gloader.ssd_store.format.manifest import MANIFEST_NAMES, Manifest
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath, close_quietly
from gloader.ssd_store.write.errors import write_errors
from gloader.ssd_store.write.feature_column import FeatureColumnWriter
from gloader.ssd_store.write.lock import lock_folder, remove_tree
from gloader.ssd_store.write.new_directory import Stage, created_by, resolve_target, write_manifest
from gloader.ssd_store.write.publish import exists_error, publish_new, publish_over, restore_replaced

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from gloader.ssd_store.write.array_writer import ArrayWriter

_LOG = logging.getLogger(__name__)

KILL_POINTS: Final = (
    "staging.after_lock",
    "writer.after_create",
    "writer.after_data_write",
    "writer.after_data_fsync",
    "staging.after_manifest_write",
    "staging.after_manifest_fsync",
    "staging.after_manifest_rename",
    "staging.after_folder_fsync",
    "publish.after_rename",
    "staging.after_commit",
)


class StagedDirectory:
    """Creates a committed directory of arrays; a context manager that leaves nothing unless committed.

    Parameters
    ----------
    path : the directory to create
    manifest_name : ``dataset.json`` or ``store.json``
    overwrite : replace a store or dataset at ``path``, atomically, at the commit
    """

    def __init__(
        self, path: StrPath, *, manifest_name: str, overwrite: bool = False, os_io: OsIO = REAL_OS
    ) -> None:
        self._target = resolve_target(path)
        self._manifest_name = manifest_name
        self._overwrite = overwrite
        self._os_io = os_io
        self._stage = Stage(self._target, os_io)
        self._is_committed = False

    def __enter__(self) -> Self:
        """Take the staging folder.

        Raises
        ------
        StoreExistsError
            The target exists, and ``overwrite`` is not set or what exists is not ours to replace.
        StoreLockedError
            Another process is creating a store at this path.
        StoreWriteError
            The file system refuses.
        """
        self._stage.acquire()
        try:
            with write_errors(self._target, "looking at the target", os_io=self._os_io):
                restore_replaced(self._target, os_io=self._os_io)
                self._check_target()
        except BaseException as error:
            self._stage.discard(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_committed:
            self._stage.discard(error)

    @property
    def path(self) -> Path:
        """The directory that the commit creates."""
        return self._target

    def array(self, name: str, *, dtype: str, shape: tuple[int, ...], pages: bool = False) -> ArrayWriter:
        """Start writing the array ``name``; see `ArrayWriter`.

        Raises
        ------
        FormatError, ShapeError
            The name, dtype or shape cannot be stored, or the name is taken.
        StoreWriteError
            There is no room for it, or the file cannot be created.
        """
        return self._stage.array(name, dtype, shape, pages=pages)

    def features(
        self, name: str, *, num_rows: int, dim: int, dtype: str, check_finite: bool = False
    ) -> FeatureColumnWriter:
        """Start writing a matrix of feature rows with page checksums; see `FeatureColumnWriter`."""
        return FeatureColumnWriter(
            self, name, num_rows=num_rows, dim=dim, dtype=dtype, check_finite=check_finite
        )

    def scratch(self) -> Path:
        """Return a folder for temporary files on the target's file system, gone at the end."""
        return self._stage.scratch()

    def require_feature(self, name: str) -> None:
        """Let only builds that know the format feature ``name`` read the result."""
        self._stage.required_features.append(name)

    def commit(self, kind: str, metadata: Mapping[str, Any]) -> Manifest:
        """Make everything written so far durable and visible under the target's name, in one step.

        Raises
        ------
        ShapeError
            An array got fewer rows than declared.
        FormatError
            The metadata is not JSON.
        StoreExistsError
            The target appeared meanwhile.
        StoreWriteError
            The file system refuses; nothing is visible under the target's name.
        """
        self._stage.complete()
        manifest = Manifest(
            kind=kind,
            arrays=dict(self._stage.records),
            metadata=metadata,
            required_features=tuple(dict.fromkeys(self._stage.required_features)),
            created_by=created_by(),
        )
        with write_errors(self._target, "committing", os_io=self._os_io):
            write_manifest(self._stage.path / self._manifest_name, manifest.to_bytes(), os_io=self._os_io)
            leftover = self._publish()
        self._is_committed = True
        self._os_io.kill_point("staging.after_commit")
        self._tidy(leftover)
        return manifest

    def _publish(self) -> tuple[Path, int] | None:
        """Give the staged folder its name; return the replaced folder and the descriptor that locks it."""
        if not self._overwrite or not _is_there(self._target, self._os_io):
            publish_new(self._stage.path, self._target, os_io=self._os_io)
            return None
        # Replaced, the old folder has the staging name: held, so that no other creator takes it over.
        fd = lock_folder(self._target, os_io=self._os_io)
        try:
            return publish_over(self._stage.path, self._target, os_io=self._os_io), fd
        except BaseException:
            close_quietly(fd, os_io=self._os_io)
            raise

    def _tidy(self, leftover: tuple[Path, int] | None) -> None:
        """Remove the replaced folder; the commit stands, so a failure here is only logged."""
        try:
            if leftover is not None:
                remove_tree(leftover[0], os_io=self._os_io)
        except OSError as error:
            _LOG.warning("%s is committed; what it replaced could not be removed: %s", self._target, error)
        finally:
            self._stage.folder.release()
            if leftover is not None:
                close_quietly(leftover[1], os_io=self._os_io)

    def _check_target(self) -> None:
        if not _is_there(self._target, self._os_io):
            return
        if not self._overwrite:
            raise exists_error(self._target)
        is_folder = stat.S_ISDIR(self._os_io.stat(self._target).st_mode)
        names = self._os_io.listdir(self._target) if is_folder else ["a file"]
        is_ours = any(name in names for name in MANIFEST_NAMES)
        if not is_ours and not all(name.endswith((".npy", ".pages")) for name in names):
            raise StoreExistsError(
                errno.EEXIST,
                "overwrite=True replaces a store or dataset, and this is neither; delete it yourself or "
                "choose another path",
                str(self._target),
            )


def _is_there(path: Path, os_io: OsIO) -> bool:
    try:
        os_io.stat(path)
    except FileNotFoundError:
        return False
    return True
