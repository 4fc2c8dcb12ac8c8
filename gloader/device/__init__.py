"""The compute device: a static cache of the hottest rows, a fused gather, and transfers behind the computation."""

from gloader.device.cpu import CpuDevice
from gloader.device.dry_run import dry_step
from gloader.device.row_gather import RowParts, gather_rows, has_triton
from gloader.device.hot_rows import hottest_rows
from gloader.device.open_device import open_device
from gloader.device.row_table import RowFormat, RowTable
from gloader.device.seam import Device, Mark, Pinned
from gloader.device.static_cache import StaticCache
from gloader.device.tier import DeviceTier, reach_features

__all__ = [
    "CpuDevice",
    "Device",
    "DeviceTier",
    "Mark",
    "Pinned",
    "RowFormat",
    "RowParts",
    "RowTable",
    "StaticCache",
    "dry_step",
    "gather_rows",
    "has_triton",
    "hottest_rows",
    "open_device",
    "reach_features",
]
