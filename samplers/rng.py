"""Addressed randomness: every draw is a hash of its address, without a random stream.

The address is (seed, epoch, batch, layer, relation, node, draw). So a batch does not depend on the order in which
batches are sampled, or on the number of threads. A key is a hash of the first fields of the address. Keys are made in
this order: `layer_key` for a layer (a hop) of a batch, `relation_key` for a relation (edge type) in the layer,
`node_key` for a node in the relation. `word` makes 64 random bits from a node's key and a number. A draw is one random
number for a node, made from half a word or a whole word: `bounded` for an integer, `unit` for a float.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from gloader.core.hashing import GOLDEN, mix64, mix_int
from gloader.core.kernels import njit

_S11, _S32 = np.uint64(11), np.uint64(32)  # shifts
LOW_32 = np.uint64(0xFFFFFFFF)  # mask for the lower 32 bits
ONE = np.uint64(1)
# A rejected draw takes word number draw + _RETRY, then draw + 2 * _RETRY, and so on. The step is above all word
# numbers of first draws.
_RETRY = np.uint64(1 << 40)
_UNIT = 2.0**-53  # distance between the values of `unit`
to_int: Any = np.int64  # in kernels a plain int() keeps an unsigned integer unsigned
_MASK = 2**64 - 1  # keeps Python integers within 64 bits
_GOLDEN_INT = int(GOLDEN)


def layer_key(seed: int, epoch: int, index: int, layer: int) -> np.uint64:
    """Return a layer's key in a batch. Each field counts modulo 2**64. Pure.

    Parameters
    ----------
    seed, epoch, index : the sampler's seed, and the batch's epoch and index
    layer : the hop, 0 next to the seeds
    """
    return np.uint64(_extended(_batch_key(seed, epoch, index), layer))


@lru_cache(maxsize=256)  # the layers of a batch share its key; several batches are sampled at the same time
def _batch_key(seed: int, epoch: int, index: int) -> int:
    """Return a batch's key. Pure."""
    return _extended(_extended(_extended(0, seed), epoch), index)


def _extended(key: int, field: int) -> int:
    """Return ``key`` with one more field of the address. Pure."""
    # The key is mixed after each field. With plain sums, the addresses (1, 2) and (2, 1) would have the same key.
    return mix_int((key + _GOLDEN_INT + int(field)) & _MASK)


def relation_key(key: np.uint64, relation: int) -> np.uint64:
    """Return a relation's key in the layer with ``key``; relation 0 has the layer's own key. Pure.

    Parameters
    ----------
    key : the layer's key
    relation : the relation's number in the graph's order
    """
    return key if relation == 0 else np.uint64(mix_int((int(key) + mix_int(relation)) & _MASK))


@njit(cache=True, nogil=True, inline="always")
def node_key(key: np.uint64, node: int) -> np.uint64:
    """Return the key of ``node`` in the relation with ``key``. Pure."""
    # Without the added one, node 0 would not change the key.
    return mix64(key ^ (np.uint64(node) * GOLDEN + ONE))


@njit(cache=True, nogil=True, inline="always")
def word(key: np.uint64, index: np.uint64) -> np.uint64:
    """Return word ``index`` for the node with ``key``: splitmix64, started at the key. Pure."""
    return mix64(key + (index + ONE) * GOLDEN)


@njit(cache=True, nogil=True)
def bounded_64(bits: np.uint64, bound: np.uint64) -> np.uint64:
    """Return the upper 64 bits in the product ``bits * bound``. Pure."""
    low = (bits & LOW_32) * (bound & LOW_32)
    mid_1 = (bits >> _S32) * (bound & LOW_32) + (low >> _S32)
    mid_2 = (bits & LOW_32) * (bound >> _S32) + (mid_1 & LOW_32)
    return (bits >> _S32) * (bound >> _S32) + (mid_1 >> _S32) + (mid_2 >> _S32)


@njit(cache=True, nogil=True)
def redraw(key: np.uint64, draw: int, bound: np.uint64) -> np.uint64:
    """Return a uniform integer below ``bound``, for a draw whose 32 bits were rejected or too few. Pure.

    A bound of 2**32 or more uses all 64 bits of a word. Its bias is at most bound / 2**64.
    """
    index = np.uint64(draw) + _RETRY
    if bound > LOW_32:
        return bounded_64(word(key, index), bound)
    # 2**32 modulo the bound: this many of the 2**32 values are left over and would make some results more likely.
    threshold = (LOW_32 + ONE - bound) % bound
    while True:
        product = (word(key, index) >> _S32) * bound
        if product & LOW_32 >= threshold:
            return product >> _S32
        index += _RETRY


@njit(cache=True, nogil=True, inline="always")
def settle(key: np.uint64, draw: int, bits: np.uint64, bound: np.uint64) -> np.uint64:
    """Return a uniform integer below ``bound`` from 32 random ``bits``; reject and redraw biased bits. Pure.

    Multiply, shift and reject (Lemire, "Fast random integer generation in an interval", TOMACS'19): exactly
    uniform for uniform bits and a bound below 2**32. See `redraw` for larger bounds.
    """
    product = bits * bound
    if bound > LOW_32 or product & LOW_32 < bound:
        return _settle_edge(key, draw, product, bound)
    return product >> _S32


@njit(cache=True, nogil=True)
def _settle_edge(key: np.uint64, draw: int, product: np.uint64, bound: np.uint64) -> np.uint64:
    """Finish `settle` in its rare cases: the bits may be biased, which a division decides, or the bound is large."""
    if bound <= LOW_32 and product & LOW_32 >= (LOW_32 + ONE - bound) % bound:
        return product >> _S32
    return redraw(key, draw, bound)


@njit(cache=True, nogil=True, inline="always")
def bounded(key: np.uint64, draw: int, bound: int) -> int:
    """Return draw ``draw`` for a node, a uniform integer below ``bound`` >= 1. Pure.

    Draws 2i and 2i + 1 are word i's lower and upper half.
    """
    bits = word(key, np.uint64(draw >> 1))
    half = bits >> _S32 if draw & 1 else bits & LOW_32
    return to_int(settle(key, draw, half, np.uint64(bound)))


@njit(cache=True, nogil=True, inline="always")
def unit(key: np.uint64, draw: int) -> float:
    """Return draw ``draw`` for a node as a float64 in (0, 1], a multiple of 2**-53. Pure.

    Draw i is made from word i, which the draws 2i and 2i + 1 of `bounded` use too.
    """
    return ((word(key, np.uint64(draw)) >> _S11) + ONE) * _UNIT
