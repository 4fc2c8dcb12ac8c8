"""Rules for a dataset's arrays and their values. A checksum proves that bytes are unchanged, not that values are valid.

Every id is checked before its use as an index: when an array is loaded, when a page is read, and in `gloader verify`.
`ValueLimits` checks any part of an array. `ValueCheck` checks a full array that comes in consecutive parts, including
rules that involve several elements. An array's plain name, such as "labels", is its name in the record without the
folder of its table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from gloader.core.dtypes import FEATURE_DTYPES
from gloader.core.kernels import njit
from gloader.core.value_kernels import first_bad_weight, first_descent, first_outside
from gloader.dataset.key_record import KEY_DTYPES
from gloader.dataset.key_record import NODES as KEY_NODES
from gloader.errors import FormatError, GraphError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

# Maximum number of classes of a dataset. The limit is far above real numbers of classes, and a model, which has one row
# of weights per class, still fits in memory.
MAX_CLASSES: Final = 1_000_000
# The kind of a dataset's labels. "classes" are int64 (N,), -1 where unknown. The others are float32 (N, k), NaN where
# unknown: "binary" is one column of 0 and 1, "multilabel" are several, "values" are columns of any finite numbers.
LabelKind: TypeAlias = Literal["classes", "binary", "multilabel", "values"]
LABEL_KINDS: Final[tuple[LabelKind, ...]] = ("classes", "binary", "multilabel", "values")
LABEL_VALUE_DTYPE: Final = "float32"  # the dtype of labels that are values; classes are int64
_STEP_ELEMENTS: Final = 1 << 20  # label values per step of a check, so that its temporary arrays stay small
# The allowed dtypes of each array on disk, by plain name.
DTYPES: Final[dict[str, tuple[str, ...]]] = {
    "indptr": ("int64",),
    "indices": ("int32", "int64"),
    "edge_weight": ("float32",),
    "edge_features": FEATURE_DTYPES,
    "edge_features.scale": ("float32",),
    "edge_time": ("int64",),
    "features": FEATURE_DTYPES,
    "features.scale": ("float32",),
    "labels": ("int64", LABEL_VALUE_DTYPE),
    "train": ("int64",),
    "valid": ("int64",),
    "test": ("int64",),
    "original_ids": ("int64",),
    "row_time": ("int64",),
    **KEY_DTYPES,
}
# The same for a task table, whose rows are to be predicted. Its arrays are held in memory in this order, as far as they
# fit.
TASK_DTYPES: Final[dict[str, tuple[str, ...]]] = {
    "nodes": ("int64",),
    "times": ("int64",),
    "labels": ("int64", LABEL_VALUE_DTYPE),
    "weights": ("float32",),
}
_TOPOLOGY: Final = ("indptr", "indices", "edge_weight", "edge_time")  # arrays whose errors are GraphErrors
_NODES: Final = ("train", "valid", "test", "original_ids", "nodes", KEY_NODES)  # arrays of node ids
_PERMUTATIONS: Final = ("original_ids", KEY_NODES)  # arrays in which each node id occurs once


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLimits:
    """Bounds for the array values of a node type, a relation or a task table."""

    num_nodes: int  # N; for a relation, its number of destinations
    num_edges: int  # E
    num_classes: int  # classes are below it; for labels that are values, the number of columns k
    num_sources: int  # number of nodes that edges may come from

    def first_wrong(self, name: str, values: NDArray[Any]) -> int:
        """Return the index of the first invalid value in ``values``, a part of the array ``name``, or -1. Pure.

        Rows (n, k) count as n * k values, one row after the other. The order of ``indptr`` and repeated
        ``original_ids`` are checked only in `ValueCheck`. Arrays without limits may hold any values.
        """
        # Loaded arrays are read-only. To numba, a writable array has another type and would need a second compilation.
        view = values.view()
        view.flags.writeable = False
        if name in ("edge_weight", "weights"):
            return int(first_bad_weight(view))
        if name == "labels" and view.dtype.kind == "f":
            return first_infinite(view.reshape(-1))
        limits = self._range(name)
        return -1 if limits is None else int(first_outside(view, *limits))

    def describe(self, name: str, position: int, value: object) -> str:
        """Return a message about the invalid ``value`` at ``position`` of the array ``name``. Pure.

        Parameters
        ----------
        name : the array's plain name
        position : the element's number in the whole array; rows count as in `first_wrong`
        value : the element
        """
        if name == "labels" and isinstance(value, np.floating):
            row, column = divmod(position, self.num_classes)
            return f"labels[{row}, {column}] = {value} is not finite; a label is a number, or NaN where it is unknown"
        element = f"{name}[{position}] = {value}"
        limits = self._range(name)
        if limits is None:
            return f"{element}: weights must be finite and at least 0"
        noun = {"labels": "a class", "indptr": "an edge position"}.get(name, "a node")
        allowed = f"it must be in {limits[0]}..{limits[1]}" if limits[0] <= limits[1] else "there is none"
        return f"{element} is not {noun}: {allowed}"

    def _range(self, name: str) -> tuple[int, int] | None:
        """Return the smallest and the largest valid value of the array ``name``; None without limits."""
        if name in _NODES:
            return 0, self.num_nodes - 1
        if name == "indices":
            return 0, self.num_sources - 1
        if name == "labels":
            return -1, self.num_classes - 1
        return (0, self.num_edges) if name == "indptr" else None


class ValueCheck:
    """The check of a full array, which comes in consecutive parts. Call `wrong` for each, then `wrong_end`.

    Parameters
    ----------
    name : the array's plain name
    limits : bounds for its values
    """

    def __init__(self, name: str, limits: ValueLimits) -> None:
        self._name = name
        self._limits = limits
        self._count = 0  # elements checked so far
        self._last = 0  # last element of the previous part, for indptr
        self._seen: NDArray[np.uint64] | None = None  # one bit per node, for permutations

    def wrong(self, values: NDArray[Any]) -> str | None:
        """Check the next ``values`` (n,); return a message about the first invalid value, or None."""
        values = values.reshape(-1)
        first, self._count = self._count, self._count + len(values)
        wrong_index = self._limits.first_wrong(self._name, values)
        if wrong_index >= 0:
            return self._limits.describe(self._name, first + wrong_index, values[wrong_index])
        if len(values) == 0:
            return None
        return self._wrong_order(values, first) if self._name in ("indptr", *_PERMUTATIONS) else None

    def wrong_end(self) -> str | None:
        """Return a message about an invalid last value, or None. Call it after the last part."""
        if self._name == "indptr" and self._last != self._limits.num_edges:
            return (
                f"indptr[{self._count - 1}], its end, is {self._last}; it must be the number of edges, "
                f"{self._limits.num_edges}"
            )
        return None

    def _wrong_order(self, values: NDArray[Any], first: int) -> str | None:
        """Return a message about the first repeated id or descending offset, or None.

        ``first`` is the position of values[0] in the whole array.
        """
        view = values.view()
        view.flags.writeable = False
        if self._name in _PERMUTATIONS:
            # N ids in 0..N-1 without a repeat are a permutation. The bits are allocated only after the first ids were
            # read. Otherwise, a damaged record without such a file could state so many nodes that memory does not
            # suffice.
            if self._seen is None:
                self._seen = np.zeros((self._limits.num_nodes + 63) // 64, np.uint64)
            repeat = int(_first_repeat(view, self._seen))
            return (
                None
                if repeat < 0
                else f"{self._name}[{first + repeat}] = {values[repeat]} occurs twice; each id occurs once"
            )
        if first == 0 and values[0] != 0:
            return f"indptr[0] is {values[0]}; it must be 0"
        index = int(first_descent(view, self._last))
        if index >= 0:
            before = values[index - 1] if index else self._last
            return (
                f"indptr[{first + index}] = {values[index]} is smaller than {before} before it; "
                "offsets must not decrease"
            )
        self._last = int(values[-1])
        return None


def has_label(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows of ``labels`` have a label, (N,) bool. Pure.

    Parameters
    ----------
    labels : (N,) classes, -1 where unknown, or (N, k) values, NaN where unknown. A row with a single known value has a
        label
    """
    if labels.ndim == 1:
        return np.asarray(labels >= 0)
    known = np.empty(labels.shape[0], np.bool_)
    step = max(1, _STEP_ELEMENTS // max(1, labels.shape[1]))
    for start in range(0, labels.shape[0], step):
        np.logical_not(np.isnan(labels[start : start + step]).all(axis=1), out=known[start : start + step])
    return known


def label_kind_of(labels: NDArray[Any]) -> LabelKind:
    """Return the kind of ``labels``, (N,) classes or (N, k) values, from their dtype and values. Pure.

    Columns without any value other than NaN are "values", because they do not show that 0 and 1 are meant.
    """
    if labels.ndim == 1:
        return "classes"
    flat, is_known = labels.reshape(-1), False
    for start in range(0, flat.shape[0], _STEP_ELEMENTS):
        part = flat[start : start + _STEP_ELEMENTS]
        is_zero_or_one = (part == 0) | (part == 1)
        if not (is_zero_or_one | np.isnan(part)).all():
            return "values"
        is_known = is_known or bool(is_zero_or_one.any())
    if not is_known:
        return "values"
    return "binary" if labels.shape[1] == 1 else "multilabel"


def are_names(names: object, count: int) -> bool:
    """Return True if ``names`` is a list of ``count`` different texts. Pure."""
    return (
        isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and len(names) == len(set(names)) == count
    )


def first_infinite(values: NDArray[Any]) -> int:
    """Return the index of the first infinite number in ``values`` (n,), or -1. Pure."""
    for start in range(0, values.shape[0], _STEP_ELEMENTS):
        infinite = np.flatnonzero(np.isinf(values[start : start + _STEP_ELEMENTS]))
        if infinite.size:
            return start + int(infinite[0])
    return -1


def check_array(path: Path, name: str, values: NDArray[Any], limits: ValueLimits) -> None:
    """Check a full array.

    Parameters
    ----------
    path : the file, for messages
    name : the array's plain name
    values : all elements
    limits : bounds for its values

    Raises
    ------
    GraphError, FormatError
        A value is invalid: GraphError for arrays of the topology, FormatError for others.
    """
    check = ValueCheck(name, limits)
    message = check.wrong(values) or check.wrong_end()
    if message is not None:
        raise wrong_value(path, name, message)


def wrong_value(path: Path, name: str, message: str) -> GraphError | FormatError:
    """Return the error for an invalid value. Pure.

    Parameters
    ----------
    path : the array's file
    name : the array's plain name
    message : the invalid value and the rule that it breaks
    """
    kind = GraphError if name in _TOPOLOGY else FormatError
    return kind(
        f"{path}: {message}; its checksums hold, so the dataset was written with this value: prepare it again"
    )


@njit(cache=True, nogil=True)
def _first_repeat(ids: NDArray[Any], seen: NDArray[np.uint64]) -> int:
    """Set the bit of each id in ``seen`` (ceil(N / 64),). Return the index of the first id with a set bit, or -1."""
    for i in range(ids.shape[0]):
        word, bit = ids[i] >> 6, np.uint64(1) << np.uint64(ids[i] & 63)
        if seen[word] & bit:
            return i
        seen[word] |= bit
    return -1
