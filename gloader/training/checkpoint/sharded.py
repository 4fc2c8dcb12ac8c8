"""Checkpoints written by all ranks of a run, one part each, with ``torch.distributed.checkpoint``.

A rank is one of the processes that train together. Such a checkpoint is a folder. torch's writer puts the tensors into
it, and torch's record, a pickle, lists them. The other values are one JSON document, stored as a tensor of bytes. At
the end, a file with the digests of all files makes the folder a checkpoint. `save_shards` writes a folder.
`load_shards` reads it: it verifies the digests, and unpickles nothing but the classes of torch's record.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.checkpoint import metadata as torch_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from gloader.core.signals import interruption_first
from gloader.errors import CheckpointError, StoreWriteError
from gloader.ssd_store.os_io import REAL_OS, OsIO, write_errors, write_full
from gloader.ssd_store.write.atomic_file import write_atomically
from gloader.training.checkpoint.files import (
    MARK_NAME,
    TORCH_RECORD_NAME,
    read_checked,
    write_sums,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gloader.training.group import RankGroup


_DOCUMENT = "document"  # name of the tensor with the JSON document
_BUFFER_BYTES = 1 << 20  # buffer of a file during its writing
_TENSOR = "$tensor"  # key of an object in the document that stands for a tensor
_METADATA = torch_metadata.__name__  # module of the record's classes
# Module and name of every class that a record may contain.
_ALLOWED = {
    *(
        (_METADATA, name)
        for name in (
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "ChunkStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
}


def save_shards(folder: Path, content: Any, group: RankGroup, *, run_id: str, os_io: OsIO = REAL_OS) -> None:
    """Write ``content``, dicts and lists of tensors and JSON values, to a new ``folder``; collective.

    Collective means that all ranks must call it. Every rank passes the same tensors. JSON values are taken from the
    first rank. All files are synced before the file with their digests is written.

    Parameters
    ----------
    folder : must not exist yet
    content : this rank's content
    group : the ranks that write together
    run_id : id of the run that owns the folder

    Raises
    ------
    StoreWriteError
        A rank could not write its part; the folder holds no checkpoint.
    """
    tensors: dict[str, torch.Tensor] = {}
    values = _take_tensors(content, "", tensors)
    # All ranks use the first rank's document: measured values such as seconds differ between ranks.
    document = json.dumps(group.run_on_first(lambda: values)).encode()
    tensors[_DOCUMENT] = torch.frombuffer(bytearray(document), dtype=torch.uint8)
    files = _NewFiles(os_io, needed_bytes=sum(tensor.nbytes for tensor in tensors.values()))
    # torch syncs files without `os_io`; `_NewFiles` syncs every file through it.
    writer = FileSystemWriter(folder, sync_files=False)
    writer.fs = files
    try:
        group.run_on_first(lambda: files.begin(folder, run_id))
        # torch would take Ctrl-C for a failure of this rank's part, and continue to notify the other ranks.
        with group.lost_rank_errors(), interruption_first(), _is_quiet():
            save(tensors, storage_writer=writer)
    except CheckpointException as error:  # a BaseException
        raise StoreWriteError(f"checkpoint {folder} could not be written: {_first_failure(error)}") from error
    # Digests are computed during the writes, so that no file is read again.
    parts = group.gather(files.sums)
    sums = {name: digest for part in parts for name, digest in part.items()}
    group.run_on_first(lambda: _complete(folder, sums, os_io))


def _complete(folder: Path, sums: Mapping[str, str], os_io: OsIO) -> None:
    """Write the digests ``sums``, by file name, which complete the checkpoint. For the first rank."""
    write_sums(folder, sums, os_io=os_io)
    with write_errors(folder, "writing the checkpoint", os_io=os_io):
        # Sync the folder's own name: a power loss must not remove it after the older checkpoint was deleted.
        os_io.fsync_dir(folder.parent)


def load_shards(folder: Path) -> Any:
    """Return the content of ``folder``, on the CPU. Never executes code from the files. Not collective.

    torch stores the record as a pickle. Only torch's own record classes are allowed in it. Entries that are no tensors,
    which torch would unpickle too, are refused.

    Raises
    ------
    CheckpointError
        The folder holds no checkpoint, or a malformed or damaged checkpoint.
    """
    try:
        reader = _ShardReader(folder, read_checked(folder))
        entries = reader.read_metadata().state_dict_metadata
        # torch loads into existing tensors; the record has their shapes.
        tensors = {name: _empty(name, entry) for name, entry in entries.items()}
        with _is_quiet():
            load(tensors, storage_reader=reader, no_dist=True)
        document = json.loads(tensors.pop(_DOCUMENT).numpy().tobytes())
        return _put_tensors(document, tensors)
    except CheckpointError:
        raise
    # torch raises its own BaseException; a malformed file may raise any error.
    except (CheckpointException, Exception) as error:
        raise CheckpointError(f"{folder} cannot be read as a checkpoint: {_first_failure(error)}") from error


class _NewFiles(FileSystem):
    """File system for torch's writer. It makes files through `OsIO`, syncs them on close, and records their digests."""

    def __init__(self, os_io: OsIO, *, needed_bytes: int) -> None:
        self._os_io = os_io
        self._needed_bytes = needed_bytes  # size of the whole checkpoint
        self.sums: dict[str, str] = {}  # SHA-256 of each finished file, by name

    def begin(self, folder: Path, run_id: str) -> None:
        """Make ``folder`` and mark it with the run's id."""
        mark = f"{run_id}\n".encode()
        with write_errors(folder, "making the folder", os_io=self._os_io):
            self._os_io.mkdir(folder)
            write_atomically(folder / MARK_NAME, mark, os_io=self._os_io)
        self.sums[MARK_NAME] = hashlib.sha256(mark).hexdigest()

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:  # noqa: ARG002
        """Yield a new file to write."""
        # `rename` gives this .tmp file its final name.
        name = Path(path).name.removesuffix(".tmp")
        with write_errors(Path(path), "writing", needed_bytes=self._needed_bytes, os_io=self._os_io):
            fd = self._os_io.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
            file = _NewFile(fd, self._os_io)
            try:
                # torch writes a few bytes at a time.
                stream = io.BufferedWriter(file, _BUFFER_BYTES)
                yield stream
                stream.close()
                self._os_io.fsync(fd)
            finally:
                # The file object is closed before its descriptor: after a failed write, its buffered bytes would
                # otherwise go to the next file with the same descriptor number.
                file.close()
                self._os_io.close(fd)
        self.sums[name] = file.digest.hexdigest()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Give a file its final name."""
        self._os_io.replace(path, new_path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: the first rank made the folder."""


class _NewFile(io.RawIOBase):
    """A write-only file, written from start to end. Does not own the descriptor."""

    def __init__(self, fd: int, os_io: OsIO) -> None:
        self.digest = hashlib.sha256()
        self._fd = fd
        self._os_io = os_io
        self._num_bytes = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Append all of ``data``."""
        view = memoryview(data).cast("B")
        write_full(self._fd, view, os_io=self._os_io)
        self.digest.update(view)
        self._num_bytes += len(view)
        return len(view)

    def tell(self) -> int:
        """Return the bytes written."""
        return self._num_bytes


class _CheckedFiles(FileSystem):
    """File system for torch's reader. It has verified files in memory, so that exactly the checked bytes are read."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = contents

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:  # noqa: ARG002
        """Yield the file ``path``; KeyError if the record names a file that is not in the folder."""
        yield io.BytesIO(self._contents[Path(path).name])


class _ShardReader(FileSystemReader):
    """Reads a checkpoint without executing code from its record."""

    def __init__(self, folder: Path, contents: Mapping[str, bytes]) -> None:
        super().__init__(folder)
        self._record = contents[TORCH_RECORD_NAME]
        self.fs = _CheckedFiles(contents)

    def read_metadata(self, *_: Any, **__: Any) -> torch_metadata.Metadata:
        """Return torch's record, which lists the tensors with their shapes and files."""
        record = _RecordUnpickler(io.BytesIO(self._record)).load()
        if not isinstance(record, torch_metadata.Metadata):
            raise CheckpointError(f"its record is a {type(record).__name__}")
        return record


class _RecordUnpickler(pickle.Unpickler):
    """Unpickles only the classes of a record and torch's dtypes."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of a record; CheckpointError for anything else."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _ALLOWED:
            raise CheckpointError(f"its record names {module}.{name}, which is no part of one")
        return super().find_class(module, name)


def _empty(name: str, entry: Any) -> torch.Tensor:
    """Return an unwritten tensor for the record's entry ``name``. Raises CheckpointError if it is no tensor."""
    if not isinstance(entry, torch_metadata.TensorStorageMetadata):
        raise CheckpointError(f"its entry {name!r} is no tensor")
    return torch.empty(entry.size, dtype=entry.properties.dtype)


def _take_tensors(content: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return ``content`` with an object with a name in place of each tensor. Adds the tensors to ``tensors`` by name.

    ``path`` is the place of ``content`` in the whole content. It is the name if ``content`` is a tensor.
    """
    if isinstance(content, torch.Tensor):
        tensors[path] = content.detach()
        return {_TENSOR: path}
    if isinstance(content, dict):
        return {key: _take_tensors(value, f"{path}/{key}", tensors) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_take_tensors(value, f"{path}/{i}", tensors) for i, value in enumerate(content)]
    return content.item() if isinstance(content, np.generic) else content


def _put_tensors(document: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return ``document`` with the tensors in place of their names. This is the inverse of `_take_tensors`."""
    if isinstance(document, dict):
        if set(document) == {_TENSOR}:
            return tensors[document[_TENSOR]]
        return {key: _put_tensors(value, tensors) for key, value in document.items()}
    if isinstance(document, list):
        return [_put_tensors(value, tensors) for value in document]
    return document


def _first_failure(error: BaseException) -> str:
    """Return the text of ``error``, or of the first rank's error in torch's collection of errors."""
    if isinstance(error, CheckpointException):
        rank, (inner, _) = next(iter(error.failures.items()))
        return f"rank {rank}: {_text(inner)}"
    return _text(error)


def _text(error: BaseException) -> str:
    # The text of our errors names the file and the bytes.
    return str(error) if isinstance(error, StoreWriteError) else repr(error)


@contextmanager
def _is_quiet() -> Iterator[None]:
    """Suppress torch's warnings about processes without a group and about its own deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
