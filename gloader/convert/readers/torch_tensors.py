"""Tensors of a saved object as numpy arrays: dense ones only, and none that repeat what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    import torch
    from numpy.typing import NDArray


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
