"""The writers for the keys of a node type, made by its `NodeTableWriter`.

`gloader.convert.keys.stored_keys` fills them from a stream of keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.core.keys import KEY_BYTES
from gloader.dataset.key_record import BUCKETS, HASHES, KEYS, NODES, OFFSETS, bucket_bits

if TYPE_CHECKING:
    from gloader.core.keys import KeyKind
    from gloader.dataset.writer import TableArraysWriter
    from gloader.ssd_store.write.array_writer import ArrayWriter


class KeysWriter:
    """Starts the arrays with a type's keys. The rows are appended in order.

    Parameters
    ----------
    arrays : the type's arrays
    num_nodes : N
    kind : the kind of the keys
    """

    def __init__(self, arrays: TableArraysWriter, num_nodes: int, kind: KeyKind) -> None:
        self.kind = kind
        self.num_nodes = num_nodes
        self.num_buckets = 1 << bucket_bits(num_nodes)
        self.node_dtype = "int32" if num_nodes < 2**31 else "int64"
        self._arrays = arrays

    def keys(self, num_bytes: int) -> ArrayWriter:
        """Return the writer for the keys in the order of the source: their ``num_bytes`` bytes, or N rows."""
        if self.kind == "text":
            return self._arrays.array(KEYS, "uint8", (num_bytes,))
        if self.kind == "uuid":
            return self._arrays.array(KEYS, "uint8", (self.num_nodes, KEY_BYTES["uuid"]))
        return self._arrays.array(KEYS, self.kind, (self.num_nodes,))

    def offsets(self) -> ArrayWriter:
        """Return the writer for the (N + 1,) int64 places of texts in the bytes."""
        return self._arrays.array(OFFSETS, "int64", (self.num_nodes + 1,))

    def hashes(self) -> ArrayWriter:
        """Return the writer for the (N,) uint64 hashes, ascending."""
        return self._arrays.array(HASHES, "uint64", (self.num_nodes,))

    def nodes(self) -> ArrayWriter:
        """Return the writer for the (N,) nodes of the hashes, with dtype `node_dtype`."""
        return self._arrays.array(NODES, self.node_dtype, (self.num_nodes,))

    def buckets(self) -> ArrayWriter:
        """Return the writer for the (num_buckets + 1,) int64 starts of the buckets in the hashes."""
        return self._arrays.array(BUCKETS, "int64", (self.num_buckets + 1,))
