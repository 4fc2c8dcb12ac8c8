"""The locked folder in which a commit is prepared."""

from __future__ import annotations

import errno
import logging
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gloader.errors import FormatError, ShapeError, StoreWriteError
from gloader.ssd_store.format.manifest import ArrayRecord, is_plain_name
from gloader.ssd_store.format.npy_header import data_bytes, file_bytes
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath, make_parents, write_full
from gloader.ssd_store.write.array_writer import ArrayWriter
from gloader.ssd_store.write.errors import require_free_space, write_errors
from gloader.ssd_store.write.lock import LockedFolder, remove_tree

_LOG = logging.getLogger(__name__)


class Stage:
    """The locked staging folder, the arrays in it, and their removal."""

    def __init__(self, target: Path, os_io: OsIO) -> None:
        self.target = target
        self.os_io = os_io
        self.folder = LockedFolder(target.with_name(f".{target.name}.staging"), os_io=os_io)
        self.records: dict[str, ArrayRecord] = {}
        self.required_features: list[str] = []
        self._writers: dict[str, ArrayWriter] = {}
        self._scratch: Path | None = None

    @property
    def path(self) -> Path:
        """The staging folder."""
        return self.folder.path

    def acquire(self) -> None:
        """Create and lock the staging folder; raises `StoreLockedError` or `StoreWriteError`."""
        with write_errors(self.path, "creating the staging folder", os_io=self.os_io):
            make_parents(self.target, os_io=self.os_io)
            self.folder.acquire()
        self.os_io.kill_point("staging.after_lock")

    def array(self, name: str, dtype: str, shape: tuple[int, ...], *, pages: bool) -> ArrayWriter:
        """Start writing an array; see `StagedDirectory.array`."""
        if not is_plain_name(name):
            raise FormatError(f"array name {name!r}: use 1 to 100 of the characters A-Z a-z 0-9 _ . -")
        if not shape:
            raise ShapeError(f"array {name!r} needs at least one dimension")
        if name in self._writers:
            raise ShapeError(f"array {name!r} was started already; each array is written once")
        num_bytes = data_bytes(dtype, shape)
        with write_errors(self.path, "checking the free space", os_io=self.os_io):
            require_free_space(self.path, file_bytes(num_bytes) + self._unwritten_bytes(), os_io=self.os_io)
        writer = ArrayWriter(
            self.path,
            name=name,
            dtype=dtype,
            shape=shape,
            pages=pages,
            on_close=lambda record: self.records.__setitem__(record.name, record),
            os_io=self.os_io,
        )
        self._writers[name] = writer
        return writer

    def scratch(self) -> Path:
        """Return the folder for temporary files, created when first asked for."""
        if self._scratch is None:
            scratch = self.path / "scratch"
            with write_errors(scratch, "creating the scratch folder", os_io=self.os_io):
                self.os_io.mkdir(scratch)
            self._scratch = scratch
        return self._scratch

    def complete(self) -> None:
        """Close every array and remove the scratch folder."""
        for writer in self._writers.values():
            writer.close()
        missing = self._writers.keys() - self.records.keys()
        if missing:
            raise StoreWriteError(errno.EIO, f"arrays {sorted(missing)} were given up; nothing was committed")
        if self._scratch is not None:
            with write_errors(self._scratch, "removing the scratch folder", os_io=self.os_io):
                remove_tree(self._scratch, os_io=self.os_io)
            self._scratch = None

    def discard(self, error: BaseException | None) -> None:
        """Remove everything; a failure to do so is a note on ``error``, or raised where there is none."""
        try:
            for writer in self._writers.values():
                writer.abort()
        except OSError as failure:
            _LOG.warning("closing a file of %s failed: %s", self.path, failure)
        try:
            self.folder.remove()
        except OSError as failure:
            if error is None:
                raise StoreWriteError(
                    failure.errno, f"the staging folder cannot be removed: {failure.strerror}", str(self.path)
                ) from failure
            error.add_note(f"and {self.path} could not be removed ({failure}); the next creation removes it")

    def _unwritten_bytes(self) -> int:
        """Bytes that arrays already started will still need."""
        row = {name: data_bytes(w.dtype, w.shape[1:]) for name, w in self._writers.items()}
        return sum((w.shape[0] - w.rows_written) * row[name] for name, w in self._writers.items())


def write_manifest(path: Path, data: bytes, *, os_io: OsIO = REAL_OS) -> None:
    """Write the commit record ``path``: all of it, durably, in one rename; raises `OSError` as `os` does."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os_io.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        try:
            write_full(fd, memoryview(data), os_io=os_io)
            os_io.kill_point("staging.after_manifest_write")
            os_io.fsync(fd)
            os_io.kill_point("staging.after_manifest_fsync")
        finally:
            os_io.close(fd)
        os_io.replace(temporary, path)
    except BaseException:
        os_io.unlink(temporary)
        raise
    os_io.kill_point("staging.after_manifest_rename")
    os_io.fsync_dir(path.parent)
    os_io.kill_point("staging.after_folder_fsync")


def created_by() -> str:
    """Return the name and version of this build, for the manifest. Pure."""
    try:
        return f"gloader {version('gloader')}"
    except PackageNotFoundError:
        return "gloader"


def resolve_target(path: StrPath) -> Path:
    """Follow links, so that the folder behind a link is created beside itself and the link survives."""
    target = Path(os.path.realpath(path))
    if not target.name:
        raise StoreWriteError(errno.EINVAL, "a store needs a folder of its own", str(path))
    return target
