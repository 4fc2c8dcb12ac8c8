"""Chunks of the sizes a reader has, as chunks of the size a caller wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Columns = tuple[NDArray[Any], ...]


def regroup(chunks: Iterable[Columns], max_rows: int) -> Iterator[Columns]:
    """Yield the rows of ``chunks`` in order, ``max_rows`` at a time; the last group may be shorter.

    Every chunk is a tuple of as many arrays, all of the same length. Memory is two groups.
    """
    held: list[Columns] = []
    count = 0
    for chunk in chunks:
        start, length = 0, chunk[0].shape[0]
        while start < length:
            stop = min(length, start + max_rows - count)
            held.append(tuple(column[start:stop] for column in chunk))
            count += stop - start
            start = stop
            if count == max_rows:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _joined(pieces: list[Columns]) -> Columns:
    return (
        pieces[0]
        if len(pieces) == 1
        else tuple(np.concatenate(column) for column in zip(*pieces, strict=True))
    )
