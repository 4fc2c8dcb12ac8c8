"""The CPU passes the conformance suite of devices, as it is and where it rehearses a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.device.cpu import CpuDevice
from gloader.testing.device_suite import DeviceSuite

if TYPE_CHECKING:
    from gloader.device.seam import Device


class TestCpu(DeviceSuite):
    def make_device(self) -> Device:
        return CpuDevice()


class TestRehearsal(DeviceSuite):
    def make_device(self) -> Device:
        return CpuDevice(rehearses=True)


class TestFeaturesInPlace(DeviceSuite):
    def make_device(self) -> Device:
        return CpuDevice(rehearses=True, reaches_features=True)
