"""Readers of files from `torch.save`, which are checked before they are read, and whose code never runs.

The sources of OGB's data sets call `load_mapping`, which loads the dictionary in a file. The source of PyG's graphs
calls `attributes_of`, which converts tensors: dense ones become numpy arrays, and sparse matrices become `SparseRows`.
A tensor may repeat a few stored values many times. Such a tensor is refused, because it could fill the disk.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from gloader.convert.readers.arrays import SparseRows
from gloader.convert.readers.attributes import Attributes
from gloader.convert.readers.npy_file import raising_source_errors, tell_where_cut
from gloader.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from numpy.typing import NDArray


def require_plain_archive(path: Path) -> None:
    """Refuse a compressed zip archive, because `torch.save` never compresses.

    A compressed archive could unpack to far more bytes than expected. A file that is not a zip archive, such as from
    torch before 1.6, is accepted.

    Raises
    ------
    SourceError
        The archive's members unpack to more bytes than the file has, or its table of contents is damaged.
    """
    with raising_source_errors(str(path)):
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked > path.stat().st_size:
            raise SourceError(
                f"{path} has {path.stat().st_size} bytes and declares records of {unpacked}; torch.save never "
                "compresses"
            )


def load_mapping(path: Path, *, missing: str) -> Mapping[Any, Any]:
    """Return the dictionary in a ``.pt`` file with numbers, tensors and numpy arrays. Other objects are refused.

    Tensors in a zip archive, torch's format since 1.6, are memory-mapped. numpy arrays are in memory.

    Parameters
    ----------
    path : the file
    missing : the remedy for a missing file, for the message

    Raises
    ------
    SourceError
        The file is missing or corrupt, or has other objects.
    """
    loaded = _loaded(path, missing)
    if not isinstance(loaded, Mapping):
        raise SourceError(f"{path} holds a {type(loaded).__name__}; a dictionary was expected")
    return loaded


def load_tensor(path: Path, *, missing: str) -> NDArray[np.generic]:
    """Return the one dense tensor, or numpy array, in a ``.pt`` file. Takes the parameters of `load_mapping`.

    Raises
    ------
    SourceError
        As `load_mapping`, or the file has something else than a dense array.
    """
    loaded = _loaded(path, missing)
    if isinstance(loaded, np.ndarray):
        return loaded
    tensors = dense_tensors({"tensor": loaded})
    if not tensors:
        raise SourceError(f"{path} holds a {type(loaded).__name__}; a dense tensor was expected")
    require_stored(tensors, path)
    return numpy_arrays(tensors)["tensor"]


def _loaded(path: Path, missing: str) -> Any:
    """Return the object in a file from `torch.save`; see `load_mapping`."""
    import torch

    if not path.is_file():
        raise SourceError(f"{path} is missing; {missing}")
    require_plain_archive(path)
    tell_where_cut(path)  # for the message if the mapped file becomes shorter
    try:
        # weights_only refuses all functions that are not listed, so that no code in the file runs.
        with torch.serialization.safe_globals(_array_constructors()):
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # an unpickler may raise anything on a damaged or malicious file
        raise SourceError(
            f"{path} is corrupt or holds other objects than numbers and arrays: {str(error)[:200]}"
        ) from error
    return loaded


def pickled_bytes(path: Path) -> int:
    """Return the bytes of a `torch.save` file that are read into memory.

    In a zip archive, these are the bytes of the pickle, because the tensors are mapped. Otherwise, these are all bytes.

    Raises
    ------
    SourceError
        The file is missing, or the archive's table of contents is damaged.
    """
    with raising_source_errors(str(path)):
        if not zipfile.is_zipfile(path):
            return path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            return sum(info.file_size for info in archive.infolist() if info.filename.endswith("data.pkl"))


def _array_constructors() -> list[Any]:
    """Return the functions and classes that rebuild numpy arrays and scalars, for torch's list of safe names.

    An entry may be a pair of a function and its name in files.
    """
    # A pickled array names the function that rebuilds it. numpy 2 renamed the module, and files have either name.
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


# Entries of PyG's stores (see `attributes_of`) that are plain numbers. Other code reads them, so they count as used.
_KNOWN_OTHERS: Final = frozenset({"num_nodes", "num_classes"})


def attributes_of(entries: Mapping[Any, Any], where: str) -> Attributes:
    """Return the content of a PyG store, which holds the tensors of a node type or a relation.

    Dense tensors become arrays, sparse matrices `SparseRows`. Of other entries, only the Python types are kept.

    Parameters
    ----------
    entries : the store's entries by name; keys other than text are ignored
    where : the file or array, for messages

    Raises
    ------
    SourceError
        A tensor repeats stored values, or a sparse matrix is malformed.
    """
    dense = dense_tensors(entries)
    require_stored(dense, where)
    arrays, others = numpy_arrays(dense), {}
    for name, value in entries.items():
        if not isinstance(name, str) or name in arrays or name in _KNOWN_OTHERS or value is None:
            continue
        rows = _sparse_rows(value, f"{where}: {name}")
        if rows is None:
            others[name] = type(value).__name__
        else:
            arrays[name] = cast("NDArray[np.generic]", rows)
    return Attributes(arrays=arrays, where=where, others=others)


def _sparse_rows(value: Any, where: str) -> SparseRows | None:
    """Return a sparse torch tensor or a torch_sparse ``SparseTensor`` as a matrix, or None for other objects."""
    import torch

    if isinstance(value, torch.Tensor) and value.layout != torch.strided and value.dim() == 2:
        with warnings.catch_warnings():
            # torch warns that its sparse tensors are a new feature.
            warnings.simplefilter("ignore")
            csr = (value.coalesce() if value.layout == torch.sparse_coo else value).detach().to_sparse_csr()
        indptr, columns, values = csr.crow_indices(), csr.col_indices(), csr.values()
        num_rows, num_columns = csr.shape
    elif type(value).__name__ == "SparseTensor" and hasattr(value, "csr"):
        indptr, columns, values = value.csr()
        num_rows, num_columns = value.sizes()[:2]
        values = torch.ones(len(columns)) if values is None else values.detach()
    else:
        return None
    if values.dim() != 1:
        raise SourceError(
            f"{where} is sparse with values of shape {tuple(values.shape)}; give one number an entry"
        )
    data = numpy_arrays({"values": values})["values"]
    return SparseRows.of(indptr.numpy(), columns.numpy(), data, shape=(num_rows, num_columns), where=where)


def dense_tensors(entries: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    """Return the dense tensors by name. Pure."""
    import torch

    # Sparse and quantized tensors are not plain arrays. Keys other than text are not names of attributes.
    return {
        key: value
        for key, value in entries.items()
        if isinstance(key, str)
        and isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not value.is_quantized
    }


def numpy_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[np.generic]]:
    """Return tensors as arrays that share their memory. bfloat16, which numpy lacks, is copied to float32."""
    import torch

    return {
        name: (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()
        for name, value in tensors.items()
    }


def require_stored(tensors: Mapping[str, torch.Tensor], where: Path | str) -> None:
    """Refuse tensors that repeat stored values, because a few bytes could then fill the disk.

    Raises
    ------
    SourceError
        A tensor repeats values. The message has ``where`` and the tensor's name.
    """
    for name, tensor in tensors.items():
        stored, shape = tensor.untyped_storage().nbytes(), tuple(tensor.shape)
        if tensor.numel() * tensor.element_size() > stored:
            raise SourceError(
                f"{where}: {name!r} has shape {shape} over {stored} stored bytes, which it repeats; save "
                f"{name}.contiguous()"
            )
