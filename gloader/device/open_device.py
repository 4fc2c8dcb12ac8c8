"""From torch's name of a device to what the loader asks of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.device.cpu import CpuDevice
from gloader.device.cuda import CudaDevice
from gloader.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from gloader.device.seam import Device


def open_device(place: torch.device) -> Device:
    """Return the device at ``place``.

    Raises
    ------
    ConfigError
        There is none, or it is neither the CPU nor a CUDA device.
    """
    if place.type == "cpu":
        return CpuDevice()
    if place.type == "cuda":
        return CudaDevice(place)
    raise ConfigError(
        f"device={str(place)!r} is neither 'cpu' nor 'cuda'; batches can be moved on with Tensor.to"
    )
