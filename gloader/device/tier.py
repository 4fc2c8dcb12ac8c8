"""The device tier: hottest rows and topology on the device, and host memory that the device reads in place.

The loader opens a `DeviceTier` for each feature table (`gloader.pipeline.open.device_tier`). The stage that sends
batches gathers their rows through it. The tier has up to three parts:

- `StaticCache` holds the rows that batches need most often, for the whole run. A row's slot is its index in the cache.
- If all features are in pinned host memory, the device can read them in place, without a copy by the CPU. In this code,
  such a device reaches the rows.
- `DeviceTopology` is the graph on the device, if batches are sampled there.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader.cache import DeviceShare
from gloader.core.offsets import offsets_of
from gloader.core.units import format_bytes
from gloader.device.row_table import RowParts, RowTable, rows_as_tensor, torch_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.cache import DeviceCachePlan
    from gloader.core.dtypes import RowFormat
    from gloader.core.offsets import Offsets
    from gloader.device.seam import Device, Mark, Pinned
    from gloader.samplers.graph import CscGraph
    from gloader.types import FeatureSource, IdArray, LocalArray, Sampler


# The device sampler counts a hop's edges first if there may be more than this. For a smaller hop, it allocates memory
# for the maximum number without counting.
MOST_UNCOUNTED_EDGES: Final = 1 << 22
# Bytes of host memory for uploads of the topology.
_UPLOAD_BYTES: Final = 64 << 20
# Offsets per copy. Five int64 arrays with so many entries exist at the same time, and fill `_UPLOAD_BYTES`.
_UPLOAD_OFFSETS: Final = _UPLOAD_BYTES // 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceTopology:
    """The in-neighbours of every node as tensors: ``indices[indptr[v] : indptr[v + 1]]`` belong to node v."""

    indptr: torch.Tensor  # (N + 1,) int64
    indices: torch.Tensor  # (E,) int32 or int64, as in the graph
    edge_weight: torch.Tensor | None = None  # (E,) float32 or float64, as in the graph

    @property
    def num_nodes(self) -> int:
        """N."""
        return int(self.indptr.shape[0]) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return int(self.indices.shape[0])

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        tensors = (self.indptr, self.indices, self.edge_weight)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def room_of_hop(num_rows: int, fanout: int) -> int | None:
    """Return the maximum number of a hop's edges, or None if this number is unknown or too large. Pure.

    If the result is None, the edges must be counted before memory is allocated for them.

    Parameters
    ----------
    num_rows : maximum number of destinations in the hop
    fanout : edges per destination; -1 for all in-edges
    """
    room = num_rows * fanout
    return room if 0 <= room <= MOST_UNCOUNTED_EDGES else None


def upload_topology(graph: CscGraph, place: torch.device, *, is_weighted: bool = False) -> DeviceTopology:
    """Return a copy of ``graph`` on the device ``place``.

    Parameters
    ----------
    graph : the graph in host memory
    place : the device
    is_weighted : True to include the edge weights, if the graph has weights
    """
    weights = graph.edge_weight if is_weighted else None
    return DeviceTopology(
        indptr=upload_array(graph.indptr, place),
        indices=upload_array(graph.indices, place),
        edge_weight=None if weights is None else upload_array(weights, place),
    )


def upload_array(array: NDArray[Any], place: torch.device) -> torch.Tensor:
    """Return a copy of ``array`` on the device ``place``, after the copy is complete."""
    # The copy goes through a chunk: torch refuses read-only arrays, such as a graph's, and a graph is too large for a
    # full writable copy.
    step = _UPLOAD_BYTES // array.itemsize
    chunk = np.empty(min(step, len(array)), dtype=array.dtype)
    uploaded = torch.empty(len(array), dtype=torch.from_numpy(chunk).dtype, device=place)
    for start in range(0, len(array), step):
        part = chunk[: len(array) - start]
        part[:] = array[start : start + step]
        # A copy from pageable memory is complete when this returns, so that the next values may overwrite the chunk.
        uploaded[start : start + len(part)].copy_(torch.from_numpy(part))
    return uploaded


def upload_offsets(offsets: Offsets, place: torch.device) -> torch.Tensor:
    """Return ``offsets`` as indptr (N + 1,) int64 on the device ``place``, after the copy is complete."""
    num_offsets = len(offsets.low)
    indptr = torch.empty(num_offsets, dtype=torch.int64, device=place)
    for start in range(0, num_offsets, _UPLOAD_OFFSETS):
        part = offsets_of(offsets, np.arange(start, min(start + _UPLOAD_OFFSETS, num_offsets)))
        indptr[start : start + len(part)].copy_(torch.from_numpy(part))
    return indptr


logger = logging.getLogger("gloader")

# Bytes of each of the two host buffers through which the cache is filled: enough for sequential reads, and a small part
# of any memory budget.
_CHUNK_BYTES: Final = 32 << 20
# Advice if a device has too little memory although it holds no cached rows.
_NOTHING_HELD: Final = "the device holds no cached rows: lower batch_size, the fan-outs or the model's width"
_SILENT_S: Final = 3.0  # seconds after which a fill logs its progress


class StaticCache:
    """The rows of a plan on the device, in their storage format, and each node's slot.

    The constructor allocates the memory, and `fill` reads the rows. They stay unchanged afterwards. Slot i holds the
    row of node ``plan.rows[i]``.

    Parameters
    ----------
    plan : the rows to hold; at least one
    form : dtype and width of the stored rows
    place : the device
    """

    def __init__(self, plan: DeviceCachePlan, *, form: RowFormat, place: torch.device) -> None:
        self.plan = plan
        self._form = form
        self.table = RowTable(
            rows=torch.empty((len(plan.rows), form.dim), dtype=torch_dtype(form), device=place),
            scale=None if form.scale is None else torch.from_numpy(form.scale[plan.rows]).to(place),
        )
        # (N,) int32, -1 without a slot. None if all rows are held, because node v then has slot v.
        self.slot_of = None if plan.holds_all else torch.from_numpy(plan.slot_map()).to(place)

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        tensors = (self.table.rows, self.table.scale, self.slot_of)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def fill(self, source: FeatureSource, device: Device) -> None:
        """Read the rows from ``source``, in ascending order, and copy them to ``device``.

        Two host buffers take turns: one is filled while the device copies the other.
        """
        form, rows = self._form, self.plan.rows
        step = min(max(_CHUNK_BYTES // form.row_bytes, 1), len(rows))
        chunks = [
            device.host_buffer(step * form.row_bytes).view(form.dtype).reshape(step, form.dim)
            for _ in range(2)
        ]
        # Copies that may still run: the mark after each copy, its source and its target.
        under_way: deque[tuple[Mark, torch.Tensor, torch.Tensor]] = deque()
        allocated = device.mark_computing()
        began, is_silent = time.monotonic(), True
        with device.sending():
            # The stream that allocated the table may still use this memory for an earlier tensor.
            allocated.precede((self.table.rows,))
            try:
                for number, start in enumerate(range(0, len(rows), step)):
                    if len(under_way) == len(chunks):
                        # Both buffers are in use: wait for the older copy, whose buffer is filled next.
                        mark, *_held = under_way.popleft()
                        mark.wait()
                    wanted = rows[start : start + step]
                    part = chunks[number % 2][: len(wanted)]
                    source.read_into(wanted, part)
                    pair = (
                        rows_as_tensor(part, form),
                        self.table.rows[start : start + step],
                    )
                    device.copy(*pair)
                    under_way.append((device.mark(), *pair))
                    done, took = start + len(wanted), time.monotonic() - began
                    if is_silent and took > _SILENT_S:
                        is_silent = False
                        logger.info(
                            "putting %s of rows onto %s; about %.0f s to go",
                            format_bytes(self.num_bytes),
                            device.place,
                            took * (len(rows) - done) / done,
                        )
            finally:
                # The wait is needed after a failed read too, because the chunks are freed at the end of this call.
                for mark, *_ in under_way:
                    mark.wait()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceTier:
    """A device, its static cache, and host features that it reads in place. Owns the pinned features until `close`.

    The host, which is the CPU, gathers the remaining rows of a batch and sends them.
    """

    device: Device
    cache: StaticCache | None = None  # None if no rows are on the device
    features: RowTable | None = None  # all N rows in host memory, if the device reads them in place
    pinned: Pinned | None = None  # the memory of ``features``
    has_short_ids: bool = False  # True if ids are sent with 32 bits, because every id fits
    staged: RowFormat | None = None  # format of the rows that the host sends; None for float32
    scale: torch.Tensor | None = None  # (N,) float32, factors for the int8 rows that the host sends
    topology: DeviceTopology | None = None  # set if batches are sampled on the device
    sampler: Sampler | None = None  # the device's sampler; None if the CPU samples
    where_sampled: str = ""  # one line with the place of sampling and the reason

    def fill(self, source: FeatureSource) -> None:
        """Read the device's rows from ``source``."""
        if self.cache is not None:
            self.cache.fill(source, self.device)

    def advice(self) -> str:
        """Return advice for the error of a device with too little memory."""
        held = 0 if self.cache is None else self.cache.num_bytes
        return f"lower device_cache (now {format_bytes(held)})" if held else _NOTHING_HELD

    @property
    def holds_all(self) -> bool:
        """True if every row is on the device."""
        return self.cache is not None and self.cache.plan.holds_all

    @property
    def brings_rows(self) -> bool:
        """True if the device takes part in the gather: it serves rows by id, or converts the host's rows to float32."""
        return self.cache is not None or self.features is not None or self.staged_dtype != np.float32

    @property
    def brings_all(self) -> bool:
        """True if the host gathers no rows, because the device holds every row or reads it in place."""
        return self.holds_all or self.features is not None

    @property
    def staged_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the rows that the host sends; uint16 for bfloat16."""
        return np.dtype(np.float32) if self.staged is None else self.staged.dtype

    def share(self) -> DeviceShare:
        """Return the rows that the device serves without the host; the result takes one byte per node."""
        cache = self.cache
        reaches_all = self.features is not None
        if cache is None:
            return DeviceShare(reaches_all=reaches_all)
        if cache.plan.holds_all:
            return DeviceShare(holds_all=True)
        return DeviceShare(reaches_all=reaches_all, held=cache.plan.holds())

    def ids_of(self, nodes: IdArray) -> IdArray | LocalArray | None:
        """Return the ids (U,) of a batch's ``nodes`` in the form that is sent, or None if the device needs no ids."""
        if not self.brings_rows:
            return None
        return nodes.astype(np.int32) if self.has_short_ids else nodes

    def parts(self, host: torch.Tensor) -> RowParts:
        """Return the tables with a batch's rows. ``host`` (U, F) has the rows that the host gathered."""
        cache = self.cache
        if cache is not None and cache.plan.holds_all:
            return RowParts(table=cache.table, slot_of=None, host=None)
        return RowParts(
            table=None if cache is None else cache.table,
            slot_of=None if cache is None else cache.slot_of,
            host=RowTable(rows=host, scale=self.scale) if self.features is None else self.features,
            is_host_by_id=self.features is not None,
            expected_hit_rate=None if cache is None else cache.plan.expected_hit_rate,
        )

    def explain(self) -> str:
        """Return lines about cached rows, rows read in place and sampling; empty for a CPU without a cache."""
        return "\n".join(filter(None, [self._explain_rows(), self.where_sampled]))

    def out_of_reach(self) -> DeviceTier:
        """Unpin the features, and return the tier without them; used if another rank's device cannot read them."""
        self.close()
        return replace(self, features=None, pinned=None)

    def close(self) -> None:
        """Unpin the features. Idempotent."""
        if self.pinned is not None:
            self.pinned.close()

    def _explain_rows(self) -> str:
        """Return one line about the rows on the device; empty for a CPU that neither holds nor reaches rows."""
        place, cache = self.device.place, self.cache
        reach = "" if self.features is None else ", the others read in place from pinned memory"
        if cache is None:
            return "" if place.type == "cpu" and not reach else f"device: no rows on {place}{reach}"
        plan = cache.plan
        # The factors of the rows outside the cache are on the device too.
        scale = self.scale if self.features is None else self.features.scale
        num_bytes = cache.num_bytes + (0 if scale is None else scale.nbytes)
        if plan.holds_all:
            return f"device: all {plan.num_nodes:,} rows on {place}, {format_bytes(num_bytes)}"
        share = 100 * len(plan.rows) / plan.num_nodes
        expected = plan.expected_hit_rate
        hits = "" if expected is None else f", {100 * expected:.0f}% of the presampled accesses"
        held = f"{len(plan.rows):,} rows ({share:.1f}%) on {place}"
        return f"device: {held}, {format_bytes(num_bytes)}{hits}{reach}"


def scale_on(device: Device, form: RowFormat) -> torch.Tensor | None:
    """Return the factors (N,) of int8 rows on ``device``, or None for other dtypes."""
    return None if form.scale is None else torch.from_numpy(form.scale).to(device.place)


def reach_features(
    device: Device, rows: Pinned, form: RowFormat, *, scale: torch.Tensor | None = None
) -> RowTable:
    """Return all N rows as a table that the device reads in place.

    Parameters
    ----------
    device : the device, which gets the factors of int8 rows
    rows : pinned memory with the rows (N, F), in their storage format
    form : dtype and width of the stored rows
    scale : (N,) the factors, if they are already on the device
    """
    return RowTable(
        rows=rows_as_tensor(rows.array, form),
        scale=scale_on(device, form) if scale is None else scale,
    )
