"""A mirror's folder: created once and repaired, its files opened on first use and closed together.

A mirror is a local copy of a dataset in an object store, filled block by block. Its folder holds:

- ``files/``: the dataset's files, each sparse and with its full size from the start;
- ``blocks/``: for each file a file of marks, one byte per block: the block is missing, stored, or not yet verified;
- ``mirror.json``: the owner record, with the URL and each object's size and ETag. It is written last.

`open_mirror` calls `make_mirror`, which prepares a new folder as a draft, and renames the draft when it is complete. Or
it calls `mend_mirror`, which repairs an existing folder. `MirrorFiles` then opens the files.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from gloader.core.signals import run_together
from gloader.core.units import format_bytes
from gloader.errors import (
    BudgetError,
    FormatError,
    IncompleteStoreError,
    StoreError,
    StoreLockedError,
    StoreOpenError,
    StoreReadError,
    StoreWriteError,
    TruncatedStoreError,
)
from gloader.ssd_store.format.manifest import DATA_OFFSET, DATASET_MANIFEST, file_bytes, npy_header
from gloader.ssd_store.mirror.mirrored_file import (
    FILES,
    HERE,
    MARKS,
    MAX_RECORD_BYTES,
    MIRROR_RECORD,
    MISSING,
    MirroredFile,
    MirrorRecord,
)
from gloader.ssd_store.os_io import (
    Descriptor,
    close_quietly,
    make_folders,
    pwrite_full,
    read_full,
    write_errors,
    write_full,
)
from gloader.ssd_store.write.atomic_file import LockedFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from gloader.ssd_store.format.manifest import Manifest
    from gloader.ssd_store.mirror.keeper import Keeper
    from gloader.ssd_store.mirror.mirrored_file import FileCheck
    from gloader.ssd_store.mirror.object_store import ObjectFacts, ObjectStore
    from gloader.ssd_store.os_io import OsIO


# Minimum number of blocks for which a budget needs room, in addition to the blocks that are always stored.
WINDOW_BLOCKS: Final = 16


class MirrorFiles:
    """A mirror's open files. Thread-safe. Owns descriptors until `close`.

    Parameters
    ----------
    folder : the mirror's folder
    record : the mirror's owner record
    checks : each file's check, by name
    keeper : stores and evicts the files' blocks
    os_io : the system calls

    Raises
    ------
    BudgetError
        The keeper's budget has no room for the blocks that must always be stored: the page checksums, and files
        without page checksums.
    StoreOpenError
        A file cannot be opened.
    """

    def __init__(
        self,
        folder: Path,
        record: MirrorRecord,
        checks: Mapping[str, FileCheck],
        keeper: Keeper,
        *,
        os_io: OsIO,
    ) -> None:
        self._folder = folder
        self._record = record
        self._checks = checks
        self._keeper = keeper
        self._os_io = os_io
        self._lock = threading.RLock()
        self._files: dict[str, MirroredFile] = {}
        self._require_budget(keeper.budget_bytes)
        with self._opening():
            # Files are known by device and inode: another file may get a descriptor's number without passing `os_io`.
            statuses = {name: os_io.stat(folder / FILES / name) for name in record.files}
        self._names = {(status.st_dev, status.st_ino): name for name, status in statuses.items()}
        if keeper.budget_bytes is not None:
            try:
                for name in record.files:
                    self.named(name)
            except BaseException:
                self.close()
                raise

    @property
    def num_blocks(self) -> tuple[int, int]:
        """Number of stored blocks, and of all blocks."""
        stored = total = 0
        for name, facts in self._record.files.items():
            marks = bytearray(-(-facts.size // self._record.block_bytes))
            # The marks are opened by name: most files are never opened here, and counts are also read after `close`.
            with self._opening(), Descriptor(self._folder / MARKS / name, os_io=self._os_io) as fd:
                read_full(fd, memoryview(marks), 0, os_io=self._os_io)
            stored += marks.count(HERE)
            total += len(marks)
        return stored, total

    def of(self, fd: int) -> MirroredFile | None:
        """Return the mirror's open file under ``fd``, or None; raises `OSError`, `StoreOpenError`."""
        status = self._os_io.fstat(fd)
        name = self._names.get((status.st_dev, status.st_ino))
        return None if name is None else self.named(name)

    def named(self, name: str) -> MirroredFile:
        """Return a file by its name; raises `StoreOpenError`."""
        file = self._files.get(name)
        if file is not None:
            return file
        with self._lock, self._opening():
            if name not in self._files:
                file = MirroredFile(
                    self._folder / FILES / name,
                    self._folder / MARKS / name,
                    name=name,
                    facts=self._record.files[name],
                    block_bytes=self._record.block_bytes,
                    os_io=self._os_io,
                )
                try:
                    self._keeper.add(file, is_evictable=self._checks[name].pages_name is not None)
                except BaseException:
                    file.close()
                    raise
                self._files[name] = file
            return self._files[name]

    def is_checked_whole(self, file: MirroredFile) -> bool:
        """Return True if only a digest over the entire ``file`` can verify it. Pure."""
        return self._checks[file.name].pages_name is None

    def close(self) -> None:
        """Close the files. Idempotent."""
        with self._lock:
            for file in self._files.values():
                file.close()

    def _opening(self) -> AbstractContextManager[None]:
        """Return a context that turns an `OSError` into a `StoreOpenError`."""
        return disk_errors(StoreOpenError, "the mirror cannot be opened", self._folder)

    def _require_budget(self, budget_bytes: int | None) -> None:
        """Raise BudgetError if the budget has no room for the blocks that are always stored, and a few more."""
        sizes = {name: facts.size for name, facts in self._record.files.items()}
        always = sum(size for name, size in sizes.items() if self._checks[name].pages_name is None)
        least = min(always + WINDOW_BLOCKS * self._record.block_bytes, sum(sizes.values()))
        if budget_bytes is not None and budget_bytes < least:
            raise BudgetError(
                f"{self._record.url}: a mirror needs at least {least} bytes ({format_bytes(least)}) for checksums and "
                f"the blocks in use, and --mirror-budget allows {budget_bytes}; allow more"
            )


@contextmanager
def disk_errors(kind: type[StoreReadError | StoreOpenError], text: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` in the block into gloader's error. gloader's own errors pass unchanged."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        text = f"{text}: {error.strerror or error}; check the disk, or remove the folder and open it again"
        raise kind(error.errno or errno.EIO, text, str(path)) from error


_LOG = logging.getLogger(__name__)
_PRIVATE: Final = 0o700  # mode of new folders: no access for other users
# Creates a file for writing. Fails if the name exists, also as a link.
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_HEADS: Final = 16  # requests for facts about objects at the same time
_WAIT_S: Final = 300.0  # longest wait for another process that creates the same mirror
_LOOK_S: Final = 0.1  # pause between two attempts to lock the draft
# Errors of a folder that is not writable.
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def headers_of(manifest: Manifest) -> dict[str, tuple[bytes, int]]:
    """Return the header page and size in bytes for every array file in ``manifest``. Pure."""
    files: dict[str, tuple[bytes, int]] = {}
    for record in manifest.arrays.values():
        files[record.file] = npy_header(record.dtype, record.shape), record.file_bytes
        if record.pages_file is not None:
            header = npy_header("uint64", (record.num_pages,))
            files[record.pages_file] = header, file_bytes(8 * record.num_pages)
    return files


def facts_of(objects: ObjectStore, sizes: Mapping[str, int]) -> dict[str, ObjectFacts]:
    """Fetch the size and ETag of every object, many at the same time.

    Parameters
    ----------
    objects : the store
    sizes : sizes in the dataset's record, by name

    Raises
    ------
    IncompleteStoreError, TruncatedStoreError, FormatError
        An object is missing, or has another size.
    StoreReadError
        The store does not answer.
    """
    tasks = [partial(objects.head, name) for name in sizes]
    answers = run_together(tasks, threads=_HEADS, name="gloader-head")
    facts_by_name: dict[str, ObjectFacts] = {}
    for (name, size), facts in zip(sizes.items(), answers, strict=True):
        url = f"{objects.url}/{name}"
        if facts is None:
            text = "the dataset's record names this object and it is missing; upload the dataset again"
            raise IncompleteStoreError(errno.ENOENT, text, url)
        if facts.size != size:
            kind = TruncatedStoreError if facts.size < size else FormatError
            raise kind(f"{url}: the object has {facts.size} bytes, expected {size}; upload the dataset again")
        facts_by_name[name] = facts
    return facts_by_name


def make_mirror(
    folder: Path, record: MirrorRecord, commit: bytes, headers: Mapping[str, bytes], *, os_io: OsIO
) -> None:
    """Create a mirror's folder, which appears completely. Another process may create the same folder meanwhile.

    Parameters
    ----------
    folder : the folder to create; its parent may also be missing
    record : the mirror's owner record
    commit : the dataset's commit record
    headers : every file's first page, by name

    Raises
    ------
    StoreWriteError
        The file system refuses, or something else has the name.
    StoreLockedError
        Another process creates the mirror and does not finish.
    """
    with _refusals(folder.parent), write_errors(folder, "making a mirror", os_io=os_io):
        _make_private_folders(folder.parent, os_io)
        draft = LockedFolder(_draft_of(folder), os_io=os_io)
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                draft.acquire()
                break
            except StoreLockedError:
                if is_folder(folder, os_io):  # the other process has finished the same mirror
                    return
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_S)
        try:
            if not is_folder(folder, os_io):
                _write_all(draft.path / "new", record, commit, headers, os_io)
                os_io.kill_point("mirror.before_publish")  # a crash test may end the process at this point
                os_io.rename_noreplace(draft.path / "new", folder)
                os_io.fsync_dir(folder.parent)
                os_io.kill_point("mirror.after_publish")
        finally:
            draft.remove()


def mend_mirror(
    folder: Path, record: MirrorRecord, commit: bytes, headers: Mapping[str, bytes], *, os_io: OsIO
) -> None:
    """Repair the metadata of the mirror ``folder``. A file with a wrong size or header is fetched again.

    The records tell every file's size, header and number of marks, so these can be checked and written again. Another
    process may use the mirror meanwhile: it verifies its reads, and a lost mark only costs a request.

    Parameters
    ----------
    folder, record, commit, headers : as in `make_mirror`

    Raises
    ------
    StoreOpenError
        A file cannot be opened or written.
    """
    with disk_errors(StoreOpenError, "the mirror cannot be opened", folder):
        for name, facts in record.files.items():
            path, marks_path = folder / FILES / name, folder / MARKS / name
            marks = _no_marks(facts.size, record.block_bytes)
            is_sound = _begins_with(path, headers[name], facts.size, os_io)
            if not (is_sound and _begins_with(marks_path, b"", len(marks), os_io)):
                # The marks are written first: with a mark, the zeros of a hole would pass for data.
                _rewrite(marks_path, marks, len(marks), os_io)
                _rewrite(path, headers[name], facts.size, os_io)
        path = folder / FILES / DATASET_MANIFEST
        if not _begins_with(path, commit, len(commit), os_io):
            _rewrite(path, commit, len(commit), os_io)


def _begins_with(path: Path, head: bytes, size: int, os_io: OsIO) -> bool:
    """Return True if a file begins with ``head`` and has ``size`` bytes."""
    try:
        with Descriptor(path, os.O_RDONLY | os.O_NOFOLLOW, os_io=os_io) as fd:
            content = bytearray(len(head))
            read_full(fd, memoryview(content), 0, os_io=os_io)
            return os_io.fstat(fd).st_size == size and content == head
    except FileNotFoundError:
        return False


def _rewrite(path: Path, head: bytes, size: int, os_io: OsIO) -> None:
    """Write ``head`` to the start of a mirror's file, and set its size; create the file if it is missing."""
    _LOG.warning("%s was damaged: it is written again, and its content is fetched again", path)
    for parent in reversed(path.parents):
        if not is_folder(parent, os_io):
            with suppress(FileExistsError):
                os_io.mkdir(parent, _PRIVATE)
    with suppress(FileExistsError):
        close_quietly(os_io.open(path, _NEW, 0o600), os_io=os_io)
    with Descriptor(path, os.O_RDWR | os.O_NOFOLLOW, os_io=os_io) as fd:
        os_io.truncate(fd, size)
        pwrite_full(fd, memoryview(head), 0, os_io=os_io)
        os_io.fsync(fd)
    os_io.fsync_dir(path.parent)


def _no_marks(size: int, block_bytes: int) -> bytes:
    """Return the marks for a file without stored blocks. Pure."""
    # A file with only a header has no blocks to fetch.
    return bytes([HERE if size == DATA_OFFSET else MISSING]) * -(-size // block_bytes)


def remove_dead_draft(folder: Path, *, os_io: OsIO) -> None:
    """Remove the draft that a killed process left next to the mirror ``folder``."""
    path = _draft_of(folder)
    if is_folder(path, os_io):
        draft = LockedFolder(path, os_io=os_io)
        try:
            draft.acquire()
            draft.remove()
        except (StoreLockedError, OSError) as error:  # being created, or not removable
            _LOG.info("%s could not be removed: %s", path, error)


@contextmanager
def _refusals(mirror_dir: Path) -> Iterator[None]:
    """Advise --mirror-dir in the error if ``mirror_dir`` is not writable, because the user may not have chosen it."""
    try:
        yield
    except StoreWriteError as error:
        if error.errno not in _REFUSED:
            raise
        text = f"no mirror can be made in this folder: {os.strerror(error.errno)}; give another --mirror-dir"
        raise StoreWriteError(error.errno, text, str(mirror_dir)) from error


def read_record(folder: Path, *, os_io: OsIO) -> MirrorRecord:
    """Read the owner record in a mirror's folder.

    Raises
    ------
    FormatError
        The record is malformed, or has an unknown version.
    StoreOpenError
        The folder is another user's, or cannot be read.
    """
    path = folder / MIRROR_RECORD
    try:
        _require_own(folder, os_io)
        with Descriptor(path, os.O_RDONLY | os.O_NOFOLLOW, os_io=os_io) as fd:
            size = os_io.fstat(fd).st_size
            data = bytearray(min(size, MAX_RECORD_BYTES))  # a longer record is truncated, and so invalid
            read_full(fd, memoryview(data), 0, os_io=os_io)
    except StoreOpenError:
        raise
    except OSError as error:
        text = (
            f"the mirror cannot be opened: {error.strerror}; give another --mirror-dir, or remove the folder"
        )
        raise StoreOpenError(error.errno, text, str(folder)) from error
    return MirrorRecord.parse(bytes(data), path)


def _require_own(folder: Path, os_io: OsIO) -> None:
    """Raise StoreOpenError if ``folder`` is not a folder of this user; raises `OSError` if it cannot be examined."""
    status = os_io.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        text = "the folder belongs to another user, so its content is not trusted; give another --mirror-dir"
        raise StoreOpenError(errno.EPERM, text, str(folder))


def is_folder(path: Path, os_io: OsIO) -> bool:
    """Return True if ``path`` is a folder and no link. Raise `StoreOpenError` without permission to look."""
    try:
        return stat.S_ISDIR(os_io.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        text = f"cannot check for a mirror here: {error.strerror}; give another --mirror-dir"
        raise StoreOpenError(error.errno, text, str(path)) from error


def _draft_of(folder: Path) -> Path:
    """Return the hidden folder, next to the mirror ``folder``, in which the mirror is prepared. Pure."""
    return folder.with_name(f".{folder.name}.making")


def _make_private_folders(path: Path, os_io: OsIO) -> None:
    """Create the folder ``path`` for its owner only, and its parents with the usual permissions."""
    if is_folder(path, os_io):
        return
    make_folders(path.parent, os_io=os_io)
    try:
        os_io.mkdir(path, _PRIVATE)
    except FileExistsError:
        return
    os_io.fsync_dir(path.parent)


def _write_all(
    folder: Path, record: MirrorRecord, commit: bytes, headers: Mapping[str, bytes], os_io: OsIO
) -> None:
    """Write the folder, and force each file and then each folder to the device."""
    folders = [folder, folder / FILES, folder / MARKS]
    for path in folders:
        os_io.mkdir(path, _PRIVATE)
    for name, facts in record.files.items():
        for root in folders[1:3]:  # FILES and MARKS
            # The folders in the file's name, the outermost first.
            for parent in reversed((root / name).relative_to(root).parents[:-1]):
                if root / parent not in folders:
                    os_io.mkdir(root / parent, _PRIVATE)
                    folders.append(root / parent)
        # The last byte gives the file its full size; the bytes before it take no space.
        _write_new(folder / FILES / name, headers[name], facts.size, os_io)
        _write_new(folder / MARKS / name, _no_marks(facts.size, record.block_bytes), 0, os_io)
    _write_new(folder / FILES / DATASET_MANIFEST, commit, 0, os_io)
    _write_new(folder / MIRROR_RECORD, record.to_bytes(), 0, os_io)
    for path in reversed(folders):
        os_io.fsync_dir(path)


def _write_new(path: Path, content: bytes, size: int, os_io: OsIO) -> None:
    """Write a new file with ``content``, extended to ``size`` bytes by a hole, and force it to the device."""
    fd = os_io.open(path, _NEW, 0o600)
    try:
        write_full(fd, memoryview(content), os_io=os_io)
        if size > len(content):
            pwrite_full(fd, memoryview(b"\0"), size - 1, os_io=os_io)
        os_io.fsync(fd)
    finally:
        close_quietly(fd, os_io=os_io)
