"""Tensors of a saved object as numpy arrays: dense or sparse, and none that repeat what is stored."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final, cast

from gloader.convert.readers.arrays import SparseRows
from gloader.convert.readers.attributes import Attributes
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    import torch
    from numpy.typing import NDArray

# Not an array of anything, and read or of no use: the number of nodes, of classes, and PyG's cache.
_KNOWN_OTHERS: Final = frozenset({"num_nodes", "num_classes"})


def attributes_of(found: Mapping[Any, Any], where: str) -> Attributes:
    """Return what a store holds by name: dense tensors as arrays, sparse matrices as `SparseRows`.

    Parameters
    ----------
    found : entries by name; a key that is no text is left out
    where : what holds them, for messages

    Raises
    ------
    SourceError
        A tensor repeats what is stored, or a sparse matrix contradicts itself.
    """
    dense = dense_tensors(found)
    require_stored(dense, where)
    arrays, others = numpy_arrays(dense), {}
    for name, value in found.items():
        if not isinstance(name, str) or name in arrays or name in _KNOWN_OTHERS or value is None:
            continue
        rows = _sparse_rows(value, f"{where}: {name}")
        if rows is None:
            others[name] = type(value).__name__
        else:
            arrays[name] = cast("NDArray[np.generic]", rows)
    return Attributes(arrays=arrays, where=where, others=others)


def _sparse_rows(value: Any, where: str) -> SparseRows | None:
    """Return a sparse matrix of torch's, or of torch_sparse's ``SparseTensor``; None: it is neither."""
    import torch

    if isinstance(value, torch.Tensor) and value.layout != torch.strided and value.dim() == 2:
        with warnings.catch_warnings():
            # That sparse tensors are new to torch.
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


def dense_tensors(found: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    """Return the entries that are dense tensors under a name. Pure."""
    import torch

    # Sparse and quantized tensors are no arrays of numbers. Other keys than text are nobody's attributes.
    return {
        key: value
        for key, value in found.items()
        if isinstance(key, str)
        and isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not value.is_quantized
    }


def numpy_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[np.generic]]:
    """Return tensors as arrays that share their memory; numpy has no bfloat16, so that such tensors are widened."""
    import torch

    return {
        name: (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()
        for name, value in tensors.items()
    }


def require_stored(tensors: Mapping[str, torch.Tensor], where: Path | str) -> None:
    """Refuse tensors that repeat what is stored: a few bytes that would fill the disk.

    Raises
    ------
    SourceError
        One does; names ``where`` and the tensor.
    """
    for name, tensor in tensors.items():
        held, shape = tensor.untyped_storage().nbytes(), tuple(tensor.shape)
        if tensor.numel() * tensor.element_size() > held:
            raise SourceError(
                f"{where}: {name!r} has shape {shape} over {held} stored bytes, which it repeats; save "
                f"{name}.contiguous()"
            )
