"""Opening a dataset at a URL: the object store provides its commit record, a mirror on this disk its files.

A mirror is a local copy of the dataset, filled block by block as the blocks are read. The commit record,
``dataset.json``, lists the dataset's arrays. `open_mirror` fetches it, finds or creates the mirror's folder, checks the
folder, and returns the system calls (`MirrorIO`) that fetch missing blocks. The folder has an owner record too,
``mirror.json``, with the URL and each object's size and version.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final

from gloader.errors import ConfigError, FormatError, NotAStoreError, StoreOpenError, StoreReadError
from gloader.ssd_store.format.manifest import DATASET_MANIFEST, MAX_MANIFEST_BYTES, parse_manifest
from gloader.ssd_store.mirror.block_fetch import Fetcher
from gloader.ssd_store.mirror.mirror import Mirror
from gloader.ssd_store.mirror.mirror_folder import (
    facts_of,
    headers_of,
    is_folder,
    make_mirror,
    mend_mirror,
    read_record,
    remove_dead_draft,
)
from gloader.ssd_store.mirror.mirror_io import MirrorIO
from gloader.ssd_store.mirror.mirrored_file import (
    BLOCK_BYTES,
    FILES,
    HERE,
    MARKS,
    MIRROR_RECORD,
    MirrorRecord,
    checks_of,
    folder_name,
)
from gloader.ssd_store.mirror.object_store import Limits, open_objects
from gloader.ssd_store.os_io import REAL_OS, Descriptor, read_full

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.ssd_store.mirror.object_store import ObjectStore
    from gloader.ssd_store.os_io import OsIO

DEFAULT_REQUESTS: Final = 64  # maximum number of requests in flight
# Errors of a store that does not answer. A complete mirror may then replace the store.
_UNREACHABLE: Final = frozenset({errno.ECONNRESET, errno.ETIMEDOUT, errno.EBUSY, errno.EIO})
_LOG = logging.getLogger(__name__)


def open_mirror(
    url: str,
    *,
    mirror_dir: Path,
    budget_bytes: int | None = None,
    limits: Limits | None = None,
    requests: int = DEFAULT_REQUESTS,
    objects: ObjectStore | None = None,
    block_bytes: int = BLOCK_BYTES,
    os_io: OsIO = REAL_OS,
) -> tuple[Path, MirrorIO]:
    """Open a mirror of the dataset at ``url``; return the folder to open as a dataset, and its system calls.

    Each call fetches the record in one request. The record names the version, and a new version of the dataset gets a
    separate mirror. A new mirror also fetches the size and ETag of every object. Data is fetched when it is read.

    If the store is unreachable and every block is stored, the mirror is used, because its record and checksums verify
    it. A warning reports that a newer version may exist. Runs that resume, and ranks that train together, still compare
    the record. A mirror with missing blocks is refused at once, rather than in the middle of a run. If the store
    refuses, for example because access is denied or the dataset is gone, no mirror is used.

    Parameters
    ----------
    url : the URL above ``dataset.json``
    mirror_dir : folder for mirrors, created if missing, accessible to its owner only
    budget_bytes : maximum bytes for this mirror's blocks; None means that all blocks are kept
    limits : limits on requests to the store; None means no limits
    requests : maximum number of requests in flight; each holds a block in memory
    objects : the store; None opens ``url`` through obstore
    block_bytes : block size in a new mirror, in whole pages
    os_io : the system calls on the mirror

    Raises
    ------
    ConfigError, MissingDependencyError
        See `open_objects`. Another cause: ``requests`` is below 1.
    StoreOpenError, NotAStoreError, IncompleteStoreError, TruncatedStoreError, FormatError, VersionError, ChecksumError
        There is no complete dataset in a known version at ``url``, or its mirror cannot be opened.
    StoreReadError
        The store is unreachable, or refuses the request.
    StoreWriteError, StoreLockedError
        The mirror cannot be created.
    BudgetError
        The budget is too small.
    """
    if requests < 1:
        raise ConfigError(f"object_requests={requests} must be at least 1")
    store = open_objects(url) if objects is None else objects
    num_requests = 1
    try:
        commit = _read_commit(store)
    except StoreReadError as error:
        if error.errno not in _UNREACHABLE:
            raise
        folder = _whole_mirror(mirror_dir, store.url, os_io)
        if folder is None:
            raise
        _LOG.warning(
            "%s cannot be reached (%s): opening its mirror %s, which is whole; a newer version may exist",
            store.url,
            error.strerror,
            folder,
        )
        commit = _local_commit(folder, os_io)
    manifest = parse_manifest(commit, f"{store.url}/{DATASET_MANIFEST}")
    headers = headers_of(manifest)
    # By file name: the first page of each array file.
    pages = {name: header for name, (header, _) in headers.items()}
    folder = mirror_dir / folder_name(store.url, commit)
    if not is_folder(folder, os_io):
        facts = facts_of(store, {name: size for name, (_, size) in headers.items()})
        num_requests += len(facts)
        record = MirrorRecord(url=store.url, files=facts, block_bytes=block_bytes)
        make_mirror(folder, record, commit, pages, os_io=os_io)
    else:
        remove_dead_draft(folder, os_io=os_io)
    record = read_record(folder, os_io=os_io)
    sizes = {name: facts.size for name, facts in record.files.items()}
    if record.url != store.url or sizes != {name: size for name, (_, size) in headers.items()}:
        raise FormatError(f"{folder / MIRROR_RECORD}: it belongs to another dataset; remove the folder")
    mend_mirror(folder, record, commit, pages, os_io=os_io)
    fetcher = Fetcher(store, limits=limits or Limits(), most_requests=requests)
    mirror = Mirror(
        folder, record, checks_of(manifest, headers), fetcher, budget_bytes=budget_bytes, os_io=os_io
    )
    return folder / FILES, MirrorIO(mirror, fetcher, num_requests=num_requests, os_io=os_io)


def _read_commit(store: ObjectStore) -> bytes:
    """Fetch the dataset's commit record."""
    try:
        commit, _ = store.read(DATASET_MANIFEST, max_bytes=MAX_MANIFEST_BYTES)
    except StoreReadError as error:
        if error.errno == errno.ENOENT:
            text = f"not a gloader dataset: it has no {DATASET_MANIFEST}; check the URL, or `gloader prepare` one there"
            raise NotAStoreError(errno.ENOENT, text, store.url) from None
        if error.errno == errno.EACCES:
            raise StoreOpenError(error.errno, error.strerror, error.filename) from None
        raise
    return commit


def _whole_mirror(mirror_dir: Path, url: str, os_io: OsIO) -> Path | None:
    """Return ``url``'s newest mirror with every block, or None."""
    mirrors: list[tuple[int, Path]] = []  # with the time of their creation
    try:
        names = os_io.listdir(mirror_dir)
    except OSError:
        return None
    for folder in (mirror_dir / name for name in names if not name.startswith(".")):
        try:
            record = read_record(folder, os_io=os_io)
            if record.url == url and _is_whole(folder, record, os_io):
                mirrors.append((os_io.stat(folder / MIRROR_RECORD).st_mtime_ns, folder))
        except (OSError, FormatError):  # another owner's folder, or a folder that is being created
            continue
    return max(mirrors)[1] if mirrors else None


def _is_whole(folder: Path, record: MirrorRecord, os_io: OsIO) -> bool:
    """Return True if every block of a mirror's files is stored and verified."""
    # The folder's name is a hash over its URL and commit record: with another name, the record is damaged.
    if folder.name != folder_name(record.url, _local_commit(folder, os_io)):
        return False
    for name, facts in record.files.items():
        num_blocks = -(-facts.size // record.block_bytes)
        marks = bytearray(num_blocks)
        with Descriptor(folder / MARKS / name, os_io=os_io) as fd:
            read_full(fd, memoryview(marks), 0, os_io=os_io)
        if marks.count(HERE) != num_blocks or os_io.stat(folder / FILES / name).st_size != facts.size:
            return False
    return True


def _local_commit(folder: Path, os_io: OsIO) -> bytes:
    """Read the commit record that the mirror has stored."""
    with Descriptor(folder / FILES / DATASET_MANIFEST, os_io=os_io) as fd:
        commit = bytearray(min(os_io.fstat(fd).st_size, MAX_MANIFEST_BYTES + 1))
        read_full(fd, memoryview(commit), 0, os_io=os_io)
    return bytes(commit)
