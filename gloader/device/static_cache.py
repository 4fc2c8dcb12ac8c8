"""The hottest rows, resident on the device for a whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from gloader.device.row_table import RowTable, rows_as_tensor

if TYPE_CHECKING:
    from gloader.cache import DeviceCachePlan
    from gloader.device.row_table import RowFormat
    from gloader.types import FeatureSource

_CHUNK_BYTES: Final = 64 << 20  # of host memory, while the table is filled


class StaticCache:
    """The rows of a plan in a table on the device, as they are stored, and the slot of each node.

    Nothing moves after it is made. Row i of the table belongs to ``plan.rows[i]``.

    Parameters
    ----------
    plan : which rows; at least one
    source : brings them, once, in ascending order
    form : how they are stored
    place : the device
    """

    def __init__(
        self, plan: DeviceCachePlan, *, source: FeatureSource, form: RowFormat, place: torch.device
    ) -> None:
        self.plan = plan
        self.table = RowTable(
            rows=torch.empty((len(plan.rows), form.dim), dtype=form.torch_dtype, device=place),
            scale=None if form.scale is None else torch.from_numpy(form.scale[plan.rows]).to(place),
        )
        self.slot_of = None if plan.holds_all else torch.from_numpy(plan.slot_map()).to(place)
        self._fill(source, form)

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        tensors = (self.table.rows, self.table.scale, self.slot_of)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def _fill(self, source: FeatureSource, form: RowFormat) -> None:
        rows = self.plan.rows
        step = max(_CHUNK_BYTES // form.row_bytes, 1)
        chunk = np.empty((min(step, len(rows)), form.dim), dtype=form.dtype)
        for start in range(0, len(rows), step):
            wanted = rows[start : start + step]
            part = chunk[: len(wanted)]
            source.read_into(wanted, part)
            # Pageable memory: the copy is over when this returns, and the chunk is free again.
            self.table.rows[start : start + len(wanted)].copy_(
                rows_as_tensor(part, is_bfloat16=form.is_bfloat16)
            )
