"""The keys of a node type, written to a dataset with the index that finds nodes by their keys, out of core.

The index is sorted by the 64-bit hash of the keys. Hashes are spilled into groups of equal first bits, and each group
is sorted alone in memory.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.csc.spill import Spill
from gloader.core.keys import KEY_BYTES
from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.plan.too_small import rounded_up

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.core.keys import KeyChunk
    from gloader.dataset.key_writer import KeysWriter
    from gloader.ssd_store.write.array_writer import ArrayWriter
    from gloader.types import IdArray

_ENTRY: Final = np.dtype([("hash", np.uint64), ("node", np.int64)])
# Bytes per entry while a group is sorted: the entry as read and in order, its hash, and its place in the order.
_SORT_BYTES: Final = 2 * _ENTRY.itemsize + 8 + 8
_MAX_GROUPS: Final = 4096  # each group is a file
_SPARE: Final = 1.25  # a group may be larger than the average


def write_keys(
    writer: KeysWriter,
    chunks: Iterable[KeyChunk],
    *,
    num_bytes: int,
    folder: Path,
    budget_bytes: int,
    new_ids: IdArray | None = None,
) -> None:
    """Write all keys of a type, and their index.

    Parameters
    ----------
    writer : the result of ``DatasetWriter.nodes(TYPE).keys(kind)``
    chunks : the keys of the nodes 0..N-1 of the source
    num_bytes : bytes of all keys
    folder : an existing folder for temporary files
    budget_bytes : bound for the memory
    new_ids : (N,) the dataset's id of each node of the source; None if nodes keep their ids

    Raises
    ------
    BudgetError
        The budget is too small. The message has a sufficient one.
    ShapeError, StoreWriteError
        There are more or fewer keys than nodes, or the disk refuses.
    """
    num_nodes = writer.num_nodes
    # Half of the budget is for the sort, and a quarter for entries in memory.
    groups = -(-int(_SPARE * num_nodes * _SORT_BYTES) // max(budget_bytes // 2, 1))
    groups = max(1 << (groups - 1).bit_length(), 1) if groups > 1 else 1
    if groups > _MAX_GROUPS:
        enough = rounded_up(2 * int(_SPARE * num_nodes * _SORT_BYTES) // _MAX_GROUPS)
        raise BudgetError(
            f"sorting the keys of {num_nodes} nodes takes at least {format_bytes(enough)}; the memory budget leaves "
            f"{format_bytes(budget_bytes)} for it. Raise --memory-budget",
            short_bytes=enough - budget_bytes,
        )
    counts = np.zeros(writer.num_buckets + 1, np.int64)  # of the keys in each bucket, from place 1 on
    spill = Spill(
        folder=folder, name="key-index", dtype=_ENTRY, num_buckets=groups, held_bytes=budget_bytes // 4
    )
    with spill:
        first, end = 0, 0
        with ExitStack() as stack:
            keys = stack.enter_context(writer.keys(num_bytes))
            offsets: ArrayWriter | None = None
            if writer.kind == "text":
                offsets = stack.enter_context(writer.offsets())
                offsets.append(np.zeros(1, np.int64))
            for chunk in chunks:
                data = chunk.data[chunk.starts[0] : chunk.starts[-1]]
                keys.append(_rows(data, writer))
                if offsets is not None:
                    offsets.append(chunk.starts[1:] - chunk.starts[0] + end)
                entries = np.empty(len(chunk), _ENTRY)
                entries["hash"] = chunk.hashes()
                stop = first + len(chunk)
                entries["node"] = np.arange(first, stop) if new_ids is None else new_ids[first:stop]
                counts[1:] += np.bincount(
                    _top(entries["hash"], writer.num_buckets), minlength=writer.num_buckets
                )
                spill.deal_out(entries, _top(entries["hash"], groups))
                first, end = stop, end + len(data)
        with writer.hashes() as hashes, writer.nodes() as nodes:
            for group in range(groups):
                pieces = spill.pieces(group, max(int(spill.counts[group]), 1))
                entries = np.concatenate([piece.copy() for piece in pieces] or [np.empty(0, _ENTRY)])
                spill.drop(group)
                entries = entries[np.argsort(entries["hash"], kind="stable")]
                hashes.append(np.ascontiguousarray(entries["hash"]))
                nodes.append(entries["node"].astype(writer.node_dtype))
    with writer.buckets() as buckets:
        buckets.append(np.cumsum(counts))


def _rows(data: NDArray[np.uint8], writer: KeysWriter) -> NDArray[np.generic]:
    """Return the bytes of keys as rows of the array of keys."""
    if writer.kind == "text":
        return data
    if writer.kind == "uuid":
        return data.reshape(-1, KEY_BYTES["uuid"])
    return np.ascontiguousarray(data).view(writer.kind)


def _top(hashes: NDArray[np.uint64], num_groups: int) -> IdArray:
    """Return the first bits of the hashes, which are in 0..num_groups-1. ``num_groups`` is a power of 2. Pure."""
    if num_groups == 1:  # numpy shifts by less than 64 bits only
        return np.zeros(len(hashes), np.int64)
    return (hashes >> np.uint64(65 - num_groups.bit_length())).astype(np.int64)
