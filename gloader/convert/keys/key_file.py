"""Keys in temporary files, in order: their lengths in one file, and their words in another.

`KeyFile` is one sequence of keys, read again in pieces. `keys_in_turn` reads several of them, where a list of owners
says which of them has the next key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.csc.spill import TemporaryArray
from gloader.convert.keys.numbering_kernels import strip_headers, take_keys_in_turn, unpack_keys
from gloader.core.keys import KeyChunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_PIECE_WORDS = 1 << 17  # words of records that are stripped at a time: 1 MiB


class KeyFile:
    """A sequence of keys in two files. Owns them until `remove`.

    Parameters
    ----------
    folder : an existing folder
    name : the beginning of the files' names
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._lengths = TemporaryArray(path=folder / f"{name}-lengths", dtype=np.dtype(np.uint16))
        self._words = TemporaryArray(path=folder / f"{name}-words", dtype=np.dtype(np.uint64))
        self.num_keys = 0
        self.num_bytes = 0  # bytes of the keys

    def append(self, records: NDArray[np.uint64]) -> None:
        """Write the keys of complete records.

        Raises
        ------
        StoreWriteError
            The disk refuses.
        """
        at, size = 0, min(_PIECE_WORDS, len(records))
        lengths, bare = np.empty(size, np.uint16), np.empty(size, np.uint64)
        while at < len(records):
            count, num_read, written = strip_headers(records[at : at + size], lengths, bare)
            self._lengths.append(lengths[:count])
            if written:
                self._words.append(bare[:written])
            self.num_keys += count
            self.num_bytes += int(lengths[:count].sum(dtype=np.int64))
            at += num_read

    def reader(self) -> KeyReader:
        """Return a reader at the first key."""
        return KeyReader(self._lengths, self._words)

    def remove(self) -> None:
        """Remove the files. Idempotent."""
        self._lengths.remove()
        self._words.remove()


class KeyReader:
    """Reads a `KeyFile` in order. It keeps only its place."""

    def __init__(self, lengths: TemporaryArray, words: TemporaryArray) -> None:
        self._lengths, self._words = lengths, words
        self._key = self._word = 0  # place of the next key, and of its first word

    def take(self, count: int) -> tuple[NDArray[np.uint16], NDArray[np.uint64]]:
        """Return lengths and words of the next ``count`` keys. Raises StoreWriteError if the file ends early."""
        lengths = self._lengths.read(self._key, self._key + count)
        num_words = int(((lengths.astype(np.int64) + 7) >> 3).sum())
        words = self._words.read(self._word, self._word + num_words)
        self._key, self._word = self._key + count, self._word + num_words
        return lengths, words


def keys_in_order(file: KeyFile, max_keys: int) -> Iterator[KeyChunk]:
    """Yield all keys of a file, at most ``max_keys`` at a time. Raises StoreWriteError if the file ends early."""
    reader = file.reader()
    for start in range(0, file.num_keys, max_keys):
        yield _chunk(*reader.take(min(max_keys, file.num_keys - start)))


def keys_in_turn(files: Sequence[KeyFile], owners: Iterable[NDArray[np.uint16]]) -> Iterator[KeyChunk]:
    """Yield the next key of each owner in turn, a chunk for each piece of ``owners``.

    Raises
    ------
    StoreWriteError
        A file ends early.
    """
    readers = [file.reader() for file in files]
    for piece in owners:
        counts = np.bincount(piece, minlength=len(files))
        parts = [reader.take(int(count)) for reader, count in zip(readers, counts, strict=True)]
        lengths = np.concatenate([part[0] for part in parts])
        words = np.concatenate([part[1] for part in parts])
        num_words = np.array([len(part[1]) for part in parts], np.int64)
        out_lengths, out_words = np.empty_like(lengths), np.empty_like(words)
        take_keys_in_turn(
            piece, lengths, words, np.cumsum(counts) - counts, np.cumsum(num_words) - num_words,
            out_lengths, out_words,
        )  # fmt: skip
        yield _chunk(out_lengths, out_words)


def _chunk(lengths: NDArray[np.uint16], words: NDArray[np.uint64]) -> KeyChunk:
    """Return keys without their padding."""
    data = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
    starts = np.zeros(len(lengths) + 1, np.int64)
    unpack_keys(words.view(np.uint8), lengths, data, starts)
    return KeyChunk(data=data, starts=starts)
