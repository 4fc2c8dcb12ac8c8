"""The keys of a node type in a dataset: from nodes to keys, and from keys to nodes.

A key is the name of a node in the source. `NodeKeys.keys_of` reads the keys of any nodes. `NodeKeys.ids_of` finds nodes
by a sorted index of 64-bit hashes, and compares the bytes of each key with an equal hash. Both read the pages with the
requested entries. Arrays of at most 16 MiB are read once, and kept in memory. `gloader.dataset.key_record` describes
the arrays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import numpy as np

from gloader.core.ids import as_ids, outside
from gloader.core.key_kernels import same_keys
from gloader.core.keys import KEY_BYTES, KeyChunk, as_key_chunk, fixed_chunk, key_text, key_values, readonly
from gloader.dataset.key_record import BUCKETS, HASHES, KEYS, NODES, OFFSETS, kind_of
from gloader.errors import ConfigError, FormatError, ShapeError, UnknownKeyError
from gloader.ssd_store.format.array_reader import load_elements

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.core.keys import KeyKind
    from gloader.ssd_store.format.manifest import ArrayRecord
    from gloader.ssd_store.os_io import OsIO
    from gloader.types import IdArray

Missing: TypeAlias = Literal["error", "-1"]
_KEPT_BYTES: Final = 16 * 2**20  # an array of at most this size is kept in memory
_BLOCK_KEYS: Final = 1 << 14  # keys looked up at a time: their buckets take about 32 MiB
_BLOCK_BYTES: Final = 1 << 20  # bytes of texts read at a time: their positions take 8 MiB


class StoredArrays(Protocol):
    """The arrays of a table that `NodeKeys` reads; see `gloader.dataset.tables.TableArrays`."""

    root: Path
    os_io: OsIO
    records: Mapping[str, ArrayRecord]

    def path(self, name: str) -> Path:
        """Return array ``name``'s file."""
        ...

    def load(self, name: str) -> NDArray[Any]:
        """Return array ``name`` in memory, verified and checked."""
        ...

    def load_at(self, name: str, positions: IdArray) -> NDArray[Any]:
        """Return elements of array ``name``, verified and checked."""
        ...

    def as_opened(self) -> AbstractContextManager[None]:
        """Return a context manager that reports a replaced dataset."""
        ...


class NodeKeys:
    """A node type's keys. Thread-safe and read-only, without open files. Made by `NodeTable`.

    Parameters
    ----------
    arrays : the type's arrays, a `TableArrays`
    node_type : the type's name, for messages
    num_nodes : N
    """

    def __init__(self, arrays: StoredArrays, node_type: str, num_nodes: int) -> None:
        self._arrays, self._node_type, self._num_nodes = arrays, node_type, num_nodes
        self._kept: dict[str, NDArray[Any]] = {}
        self._kind = kind_of(arrays.records)

    @property
    def kind(self) -> KeyKind:
        """The kind of the keys.

        Raises
        ------
        ConfigError
            The type has no keys.
        """
        if self._kind is None:
            raise ConfigError(
                f"{self._arrays.root}: nodes of type {self._node_type!r} have no keys, only ids 0..N-1; nodes have "
                "keys if `gloader prepare` was given a column of keys"
            )
        return self._kind

    def keys_of(self, ids: Any) -> NDArray[Any]:
        """Return the keys (n,) of the nodes ``ids`` (n,): int64, uint64, or an object array of str.

        Raises
        ------
        ConfigError
            The type has no keys.
        ShapeError
            An id is no node.
        ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError, FormatError
            The arrays are damaged, or cannot be read.
        """
        kind = self.kind
        nodes = as_ids(ids, noun="nodes", error=ShapeError)
        if len(wrong := outside(nodes, self._num_nodes)):
            raise ShapeError(
                f"nodes of type {self._node_type!r} are in 0..{self._num_nodes - 1}; these are not: "
                f"{wrong[:5].tolist()}"
            )
        rows, places = np.unique(self._rows(nodes), return_inverse=True)
        keys = [key_values(chunk, kind) for chunk in self._chunks(rows)]
        return np.concatenate(keys)[places] if keys else key_values(_EMPTY, kind)

    def ids_of(self, keys: Any, *, missing: Missing = "error") -> IdArray:
        """Return the nodes (n,) int64 with the keys ``keys`` (n,).

        Parameters
        ----------
        keys : array, list or other sequence of int or str, by the kind of the dataset's keys
        missing : what happens to a key that no node has: "error" raises an error, "-1" gives -1

        Raises
        ------
        ConfigError
            The type has no keys, or ``missing`` is another word.
        ShapeError
            A key is not of the kind of the dataset's keys.
        UnknownKeyError
            No node has a key. The message has the first such key.
        ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError, FormatError
            The arrays are damaged, or cannot be read.
        """
        kind = self.kind
        if missing not in ("error", "-1"):
            raise ConfigError(f'missing is {missing!r}; it must be "error" or "-1"')
        wanted = as_key_chunk(keys, kind)
        hashes, ids = wanted.hashes(), np.full(len(wanted), -1, np.int64)
        order = np.argsort(hashes)
        for start in range(0, len(order), _BLOCK_KEYS):
            self._find(wanted, hashes, order[start : start + _BLOCK_KEYS], ids)
        if missing == "error" and len(unknown := np.flatnonzero(ids < 0)):
            raise UnknownKeyError(
                f"{self._arrays.root}: no node of type {self._node_type!r} has the key "
                f"{key_text(wanted.key(int(unknown[0])), kind)} ({len(unknown)} of {len(ids)} keys are unknown); "
                'missing="-1" gives -1 for them'
            )
        return ids

    def _find(self, wanted: KeyChunk, hashes: NDArray[np.uint64], block: IdArray, ids: IdArray) -> None:
        """Write the nodes of the keys ``block`` (n,), whose hashes ascend, to ``ids``."""
        bits = (self._arrays.records[BUCKETS].shape[0] - 1).bit_length() - 1
        # numpy shifts by less than 64 bits only.
        buckets = (
            (hashes[block] >> np.uint64(64 - bits)).astype(np.int64)
            if bits
            else np.zeros(len(block), np.int64)
        )
        buckets = np.unique(buckets)
        starts, stops = self._take(BUCKETS, buckets), self._take(BUCKETS, buckets + 1)
        positions = _ranges(starts, self._checked(stops - starts, BUCKETS))
        stored = self._take(HASHES, positions)
        # The buckets ascend, and so do the hashes in them. Any number of entries may have the hash of a key.
        low = np.searchsorted(stored, hashes[block], side="left")
        counts = np.searchsorted(stored, hashes[block], side="right") - low
        queries = np.repeat(block, counts)
        nodes = self._take(NODES, positions[_ranges(low, counts)]).astype(np.int64)
        rows, places = np.unique(self._rows(nodes), return_inverse=True)
        first = 0
        for chunk in self._chunks(rows):
            is_here = (places >= first) & (places < first + len(chunk))
            asked = queries[is_here]
            is_same = np.empty(len(asked), np.bool_)
            same_keys(
                readonly(wanted.data), readonly(wanted.starts), asked,
                readonly(chunk.data), readonly(chunk.starts), places[is_here] - first, is_same,
            )  # fmt: skip
            ids[asked[is_same]] = nodes[is_here][is_same]
            first += len(chunk)

    def _rows(self, nodes: IdArray) -> IdArray:
        """Return the rows of ``nodes`` in the source, in whose order keys are stored."""
        if "original_ids" not in self._arrays.records:
            return nodes
        return self._arrays.load_at("original_ids", nodes)

    def _chunks(self, rows: IdArray) -> list[KeyChunk]:
        """Return the keys of the source's ``rows`` (n,), which ascend, in chunks."""
        if not len(rows):
            return []
        if self._kind == "uuid":
            width = KEY_BYTES["uuid"]
            data = self._take(KEYS, _ranges(rows * width, np.full(len(rows), width)))
            return [fixed_chunk(data.reshape(-1, width))]
        if self._kind != "text":
            return [fixed_chunk(self._take(KEYS, rows))]
        starts = self._take(OFFSETS, rows)
        lengths = self._checked(self._take(OFFSETS, rows + 1) - starts, OFFSETS)
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        chunks, first = [], 0
        while first < len(rows):
            stop = max(
                int(np.searchsorted(bounds, bounds[first] + _BLOCK_BYTES, side="right")) - 1, first + 1
            )
            data = self._take(KEYS, _ranges(starts[first:stop], lengths[first:stop]))
            chunks.append(KeyChunk(data=data, starts=bounds[first : stop + 1] - bounds[first]))
            first = stop
        return chunks

    def _checked(self, lengths: IdArray, name: str) -> IdArray:
        """Return lengths from the array ``name``. Raises FormatError if one is negative."""
        if len(lengths) and lengths.min() < 0:
            raise FormatError(
                f"{self._arrays.path(name)}: its values do not ascend; prepare the dataset again"
            )
        return lengths

    def _take(self, name: str, positions: IdArray) -> NDArray[Any]:
        """Return elements of the array ``name``, verified. The rows of UUIDs count as single bytes."""
        record = self._arrays.records[name]
        if record.num_bytes <= _KEPT_BYTES:
            if name not in self._kept:
                self._kept[name] = self._arrays.load(name).reshape(-1)
            kept = self._kept[name]
            if len(positions) and not 0 <= positions.min() <= positions.max() < len(kept):
                raise FormatError(
                    f"{self._arrays.path(name)}: an index leads to position {positions.max()} of {len(kept)}; prepare "
                    "the dataset again"
                )
            return kept[positions]
        flat = replace(record, shape=(int(np.prod(record.shape)),))
        with self._arrays.as_opened():
            return load_elements(self._arrays.root, flat, positions, os_io=self._arrays.os_io)


_EMPTY: Final = KeyChunk(data=np.empty(0, np.uint8), starts=np.zeros(1, np.int64))


def _ranges(starts: IdArray, lengths: IdArray) -> IdArray:
    """Return the positions ``starts[i]`` ... ``starts[i] + lengths[i] - 1`` of all i, range by range. Pure."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
