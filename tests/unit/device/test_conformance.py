"""The CPU passes the conformance suite of devices, and so does the rehearsal of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.device.seam import CpuDevice
from gloader.testing.device_suite import DeviceSuite
from gloader.testing.rehearsed_device import RehearsedDevice

if TYPE_CHECKING:
    from gloader.device.seam import Device


class TestCpu(DeviceSuite):
    def make_device(self) -> Device:
        return CpuDevice()


class TestRehearsal(DeviceSuite):
    def make_device(self) -> Device:
        return RehearsedDevice()


class TestFeaturesInPlace(DeviceSuite):
    def make_device(self) -> Device:
        return RehearsedDevice(reads_in_place=True)
