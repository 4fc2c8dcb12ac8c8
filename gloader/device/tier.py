"""What a loader holds on its compute device, and what of the host the device reaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gloader.cache import DeviceShare
from gloader.core.units import format_bytes
from gloader.device.row_gather import RowParts
from gloader.device.row_table import RowTable, rows_as_tensor

if TYPE_CHECKING:
    from gloader.device.row_table import RowFormat
    from gloader.device.seam import Device, Pinned
    from gloader.device.static_cache import StaticCache


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceTier:
    """The device, its static cache, and the host's features that it reads in place. Owns these until `close`."""

    device: Device
    cache: StaticCache | None = None
    features: RowTable | None = None  # all N rows
    pinned: Pinned | None = None  # their memory

    @property
    def holds_all(self) -> bool:
        """Whether every row is on the device."""
        return self.cache is not None and self.cache.plan.holds_all

    @property
    def brings_all(self) -> bool:
        """Whether nothing is gathered on the host, because the device holds or reaches every row."""
        return self.holds_all or self.features is not None

    def share(self) -> DeviceShare:
        """Return which rows the device brings itself, a byte a node."""
        cache = self.cache
        reaches_all = self.features is not None
        if cache is None:
            return DeviceShare(reaches_all=reaches_all)
        if cache.plan.holds_all:
            return DeviceShare(holds_all=True)
        return DeviceShare(reaches_all=reaches_all, held=cache.plan.holds())

    def parts(self, host: torch.Tensor) -> RowParts:
        """Return where the rows of a batch are of which the host gathered ``host`` (U, F), pinned or on the CPU."""
        cache = self.cache
        if cache is not None and cache.plan.holds_all:
            return RowParts(table=cache.table, slot_of=None, host=None)
        return RowParts(
            table=None if cache is None else cache.table,
            slot_of=None if cache is None else cache.slot_of,
            host=RowTable(rows=host) if self.features is None else self.features,
            is_host_by_id=self.features is not None,
        )

    def explain(self) -> str:
        """Say in a line what the device holds and reaches; nothing for a CPU without a cache."""
        place, cache = self.device.place, self.cache
        reach = "" if self.features is None else ", the others read in place from pinned memory"
        if cache is None:
            return "" if place.type == "cpu" and not reach else f"device: no rows on {place}{reach}"
        plan = cache.plan
        if plan.holds_all:
            return f"device: all {plan.num_nodes:,} rows on {place}, {format_bytes(cache.num_bytes)}"
        share = 100 * len(plan.rows) / plan.num_nodes
        expected = plan.expected_hit_rate
        hits = "" if expected is None else f", {100 * expected:.0f}% of the presampled accesses"
        held = f"{len(plan.rows):,} rows ({share:.1f}%) on {place}"
        return f"device: {held}, {format_bytes(cache.num_bytes)}{hits}{reach}"

    def close(self) -> None:
        """Unpin the features. Idempotent."""
        if self.pinned is not None:
            self.pinned.close()


def reach_features(device: Device, rows: Pinned, form: RowFormat) -> RowTable:
    """Return all N rows, pinned, as a table that ``device`` gathers from; the factors of int8 rows go to it."""
    return RowTable(
        rows=rows_as_tensor(rows.array, is_bfloat16=form.is_bfloat16),
        scale=None if form.scale is None else torch.from_numpy(form.scale).to(device.place),
    )
