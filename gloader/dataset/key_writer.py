"""The writers for the keys of a node type, made by its `NodeTableWriter`.

`gloader.convert.keys.stored_keys` fills them from a stream of keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.core.keys import KEY_BYTES
from gloader.dataset.key_record import BUCKETS, HASHES, KEYS, NODES, OFFSETS, bucket_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.core.keys import KeyKind
    from gloader.ssd_store.write.array_writer import ArrayWriter


class KeysWriter:
    """Starts the arrays with a type's keys. The rows are appended in order.

    Parameters
    ----------
    start : starts an array by plain name, dtype and shape; `TableArraysWriter.array`
    num_nodes : N
    kind : the kind of the keys
    """

    def __init__(
        self, start: Callable[[str, str, tuple[int, ...]], ArrayWriter], num_nodes: int, kind: KeyKind
    ) -> None:
        self.kind = kind
        self.num_nodes = num_nodes
        self.num_buckets = 1 << bucket_bits(num_nodes)
        self.node_dtype = "int32" if num_nodes < 2**31 else "int64"
        self._start = start

    def keys(self, num_bytes: int) -> ArrayWriter:
        """Return the writer for the keys in the order of the source: their ``num_bytes`` bytes, or N rows."""
        if self.kind == "text":
            return self._start(KEYS, "uint8", (num_bytes,))
        if self.kind == "uuid":
            return self._start(KEYS, "uint8", (self.num_nodes, KEY_BYTES["uuid"]))
        return self._start(KEYS, self.kind, (self.num_nodes,))

    def offsets(self) -> ArrayWriter:
        """Return the writer for the (N + 1,) int64 places of texts in the bytes."""
        return self._start(OFFSETS, "int64", (self.num_nodes + 1,))

    def hashes(self) -> ArrayWriter:
        """Return the writer for the (N,) uint64 hashes, ascending."""
        return self._start(HASHES, "uint64", (self.num_nodes,))

    def nodes(self) -> ArrayWriter:
        """Return the writer for the (N,) nodes of the hashes, with dtype `node_dtype`."""
        return self._start(NODES, self.node_dtype, (self.num_nodes,))

    def buckets(self) -> ArrayWriter:
        """Return the writer for the (num_buckets + 1,) int64 starts of the buckets in the hashes."""
        return self._start(BUCKETS, "int64", (self.num_buckets + 1,))
