"""Where the outputs of a layer go: on the device, in host memory, or to a private folder on the SSD."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gloader.ssd_store.spill.claim import scratch_folder
from gloader.training.inference.activations import RamRows, SsdRows
from gloader.training.inference.row_stream import DeviceRows

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from gloader.device import Device
    from gloader.training.inference.layer_plan import LayerPlan

LayerOutputs: TypeAlias = "RamRows | SsdRows | DeviceRows"

SCRATCH_PREFIX = "gloader-infer-"


class OutputRoom:
    """Opens the outputs of layers. ``stack`` closes them, and removes the folder.

    Parameters
    ----------
    parent : of the folder; None: the system's temporary folder
    device : computes
    stack : of the run
    """

    def __init__(self, parent: Path | None, device: Device, stack: ExitStack) -> None:
        self._parent = parent
        self._device = device
        self._stack = stack
        self._folder: Path | None = None

    def open(self, name: str, plan: LayerPlan, *, num_rows: int, width: int) -> LayerOutputs:
        """Return rows to be written, where ``plan`` puts them.

        Parameters
        ----------
        name : of a folder that is not there yet
        plan : of the layer
        num_rows, width : of the outputs
        """
        outputs: LayerOutputs
        if plan.is_on_device:
            outputs = DeviceRows.blank(num_rows=num_rows, width=width, place=self._device.place)
        elif plan.is_on_disk:
            # Made with the first layer that needs it; a run that fits leaves no folder, not even an empty one.
            if self._folder is None:
                self._folder = self._stack.enter_context(scratch_folder(self._parent, prefix=SCRATCH_PREFIX))
            outputs = SsdRows(self._folder / name, num_rows=num_rows, num_slabs=len(plan.slabs))
        else:
            outputs = RamRows(num_rows=num_rows, width=width)
        self._stack.callback(outputs.close)
        return outputs
