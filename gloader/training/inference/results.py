"""What an inference comes to, handed out in chunks of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.training.inference.activations import MadeRows
    from gloader.types import IdArray

# Rows are handed on at once; more of them at a time are not faster.
_MOST_ROWS: Final = 1 << 16
_MOST_BYTES: Final = 16 << 20


def iter_rows(
    made: MadeRows, *, num_rows: int, width: int, order: IdArray | None = None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield ranges of positions, and the rows there, (., width) float32 on the host.

    Parameters
    ----------
    made : (num_rows, width)
    num_rows, width : of it
    order : (num_rows,) the row at each position; None: they are in order
    """
    step = max(1, min(_MOST_ROWS, _MOST_BYTES // (4 * width)))
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        out = np.empty((stop - start, width), dtype=np.float32)
        if order is None:
            made.read(start, stop, out)
        else:
            made.take(order[start:stop], out)
        yield slice(start, stop), torch.from_numpy(out)
