"""The first rows of an embedding table: a formula of seed, row and column instead of stored bytes.

A row is the weights, then the optimizer's state. A row that was never trained is in no file, so a new table of any size
takes no disk space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from gloader.errors import ConfigError, ShapeError
from gloader.ssd_store.embedding.table_kernels import NORMAL, UNIFORM, ZEROS, fill_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


_KINDS: Final = {"uniform": UNIFORM, "normal": NORMAL, "zeros": ZEROS}


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialRows:
    """The formula for rows that were never written.

    A weight is a hash of (seed, row, column), so its bits depend on neither the order of reads nor the machine.

    Raises
    ------
    ConfigError
        A field is out of range.
    """

    seed: int  # 0..2**63-1
    dim: int  # number of weights in a row, at least 1
    kind: Literal["uniform", "normal", "zeros"]  # distribution of the weights
    scale: float  # uniform: the weights lie in [-scale, scale); normal: the standard deviation
    state: tuple[float, ...]  # the first value of each state column, (width - dim,)

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ConfigError(f"kind={self.kind!r} is unknown; choose one of {', '.join(_KINDS)}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed={self.seed} must lie in 0..2**63-1")
        if self.dim < 1:
            raise ConfigError(f"dim={self.dim} must be at least 1")
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise ConfigError(f"scale={self.scale} must be a finite number from 0")
        if not all(math.isfinite(value) for value in self.state):
            raise ConfigError(f"state={self.state} must hold finite numbers")

    @property
    def width(self) -> int:
        """Number of float32 in a row: weights and state."""
        return self.dim + len(self.state)

    def fill(self, ids: IdArray, out: NDArray[np.float32], *, at: IdArray | None = None) -> None:
        """Write the first rows of ``ids`` (M,) into ``out``.

        Parameters
        ----------
        ids : (M,) int64
            Row ids, in any order.
        out : (M, width), or (K, width) with ``at``
            C-contiguous float32.
        at : (M,) int64, optional
            Row in ``out`` for each id; by default row i goes to row i.

        Raises
        ------
        ShapeError
            ``out`` or ``at`` does not fit.
        """
        count = ids.shape[0]
        if (
            out.dtype != np.float32
            or out.ndim != 2
            or out.shape[1] != self.width
            or not out.flags.c_contiguous
        ):
            raise ShapeError(
                f"out must be C-contiguous float32 of shape (rows, {self.width}), got {out.dtype} of {out.shape}"
            )
        if at is None:
            at = np.arange(count)
        if at.shape != ids.shape or (count and not 0 <= at.min() <= at.max() < out.shape[0]):
            raise ShapeError(f"at must give one of {out.shape[0]} rows for each of {count} ids")
        state = np.array(self.state, np.float32)
        fill_rows(
            np.ascontiguousarray(ids, np.int64),
            at,
            np.int64(self.seed),
            _KINDS[self.kind],
            self.scale,
            state,
            out,
        )
