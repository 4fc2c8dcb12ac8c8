"""Zip files from elsewhere, unpacked without trusting them.

Every member is checked before the first byte is written, and the bytes are counted while they are.
"""

from __future__ import annotations

import lzma
import os
import secrets
import shutil
import stat
import struct
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import IO, TYPE_CHECKING

from gloader.core.units import format_bytes
from gloader.errors import SourceError, StoreExistsError, StoreWriteError, UnsafeArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import RawIOBase

_COPY_BYTES = 1 << 20
_MIN_ALLOWED_BYTES = 1 << 26  # below this much, no ratio is suspicious
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # a compression method of another age
    RuntimeError,  # an encrypted zip
    struct.error,
    OSError,  # bz2 on damaged streams
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """What an archive may grow to."""

    max_bytes: int = 500 * 10**9
    max_ratio: int = 200  # unpacked over packed bytes; deflate's bombs reach 1,000
    max_members: int = 100_000

    def allowed_bytes(self, packed_bytes: int) -> int:
        """Return how many bytes an archive of ``packed_bytes`` may hold. Pure."""
        return min(self.max_bytes, max(_MIN_ALLOWED_BYTES, self.max_ratio * packed_bytes))


DEFAULT_LIMITS = ArchiveLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """One entry as it declares itself."""

    name: str
    size: int
    is_folder: bool
    is_file: bool


def extract_archive(archive: Path, target: Path, *, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
    """Unpack a zip file into the new folder ``target``, or leave nothing.

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
    with _reading(archive):
        _check_directory_size(archive, limits)
        _check_members(archive, _members(archive), allowed, limits)
    with _scratch_folder(target) as scratch:
        _write_members(archive, scratch)
        scratch.replace(target)


@contextmanager
def _scratch_folder(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    try:
        yield
    except StoreWriteError:
        raise
    except _DAMAGED as error:
        raise SourceError(f"{archive} cannot be read as a zip archive: {error}") from error


def _check_members(
    archive: Path, members: Iterable[_Member], allowed_bytes: int, limits: ArchiveLimits
) -> None:
    root = Path("/target")  # any absolute folder without links serves to compare
    total = 0
    files: set[Path] = set()
    folders: set[Path] = set()
    for number, member in enumerate(members, start=1):
        if number > limits.max_members:
            raise UnsafeArchiveError(f"{archive} has more than {limits.max_members} members")
        if not (member.is_file or member.is_folder):
            raise UnsafeArchiveError(f"{archive}: member {member.name!r} is a link or a device")
        place = _check_name(archive, member.name, root)
        total += member.size
        if member.size < 0 or total > allowed_bytes:
            raise UnsafeArchiveError(
                f"{archive} holds more than {format_bytes(allowed_bytes)} at member {member.name!r}; "
                f"it has {format_bytes(archive.stat().st_size)} itself"
            )
        if place in files or (member.is_file and (place in folders or place == root)):
            raise UnsafeArchiveError(f"{archive}: member {member.name!r} would overwrite another")
        folders.update(parent for parent in place.parents if parent.is_relative_to(root))
        (files if member.is_file else folders).add(place)
    if files & folders:
        raise UnsafeArchiveError(
            f"{archive}: {min(files & folders).relative_to(root)} is both a file and a folder"
        )


def _check_name(archive: Path, name: str, root: Path) -> Path:
    place = Path(os.path.normpath(root / name))
    if not place.is_relative_to(root) or "\\" in name or "\0" in name or PureWindowsPath(name).drive:
        raise UnsafeArchiveError(f"{archive}: member {name!r} would be written outside the target folder")
    return place


def _write_members(archive: Path, folder: Path) -> None:
    root = folder.resolve()
    with _reading(archive):
        for member in _members(archive):
            if member.is_folder:
                (root / member.name).mkdir(parents=True, exist_ok=True)
        for member, content in _contents(archive):
            place = (root / member.name).resolve()
            if not place.is_relative_to(root):  # again, at the place it matters
                raise UnsafeArchiveError(f"{archive}: member {member.name!r} leads outside the target folder")
            place.parent.mkdir(parents=True, exist_ok=True)
            _write_file(archive, member, content, place)


def _write_file(archive: Path, member: _Member, content: IO[bytes], place: Path) -> None:
    left = member.size
    with place.open("xb", buffering=0) as file:
        while piece := content.read(_COPY_BYTES):
            left -= len(piece)
            if left < 0:
                raise UnsafeArchiveError(f"{archive}: member {member.name!r} is larger than it declares")
            _write_piece(file, piece, place)
    if left:
        raise SourceError(f"{archive}: member {member.name!r} ends {left} bytes early")


def _write_piece(file: RawIOBase, piece: bytes, place: Path) -> None:
    rest = memoryview(piece)
    try:
        while rest:
            rest = rest[file.write(rest) or 0 :]
    except OSError as error:  # told apart from damage to the archive, which is often an OSError too
        raise StoreWriteError(f"{place} cannot be written: {error.strerror}; nothing was unpacked") from error


def _members(path: Path) -> Iterator[_Member]:
    """Yield every entry in order; reads the directory at the end of the file only."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            yield _zip_member(info)


def _contents(path: Path) -> Iterator[tuple[_Member, IO[bytes]]]:
    """Yield every file, each with a reader that is valid until the next."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                with archive.open(info) as content:
                    yield _zip_member(info), content


def _zip_member(info: zipfile.ZipInfo) -> _Member:
    kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the archive was made without Unix modes
    return _Member(
        name=info.filename,
        size=info.file_size,
        is_folder=info.is_dir() and kind in {0, stat.S_IFDIR},
        is_file=not info.is_dir() and kind in {0, stat.S_IFREG},
    )


def _check_directory_size(archive: Path, limits: ArchiveLimits) -> None:
    """Refuse a directory of too many members before `zipfile` builds an object for each."""
    if not zipfile.is_zipfile(archive):
        raise zipfile.BadZipFile("it has no directory of members at its end")
    with archive.open("rb") as file:
        file.seek(max(0, archive.stat().st_size - (1 << 16) - 22 - 76))
        tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    count, size = struct.unpack_from("<HI", tail, end + 10)
    wide = tail.rfind(b"PK\x06\x06", 0, end)
    if wide >= 0:
        count, size = struct.unpack_from("<QQ", tail, wide + 32)
    if count > limits.max_members or size > 1024 * limits.max_members:
        raise UnsafeArchiveError(
            f"{archive} declares {count} members in a directory of {format_bytes(size)}; "
            f"at most {limits.max_members} members are allowed"
        )
