"""Digests of checkpoints: a file ends with its own, a folder holds those of its files; nothing is believed unseen."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from gloader.errors import CheckpointError
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.atomic_file import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SUMS_NAME = "SHA256SUMS"  # in a folder, written last; `sha256sum -c SHA256SUMS` checks it by hand
_SEAL = re.compile(rb"\ngloader checkpoint (\d{5,})-(\d{7,}) ([0-9a-f]{64})\n\Z")
_MAX_SEAL_BYTES = 200
_SUM = re.compile(r"([0-9a-f]{64})  ([\w.-]+)\n")
_ADVICE = "it is damaged, or not written by this version of gloader train; take it away and train again"


def sealed(body: memoryview, position: tuple[int, int]) -> bytes:
    """Return ``body`` with the seal that makes it a checkpoint file. Pure.

    Parameters
    ----------
    body : the content
    position : epoch and index of the batch that training goes on with
    """
    head = f"\ngloader checkpoint {position[0]:05}-{position[1]:07} ".encode()
    digest = hashlib.sha256(body)
    digest.update(head)
    return b"".join((body, head, digest.hexdigest().encode(), b"\n"))


def unsealed(content: bytes, file: Path) -> tuple[memoryview, tuple[int, int]]:
    """Return the body and the position of a checkpoint file with ``content``. Pure.

    Raises
    ------
    CheckpointError
        There is no seal, or not one bit for bit of this content.
    """
    found = _SEAL.search(content, max(0, len(content) - _MAX_SEAL_BYTES))
    if found is None:
        raise CheckpointError(f"{file} cannot be read as a checkpoint: it ends without a digest; {_ADVICE}")
    digest = hashlib.sha256(memoryview(content)[: found.start(3)])
    if digest.hexdigest().encode() != found[3]:
        raise CheckpointError(
            f"{file} cannot be read as a checkpoint: its bytes do not match its digest; {_ADVICE}"
        )
    return memoryview(content)[: found.start()], (int(found[1]), int(found[2]))


def is_sealed(file: Path) -> bool:
    """Return whether ``file`` ends as a checkpoint does; its bytes are not compared with the digest."""
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - _MAX_SEAL_BYTES))
        return _SEAL.search(opened.read(_MAX_SEAL_BYTES)) is not None


def write_sums(folder: Path, sums: Mapping[str, str], *, os_io: OsIO = REAL_OS) -> None:
    """Complete the checkpoint ``folder``, whose files are on the device, with their digests.

    Parameters
    ----------
    folder : holds the files, and nothing else
    sums : the SHA-256 of each, by name
    """
    # The names reach the device before the record does that makes a checkpoint of them.
    os_io.fsync_dir(folder)
    write_atomically(folder / SUMS_NAME, _sums_text(sums).encode(), os_io=os_io)


def read_checked(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of the checkpoint ``folder``, compared with its digest.

    Raises
    ------
    CheckpointError
        A file is damaged, or the record of the digests is.
    OSError
        A file is missing, or cannot be read.
    """
    text = (folder / SUMS_NAME).read_bytes()
    sums = {name: digest for digest, name in _SUM.findall(text.decode("ascii", "replace"))}
    # Written out again and compared: not one bit of the record is taken for granted.
    if _sums_text(sums).encode() != text:
        raise CheckpointError(f"{folder}: {SUMS_NAME} is malformed; {_ADVICE}")
    contents = {name: (folder / name).read_bytes() for name in sums}
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != sums[name]:
            raise CheckpointError(f"{folder}: the bytes of {name} do not match their digest; {_ADVICE}")
    return contents


def _sums_text(sums: Mapping[str, str]) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
