"""Feature rows of any real dtype as floats, which is what a store casts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.source import FeatureStream


def float_chunks(features: FeatureStream, max_rows: int) -> Iterator[NDArray[Any]]:
    """Yield the rows in order, at most ``max_rows`` at a time; integers and bools become floats of the same values."""
    for chunk in features.chunks(max_rows):
        yield chunk if chunk.dtype.kind == "f" else chunk.astype(np.float32)
