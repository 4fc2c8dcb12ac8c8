"""Link tables in arrays, which may be memory-mapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.links.link_source import LinkChunk
from gloader.convert.readers.edge_times import check_time_dtype, to_seconds
from gloader.convert.readers.node_arrays import check_id_dtype, to_ids
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRows:
    """The rows of a link table over arrays of ids of any integer dtype, which are widened chunk by chunk."""

    src: NDArray[Any]  # (n,)
    dst: NDArray[Any]  # (n,)
    where: str  # what holds them, for messages
    label: NDArray[Any] | None = None  # (n,)
    time: NDArray[Any] | None = None  # (n,)
    given: NDArray[Any] | None = None  # (n, k) negatives

    @classmethod
    def of(
        cls,
        src: NDArray[Any],
        dst: NDArray[Any],
        *,
        where: str,
        label: NDArray[Any] | None = None,
        time: NDArray[Any] | None = None,
        negatives: NDArray[Any] | None = None,
    ) -> ArrayRows:
        """Check the arrays' shapes and dtypes.

        Parameters
        ----------
        src, dst : (n,) integers
        where : what holds them, for messages
        label : (n,) or (n, 1) numbers; None: there are none
        time : (n,) or (n, 1) seconds, as `to_seconds` takes them; None: there are none
        negatives : (n, k) integers, k of at least 1; None: there are none

        Raises
        ------
        ShapeError
            An array is not one of each row.
        GraphError
            Ids are no native integers.
        SourceError
            Labels are no numbers, or times are no whole seconds.
        """
        for array in (src, dst):
            check_id_dtype(array.dtype, where)
        if src.ndim != 1 or src.shape != dst.shape:
            raise ShapeError(
                f"{where} has sources of shape {src.shape} and destinations of shape {dst.shape}"
            )
        label, time = _column(label, "labels", src, where), _column(time, "times", src, where)
        if label is not None and label.dtype.kind not in "iufb":
            raise SourceError(f"{where}: labels have dtype {label.dtype}; they must be numbers")
        if time is not None:
            check_time_dtype(time.dtype, f"{where}: times")
        if negatives is not None:
            check_id_dtype(negatives.dtype, f"{where}: negatives")
            if negatives.ndim != 2 or negatives.shape[0] != src.shape[0] or negatives.shape[1] < 1:
                raise ShapeError(
                    f"{where}: negatives have shape {negatives.shape} for {src.shape[0]} rows; they must be (n, k), "
                    "with k of at least 1"
                )
        return cls(src=src, dst=dst, where=where, label=label, time=time, given=negatives)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.src.shape[0])

    @property
    def has_times(self) -> bool:
        """Whether every chunk carries times."""
        return self.time is not None

    @property
    def label_dtype(self) -> str | None:
        """The dtype of the labels, int64 or float32; None: there are none."""
        if self.label is None:
            return None
        return "float32" if self.label.dtype.kind == "f" else "int64"

    @property
    def negatives_per_row(self) -> int:
        """Destinations given as wrong ones for each row; 0: none."""
        return 0 if self.given is None else int(self.given.shape[1])

    def chunks(self, max_rows: int) -> Iterator[LinkChunk]:
        """Yield the rows in order, at most ``max_rows`` at a time."""
        for start in range(0, self.num_rows, max_rows):
            part = slice(start, start + max_rows)
            yield LinkChunk(
                src=to_ids(self.src[part], first=start, where=self.where),
                dst=to_ids(self.dst[part], first=start, where=self.where),
                time=None
                if self.time is None
                else to_seconds(self.time[part], first=start, where=self.where),
            )

    def labels(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield the labels in order, (n,) of ``label_dtype``; nothing where there are none."""
        if self.label is not None:
            for start in range(0, self.num_rows, max_rows):
                yield np.ascontiguousarray(self.label[start : start + max_rows], self.label_dtype)

    def negatives(self, max_rows: int) -> Iterator[IdArray]:
        """Yield the given negatives in order, (n, k); nothing where there are none."""
        if self.given is not None:
            for start in range(0, self.num_rows, max_rows):
                rows = self.given[start : start + max_rows]
                yield to_ids(rows, first=start * rows.shape[1], where=f"{self.where}: negatives")


def _column(array: NDArray[Any] | None, what: str, src: NDArray[Any], where: str) -> NDArray[Any] | None:
    """Return an array of a number for each row, without a second dimension of one column."""
    if array is None:
        return None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != src.shape:
        raise ShapeError(
            f"{where}: {what} have shape {array.shape} for {src.shape[0]} rows; one is needed for each"
        )
    return array
