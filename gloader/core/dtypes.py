"""The dtypes of stored arrays, and the format of stored feature rows.

Every list of dtypes in gloader follows from `STORED_DTYPES` and `FeatureDtype`. CONTRIBUTING.md explains how to add a
dtype. Feature rows that are stored with 8 or 16 bits per element are converted to float32 when they are read. An int8
row has a factor (scale): its values are the elements times the factor. A *way* is one of the four conversions to
float32. `RowFormat` tells readers and kernels the way for an array's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np

from gloader.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

# The ways, as numbers for the kernels: no conversion, from float16, from bfloat16, and int8 times a factor. Their
# kernels are in `gloader.core.value_kernels`.
RAW, HALF, BRAIN, SCALED = range(4)

FeatureDtype: TypeAlias = Literal["float32", "float16", "bfloat16", "int8"]
FEATURE_DTYPES: Final[tuple[str, ...]] = get_args(FeatureDtype)
# The factors of int8 rows are in an array whose name has this suffix.
SCALE_SUFFIX: Final = ".scale"
_SCALE_BYTES: Final = 4  # bytes of a factor, a float32


@dataclass(frozen=True, slots=True)
class Dtype:
    """A dtype of stored elements."""

    name: str  # gloader's name for the dtype; numpy's, except for bfloat16
    descr: str  # numpy's text for the dtype in a file header
    way: int = RAW  # conversion to float32
    # The largest absolute value of a feature that can be stored. 0 if features cannot have this dtype.
    largest: float = 0.0

    @property
    def stored(self) -> np.dtype[Any]:
        """The numpy dtype of the elements; uint16 for bfloat16, which numpy lacks."""
        return np.dtype(self.descr)

    @property
    def has_scale(self) -> bool:
        """True if each row has a factor in a separate array."""
        return self.way == SCALED

    def row_bytes(self, dim: int) -> int:
        """Return the bytes of a stored row of ``dim`` elements, its factor included. Pure."""
        return dim * self.stored.itemsize + _SCALE_BYTES * self.has_scale


_LARGEST_FLOAT32: Final = float(np.finfo(np.float32).max)
_ALL: Final = (
    # numpy has no bfloat16, so its bits are stored as uint16.
    Dtype("bfloat16", "<u2", BRAIN, 3.3895313892515355e38),
    Dtype("float16", "<f2", HALF, 65504.0),
    Dtype("float32", "<f4", RAW, _LARGEST_FLOAT32),
    Dtype("float64", "<f8"),
    Dtype("int8", "|i1", SCALED, _LARGEST_FLOAT32),
    Dtype("int16", "<i2"),
    Dtype("int32", "<i4"),
    Dtype("int64", "<i8"),
    Dtype("uint8", "|u1"),
    Dtype("uint16", "<u2"),
    Dtype("uint32", "<u4"),
    Dtype("uint64", "<u8"),
)
STORED_DTYPES: Final[dict[str, Dtype]] = {dtype.name: dtype for dtype in _ALL}  # by name


def feature_dtype(dtype: DTypeLike | str) -> Dtype:
    """Return the feature dtype for a text or a numpy dtype. Pure.

    Raises
    ------
    ConfigError : features cannot have this dtype
    """
    try:
        name = dtype if isinstance(dtype, str) and dtype in FEATURE_DTYPES else np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in FEATURE_DTYPES:
        raise ConfigError(f"features cannot be stored as {name!r}; allowed: {', '.join(FEATURE_DTYPES)}")
    return STORED_DTYPES[name]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowFormat:
    """The dtype and width of an array's stored rows."""

    dtype: np.dtype[Any]  # uint16 for bfloat16
    dim: int  # F
    is_bfloat16: bool = False  # True if uint16 elements are the bits of bfloat16 numbers
    scale: NDArray[np.float32] | None = None  # (N,) the factor of each int8 row
    # The way from a stored row to float32. RAW if there is no conversion.
    way: int = field(init=False)

    def __post_init__(self) -> None:
        """Look up the conversion once, because every read uses it."""
        element = self.element
        # int8 rows without factors can only be read as they are stored.
        way = RAW if element.has_scale and self.scale is None else element.way
        object.__setattr__(self, "way", way)  # frozen; this is its constructor

    @property
    def element(self) -> Dtype:
        """The dtype of the elements."""
        if self.is_bfloat16 and self.dtype == np.uint16:
            return STORED_DTYPES["bfloat16"]
        return STORED_DTYPES.get(self.dtype.name) or Dtype(self.dtype.name, self.dtype.str)

    @property
    def row_bytes(self) -> int:
        """R, the bytes of a row."""
        return int(self.dtype.itemsize) * self.dim

    def way_to(self, wanted: np.dtype[Any]) -> int:
        """Return the conversion (way) from stored rows to rows of the dtype ``wanted``. Pure.

        Raises
        ------
        ShapeError : there is no conversion
        """
        if wanted == self.dtype:
            return RAW
        if wanted == np.float32 and self.way != RAW:
            return self.way
        allowed = f"{self.dtype} or float32" if self.way != RAW else str(self.dtype)
        raise ShapeError(f"out has dtype {wanted}, but rows stored as {self.dtype} can be read as {allowed}")


BYTES: Final = RowFormat(dtype=np.dtype(np.uint8), dim=1)  # single bytes, for rows that are copied unchanged
