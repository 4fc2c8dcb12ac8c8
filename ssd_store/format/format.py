"""The public names of the file format, and functions that open a committed directory with arrays.

A dataset or store is a directory of arrays with a manifest, also called commit record: ``dataset.json`` or
``store.json``. The manifest is written last, so a directory without one is incomplete. `read_manifest` reads it, and
`load_manifest` also checks the size and header of the arrays' files. A directory may be replaced while it is in use:
`require_same` and `detecting_replacement` notice this. docs/storage.md describes the bytes; the parts are in `manifest`
and `checksum`.
"""

from __future__ import annotations

import errno
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.errors import (
    ChecksumError,
    FormatError,
    IncompleteStoreError,
    NotAStoreError,
    StoreError,
    StoreOpenError,
    StoreReadError,
    TruncatedStoreError,
)
from gloader.ssd_store.format.checksum import FORMAT_VERSION, PAGE_BYTES
from gloader.ssd_store.format.manifest import (
    DATA_OFFSET,
    DATASET_MANIFEST,
    KNOWN_FEATURES,
    MANIFEST_NAMES,
    MAX_MANIFEST_BYTES,
    NODES,
    RELATIONS,
    RESTORE,
    STORE_MANIFEST,
    ArrayRecord,
    JsonValue,
    Manifest,
    data_bytes,
    file_bytes,
    npy_header,
    parse_manifest,
    seal_manifest,
    stored_dtype,
)
from gloader.ssd_store.os_io import REAL_OS, Descriptor, OsIO, read_full

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "DATASET_MANIFEST",
    "DATA_OFFSET",
    "FORMAT_VERSION",
    "KNOWN_FEATURES",
    "MANIFEST_NAMES",
    "MAX_MANIFEST_BYTES",
    "PAGE_BYTES",
    "STORE_MANIFEST",
    "ArrayRecord",
    "JsonValue",
    "Manifest",
    "data_bytes",
    "file_bytes",
    "check_record",
    "find_manifest_name",
    "load_manifest",
    "npy_header",
    "parse_manifest",
    "read_manifest",
    "replaced_error",
    "require_same",
    "seal_manifest",
    "stored_dtype",
    "detecting_replacement",
]

_TABLES = (".csv", ".tsv", ".txt", ".parquet")  # edge tables, from which `gloader prepare` makes a dataset

# Advice for common errors, because the system's own text names only the failure.
_ADVICE = {
    errno.ENOENT: "there is nothing here; check the path",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.ELOOP: "its symbolic links form a loop",
    errno.EACCES: "permission denied; ask the owner for read access",
    errno.EMFILE: "this process has too many open files; raise the limit (ulimit -n) or close other stores",
    errno.ENFILE: "the machine has too many open files",
}


def open_error(path: Path | str, error: OSError) -> StoreOpenError:
    """Return the error for a failed opening at ``path``, with reason and advice. Pure.

    Parameters
    ----------
    path : the path that failed to open
    error : the system's error
    """
    reason = _ADVICE.get(error.errno or 0) or error.strerror or str(error)
    return StoreOpenError(error.errno, f"cannot be opened: {reason}", str(path))


def find_manifest_name(root: Path | str, *, os_io: OsIO = REAL_OS) -> str:
    """Return the manifest's name in the folder ``root``: ``store.json`` or ``dataset.json``.

    Raises
    ------
    StoreOpenError, NotAStoreError, IncompleteStoreError
        See `load_manifest`.
    """
    names = _list_folder(Path(root), os_io)
    found = [name for name in MANIFEST_NAMES if name in names]
    if found:
        return found[0]
    raise _without_manifest(Path(root), " or ".join(MANIFEST_NAMES), names)


def read_manifest(root: Path | str, manifest_name: str, *, os_io: OsIO = REAL_OS) -> Manifest:
    """Read and parse the manifest in the folder ``root``, without its array files.

    Parameters
    ----------
    root : the directory
    manifest_name : ``dataset.json`` or ``store.json``

    Raises
    ------
    StoreOpenError, NotAStoreError, IncompleteStoreError, StoreReadError
        The manifest is missing or cannot be read.
    FormatError, VersionError, ChecksumError
        See `parse_manifest`.
    """
    root = Path(root)
    path = root / manifest_name
    try:
        file = Descriptor(path, os_io=os_io)
    except (FileNotFoundError, NotADirectoryError):
        raise _without_manifest(root, manifest_name, _list_folder(root, os_io)) from None
    except OSError as error:
        raise open_error(path, error) from error
    with file as fd:
        return parse_manifest(_read_small(fd, path, os_io), path)


def load_manifest(root: Path | str, manifest_name: str, *, os_io: OsIO = REAL_OS) -> Manifest:
    """Read the manifest in the folder ``root`` and check that each of its files exists in full.

    Sizes and headers are checked, contents are not: see `gloader.ssd_store.format.verification`.

    Parameters
    ----------
    root : the directory
    manifest_name : ``dataset.json`` or ``store.json``

    Raises
    ------
    StoreOpenError
        The path is missing, a file, a FIFO or a loop of links, or not readable.
    NotAStoreError
        The folder holds no gloader file.
    IncompleteStoreError
        The folder holds arrays without a commit record, or a file in the record is missing.
    TruncatedStoreError
        A file is shorter than in the record.
    FormatError, VersionError, ChecksumError
        The manifest or a header is damaged, or has another version.
    StoreReadError
        The device failed.
    """
    manifest = read_manifest(root, manifest_name, os_io=os_io)
    with detecting_replacement(root, manifest, os_io=os_io):
        for record in manifest.arrays.values():
            check_record(root, record, os_io=os_io)
    return manifest


def check_record(root: Path | str, record: ArrayRecord, *, os_io: OsIO = REAL_OS) -> None:
    """Check size and header of one array's files in the folder ``root``; raises as `load_manifest`."""
    check_array_file(Path(root) / record.file, record.dtype, record.shape, os_io=os_io)
    if record.pages_file is not None:
        check_array_file(Path(root) / record.pages_file, "uint64", (record.num_pages,), os_io=os_io)


def replaced_error(path: Path | str) -> StoreOpenError:
    """Return the error for ``path``, whose content was replaced after it was opened. Pure."""
    message = "the store was replaced after it was opened; open it again"
    return StoreOpenError(errno.ESTALE, message, str(path))


def require_same(root: Path | str, manifest: Manifest, *, os_io: OsIO = REAL_OS) -> None:
    """Require that the folder ``root`` still holds the arrays in ``manifest``. Call it after opening a file.

    A folder is only ever replaced as a unit. If it is the same now, it was the same when the file was opened. The
    record on the disk is only compared, never used.

    Raises
    ------
    StoreOpenError
        The folder holds other arrays, or no arrays.
    StoreReadError, FormatError, VersionError, ChecksumError
        The folder's record cannot be read, see `read_manifest`.
    """
    try:
        current = read_manifest(root, find_manifest_name(root, os_io=os_io), os_io=os_io)
    except StoreOpenError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTDIR}:  # the folder or its record is gone
            raise
        raise replaced_error(root) from error
    # The parts of a divided dataset, on several machines, have the same arrays, but different rows.
    if (current.arrays, current.ranges) != (manifest.arrays, manifest.ranges):
        raise replaced_error(root)


@contextmanager
def detecting_replacement(root: Path | str, manifest: Manifest, *, os_io: OsIO = REAL_OS) -> Iterator[None]:
    """Report a replaced folder as replaced, not as damaged: check the folder if the block raises a `StoreError`.

    Raises
    ------
    StoreOpenError
        The folder ``root`` was replaced. This error replaces the block's error.
    """
    try:
        yield
    except StoreError:
        try:
            require_same(root, manifest, os_io=os_io)
        except StoreError as error:
            # If the record cannot be read either, the first error is more precise.
            if isinstance(error, StoreOpenError) and error.errno == errno.ESTALE:
                raise
        raise


def check_array_file(path: Path, dtype: str, shape: tuple[int, ...], *, os_io: OsIO = REAL_OS) -> None:
    """Check one file's size and header.

    Parameters
    ----------
    path : the file
    dtype, shape : as in the commit record

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError, FormatError, StoreReadError
        See `load_manifest`.
    """
    try:
        file = Descriptor(path, os_io=os_io)
    except FileNotFoundError as error:
        raise IncompleteStoreError(
            errno.ENOENT, "the commit record names this file and it is missing; restore it", str(path)
        ) from error
    except OSError as error:
        raise open_error(path, error) from error
    header = bytearray(DATA_OFFSET)
    # The size is checked before the content, so that a truncated file is not reported as a damaged header.
    with file as fd:
        try:
            _check_size(path, os_io.fstat(fd).st_size, file_bytes(data_bytes(dtype, shape)))
            read_exactly(fd, memoryview(header), 0, path=path, os_io=os_io)
        except OSError as error:
            if isinstance(error, (StoreReadError, StoreOpenError)):
                raise
            raise open_error(path, error) from error
    # The record determines the only valid header, so the file's own header is never parsed.
    if bytes(header) != npy_header(dtype, shape):
        raise FormatError(
            f"{path}: its header does not declare {dtype} of shape {shape} as the commit record does; "
            "the file is damaged or belongs to another store"
        )


def read_exactly(
    fd: int, buffer: memoryview, offset: int, *, path: Path | str, os_io: OsIO = REAL_OS
) -> None:
    """Fill ``buffer`` from ``offset``.

    Parameters
    ----------
    fd : the open file
    buffer : writable; its length is the number of bytes to read
    offset : first byte in the file
    path : the file's path, for messages

    Raises
    ------
    StoreReadError
        The device failed; the error holds the path, the offset and the errno.
    TruncatedStoreError
        The file ends within the range.
    """
    try:
        count = read_full(fd, buffer, offset, os_io=os_io)
    except StoreError:  # a mirror's error, which names the object and has advice
        raise
    except OSError as error:
        raise StoreReadError(
            error.errno, f"reading {len(buffer)} bytes at offset {offset} failed: {error.strerror}", str(path)
        ) from error
    if count < len(buffer):
        raise TruncatedStoreError(
            f"{path}: the file ends at byte {offset + count}, expected at least {offset + len(buffer)} "
            f"bytes; it was cut, {RESTORE}"
        )


def _check_size(path: Path, actual: int, expected: int) -> None:
    """Raise TruncatedStoreError or FormatError if a file has not exactly ``expected`` bytes."""
    if actual < expected:
        raise TruncatedStoreError(
            f"{path}: the file has {actual} bytes, expected {expected}; it was cut, {RESTORE}"
        )
    if actual > expected:
        raise FormatError(
            f"{path}: the file has {actual} bytes, expected {expected}; it was changed after creation"
        )


def _read_small(fd: int, path: Path, os_io: OsIO) -> bytes:
    """Return the bytes of an open manifest file, which must not be too long."""
    try:
        size = os_io.fstat(fd).st_size
    except OSError as error:
        raise open_error(path, error) from error
    # The check precedes any allocation, because the file may come from anyone.
    if size > MAX_MANIFEST_BYTES:
        raise FormatError(f"{path}: a manifest has at most {MAX_MANIFEST_BYTES} bytes, not {size}")
    data = bytearray(size)
    try:
        read_exactly(fd, memoryview(data), 0, path=path, os_io=os_io)
    except TruncatedStoreError as error:
        # The file became shorter during the read: another program writes to it, because gloader only replaces it.
        raise ChecksumError(f"{path}: the manifest was cut while it was read") from error
    return bytes(data)


def _list_folder(root: Path, os_io: OsIO) -> list[str]:
    """Return the names in the folder ``root``, or raise a `StoreOpenError` with advice."""
    # A wrong folder is the most common mistake. The system's text, and a chain of three errors, would not explain it.
    try:
        is_folder = stat.S_ISDIR(os_io.stat(root).st_mode)
        names = os_io.listdir(root) if is_folder else []
    except FileNotFoundError:
        raise _not_prepared(root, is_there=False) from None
    except OSError as error:
        raise open_error(root, error) from error
    if not is_folder:
        raise _not_prepared(root, is_there=True) from None
    return names


def _not_prepared(root: Path, *, is_there: bool) -> StoreOpenError:
    """Return the error for ``root``, which is not a folder. Pure."""
    if not is_there:
        reason = f"there is nothing here; a dataset is made once: gloader prepare SOURCE {root}"
        return StoreOpenError(errno.ENOENT, reason, str(root))
    source = f"edges:{root}" if root.suffix in _TABLES else "SOURCE"
    reason = (
        f"this is not a folder, but a dataset is one; make it once: gloader prepare {source} {root.stem}-data"
    )
    return StoreOpenError(errno.ENOTDIR, reason, str(root))


def _without_manifest(
    root: Path, manifest_name: str, names: list[str]
) -> NotAStoreError | IncompleteStoreError:
    """Return the error for a folder with the files ``names``, but without a manifest. Pure."""
    # The record is renamed into place last, so data without one is an interrupted creation or copy.
    has_files = any(name.endswith((".npy", ".pages", ".json.tmp")) for name in names)
    # A dataset with several types has its arrays in these two folders.
    if has_files or {NODES, RELATIONS} <= set(names):
        return IncompleteStoreError(
            errno.ENOENT,
            f"the folder holds data and no {manifest_name}: its creation never finished; "
            "delete it and create it again",
            str(root),
        )
    return NotAStoreError(
        errno.ENOENT,
        f"not a gloader dataset: it has no {manifest_name}; `gloader prepare` makes one",
        str(root),
    )
