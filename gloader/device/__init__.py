"""The compute device: a static cache of the hottest rows, a fused gather, and transfers parallel to the computation.

`open_device` returns a `CpuDevice` or a GPU's `CudaDevice`, both of the protocol `Device`. `StaticCache` holds the rows
that most batches need on the device, and `gather_rows` puts a batch's rows into one tensor.
"""

from gloader.core.dtypes import RowFormat
from gloader.device.dry_run import dry_step
from gloader.device.row_table import RowParts, RowTable, gather_rows, has_triton
from gloader.device.seam import CpuDevice, Device, Mark, Pinned, open_device, place_of
from gloader.device.tier import (
    DeviceTier,
    DeviceTopology,
    StaticCache,
    reach_features,
    scale_on,
    upload_topology,
)

__all__ = [
    "CpuDevice",
    "Device",
    "DeviceTier",
    "DeviceTopology",
    "Mark",
    "Pinned",
    "RowFormat",
    "RowParts",
    "RowTable",
    "StaticCache",
    "dry_step",
    "gather_rows",
    "has_triton",
    "open_device",
    "place_of",
    "reach_features",
    "scale_on",
    "upload_topology",
]
