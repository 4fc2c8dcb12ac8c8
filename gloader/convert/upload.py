"""Upload of a dataset directory to a URL.

The *record* is ``dataset.json``, which lists the dataset's files. It is uploaded last, so that an interrupted upload
leaves no dataset. A command that converts a source directly to a URL calls `require_target` before the conversion, and
`upload_dataset` after it.
"""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from gloader.convert.progress import NO_PROGRESS, PrepareProgress
from gloader.core.paths import require_plain
from gloader.errors import ConfigError, StoreError, StoreExistsError, StoreWriteError
from gloader.ssd_store.format.format import (
    DATASET_MANIFEST,
    MAX_MANIFEST_BYTES,
    load_manifest,
    parse_manifest,
    read_exactly,
    replaced_error,
    require_same,
)
from gloader.ssd_store.os_io import REAL_OS, Descriptor, OsIO, make_folders, write_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.ssd_store.format.format import Manifest
    from gloader.ssd_store.mirror import ObjectStore

_PIECE_BYTES: Final = 8 * 2**20  # bytes of a file that are in memory at a time
_STEP: Final = "uploading"  # the step's name in the progress


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadReport:
    """The result of an upload."""

    url: str  # the URL without secrets
    num_files: int  # number of uploaded files, with the record
    num_bytes: int  # bytes of these files, without the record
    seconds: float  # duration of the upload
    replaced: bool  # True if the upload replaced a dataset


def require_target(url: str, *, overwrite: bool) -> None:
    """Check that a dataset may be uploaded to ``url``. Call this before hours of work for the upload.

    Raises
    ------
    StoreExistsError
        There is a dataset, and ``overwrite`` is not set. Or there is a record from another program.
    ConfigError, MissingDependencyError, StoreReadError
        The URL is invalid, obstore is missing, or the store does not answer.
    """
    folder = _mounted_folder(url)
    if folder is None or folder.is_dir():
        _former_files(_open(url), overwrite=overwrite)


def upload_dataset(
    root: Path,
    url: str,
    *,
    overwrite: bool = False,
    progress: PrepareProgress = NO_PROGRESS,
    os_io: OsIO = REAL_OS,
) -> UploadReport:
    """Upload the dataset directory ``root`` to ``url``. The record goes last, and completes the dataset.

    If there is a dataset already, its record is deleted first. Then its files are replaced one by one. Programs that
    read the old dataset fail, because they check the files' ETags. After an interrupted upload, the uploaded files
    belong to no dataset. The next upload replaces them.

    Parameters
    ----------
    root : a dataset directory
    url : the target, such as s3://bucket/papers
    overwrite : replace an existing dataset
    progress : receives the number of uploaded bytes
    os_io : system calls for reading the directory

    Raises
    ------
    StoreOpenError, NotAStoreError, IncompleteStoreError, TruncatedStoreError, FormatError, VersionError
        ``root`` is not a complete dataset, or was replaced during the upload.
    StoreExistsError, ConfigError, MissingDependencyError, StoreReadError
        As `require_target`. ConfigError also if the directory has only a part of the rows.
    StoreWriteError
        The store refuses an object, or reports another size.
    """
    started = time.perf_counter()
    manifest = load_manifest(root, DATASET_MANIFEST, os_io=os_io)
    if manifest.ranges is not None:
        raise ConfigError(
            f"{root} has part {manifest.ranges.part} of {manifest.ranges.of} of its rows, and a dataset at a URL has "
            "all of them; prepare it without --ranges: machines that share it mirror what they read"
        )
    record = _record_bytes(root, manifest, os_io)
    if (folder := _mounted_folder(url)) is not None:
        with write_errors(folder, "making the folder", os_io=os_io):
            make_folders(folder, os_io=os_io)
    store = _open(url)
    former = _former_files(store, overwrite=overwrite)
    if former is not None:
        store.delete(DATASET_MANIFEST)
    files = _files(manifest, root, os_io)  # each file's size by its name
    total, done = sum(files.values()), 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress.advance(_STEP, done, total, "bytes")

    try:
        for name, size in files.items():
            store.put(name, _pieces(root / name, size, advance, os_io))
            _require_whole(store, name, size)
        # If the folder still has the same record, the uploaded files belong to it.
        require_same(root, manifest, os_io=os_io)
        store.put(DATASET_MANIFEST, record)
    except (StoreError, KeyboardInterrupt) as error:
        error.add_note(f"there is no dataset at {store.url} now; the next upload replaces what is there")
        raise
    for name in sorted((former or frozenset()) - files.keys()):
        store.delete(name)
    return UploadReport(
        url=store.url,
        num_files=len(files) + 1,
        num_bytes=total,
        seconds=time.perf_counter() - started,
        replaced=former is not None,
    )


def _open(url: str) -> ObjectStore:
    """Return the store at a URL, which reads, writes and deletes whole objects."""
    # This import is late, because obstore is optional.
    from gloader.ssd_store.mirror import open_objects

    require_plain(url)
    return open_objects(url)


def _mounted_folder(url: str) -> Path | None:
    """Return the folder of a file:// URL, which may not exist yet, or None for another URL."""
    return Path(unquote(urlsplit(url).path)) if url.lower().startswith("file:") else None


def _former_files(store: ObjectStore, *, overwrite: bool) -> frozenset[str] | None:
    """Return the existing dataset's files, or None if there is no dataset."""
    if store.head(DATASET_MANIFEST) is None:
        return None
    if not overwrite:
        raise StoreExistsError(
            errno.EEXIST,
            "there is a dataset; pass overwrite=True to replace it, or choose another URL",
            store.url,
        )
    content, _ = store.read(DATASET_MANIFEST, max_bytes=MAX_MANIFEST_BYTES)
    try:
        manifest = parse_manifest(content, store.url)
    except StoreError as error:
        raise StoreExistsError(
            errno.EEXIST,
            f"its {DATASET_MANIFEST} was not written by gloader, or is damaged, so nothing is replaced "
            f"({error}); remove it yourself, or choose another URL",
            store.url,
        ) from error
    return frozenset(_names(manifest))


def _names(manifest: Manifest) -> Iterator[str]:
    """Yield the names of the files that a record lists."""
    for record in manifest.arrays.values():
        yield record.file
        if record.pages_file is not None:
            yield record.pages_file


def _record_bytes(root: Path, manifest: Manifest, os_io: OsIO) -> bytes:
    """Return the record's bytes on disk. They are uploaded as they are, even if another version wrote them."""
    path = root / DATASET_MANIFEST
    content = bytearray(os_io.stat(path).st_size)
    with Descriptor(path, os_io=os_io) as fd:
        read_exactly(fd, memoryview(content), 0, path=path, os_io=os_io)
    if parse_manifest(bytes(content), path) != manifest:
        raise replaced_error(root)
    return bytes(content)


def _files(manifest: Manifest, root: Path, os_io: OsIO) -> dict[str, int]:
    """Return the size of each file in the record."""
    return {name: os_io.stat(root / name).st_size for name in _names(manifest)}


def _pieces(path: Path, size: int, advance: Callable[[int], None], os_io: OsIO) -> Iterator[bytes]:
    """Yield a file's content. A piece counts as uploaded when the next piece is requested."""
    with Descriptor(path, os_io=os_io) as fd:
        for offset in range(0, size, _PIECE_BYTES):
            piece = bytearray(min(_PIECE_BYTES, size - offset))
            read_exactly(fd, memoryview(piece), offset, path=path, os_io=os_io)
            yield bytes(piece)
            advance(len(piece))


def _require_whole(store: ObjectStore, name: str, size: int) -> None:
    """Raise StoreWriteError if the store reports another size for an uploaded file, or no such file."""
    facts = store.head(name)
    if facts is None or facts.size != size:
        state = "is not there" if facts is None else f"has {facts.size:,} bytes"
        raise StoreWriteError(
            errno.EIO,
            f"{name} was uploaded with {size:,} bytes and {state}; does a proxy change the data, or is another upload "
            "to the same URL running?",
            store.url,
        )
