"""What an inference comes to: handed out in chunks of bounded size, or open for reads in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gloader.training.inference.activations import MadeRows
    from gloader.types import IdArray

# Rows are handed on at once; more of them at a time are not faster.
_MOST_ROWS: Final = 1 << 16
_MOST_BYTES: Final = 16 << 20


class EmbeddedRows:
    """The output of a network for all nodes of a type, in host memory or on the SSD, as the plan has it.

    Parameters
    ----------
    made : (num_rows, kept_dim), what the last layer made
    num_rows, kept_dim : of ``made``
    width : of the output
    leave : returns the output (n, width) for rows of ``made`` (n, kept_dim); None: they are the output
    """

    def __init__(
        self,
        made: MadeRows,
        *,
        num_rows: int,
        kept_dim: int,
        width: int,
        leave: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.num_rows = num_rows
        self.width = width
        self._made = made
        self._kept_dim = kept_dim
        self._leave = leave

    def read(self, start: int, stop: int, out: NDArray[np.float32]) -> None:
        """Read rows ``start`` to ``stop`` into ``out`` (stop - start, width) float32."""
        if self._leave is None:
            self._made.read(start, stop, out)
            return
        kept = np.empty((stop - start, self._kept_dim), dtype=np.float32)
        self._made.read(start, stop, kept)
        out[:] = self._leave(torch.from_numpy(kept)).numpy()

    def take(self, rows: IdArray, out: NDArray[np.float32]) -> None:
        """Read ``rows`` (n,), in any order, repeats allowed, into ``out`` (n, width) float32."""
        if self._leave is None:
            self._made.take(rows, out)
            return
        kept = np.empty((len(rows), self._kept_dim), dtype=np.float32)
        self._made.take(rows, kept)
        out[:] = self._leave(torch.from_numpy(kept)).numpy()


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
