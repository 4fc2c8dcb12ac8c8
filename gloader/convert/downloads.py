"""Downloads of data sets, and the safe extraction of zip files.

The source of OGB data sets calls `fetch_ogb`, which calls `download` and `extract_archive`. A malicious archive must
neither write a file outside its folder nor fill the disk. So every member (a file or a folder in the archive) is
checked before the first byte is written, and its bytes are counted during the write. Downloads and archives are written
into temporary files and folders, which get their final names at the end. So a failure leaves no data set.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import lzma
import os
import secrets
import shutil
import stat
import struct
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from http.client import HTTPException
from pathlib import Path, PureWindowsPath
from typing import IO, TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from gloader.convert.progress import NO_PROGRESS, PrepareProgress
from gloader.core.malformed import MALFORMED
from gloader.core.units import format_bytes
from gloader.errors import (
    DownloadError,
    GloaderError,
    MissingDependencyError,
    SourceError,
    StoreExistsError,
    StoreWriteError,
    UnsafeArchiveError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from http.client import HTTPResponse
    from io import RawIOBase


_COPY_BYTES = 1 << 20  # bytes per copy from a member to its file
# Unpacked bytes that every archive may have, whatever its ratio. A small archive of repetitive text is harmless, but
# its ratio of unpacked to packed bytes can be far above 200.
_MIN_ALLOWED_BYTES = 1 << 26
# All errors that `zipfile` raises on damage. RuntimeError means an encrypted member, OSError a damaged bz2 stream.
_DAMAGED = (zipfile.BadZipFile, lzma.LZMAError, RuntimeError, OSError, *MALFORMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """Limits for an archive's unpacked content."""

    max_bytes: int = 500 * 10**9  # unpacked bytes
    max_ratio: int = 200  # unpacked bytes per packed byte; malicious archives reach 1,000
    max_members: int = 100_000

    def allowed_bytes(self, packed_bytes: int) -> int:
        """Return the allowed unpacked size of an archive with ``packed_bytes``. Pure."""
        return min(self.max_bytes, max(_MIN_ALLOWED_BYTES, self.max_ratio * packed_bytes))


DEFAULT_LIMITS = ArchiveLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """One entry in an archive's list of members. A link or a device is neither a folder nor a file."""

    name: str  # path inside the archive
    size: int  # unpacked bytes, as the archive declares them
    is_folder: bool
    is_file: bool


def extract_archive(archive: Path, target: Path, *, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
    """Unpack a zip file into a new folder. A failure leaves no folder.

    Parameters
    ----------
    archive : the zip file
    target : the folder to make
    limits : limits for bytes and members

    Raises
    ------
    UnsafeArchiveError
        A member would land outside ``target``, is a link or a device, repeats another, or the members are
        too many or too large. Nothing was written.
    SourceError
        The file is not a zip archive, or it is damaged.
    StoreExistsError
        ``target`` exists.
    StoreWriteError
        The disk refused.
    """
    if target.exists() or target.is_symlink():
        raise StoreExistsError(f"{target} exists; remove it, or unpack {archive} elsewhere")
    if not archive.is_file():
        raise SourceError(f"{archive} does not exist or is not a file")
    allowed = limits.allowed_bytes(archive.stat().st_size)
    # Everything is checked before the first byte is written. The complete folder appears by a rename.
    with _reading(archive):
        _check_directory_size(archive, limits)
        _check_members(archive, _members(archive), allowed, limits)
    with _scratch_folder(target) as scratch:
        _write_members(archive, scratch)
        scratch.replace(target)


@contextmanager
def _scratch_folder(target: Path) -> Iterator[Path]:
    """Make a temporary folder next to ``target``, and remove it at the end unless it was renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    """Turn the errors of a damaged archive into a SourceError."""
    try:
        yield
    except GloaderError:
        raise
    except _DAMAGED as error:
        raise SourceError(f"{archive} cannot be read as a zip archive: {error}") from error


def _check_members(
    archive: Path, members: Iterable[_Member], allowed_bytes: int, limits: ArchiveLimits
) -> None:
    """Refuse members that are links or devices, overwrite each other, lead outside the folder, or are too large."""
    # Names are compared below an imaginary folder, so nothing is looked up on disk.
    root = Path("/target")
    total = 0
    files: set[Path] = set()
    folders: set[Path] = set()
    for number, member in enumerate(members, start=1):
        if number > limits.max_members:
            raise UnsafeArchiveError(f"{archive} has more than {limits.max_members} members")
        if not (member.is_file or member.is_folder):
            raise UnsafeArchiveError(f"{archive}: member {member.name!r} is a link or a device")
        path = _checked_path(archive, member.name, root)
        total += member.size
        if member.size < 0 or total > allowed_bytes:
            raise UnsafeArchiveError(
                f"{archive} holds more than {format_bytes(allowed_bytes)} at member {member.name!r}; "
                f"it has {format_bytes(archive.stat().st_size)} itself"
            )
        # A path must occur once. Otherwise, the first member could be replaced by a link between the two writes, and
        # the second write would follow the link.
        if path in files or (member.is_file and (path in folders or path == root)):
            raise UnsafeArchiveError(f"{archive}: member {member.name!r} would overwrite another")
        folders.update(parent for parent in path.parents if parent.is_relative_to(root))
        (files if member.is_file else folders).add(path)
    if files & folders:
        raise UnsafeArchiveError(
            f"{archive}: {min(files & folders).relative_to(root)} is both a file and a folder"
        )


def _checked_path(archive: Path, name: str, root: Path) -> Path:
    """Return the path of the member ``name`` below ``root``. Raises UnsafeArchiveError for a path outside ``root``."""
    # A backslash, a drive and a zero byte have special meanings on some systems. Ordinary names have none of these.
    path = Path(os.path.normpath(root / name))
    if not path.is_relative_to(root) or "\\" in name or "\0" in name or PureWindowsPath(name).drive:
        raise UnsafeArchiveError(f"{archive}: member {name!r} would be written outside the target folder")
    return path


def _write_members(archive: Path, folder: Path) -> None:
    """Write all members of a checked archive into ``folder``, the folders first."""
    root = folder.resolve()
    with _reading(archive):
        for member in _members(archive):
            if member.is_folder:
                (root / member.name).mkdir(parents=True, exist_ok=True)
        for member, content in _contents(archive):
            # The path is checked again right before the write, with the links on disk.
            path = (root / member.name).resolve()
            if not path.is_relative_to(root):
                raise UnsafeArchiveError(f"{archive}: member {member.name!r} leads outside the target folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_file(archive, member, content, path)


def _write_file(archive: Path, member: _Member, content: IO[bytes], path: Path) -> None:
    """Write one member's ``content`` to the new file ``path``. Raises if its size is not the declared size."""
    # Only the declared size was checked against the limits, so a longer stream is refused.
    left = member.size
    with path.open("xb", buffering=0) as file:
        while piece := content.read(_COPY_BYTES):
            left -= len(piece)
            if left < 0:
                raise UnsafeArchiveError(f"{archive}: member {member.name!r} is larger than it declares")
            _write_piece(file, piece, path)
    if left:
        raise SourceError(f"{archive}: member {member.name!r} ends {left} bytes early")


def _write_piece(file: RawIOBase, piece: bytes, path: Path) -> None:
    """Write all bytes of ``piece``. Raises StoreWriteError, for example if the disk is full."""
    rest = memoryview(piece)
    try:
        while rest:
            rest = rest[file.write(rest) or 0 :]
    # A write error is caught here, because damage to the archive is often an OSError too.
    except OSError as error:
        raise StoreWriteError(f"{path} cannot be written: {error.strerror}; nothing was unpacked") from error


def _members(path: Path) -> Iterator[_Member]:
    """Yield every entry in order. Reads only the list of members at the end of the file."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            yield _zip_member(info)


def _contents(path: Path) -> Iterator[tuple[_Member, IO[bytes]]]:
    """Yield every file with a reader, which is valid until the next file."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                with archive.open(info) as content:
                    yield _zip_member(info), content


def _zip_member(info: zipfile.ZipInfo) -> _Member:
    """Return an entry of the archive's list of members."""
    # The high 16 bits are a Unix mode. A kind of 0 means that the archive has no modes.
    kind = stat.S_IFMT(info.external_attr >> 16)
    return _Member(
        name=info.filename,
        size=info.file_size,
        is_folder=info.is_dir() and kind in {0, stat.S_IFDIR},
        is_file=not info.is_dir() and kind in {0, stat.S_IFREG},
    )


def _check_directory_size(archive: Path, limits: ArchiveLimits) -> None:
    """Refuse an archive with too many members, before `zipfile` builds an object for each.

    A zip file ends with its directory, which lists the members, and an end record. The end record holds the number of
    members and the directory's size. A large archive has a wider second record for these numbers ("zip64").
    """
    if not zipfile.is_zipfile(archive):
        raise zipfile.BadZipFile("it has no directory of members at its end")
    with archive.open("rb") as file:
        # A comment of up to 64 KiB may follow the end record (22 bytes). In front of it, a zip64 archive has a record
        # and a locator with 76 bytes.
        file.seek(max(0, archive.stat().st_size - (1 << 16) - 22 - 76))
        tail = file.read()
    # Each record begins with a signature. The offsets of the two numbers in it are those of the zip format.
    end = tail.rfind(b"PK\x05\x06")
    count, size = struct.unpack_from("<HI", tail, end + 10)
    wide = tail.rfind(b"PK\x06\x06", 0, end)
    if wide >= 0:
        count, size = struct.unpack_from("<QQ", tail, wide + 32)
    # 1024 bytes per member are far more than an entry in an ordinary directory has.
    if count > limits.max_members or size > 1024 * limits.max_members:
        raise UnsafeArchiveError(
            f"{archive} declares {count} members in a directory of {format_bytes(size)}; "
            f"at most {limits.max_members} members are allowed"
        )


_TIMEOUT_S = 30.0  # longest wait for the connection, and for each read
_PIECE_BYTES = 1 << 20  # bytes per read from the server
# Bytes of free disk space that a download must leave.
_SPARE_BYTES = 1 << 28


def fetch_ogb(name: str, root: Path, *, progress: PrepareProgress = NO_PROGRESS) -> Path:
    """Download an OGB data set unless it exists, and return its folder.

    Parameters
    ----------
    name : the data set's name, such as "ogbn-arxiv"
    root : the folder for data sets
    progress : receives the step "download"

    Raises
    ------
    MissingDependencyError
        The ogb package, which lists the addresses, is not installed.
    SourceError
        OGB has no data set with this name.
    DownloadError
        The download failed, and nothing was installed. The message explains the installation by hand.
    UnsafeArchiveError
        The archive is unlike OGB's.
    """
    folder = root / name.replace("-", "_")
    if folder.is_dir():
        return folder
    entry = _ogb_entry(name)
    # OGB's list has http addresses. https is used instead, because there is no digest to check the archive.
    url = urlunsplit(urlsplit(entry["url"])._replace(scheme="https"))
    # All steps happen in a temporary folder. A last rename makes the complete data set appear.
    is_new_root = not root.exists()
    scratch = root / f".{folder.name}.{secrets.token_hex(4)}.partial"
    scratch.mkdir(parents=True)
    try:
        archive = scratch / "archive.zip"
        download(url, archive, progress=progress)
        extract_archive(archive, scratch / "unpacked")
        inner = scratch / "unpacked" / entry["download_name"]
        _check_content(inner, url)
        inner.replace(folder)
    except (DownloadError, SourceError) as error:
        raise DownloadError(
            f"cannot download {name}: {error}. Unpack {url} elsewhere, so that {folder}/raw exists, "
            f"or name the folder that holds {folder.name}: ogb:{name}@DIR"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if is_new_root and not any(root.iterdir()):
            root.rmdir()
    return folder


def _check_content(inner: Path, url: str) -> None:
    """Raise DownloadError unless the unpacked folder ``inner`` has the folder "raw" of OGB's archives."""
    if not (inner / "raw").is_dir():
        raise DownloadError(f"{url} does not hold {inner.name}/raw")


def download(
    url: str, target: Path, *, sha256: str | None = None, progress: PrepareProgress = NO_PROGRESS
) -> None:
    """Download a file. It appears only after a check of its length, and of its digest if given.

    Redirects must keep the scheme of ``url`` (https or http).

    Parameters
    ----------
    url : the address
    target : the file to make
    sha256 : the file's expected hexadecimal digest, or None to accept any file
    progress : receives the step "download", in bytes

    Raises
    ------
    DownloadError
        The connection fails, the server refuses or redirects to another scheme, the length or digest is wrong, or the
        disk has too little room. No file is left.
    """
    if urlsplit(url).scheme not in {"https", "http"}:
        raise DownloadError(f"{url} is not an https address")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    try:
        with _opener().open(Request(url), timeout=_TIMEOUT_S) as response, partial.open("xb") as file:  # noqa: S310  # the scheme was checked
            digest = _receive(response, file, url, progress)
        if sha256 is not None and digest != sha256.lower():
            raise DownloadError(f"{url} has the SHA-256 digest {digest}, expected {sha256}; nothing was kept")
        partial.replace(target)
    except (URLError, HTTPException, TimeoutError, OSError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise DownloadError(f"{url} cannot be downloaded ({reason})") from error
    finally:
        partial.unlink(missing_ok=True)


def _receive(response: HTTPResponse, file: IO[bytes], url: str, progress: PrepareProgress) -> str:
    """Write the response's body into ``file``, check its length, and return its SHA-256 digest."""
    header = response.headers.get("Content-Length")
    expected = int(header) if header is not None and header.isdigit() else None
    free = shutil.disk_usage(Path(file.name).parent).free
    # A file that is too large is refused before the first byte.
    if expected is not None and expected + _SPARE_BYTES > free:
        raise DownloadError(f"{url} has {format_bytes(expected)}, the disk has {format_bytes(free)} free")
    digest, done = hashlib.sha256(), 0
    while piece := response.read(_PIECE_BYTES):
        file.write(piece)
        digest.update(piece)
        done += len(piece)
        progress.advance("download", done, expected, "bytes")
    # A broken connection looks like the end of the body. Only the length shows the difference.
    if expected is not None and done != expected:
        raise DownloadError(f"{url} ended after {done} of {expected} bytes")
    return digest.hexdigest()


class _SameScheme(HTTPRedirectHandler):
    """Follows a redirect only within the scheme of the request."""

    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,  # as in the base class
        newurl: str,
    ) -> Request | None:
        """Return the request for the new address. Raises DownloadError if its scheme differs."""
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            raise DownloadError(f"{req.full_url} redirects to {newurl}, which leaves its scheme")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> OpenerDirector:
    """Return an opener for only http and https."""
    # `urllib.request.build_opener` would add handlers for file, ftp and data addresses.
    opener = OpenerDirector()
    for handler in (
        ProxyHandler,
        HTTPHandler,
        HTTPSHandler,
        HTTPDefaultErrorHandler,
        _SameScheme,
        HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _ogb_entry(name: str) -> dict[str, str]:
    """Return a data set's properties, such as "url", from the ogb package's table ``master.csv``."""
    # The package is located without an import, because importing ogb checks the network for updates.
    spec = importlib.util.find_spec("ogb")
    if spec is None or spec.origin is None:
        raise MissingDependencyError.of_extra(f"downloading {name} needs the ogb package", "ogb")
    task, kind = ("linkproppred", "link") if name.startswith("ogbl-") else ("nodeproppred", "node")
    with (Path(spec.origin).parent / task / "master.csv").open(newline="") as file:
        # The table has a column for each data set, and a row for each property. Its first cell is empty.
        (_, *names), *rows = csv.reader(file)
    if name not in names:
        nearest = get_close_matches(name, names, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else "."
        raise SourceError(f"OGB has no {kind} data set {name!r}{hint} It has {', '.join(names)}")
    column = names.index(name) + 1
    return {row[0]: row[column] for row in rows if row}
