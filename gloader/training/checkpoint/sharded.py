"""A checkpoint that the ranks of a run write together: a folder of ``torch.distributed.checkpoint``.

Each tensor is written once, by one of the ranks that hold it. Everything that is no tensor travels as JSON in a
tensor of bytes, so that reading never has to execute anything: see `load_shards`.
"""

from __future__ import annotations

import json
import pathlib
import pickle
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.checkpoint import metadata as torch_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from gloader.errors import CheckpointError, StoreWriteError
from gloader.training.checkpoint.find import RECORD_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gloader.training.group import RankGroup

_DOCUMENT = "document"
_TENSOR = "$tensor"
_METADATA = torch_metadata.__name__
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


def save_shards(folder: Path, content: Any, group: RankGroup) -> None:
    """Write ``content``, dicts and lists of tensors and JSON values, to a new ``folder``; collective.

    Every rank gives the same tensors; what is no tensor is taken from the first. The bytes reach the device before
    the record that names them does.

    Parameters
    ----------
    folder : must not hold a checkpoint yet
    content : of this rank
    group : the ranks that write together

    Raises
    ------
    StoreWriteError
        A rank could not write its part; there is no checkpoint in the folder.
    """
    tensors: dict[str, torch.Tensor] = {}
    own = _take_tensors(content, "", tensors)
    # One document for all: what ranks measured, such as seconds, differs.
    document = json.dumps(group.run_on_first(lambda: own)).encode()
    tensors[_DOCUMENT] = torch.frombuffer(bytearray(document), dtype=torch.uint8)
    writer = FileSystemWriter(folder, sync_files=True)
    try:
        with group.lost_rank_errors(), _is_quiet():
            save(tensors, storage_writer=writer)
    except CheckpointException as error:  # a BaseException
        raise StoreWriteError(f"checkpoint {folder} could not be written: {_first_failure(error)}") from error


def load_shards(folder: Path) -> Any:
    """Return the content of ``folder``, on the CPU; not collective. Never executes code from the files.

    torch keeps the record as a pickle, and reads entries that are no tensors with one: of the first only the classes
    that it is made of are allowed, and the second are refused.

    Raises
    ------
    CheckpointError
        The folder holds no checkpoint, or a malformed one.
    """
    reader = _Reader(folder)
    try:
        found = reader.read_metadata().state_dict_metadata
        # torch loads into tensors that exist; the record says their shapes.
        tensors = {name: _empty(name, entry) for name, entry in found.items()}
        with _is_quiet():
            load(tensors, storage_reader=reader, no_dist=True)
        document = json.loads(tensors.pop(_DOCUMENT).numpy().tobytes())
        return _put_tensors(document, tensors)
    # torch's own is a BaseException; a damaged file raises anything.
    except (CheckpointException, Exception) as error:
        raise CheckpointError(f"{folder} cannot be read as a checkpoint: {_first_failure(error)}") from error


class _Reader(FileSystemReader):
    """Reads the record of a checkpoint without executing anything."""

    def read_metadata(self, *_: Any, **__: Any) -> torch_metadata.Metadata:
        """Return the record."""
        with (pathlib.Path(self.path) / RECORD_NAME).open("rb") as file:
            record = _RecordUnpickler(file).load()
        if not isinstance(record, torch_metadata.Metadata):
            raise CheckpointError(f"its record is a {type(record).__name__}")
        return record


class _RecordUnpickler(pickle.Unpickler):
    """Knows the classes of a record, and torch's dtypes."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of a record; CheckpointError for anything else."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _ALLOWED:
            raise CheckpointError(f"its record names {module}.{name}, which is no part of one")
        return super().find_class(module, name)


def _empty(name: str, entry: Any) -> torch.Tensor:
    if not isinstance(entry, torch_metadata.TensorStorageMetadata):
        raise CheckpointError(f"its entry {name!r} is no tensor")
    return torch.empty(entry.size, dtype=entry.properties.dtype)


def _take_tensors(content: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return ``content`` with names for the tensors, which are put into ``tensors``."""
    if isinstance(content, torch.Tensor):
        tensors[path] = content.detach()
        return {_TENSOR: path}
    if isinstance(content, dict):
        return {key: _take_tensors(value, f"{path}/{key}", tensors) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_take_tensors(value, f"{path}/{i}", tensors) for i, value in enumerate(content)]
    return content.item() if isinstance(content, np.generic) else content


def _put_tensors(document: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(document, dict):
        if set(document) == {_TENSOR}:
            return tensors[document[_TENSOR]]
        return {key: _put_tensors(value, tensors) for key, value in document.items()}
    if isinstance(document, list):
        return [_put_tensors(value, tensors) for value in document]
    return document


def _first_failure(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        rank, (inner, _) = next(iter(error.failures.items()))
        return f"rank {rank}: {inner!r}"
    return repr(error)


@contextmanager
def _is_quiet() -> Iterator[None]:
    """Keep back torch's remarks about processes without a group and about its own deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
