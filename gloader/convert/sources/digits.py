"""The source ``builtin:digits``: a real graph that needs no files and no network.

The nodes are 1,797 handwritten digits with 8 x 8 pixels: the test part of the UCI set "Optical Recognition of
Handwritten Digits" (Alpaydin and Kaynak, CC BY 4.0). ``digits.npz`` in this folder has the data. Edges join each digit
with its nearest neighbours in pixel space.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.readers.arrays import array_features, ends_edges
from gloader.convert.source import Source, Splits
from gloader.convert.sources.synthetic.generators import make_permutation, permute_range
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.convert.options import SourceOptions
    from gloader.types import IdArray

NUM_NEIGHBORS = 10  # nearest neighbours of each digit
# The largest pixel value. Pixels are whole numbers, and division by this value gives features in [0, 1].
_MAX_PIXEL = 16


def open_builtin(argument: str, options: SourceOptions) -> Source:
    """Open ``builtin:digits``. ``options.seed`` decides the stratified 60/20/20 split.

    Raises
    ------
    ConfigError
        ``argument`` is not "digits".
    """
    if argument != "digits":
        raise ConfigError(f"builtin:{argument} does not exist; the only built-in data set is builtin:digits")
    pixels, labels = _load_digits()
    src, dst = nearest_neighbor_edges(pixels, NUM_NEIGHBORS)
    return Source(
        name="digits",
        origin="builtin:digits",
        num_nodes=len(labels),
        num_classes=10,
        edges=ends_edges(src, dst, where="builtin:digits"),
        features=array_features((pixels / _MAX_PIXEL).astype(np.float32)),
        labels=labels,
        splits=stratified_splits(labels, train=0.6, valid=0.2, seed=options.seed),
    )


def nearest_neighbor_edges(points: NDArray[np.int64], num_neighbors: int) -> tuple[IdArray, IdArray]:
    """Return sources (E,) and destinations (E,) of the symmetrised k-nearest-neighbour graph. Pure.

    Distances are exact, because ``points`` (N, F) are whole numbers. At equal distance, the lower id wins. Edges are
    unique, and sorted by destination, then source.
    """
    num = len(points)
    # |a - b|^2 = |a|^2 + |b|^2 - 2ab in whole numbers has no rounding, so all machines find the same neighbours.
    squares = (points * points).sum(axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * points @ points.T
    np.fill_diagonal(distances, np.iinfo(np.int64).max)
    near = np.argsort(distances, axis=1, kind="stable")[:, :num_neighbors].ravel()
    # Each edge is one number, destination * N + source, in both directions. So a sort puts edges into their order.
    nodes = np.repeat(np.arange(num, dtype=np.int64), num_neighbors)
    pairs = np.unique(np.concatenate([nodes * num + near, near * num + nodes]))
    return pairs % num, pairs // num


def stratified_splits(labels: IdArray, *, train: float, valid: float, seed: int) -> Splits:
    """Split each class's nodes into three parts, with the same shares. Pure.

    Parameters
    ----------
    labels : (N,) classes
    train, valid : shares in [0, 1]; the rest are test nodes
    seed : seed of the permutation
    """
    num = len(labels)
    # (N,) each node's place in a random order.
    rank = permute_range(0, num, num, make_permutation(num, seed, "splits"))
    parts: tuple[list[IdArray], ...] = ([], [], [])
    for label in np.unique(labels):
        # The class's nodes, in the random order, are cut at the rounded shares.
        members = np.flatnonzero(labels == label)
        members = members[np.argsort(rank[members])]
        cuts = np.round(np.array([train, train + valid]) * len(members)).astype(np.int64)
        for part, ids in zip(parts, np.split(members, cuts), strict=True):
            part.append(ids)
    first, second, third = (np.sort(np.concatenate(part)) for part in parts)
    return Splits(train=first, valid=second, test=third)


def _load_digits() -> tuple[NDArray[np.int64], IdArray]:
    """Return the pixels (1797, 64) in 0..16 and the labels (1797,) in 0..9."""
    with resources.files(__package__).joinpath("digits.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        return arrays["pixels"].astype(np.int64), arrays["labels"].astype(np.int64)
