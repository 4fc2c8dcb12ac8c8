"""The loop of row-wise Adagrad over the trainable rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.core.kernels import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def rowwise_adagrad(
    weights: NDArray[np.float32],
    state: NDArray[np.float32],
    slots: IdArray,
    grad: NDArray[np.float32],
    lr: np.float32,
    eps: np.float32,
) -> None:
    """Update the rows ``slots`` (U,), distinct and in range, by row-wise Adagrad.

    The squares are added in column order, so that the sum has the same bits whatever the batch.

    Parameters
    ----------
    weights, state : (C, D) and (C, 1), changed
    slots : (U,)
    grad : (U, D)
    lr, eps : learning rate, and the number that keeps the divisor above 0
    """
    dim = grad.shape[1]
    for i in range(slots.shape[0]):
        slot = slots[i]
        squares = np.float32(0.0)
        for column in range(dim):
            squares += grad[i, column] * grad[i, column]
        state[slot, 0] += squares / np.float32(dim)
        factor = lr / (np.sqrt(state[slot, 0]) + eps)
        for column in range(dim):
            weights[slot, column] -= factor * grad[i, column]
