"""Synthetic features: the centre of a node's class or traits, under much noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from gloader.convert.sources.synthetic.draws import U64, draw, make_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.types import IdArray

_LOW = U64(0xFFFF)
_S16, _S32, _S48 = U64(16), U64(32), U64(48)
# Of the sum of four uniform 16-bit numbers: its mean, and one over its standard deviation.
_NOISE_MEAN = 2 * 65535
_NOISE_SCALE = np.float32(1.0 / np.sqrt((65536.0**2 - 1.0) / 3.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticFeatures:
    """The feature stream: row n is ``centers[codes[n]]`` plus noise of mean 0 and deviation 1."""

    codes: IdArray  # (N,)
    centers: NDArray[np.float32]  # (K, F)
    key: np.uint64

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.codes.shape[0])

    @property
    def dim(self) -> int:
        """F."""
        return int(self.centers.shape[1])

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """float32."""
        return np.dtype(np.float32)

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``."""
        for first in range(0, self.num_rows, max_rows):
            yield _make_rows(first, self.codes[first : first + max_rows], self.centers, self.key)


def class_centers(num_classes: int, dim: int, *, signal: float, seed: int) -> NDArray[np.float32]:
    """Return one random direction for each class (K, F). Pure.

    Parameters
    ----------
    num_classes, dim : K and F
    signal : length of every direction; the noise of a feature has deviation 1
    seed : of the graph
    """
    return (signal * _directions(num_classes, dim, seed)).astype(np.float32)


def trait_centers(num_traits: int, dim: int, *, signal: float, seed: int) -> NDArray[np.float32]:
    """Return the centre of each combination of traits (2**num_traits, F), of length about ``signal``. Pure.

    Each trait adds or takes away its own direction.

    Parameters
    ----------
    num_traits, dim : number of binary traits, and F
    signal : length of a centre, about; the noise of a feature has deviation 1
    seed : of the graph
    """
    bits = (np.arange(1 << num_traits)[:, None] >> np.arange(num_traits)) & 1
    directions = _directions(num_traits, dim, seed) * (signal / np.sqrt(num_traits))
    centers = np.zeros((1 << num_traits, dim))
    # Not a matrix product, whose order of additions differs between machines.
    for trait in range(num_traits):
        centers += (2.0 * bits[:, trait, None] - 1.0) * directions[trait]
    return centers.astype(np.float32)


def _directions(count: int, dim: int, seed: int) -> NDArray[np.float64]:
    zeros = np.zeros((1, dim), np.float32)
    rows = _make_rows(0, np.zeros(count, np.int64), zeros, make_key(seed, "centers")).astype(np.float64)
    # Exact sums are the same on every machine.
    lengths = np.array([math.sqrt(math.fsum(row * row)) for row in rows])
    return rows / np.maximum(lengths[:, None], 1e-12)


def _make_rows(
    first: int, codes: IdArray, centers: NDArray[np.float32], key: np.uint64
) -> NDArray[np.float32]:
    out = np.empty((codes.shape[0], centers.shape[1]), np.float32)
    with np.errstate(over="ignore"):
        _fill_rows(first, codes, centers, key, out)
    return out


@njit(cache=True, nogil=True)
def _fill_rows(
    first: int,
    codes: NDArray[np.int64],
    centers: NDArray[np.float32],
    key: np.uint64,
    out: NDArray[np.float32],
) -> None:
    for i in range(out.shape[0]):
        node_key = draw(key, U64(first + i))
        center = centers[codes[i]]
        for f in range(out.shape[1]):
            bits = draw(node_key, U64(f))
            # The sum of four 16-bit uniforms is near enough to a normal variable, and exact on every machine.
            total = (bits & _LOW) + ((bits >> _S16) & _LOW) + ((bits >> _S32) & _LOW) + (bits >> _S48)
            out[i, f] = center[f] + np.float32(np.int64(total) - _NOISE_MEAN) * _NOISE_SCALE
