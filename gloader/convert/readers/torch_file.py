"""Files of `torch.save`, looked at before they are read."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.npy_file import raising_source_errors
from gloader.convert.readers.stored_array import tell_where_cut
from gloader.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path


def require_plain_archive(path: Path) -> None:
    """Refuse a file of `torch.save` whose records unpack to more bytes than it has: torch never packs them.

    Raises
    ------
    SourceError
        It does, or its directory is damaged. A file that is no zip archive, as of torch before 1.6, passes.
    """
    with raising_source_errors(str(path)):
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            held = sum(info.file_size for info in archive.infolist())
        if held > path.stat().st_size:
            raise SourceError(
                f"{path} has {path.stat().st_size} bytes and declares records of {held}; torch.save packs nothing"
            )


def load_mapping(path: Path, *, missing: str) -> Mapping[Any, Any]:
    """Return the dictionary in a ``.pt`` file of numbers, tensors and numpy arrays; nothing else is unpickled.

    Tensors of a zip archive, as torch has written since 1.6, are mapped; arrays are in memory.

    Parameters
    ----------
    path : of the file
    missing : what to do where there is none, for the message

    Raises
    ------
    SourceError
        The file is missing or corrupt, or holds something else.
    """
    import torch

    if not path.is_file():
        raise SourceError(f"{path} is missing; {missing}")
    require_plain_archive(path)
    tell_where_cut(path)
    try:
        # weights_only refuses everything that is not listed, so that no code of the file runs.
        with torch.serialization.safe_globals(_array_constructors()):
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # an unpickler may raise anything on a damaged or hostile file
        raise SourceError(
            f"{path} is corrupt or holds other objects than numbers and arrays: {str(error)[:200]}"
        ) from error
    if not isinstance(loaded, Mapping):
        raise SourceError(f"{path} holds a {type(loaded).__name__}; a dictionary was expected")
    return loaded


def pickled_bytes(path: Path) -> int:
    """Return the bytes of a file of `torch.save` that are read into memory: all that are no tensors of a zip archive.

    Raises
    ------
    SourceError
        The file is missing, or its directory is damaged.
    """
    with raising_source_errors(str(path)):
        if not zipfile.is_zipfile(path):
            return path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            return sum(info.file_size for info in archive.infolist() if info.filename.endswith("data.pkl"))


def _array_constructors() -> list[Any]:
    """Return what rebuilds numpy arrays and scalars of integers and floats, under numpy 1's names and numpy 2's."""
    # A pickled array names the functions that rebuild it; numpy 2 renamed their module, and files have either name.
    multiarray = np.core.multiarray if np.lib.NumpyVersion(np.__version__) < "2.0.0" else np._core.multiarray  # type: ignore[attr-defined] # noqa: SLF001
    rebuild, scalar = multiarray._reconstruct, multiarray.scalar  # noqa: SLF001 - pickles of arrays name it
    names = ("numpy.core.multiarray", "numpy._core.multiarray")
    functions = [(rebuild, f"{name}._reconstruct") for name in names] + [
        (scalar, f"{name}.scalar") for name in names
    ]
    dtypes = {
        type(np.dtype(code))
        for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?")
    }
    return [*functions, np.ndarray, np.dtype, *dtypes]
