"""Checks of node ids, labels and splits from files and arrays.

The readers of files and of arrays in memory call these functions. Integers of any dtype become int64. A value that does
not fit is refused, and never wraps around. Sources without splits get random ones (`random_splits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.label_values import has_fraction, to_values
from gloader.convert.source import RandomSplits
from gloader.core.aligned_memory import plain_array
from gloader.core.units import format_bytes
from gloader.dataset.values import MAX_CLASSES, has_label
from gloader.errors import BudgetError, GraphError, ShapeError, SourceError
from gloader.plan.too_small import rounded_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.convert.options import LabelsAs
    from gloader.convert.readers.npy_file import NpyFile
    from gloader.convert.source import Splits
    from gloader.types import IdArray

# Largest number of nodes for which an array of 0 and 1 may be ids. With more nodes, the array is a mask of integers.
_FEW = 2
# Shares of train and valid among the labelled nodes in random splits. The other labelled nodes are test nodes.
_TRAIN_SHARE, _VALID_SHARE = 0.6, 0.2


def check_id_dtype(dtype: np.dtype[Any], where: str) -> None:
    """Refuse ids that are not native integers. Pure.

    Raises
    ------
    GraphError
        ``dtype`` is not an integer, or has a foreign byte order. The message has ``where``.
    """
    if dtype.kind not in "iu" or not dtype.isnative:
        raise GraphError(
            f"{where} has dtype {dtype.str!r}; node ids and offsets must be native integers: save them with "
            ".astype('int64')"
        )


def to_ids(values: NDArray[Any], *, first: int, where: str) -> IdArray:
    """Return ids with any integer dtype as int64. Pure.

    Parameters
    ----------
    values : (n,) ids; int64 is not copied
    first : the position of the first id in its file, for messages
    where : the file, for messages

    Raises
    ------
    GraphError
        As `check_id_dtype`, or an unsigned value does not fit into int64.
    """
    check_id_dtype(values.dtype, where)
    # Only uint64 may exceed int64. A cast would wrap such ids into negative ones.
    if values.dtype == np.uint64:
        bad = np.flatnonzero(values > np.uint64(2**63 - 1))
        if bad.size:
            raise GraphError(
                f"{where}: entry {first + int(bad[0])} is {values[bad[0]]}; ids must be below 2**63"
            )
    return plain_array(values, np.int64)


def check_id_array(dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> None:
    """Refuse an array that is not (n,) native integers. Pure.

    Parameters
    ----------
    dtype, shape : the array's dtype and shape
    where : the file or array, for messages

    Raises
    ------
    GraphError
        As `check_id_dtype`.
    ShapeError
        The array is not one-dimensional.
    """
    check_id_dtype(dtype, where)
    if len(shape) != 1:
        raise ShapeError(f"{where} has shape {shape}; it must be one-dimensional")


def to_labels(values: NDArray[Any], *, where: str, labels_as: LabelsAs | None = None) -> NDArray[Any]:
    """Return labels as classes, int64 (N,) with -1 where unknown, or values, float32 (N, k) with NaN. Pure.

    One column of whole numbers holds classes, and NaN becomes -1. One column of floats with a fraction holds values.
    Several columns hold values. Whole numbers of an integer dtype are then 0 or 1, for several labels per node.

    Parameters
    ----------
    values : (N,), (N, 1) or (N, k) real numbers or bools
    where : the file or array, for messages
    labels_as : the user's choice instead of this rule: "classes" refuses fractions and several columns, "values" takes
        any finite numbers, so that -1 is a value and only NaN is unknown

    Raises
    ------
    ShapeError
        The array has no rows of labels, or several columns for ``labels_as`` "classes".
    SourceError
        A class is not a whole number, is below -1, or is too large, or as `to_values`. The message names ``where``, the
        row and the value.
    """
    check_label_shape(values.shape, where, labels_as)
    if values.dtype.kind not in "iufb":
        raise SourceError(
            f"{where} has dtype {values.dtype}; labels must be numbers: of texts, save the classes np.unique(labels, "
            "return_inverse=True)[1]"
        )
    columns = values.reshape(-1, 1) if values.ndim == 1 else values
    if labels_as == "values" or columns.shape[1] > 1:
        return to_values(columns, where=where, allows_any=labels_as == "values")
    values = columns[:, 0]
    if labels_as is None and has_fraction(values):
        return to_values(columns, where=where, allows_any=True)
    return _to_classes(values, where)


def check_label_shape(shape: tuple[int, ...], where: str, labels_as: LabelsAs | None) -> None:
    """Raise ShapeError if an array of this shape cannot hold labels; see `to_labels`. Pure."""
    if len(shape) not in (1, 2) or (len(shape) == 2 and not 1 <= shape[1] <= MAX_CLASSES):
        raise ShapeError(
            f"{where} has shape {shape}; labels must be (N,), one class or value per node, or (N, k), k of them"
        )
    if labels_as == "classes" and len(shape) == 2 and shape[1] > 1:
        raise ShapeError(
            f"{where} has shape {shape}; --labels-as classes needs (N,): one class per node, of one-hot rows "
            "labels.argmax(axis=1)"
        )


def _to_classes(values: NDArray[Any], where: str) -> IdArray:
    """Return classes (N,) as int64. NaN becomes -1. Raises SourceError as `to_labels`."""
    if values.dtype.kind == "f":
        # Beyond 2**53, float64 skips whole numbers, so the intended label is unknown.
        unlabelled = np.isnan(values)
        values = np.where(unlabelled, values.dtype.type(-1), values)
        _refuse_labels(values, (np.floor(values) != values) | (np.abs(values) > 2**53), where)
    # The check comes before the cast, because 2**64 - 1 would become -1.
    _refuse_labels(values, values < -1, where)
    _refuse_labels(values, values >= MAX_CLASSES, where, cure=True)
    return plain_array(values, np.int64)


def no_labels(num_nodes: int) -> IdArray:
    """Return labels (N,) of -1, for unlabelled nodes. Pure."""
    return np.full(num_nodes, -1, np.int64)


def read_labels(
    file: NpyFile, *, num_nodes: int, budget_bytes: int, labels_as: LabelsAs | None = None
) -> NDArray[Any]:
    """Return the labels in ``file``, classes (N,) or values (N, k). The shape is checked before the file is read.

    Parameters
    ----------
    file : labels (N,), (N, 1) or (N, k)
    num_nodes : N
    budget_bytes : memory for the labels
    labels_as : as in `to_labels`

    Raises
    ------
    ShapeError, SourceError
        There is not one label per node, or as `to_labels`.
    BudgetError
        The labels take more than ``budget_bytes``.
    """
    if file.shape[:1] != (num_nodes,):
        raise ShapeError(
            f"{file.where} has shape {file.shape}; labels must be ({num_nodes},): one class per node, -1 where it is "
            f"unknown, or ({num_nodes}, k): k values per node, NaN where unknown"
        )
    check_label_shape(file.shape, file.where, labels_as)
    return to_labels(file.read(budget_bytes=budget_bytes), where=file.where, labels_as=labels_as)


def read_split(file: NpyFile, *, num_nodes: int, budget_bytes: int) -> IdArray:
    """Return the split's node ids in ``file``. The shape is checked before the file is read.

    Parameters
    ----------
    file : ids (n,) or (n, 1), or a mask (N,) of bools
    num_nodes : N
    budget_bytes : memory for the ids or the mask

    Raises
    ------
    ShapeError, GraphError, SourceError
        There are more ids than nodes, or as `to_split`.
    BudgetError
        The ids or the mask take more than ``budget_bytes``.
    """
    if file.dtype != np.bool_:
        require_split_size(file.size, num_nodes, file.where)
    elif file.size != num_nodes:
        raise ShapeError(f"{file.where} is a mask of {file.size} nodes; there are {num_nodes}")
    return to_split(file.read(budget_bytes=budget_bytes), num_nodes=num_nodes, where=file.where)


def require_split_size(num_ids: int, num_nodes: int, where: str) -> None:
    """Raise ShapeError for a split with more ids than nodes. Pure.

    Parameters
    ----------
    num_ids : number of ids in the split
    num_nodes : N
    where : the file or array, for messages
    """
    if num_ids > num_nodes:
        raise ShapeError(
            f"{where} holds {num_ids} ids for {num_nodes} nodes; a split names each node once at most"
        )


def require_node_memory(num_nodes: int, budget_bytes: int, where: str) -> None:
    """Raise BudgetError if one array with an entry per node does not fit ``budget_bytes``. Pure.

    Parameters
    ----------
    num_nodes : N, from a header
    budget_bytes : the conversion's memory budget
    where : the header's file, for messages
    """
    needed = 8 * num_nodes  # int64
    if needed > budget_bytes:
        raise BudgetError(
            f"{where} has {num_nodes:,} nodes, whose labels take {format_bytes(needed)}; the memory budget is "
            f"{format_bytes(budget_bytes)}. Raise --memory-budget, if the number of nodes is right"
        )


def require_memory(needed: int, what: str, budget_bytes: int, *, held_bytes: int = 0) -> None:
    """Raise BudgetError if ``needed`` bytes for ``what`` do not fit the budget. Pure.

    ``held_bytes`` of the user's memory budget are taken already, and ``budget_bytes`` are left.
    """
    if needed > budget_bytes:
        besides = f" besides {format_bytes(held_bytes)} that are held" if held_bytes else ""
        raise BudgetError(
            f"{what} take {format_bytes(needed)}{besides}; the memory budget is "
            f"{format_bytes(budget_bytes + held_bytes)}. Raise --memory-budget to at least "
            f"{format_bytes(rounded_up(needed + held_bytes))}",
            short_bytes=needed - budget_bytes,
        )


def count_classes(labels: NDArray[Any]) -> int:
    """Return the number of classes (N,): the largest plus one, at least 1. For values (N, k), return k. Pure."""
    if labels.ndim == 2:
        return int(labels.shape[1])
    return max(1, int(labels.max(initial=-1)) + 1)


def few_classes(labels: NDArray[Any]) -> str:
    """Return a remedy for labels (N,) that are too large to be classes, for messages. Pure."""
    different, has_none = np.unique(labels[labels >= 0]).size, bool((labels < 0).any())
    return (
        f"there are {different:,} different labels: write np.unique(labels, return_inverse=True)[1]"
        f"{' - 1' if has_none else ''} instead, which gives the classes 0..{different - 1}"
    )


def _refuse_labels(
    values: NDArray[Any], is_bad: NDArray[np.bool_], where: str, *, cure: bool = False
) -> None:
    """Raise SourceError for the first bad label. If ``cure``, the message has the remedy of `few_classes`."""
    bad = np.flatnonzero(is_bad)
    if bad.size:
        raise SourceError(
            f"{where}: row {int(bad[0])} has label {values[bad[0]]}; labels are classes in 0..{MAX_CLASSES - 1}, or "
            f"-1 or NaN where there is none{'; ' + few_classes(values) if cure else ''}. For numbers to predict, "
            'instead of classes, give --labels-as values, in Python labels_as="values"'
        )


def check_splits(splits: Splits, labels: NDArray[Any], *, where: str) -> None:
    """Refuse ids out of range, duplicate ids, and unlabelled nodes in train or valid. Pure.

    Test nodes may be unlabelled, because some public tasks keep their test labels secret.

    Parameters
    ----------
    splits : node ids of each part
    labels : (N,) classes, -1 where unknown, or (N, k) values. A node is labelled if one of its k values is known
    where : the source, for messages

    Raises
    ------
    SourceError
        An id is invalid. The message names ``where``, the split, the position and the node.
    """
    # Each node's part: 1, 2 or 3, or 0 without a part. This takes one byte per node for splits of any size.
    owner, is_labelled = np.zeros(labels.shape[0], np.uint8), has_label(labels)
    names = ("train", "valid", "test")
    for number, (name, ids) in enumerate(
        zip(names, (splits.train, splits.valid, splits.test), strict=True), 1
    ):
        outside = np.flatnonzero((ids < 0) | (ids >= labels.shape[0]))
        if outside.size:
            raise SourceError(
                f"{where}: {name} holds node {ids[outside[0]]} at position {outside[0]}; nodes are "
                f"0..{labels.shape[0] - 1}"
            )
        taken = np.flatnonzero(owner[ids])
        if taken.size:
            node = int(ids[taken[0]])
            raise SourceError(
                f"{where}: node {node} is in {names[owner[node] - 1]} and in {name}; a node may be in only one part"
            )
        # If an id occurs twice, fewer nodes are marked than there are ids.
        owner[ids] = number
        if np.count_nonzero(owner == number) != ids.shape[0]:
            node = _first_repeat(ids)
            raise SourceError(f"{where}: {name} holds node {node} more than once")
        unlabelled = np.flatnonzero(~is_labelled[ids])
        if unlabelled.size and name != "test":
            raise SourceError(
                f"{where}: {name} holds node {ids[unlabelled[0]]} at position {unlabelled[0]}, which has no label"
            )


def random_splits(labels: NDArray[Any], *, seed: int) -> RandomSplits:
    """Split the labelled nodes at random: 60% train, 20% valid, 20% test. Equal seeds give equal splits. Pure."""
    labelled = np.flatnonzero(has_label(labels))
    shuffled = np.random.default_rng(seed).permutation(labelled)
    first = round(_TRAIN_SHARE * labelled.shape[0])
    second = first + round(_VALID_SHARE * labelled.shape[0])
    return RandomSplits(
        train=np.sort(shuffled[:first]),
        valid=np.sort(shuffled[first:second]),
        test=np.sort(shuffled[second:]),
        seed=seed,
    )


def to_split(values: NDArray[Any], *, num_nodes: int, where: str) -> IdArray:
    """Return a split's node ids. Pure.

    Parameters
    ----------
    values : ids (n,) or (n, 1), or a mask (N,) of bools
    num_nodes : N
    where : the file or array, for messages

    Raises
    ------
    ShapeError
        The array is not one-dimensional, or a mask does not have N entries.
    GraphError
        The ids are not integers.
    SourceError
        The array is a mask of integers.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ShapeError(f"{where} has shape {values.shape}; a split is (n,) node ids or an (N,) mask")
    if values.dtype == np.bool_:
        if values.shape[0] != num_nodes:
            raise ShapeError(f"{where} is a mask of {values.shape[0]} nodes; there are {num_nodes}")
        return np.flatnonzero(values)
    # An array of only 0 and 1 for more than two nodes must be a mask. As ids, 0 or 1 would occur more than once.
    if (
        values.dtype.kind in "iu"
        and values.shape[0] == num_nodes > _FEW
        and ((values == 0) | (values == 1)).all()
    ):
        raise SourceError(
            f"{where} is a mask of whole numbers, 0 and 1 for each of the {num_nodes} nodes; a mask holds bools, save "
            "it with .astype(bool)"
        )
    return to_ids(values, first=0, where=where)


def _first_repeat(ids: IdArray) -> int:
    """Return the smallest id that occurs more than once."""
    unique, counts = np.unique(ids, return_counts=True)
    return int(unique[counts > 1][0])
