"""A directory of arrays during its creation: either the complete directory gets its final name, or no directory does.

The target is the directory's final path. `NewDirectory` writes into ``.<name>.staging`` next to it, for one process at
a time. The commit record, ``dataset.json`` or ``store.json``, is written last. The commit is one atomic rename to the
target (`publish_new`), or an exchange with an overwritten directory (`publish_over`), forced to the device. Until then
an overwritten directory can be restored. Dataset writers and `FeatureWriter` use it.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from gloader.core.dtypes import SCALE_SUFFIX, feature_dtype
from gloader.core.ids import HeldRows, RowRanges, copy_bounds
from gloader.core.version import __version__
from gloader.errors import FormatError, ShapeError, StoreExistsError, StoreWriteError
from gloader.ssd_store.format.array_reader import array_pieces
from gloader.ssd_store.format.checksum import FORMAT_VERSION
from gloader.ssd_store.format.manifest import (
    ALLOWED,
    FOLDERS_FEATURE,
    LINKS_FEATURE,
    MANIFEST_NAMES,
    RANGES_FEATURE,
    ArrayRecord,
    Manifest,
    is_array_name,
    is_in_folder,
    is_of_links,
)
from gloader.ssd_store.os_io import (
    REAL_OS,
    OsIO,
    StrPath,
    close_quietly,
    is_unsupported,
    make_folders,
    require_free_space,
    write_errors,
)
from gloader.ssd_store.write.array_writer import ArrayWriter, disk_bytes
from gloader.ssd_store.write.atomic_file import (
    LockedFolder,
    lock_folder,
    remove_empty,
    remove_tree,
    write_chunks_atomically,
)
from gloader.ssd_store.write.feature_column import INT8_FEATURE, FeatureColumnWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from gloader.core.ids import RangePart


_LOG = logging.getLogger(__name__)
# Errors of a second name for a file: another disk, too many names, another owner, or a file system without such names.
_NO_LINKS = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP})
# Errors of a rename whose target exists.
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR})


def exists_error(target: Path) -> StoreExistsError:
    """Return the error for a refused creation at ``target``. Pure."""
    return StoreExistsError(
        errno.EEXIST,
        "cannot create: it exists already; pass overwrite=True or choose another path",
        str(target),
    )


def publish_new(new: Path, target: Path, *, os_io: OsIO = REAL_OS) -> None:
    """Rename the folder ``new`` to ``target``, which must not exist. The name is on the device on return.

    Parameters
    ----------
    new : the finished folder
    target : the folder's final name, in the same parent folder

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
        # A name that a power loss may remove is no commit, so the rename is undone and the error raised.
        os_io.replace(target, new)
        raise


def publish_over(new: Path, target: Path, *, os_io: OsIO = REAL_OS) -> Path:
    """Rename ``new`` to ``target`` and replace the old folder. The names are on the device on return.

    The names are exchanged atomically if the file system supports it. Otherwise there are two renames: after a crash
    between them the old folder is ``.<name>.replaced``, which `restore_replaced` puts back.

    Parameters
    ----------
    new : the finished folder
    target : the folder to replace, in the same parent folder

    Returns
    -------
    The replaced folder's path; the caller removes this folder

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
    """Finish or undo a two-step replacement that a crash interrupted."""
    replaced = replaced_path(target)
    try:
        os_io.stat(replaced)
    except FileNotFoundError:
        return
    # The rename must not replace: if both exist, the target is newer.
    try:
        os_io.rename_noreplace(replaced, target)
        _LOG.warning("restored %s, because a crash interrupted its replacement", target)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        # The target exists: the second rename was done, or another process created it. The old folder is removed.
        remove_tree(replaced, os_io=os_io)


def replaced_path(target: Path) -> Path:
    """Return the old folder's path during a replacement in two steps. Pure."""
    return target.with_name(f".{target.name}.replaced")


def _publish_in_two_steps(new: Path, target: Path, os_io: OsIO) -> Path:
    """Rename ``target`` away, then ``new`` to ``target``; return the replaced folder's path. Undo both on an error."""
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


_SUFFIX: Final = ".staging"  # fixed: a later build must find, and remove, an earlier build's folder
# The points at which crash tests end the process, see `OsIO.kill_point`.
KILL_POINTS: Final = (
    "new_directory.after_lock",
    "writer.after_create",
    "writer.after_data_write",
    "writer.after_data_fsync",
    "manifest.after_write",
    "manifest.after_fsync",
    "manifest.after_rename",
    "manifest.after_folder_fsync",
    "publish.after_rename",
    "new_directory.after_commit",
)


class NewDirectory:
    """Creates a committed directory with arrays; a context manager that removes everything unless committed.

    Parameters
    ----------
    path : the directory to create
    manifest_name : ``dataset.json`` or ``store.json``
    overwrite : replace a store or dataset at ``path``, atomically, at the commit
    part : this machine's part of the rows of every feature matrix; only the part's pages are written. None, or the only
        part, writes all pages
    os_io : the system calls
    """

    def __init__(
        self,
        path: StrPath,
        *,
        manifest_name: str,
        overwrite: bool = False,
        part: RangePart | None = None,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self._target = _resolve_target(path)
        self._manifest_name = manifest_name
        self._overwrite = overwrite
        # If there is only one part, it has all rows, and is recorded as a full copy.
        self._part = None if part is None or part.of == 1 else part
        self._os_io = os_io
        name = f".{self._target.name}{_SUFFIX}"
        self._folder = LockedFolder(self._target.with_name(name), os_io=os_io)
        self._writers: dict[str, ArrayWriter] = {}  # by array name
        self._records: dict[str, ArrayRecord] = {}  # of completed arrays and of taken ones, by name
        self._required_features: list[str] = []
        self._subfolders: set[Path] = set()  # folders of types, relations and link tables
        self._scratch: Path | None = None  # the folder for temporary files
        self._made: list[Path] = []  # new folders above the target, the topmost first
        self._is_committed = False

    def __enter__(self) -> Self:
        """Create and lock the folder for preparing the commit.

        Raises
        ------
        StoreExistsError
            The target exists, and ``overwrite`` is not set or the existing folder is not gloader's.
        StoreLockedError
            Another process is creating a store at this path.
        StoreWriteError
            The file system refuses.
        """
        with write_errors(self._folder.path, "creating the new folder", os_io=self._os_io):
            self._made = make_folders(self._target.parent, os_io=self._os_io)
            self._folder.acquire()
        self._os_io.kill_point("new_directory.after_lock")
        try:
            with write_errors(self._target, "checking the target", os_io=self._os_io):
                # This process holds the lock, so an interrupted replacement belongs to no other live process.
                restore_replaced(self._target, os_io=self._os_io)
                self._check_target()
        except BaseException as error:
            self._discard(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_committed:
            self._discard(error)

    @property
    def path(self) -> Path:
        """The directory that the commit creates."""
        return self._target

    def array(
        self, name: str, *, dtype: str, shape: tuple[int, ...], held: HeldRows | None = None
    ) -> ArrayWriter:
        """Start writing an array and its page checksums; each array is written once.

        Parameters
        ----------
        name : 1 to 100 of the characters A-Z a-z 0-9 _ . -, perhaps in a type's, relation's or link table's folder
        dtype : a key in `STORED_DTYPES`
        shape : one dimension or more; rows are appended along the first
        held : rows whose pages are written; None means all rows

        Raises
        ------
        FormatError, ShapeError
            The name, dtype or shape cannot be stored, or the name is taken.
        StoreWriteError
            There is no room for the array, or the file cannot be created.
        """
        if not is_array_name(name):
            raise FormatError(f"array name {name!r}: use {ALLOWED}")
        if not shape:
            raise ShapeError(f"array {name!r} needs at least one dimension")
        if name in self._writers or name in self._records:
            raise ShapeError(f"array {name!r} was started already; each array is written once")
        needed = disk_bytes(dtype, shape, held) + self._unwritten_bytes()
        with write_errors(self._folder.path, "checking the free space", os_io=self._os_io):
            require_free_space(self._folder.path, needed, os_io=self._os_io)
        if is_in_folder(name):
            self._make_subfolder((self._folder.path / name).parent)
        writer = ArrayWriter(
            self._folder.path,
            name=name,
            dtype=dtype,
            shape=shape,
            held=held,
            on_close=lambda record: self._records.__setitem__(record.name, record),
            os_io=self._os_io,
        )
        self._writers[name] = writer
        return writer

    def features(
        self, name: str, *, num_rows: int, dim: int, dtype: str, check_finite: bool = False
    ) -> FeatureColumnWriter:
        """Start writing a matrix of feature rows.

        Parameters
        ----------
        name : the array's name; int8 adds ``<name>.scale``
        num_rows : N
        dim : F
        dtype : float32, float16, bfloat16 or int8 (with one scale for each row)
        check_finite : refuse NaN and infinity (int8 always does)

        Raises
        ------
        ConfigError, ShapeError
            Features cannot be stored with this dtype or shape.
        FormatError, StoreWriteError
            See `array`.
        """
        element = feature_dtype(dtype)
        if num_rows < 0 or dim < 1:
            raise ShapeError(f"features need num_rows >= 0 and dim >= 1, not {num_rows} and {dim}")
        held = None
        if self._part is not None:
            bounds = tuple(copy_bounds(num_rows, self._part.of).tolist())
            held = HeldRows(part=self._part.part, of=self._part.of, bounds=bounds)
        rows = self.array(name, dtype=dtype, shape=(num_rows, dim), held=held)
        if not element.has_scale:
            return FeatureColumnWriter(rows, check_finite=check_finite)
        scales = self.array(name + SCALE_SUFFIX, dtype="float32", shape=(num_rows,))
        self._required_features.append(INT8_FEATURE)
        return FeatureColumnWriter(rows, scales, check_finite=check_finite)

    def copied(self, name: str, record: ArrayRecord, root: Path, *, source_io: OsIO = REAL_OS) -> None:
        """Take over an array of another committed directory.

        Its files get a second name, which takes no disk space. Where the system refuses that, for example on another
        disk, they are read, verified and written.

        Parameters
        ----------
        name : the array's name here, which is new
        record : the array's entry in the other directory's commit record
        root : the other directory
        source_io : system calls for reading the other directory

        Raises
        ------
        FormatError, ShapeError, StoreWriteError
            See `array`.
        ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError
            The bytes differ from the written bytes, or cannot be read.
        """
        # A mirror of a URL has holes, and an array of an earlier version has no checksums, or others.
        is_same = record.pages_file is not None and record.version == FORMAT_VERSION and source_io.is_whole
        if is_same and self._linked(name, record, root):
            return
        with self.array(name, dtype=record.dtype, shape=record.shape) as writer:
            for rows in array_pieces(root, record, os_io=source_io):
                writer.append(rows)

    def _linked(self, name: str, record: ArrayRecord, root: Path) -> bool:
        """Give the files of an array a second name in this directory. Return False if the system refuses."""
        if is_in_folder(name):
            self._make_subfolder((self._folder.path / name).parent)
        given = {f"{name}.npy": record.file, f"{name}.pages": str(record.pages_file)}
        try:
            for new, old in given.items():
                self._os_io.link(root / old, self._folder.path / new)
        except OSError as error:
            with write_errors(self._folder.path / name, "taking over an array", os_io=self._os_io):
                if error.errno not in _NO_LINKS:
                    raise
                with suppress(FileNotFoundError):
                    self._os_io.unlink(self._folder.path / f"{name}.npy")
            return False
        self._os_io.kill_point("new_directory.after_link")
        self._records[name] = replace(record, name=name, file=f"{name}.npy", pages_file=f"{name}.pages")
        return True

    def require(self, feature: str) -> None:
        """Record a feature from `KNOWN_FEATURES`, which a build must support to read the directory."""
        self._required_features.append(feature)

    def scratch(self) -> Path:
        """Return a folder for temporary files on the target's disk. The first call creates it; the end removes it.

        Raises
        ------
        StoreWriteError
            The folder cannot be created.
        """
        if self._scratch is None:
            scratch = self._folder.path / "scratch"
            with write_errors(scratch, "creating the scratch folder", os_io=self._os_io):
                self._os_io.mkdir(scratch)
            self._scratch = scratch
        return self._scratch

    def commit(self, kind: str, metadata: Mapping[str, Any]) -> Manifest:
        """Make all writes so far durable and visible under the target's name, in one step.

        Parameters
        ----------
        kind : the directory's kind in the record: "dataset" or "feature_store"
        metadata : JSON values for the record, which the kind interprets

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
        self._complete()
        layout_features = [FOLDERS_FEATURE] if self._subfolders else []
        layout_features += [LINKS_FEATURE] if any(map(is_of_links, self._records)) else []
        ranges = self._ranges()
        layout_features += [] if ranges is None else [RANGES_FEATURE]
        manifest = Manifest(
            kind=kind,
            arrays=dict(self._records),
            metadata=metadata,
            required_features=tuple(dict.fromkeys(self._required_features + layout_features)),
            ranges=ranges,
            created_by=f"gloader {__version__}",
        )
        path = self._folder.path / self._manifest_name
        with write_errors(self._target, "committing", os_io=self._os_io):
            # The subfolders' files are on the device, but their names may not be yet.
            for folder in sorted(self._subfolders):
                self._os_io.fsync_dir(folder)
            # The record comes last, because it names data that is already on the device.
            write_chunks_atomically(
                path,
                [manifest.to_bytes()],
                temporary=path.with_name(path.name + ".tmp"),
                label="manifest",
                os_io=self._os_io,
            )
            leftover = self._publish()
        self._is_committed = True
        self._os_io.kill_point("new_directory.after_commit")
        self._tidy(leftover)
        return manifest

    def _complete(self) -> None:
        """Close every array and remove the scratch folder."""
        for writer in self._writers.values():
            writer.close()
        missing = self._writers.keys() - self._records.keys()
        if missing:
            text = f"the writers of the arrays {sorted(missing)} failed; nothing was written"
            raise StoreWriteError(errno.EIO, text)
        if self._scratch is not None:
            with write_errors(self._scratch, "removing the scratch folder", os_io=self._os_io):
                remove_tree(self._scratch, os_io=self._os_io)
            self._scratch = None

    def _make_subfolder(self, folder: Path) -> None:
        """Create a folder within the directory, if it is missing; raises StoreWriteError."""
        if folder in self._subfolders:
            return
        with write_errors(folder, "creating the folder", os_io=self._os_io):
            make_folders(folder, os_io=self._os_io)
        self._subfolders.add(folder)

    def _publish(self) -> tuple[Path, int] | None:
        """Give the new folder its name; return the replaced folder and its lock's descriptor."""
        if not self._overwrite or not _is_there(self._target, self._os_io):
            publish_new(self._folder.path, self._target, os_io=self._os_io)
            return None
        # The replaced folder gets the new folder's former name. It stays locked, so that no other creator takes it
        # over.
        fd = lock_folder(self._target, os_io=self._os_io)
        try:
            return publish_over(self._folder.path, self._target, os_io=self._os_io), fd
        except BaseException:
            close_quietly(fd, os_io=self._os_io)
            raise

    def _tidy(self, leftover: tuple[Path, int] | None) -> None:
        """Remove the replaced folder. The commit stands, so a failure is only logged."""
        try:
            if leftover is not None:
                remove_tree(leftover[0], os_io=self._os_io)
        except OSError as error:
            _LOG.warning("%s is committed; what it replaced could not be removed: %s", self._target, error)
        finally:
            self._folder.release()
            if leftover is not None:
                close_quietly(leftover[1], os_io=self._os_io)

    def _discard(self, error: BaseException | None) -> None:
        """Remove everything. A failure becomes a note on ``error``; without an error it is raised."""
        path = self._folder.path
        try:
            for writer in self._writers.values():
                writer.abort()
        except OSError as failure:
            _LOG.warning("closing a file of %s failed: %s", path, failure)
        try:
            self._folder.remove()
        except OSError as failure:
            if error is None:
                raise StoreWriteError(
                    failure.errno, f"the new folder cannot be removed: {failure.strerror}", str(path)
                ) from failure
            error.add_note(f"and {path} could not be removed ({failure}); the next creation removes it")
        remove_empty(self._made, os_io=self._os_io)

    def _unwritten_bytes(self) -> int:
        """Return the bytes that the started arrays still need."""
        return sum(writer.unwritten_bytes for writer in self._writers.values())

    def _ranges(self) -> RowRanges | None:
        """Return the matrices' written row ranges, or None if all rows were written."""
        held = {name: writer.held for name, writer in self._writers.items()}
        tables = {name: rows.bounds for name, rows in held.items() if rows is not None}
        if self._part is None or not tables:
            return None
        return RowRanges(part=self._part.part, of=self._part.of, tables=tables)

    def _check_target(self) -> None:
        """Check that the target is free, or may be overwritten; raises `StoreExistsError`."""
        if not _is_there(self._target, self._os_io):
            return
        if not self._overwrite:
            raise exists_error(self._target)
        is_folder = stat.S_ISDIR(self._os_io.stat(self._target).st_mode)
        names = self._os_io.listdir(self._target) if is_folder else ["a file"]
        is_ours = any(name in names for name in MANIFEST_NAMES)
        # An empty folder and arrays without a record may be removed. Other content belongs to the user.
        if not is_ours and not all(name.endswith((".npy", ".pages")) for name in names):
            raise StoreExistsError(
                errno.EEXIST,
                "overwrite=True replaces a store or dataset, and this is neither; delete it yourself or "
                "choose another path",
                str(self._target),
            )


def _is_there(path: Path, os_io: OsIO) -> bool:
    """Return True if ``path`` exists, links followed; raises `OSError`."""
    try:
        os_io.stat(path)
    except FileNotFoundError:
        return False
    return True


def _resolve_target(path: StrPath) -> Path:
    """Follow links, so that the folder behind a link is created next to itself and the link survives."""
    target = Path(os.path.realpath(path))
    if not target.name:
        raise StoreWriteError(
            errno.EINVAL, "the root folder cannot be a store; give a folder in it", str(path)
        )
    return target
