"""Names and digests of the checkpoints in a run folder, the folder of ``--out``.

A run of one rank writes a checkpoint file, which ends with a seal: a line with its position and its digest. A run of
several ranks (processes that train together) writes a folder of shards, the ranks' parts, with the digests of all its
files. A position is the epoch and the index of the next training batch; the newest checkpoint has the latest position.

`save` and `sharded` in this package write and read the content with the first part of this module. `RunFolder` finds
and removes checkpoints with the second part.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

from gloader.core.malformed import MALFORMED
from gloader.errors import CheckpointError
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.atomic_file import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# This file is written last into a folder. `sha256sum -c SHA256SUMS` checks the folder by hand.
SUMS_NAME = "SHA256SUMS"
# A seal's parts are the epoch, the index of the batch, and the SHA-256 of everything before it.
_SEAL = re.compile(rb"\ngloader checkpoint (\d{5,})-(\d{7,}) ([0-9a-f]{64})\n\Z")
_MAX_SEAL_BYTES = 200  # the search for a seal begins this far before the file's end
_SUM = re.compile(r"([0-9a-f]{64})  ([\w.-]+)\n")  # a line of the digest record: digest and file name
_ADVICE = "it is damaged, or not written by this version of gloader train; move it away and train again"


def sealed(body: memoryview, position: tuple[int, int]) -> bytes:
    """Return ``body`` followed by the seal of a checkpoint file. Pure.

    Parameters
    ----------
    body : content of the checkpoint
    position : epoch and index of the next training batch
    """
    head = f"\ngloader checkpoint {position[0]:05}-{position[1]:07} ".encode()
    digest = hashlib.sha256(body)
    digest.update(head)
    return b"".join((body, head, digest.hexdigest().encode(), b"\n"))


def unsealed(content: bytes, file: Path) -> tuple[memoryview, tuple[int, int]]:
    """Return the body and the position of a checkpoint file with ``content``. Pure.

    The position is the epoch and the index of the next training batch. ``file`` is named in errors.

    Raises
    ------
    CheckpointError
        The seal is missing, or does not match the content.
    """
    seal = _SEAL.search(content, max(0, len(content) - _MAX_SEAL_BYTES))
    if seal is None:
        raise CheckpointError(f"{file} cannot be read as a checkpoint: it ends without a digest; {_ADVICE}")
    digest = hashlib.sha256(memoryview(content)[: seal.start(3)])
    if digest.hexdigest().encode() != seal[3]:
        raise CheckpointError(
            f"{file} cannot be read as a checkpoint: its bytes do not match its digest; {_ADVICE}"
        )
    return memoryview(content)[: seal.start()], (int(seal[1]), int(seal[2]))


def is_sealed(file: Path) -> bool:
    """Return whether ``file`` ends with a seal. Does not compare its bytes with the digest."""
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - _MAX_SEAL_BYTES))
        return _SEAL.search(opened.read(_MAX_SEAL_BYTES)) is not None


def write_sums(folder: Path, sums: Mapping[str, str], *, os_io: OsIO = REAL_OS) -> None:
    """Complete the checkpoint ``folder`` with a record of its files' digests. The files must be synced already.

    Parameters
    ----------
    folder : folder with only the checkpoint files
    sums : SHA-256 of each file, by name
    """
    # The file names must survive a power loss before the record makes the folder a checkpoint.
    os_io.fsync_dir(folder)
    write_atomically(folder / SUMS_NAME, _sums_text(sums).encode(), os_io=os_io)


def read_checked(folder: Path) -> dict[str, bytes]:
    """Return each file's content in the checkpoint ``folder``, verified against its digest.

    Raises
    ------
    CheckpointError
        A file or the digest record is damaged.
    OSError
        A file is missing, or cannot be read.
    """
    text = (folder / SUMS_NAME).read_bytes()
    sums = {name: digest for digest, name in _SUM.findall(text.decode("ascii", "replace"))}
    # The record is written out again and compared, so that every bit of it is checked.
    if _sums_text(sums).encode() != text:
        raise CheckpointError(f"{folder}: {SUMS_NAME} is malformed; {_ADVICE}")
    contents = {name: (folder / name).read_bytes() for name in sums}
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != sums[name]:
            raise CheckpointError(f"{folder}: the bytes of {name} do not match their digest; {_ADVICE}")
    return contents


def _sums_text(sums: Mapping[str, str]) -> str:
    """Return the digest record of files, in the form of ``sha256sum``."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


CHECKPOINT_NAME = "checkpoint.pt"
# The mark. This file is written first into a folder of shards, and holds the id of the run that owns the folder.
MARK_NAME = "gloader-run"
# torch writes this file last into the same folder. It lists every tensor with its file and offset.
TORCH_RECORD_NAME = ".metadata"
_SHARDS = re.compile(r"checkpoint-(\d{5,})-(\d{7,})")  # checkpoint folders of runs with several ranks

_REMOVED = re.compile(rf"\.{_SHARDS.pattern}\.removed")  # names by `removed_name`


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint at ``path``, which is a checkpoint or a run folder; CheckpointError if there is none.

    The result is a file, or a folder if several ranks wrote it.
    """
    if path.is_file() or is_sharded_checkpoint(path):
        return path
    if _is_torch_checkpoint(path):
        raise CheckpointError(
            f"{path} has no {SUMS_NAME}: it was never completed, or not written by this version of gloader train; "
            "train again"
        )
    found = newest_checkpoint(path) or newest_checkpoint(path / _best_run(path / "result.json"))
    if found is None:
        raise CheckpointError(f"{path} holds no {CHECKPOINT_NAME}; give the --out folder of a training run")
    return found


def newest_checkpoint(root: Path) -> Path | None:
    """Return the complete checkpoint with the latest position in the run folder ``root``, or None."""
    folders = [folder for folder in shard_folders(root) if is_sharded_checkpoint(folder)]
    files = [file for file in (root / CHECKPOINT_NAME,) if file.is_file()]
    checkpoints = [*files, *folders]
    if len(checkpoints) < 2:
        return checkpoints[0] if checkpoints else None
    # A run may be killed before it deletes an older checkpoint, or resume with another number of ranks. File times
    # are no criterion: clocks are set, and copies have new times.
    return max(checkpoints, key=_position)


def is_sharded_checkpoint(path: Path) -> bool:
    """Return whether ``path`` is a complete checkpoint written by several ranks."""
    return (path / SUMS_NAME).is_file()


def shard_folders(root: Path) -> list[Path]:
    """Return the folders in ``root`` with parts of checkpoints from several ranks, complete or not.

    A filled folder with such a name but without the mark `MARK_NAME` is left out: another program or an earlier version
    made it.
    """
    named = [path for path in root.iterdir() if _SHARDS.fullmatch(path.name)] if root.is_dir() else []
    return [path for path in named if path.is_dir() and not path.is_symlink() and _is_marked(path)]


def foreign_folders(root: Path) -> list[Path]:
    """Return folders in ``root`` with a checkpoint's name and no mark, such as those of earlier versions."""
    ours = shard_folders(root)
    return [
        path
        for path in root.iterdir()
        if _SHARDS.fullmatch(path.name) and _is_torch_checkpoint(path) and path not in ours
    ]


def removed_name(folder: Path) -> str:
    """Return a shard folder's temporary name during its deletion. Pure."""
    return f".{folder.name}.removed"


def removed_folders(root: Path) -> list[Path]:
    """Return the folders in ``root`` with an interrupted deletion."""
    return [path for path in root.iterdir() if _REMOVED.fullmatch(path.name) and path.is_dir()]


def _is_torch_checkpoint(path: Path) -> bool:
    """Return whether ``path`` is a folder that torch's writer has completed."""
    return (path / TORCH_RECORD_NAME).is_file()


def _is_marked(folder: Path) -> bool:
    """Return whether a run of this version made ``folder``."""
    # A new folder without a mark is also ours: it is empty, or holds an incomplete mark.
    names = {path.name for path in folder.iterdir()}
    return MARK_NAME in names or all(name.startswith(f".{MARK_NAME}.") for name in names)


def _position(path: Path) -> tuple[int, int]:
    """Return epoch and index of the next training batch; CheckpointError for a damaged file."""
    named = _SHARDS.fullmatch(path.name)
    return (int(named[1]), int(named[2])) if named else unsealed(path.read_bytes(), path)[1]


def _best_run(result: Path) -> str:
    """Return the best run's name among several, or the first name if ``result`` has none."""
    try:
        return f"run-{int(json.loads(result.read_bytes())['best_run'])}"
    except (OSError, *MALFORMED):
        return "run-0"
