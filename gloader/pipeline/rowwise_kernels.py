"""The loop of row-wise Adagrad over the trainable rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.kernels import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

LANES: Final = 8  # float32 values in a vector of the processor


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

    The squares are added in a fixed order, so that the sum has the same bits whatever the batch: eight sums of every
    eighth column, for which the processor has one instruction, then these sums and the last columns in order.

    Parameters
    ----------
    weights, state : (C, D) and (C, 1), changed
    slots : (U,)
    grad : (U, D)
    lr, eps : learning rate, and the number that keeps the divisor above 0
    """
    dim = grad.shape[1]
    whole = dim - dim % LANES
    squares = np.empty(LANES, np.float32)
    for i in range(slots.shape[0]):
        slot = slots[i]
        squares[:] = np.float32(0.0)
        for start in range(0, whole, LANES):
            for lane in range(LANES):
                squares[lane] += grad[i, start + lane] * grad[i, start + lane]
        total = np.float32(0.0)
        for lane in range(LANES):
            total += squares[lane]
        for column in range(whole, dim):
            total += grad[i, column] * grad[i, column]
        state[slot, 0] += total / np.float32(dim)
        factor = lr / (np.sqrt(state[slot, 0]) + eps)
        for column in range(dim):
            weights[slot, column] -= factor * grad[i, column]
