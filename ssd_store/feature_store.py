"""A store of feature rows (N, F): written to the SSD, read from it with every byte verified, or held in memory.

`FeatureWriter` writes a new store, `FeatureStore` reads its rows, and `RamFeatures` has the same interface over an
array (the protocol `FeatureSource` in `gloader.types`). Loaders and training read feature rows through this interface.
The terms of a read:

- A page is 4 KiB of the file, with a checksum. An extent is one aligned read, which may cover several rows and the
  holes between them.
- The bounce memory receives the bytes of an extent. They are verified there, and then copied to the caller's array.
- A lane is the bounce memory with its threads or its io_uring ring.

`FeatureStore.read_into` sorts the row ids, plans extents that cover the rows, and lets the lane read, verify and copy.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.dtypes import RowFormat, feature_dtype
from gloader.core.ids import as_ids
from gloader.core.near_names import near_attributes
from gloader.errors import ShapeError, StoreError
from gloader.ssd_store.cost.profile import ring_depth
from gloader.ssd_store.format.format import (
    DATA_OFFSET,
    detecting_replacement,
    find_manifest_name,
    read_manifest,
    require_same,
)
from gloader.ssd_store.format.manifest import STORE_MANIFEST
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath
from gloader.ssd_store.read.columns import RowFile, check_request, open_column, require_here
from gloader.ssd_store.read.extents import min_extent_bytes, plan_extents
from gloader.ssd_store.read.lane import ReadKeywords, ReadLane, ReadSettings, mismatch
from gloader.ssd_store.read.row_kernels import copy_extent, make_target
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.types import ReadStats

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from gloader.ssd_store.format.manifest import Manifest
    from gloader.ssd_store.read.device_file import DeviceFile
    from gloader.ssd_store.write.feature_column import FeatureColumnWriter
    from gloader.types import IdArray


FEATURES: Final = "features"  # name of the array in a stand-alone store
FEATURE_STORE: Final = "feature_store"  # the directory's kind in its commit record


class FeatureWriter:
    """Creates a stand-alone feature store at ``path``; commits at the clean end of its ``with`` block.

    An exception in the block, of any kind, leaves nothing behind and propagates unchanged.

    Parameters
    ----------
    path : the directory to create
    num_rows : N
    dim : F
    dtype : stored dtype: float32, float16, bfloat16 or int8, as text or as a numpy dtype
    overwrite : replace a store or dataset at ``path``, atomically, at the commit
    check_finite : refuse NaN and infinity (int8 always does)
    os_io : the system calls

    Raises
    ------
    ConfigError
        Features cannot be stored with this dtype.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        num_rows: int,
        dim: int,
        dtype: DTypeLike | str,
        overwrite: bool = False,
        check_finite: bool = False,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self._shape = (int(num_rows), int(dim))
        self._dtype = feature_dtype(dtype).name
        self._check_finite = check_finite
        self._directory = NewDirectory(path, manifest_name=STORE_MANIFEST, overwrite=overwrite, os_io=os_io)
        self._column: FeatureColumnWriter | None = None  # None until the ``with`` block begins

    def __enter__(self) -> Self:
        """Create the directory under a temporary name, and check the free space.

        Raises
        ------
        StoreExistsError, StoreLockedError, StoreWriteError
            See `NewDirectory`.
        ShapeError
            The dimension is not positive.
        """
        with ExitStack() as stack:
            num_rows, dim = self._shape
            self._column = stack.enter_context(self._directory).features(
                FEATURES, num_rows=num_rows, dim=dim, dtype=self._dtype, check_finite=self._check_finite
            )
            self._entered = stack.pop_all()  # leaves the directory at the end of the ``with`` block
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A failed block commits nothing, because a store with some of the rows would look complete.
        if error is not None:
            self._entered.__exit__(kind, error, trace)
            return
        with self._entered:
            self._directory.commit(FEATURE_STORE, {})

    def append(self, chunk: NDArray[Any]) -> None:
        """Append the rows ``chunk`` (n, F); see `FeatureColumnWriter.append`."""
        if self._column is None:
            raise ShapeError("the writer is not open; use `with FeatureStore.writer(...) as writer:`")
        self._column.append(chunk)


class RamFeatures:
    """A `FeatureSource` over a matrix in memory. Thread-safe; holds a reference to ``array``, no copy.

    Parameters
    ----------
    array : (N, F)
        C-contiguous; bfloat16 as uint16 with ``is_bfloat16``.
    is_bfloat16 : bool
        True if uint16 elements are bfloat16.
    scale : (N,) float32, optional
        Each int8 row's factor.

    Raises
    ------
    ShapeError
        The matrix is not two-dimensional, has no column or is not C-contiguous, or ``scale`` does not fit.
    """

    def __init__(
        self, array: NDArray[Any], *, is_bfloat16: bool = False, scale: NDArray[np.float32] | None = None
    ) -> None:
        if array.ndim != 2 or array.shape[1] < 1 or not array.flags.c_contiguous:
            raise ShapeError(
                f"features must be a C-contiguous (N, F) matrix with F >= 1, got shape {array.shape}, "
                f"strides {array.strides}; use numpy.ascontiguousarray"
            )
        if scale is not None and (scale.shape != array.shape[:1] or scale.dtype != np.float32):
            raise ShapeError(
                f"scale must be float32 of shape {array.shape[:1]}, got {scale.dtype} of {scale.shape}"
            )
        self._array = array
        self._form = RowFormat(dtype=array.dtype, dim=array.shape[1], is_bfloat16=is_bfloat16, scale=scale)
        bytes_view = array.reshape(-1).view(np.uint8)
        # Kernels convert elements of 16 bits from `_halves`. A matrix of 8-bit elements may have an odd number of
        # bytes; `_halves` then lacks the last byte, but 8-bit elements are read from `_bytes`.
        even = bytes_view.shape[0] // 2 * 2
        self._bytes = bytes_view
        self._halves = bytes_view[:even].view(np.uint16)

    @property
    def array(self) -> NDArray[Any]:
        """The matrix (N, F), as stored."""
        return self._array

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self._array.shape[0])

    @property
    def dim(self) -> int:
        """Number of features in a row."""
        return int(self._array.shape[1])

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """A stored element's dtype; uint16 for bfloat16."""
        return self._array.dtype

    def read_into(self, rows: IdArray, out: NDArray[Any], /, *, at: IdArray | None = None) -> ReadStats:
        """Copy ``rows`` into ``out``. Thread-safe.

        Parameters
        ----------
        rows : (M,) int64
            Row ids, in any order, repeats allowed.
        out : (M, F), or (K, F) with ``at``
            C-contiguous, with the stored dtype or float32.
        at : (M,) int64, optional
            Row in ``out`` for each row id; defaults to 0..M-1.

        Raises
        ------
        ShapeError
            A row is out of range, or a shape or dtype does not fit.
        """
        request = check_request(rows, out, num_rows=self.num_rows, dim=self.dim, at=at)
        target = make_target(request.rows, request.position, out, self._form)
        # Requested rows 0 to M - 1, and the matrix's bytes from 0 to the last. The shift is 0, because byte b of the
        # matrix is byte b of `_bytes`.
        copy_extent(*target, 0, target.rows.shape[0], 0, self._bytes.shape[0], 0, self._bytes, self._halves)
        return ReadStats(rows=request.rows.shape[0], requests=0, bytes_read=0)

    def close(self) -> None:
        """Do nothing, because the array belongs to its creator."""


# Longest extent, if a row is shorter. The default bounce memory, 8 MiB, holds 31 of them with a spare page for each.
MAX_EXTENT_BYTES = 256 * 1024
_WHEN_CLOSED = "the store is closed; open it again"
_LOAD_BYTES = 4 * 2**20  # bytes of rows per call when many rows are loaded or verified


@near_attributes
class FeatureStore:
    """A matrix of features on the SSD, open for reading: a `FeatureSource`.

    Thread-safe: calls to `read_into` from several threads take turns. Owns its file, a lane with threads or a ring, and
    its bounce memory until `close`; also a context manager. Made by `create` or `open`. A forked child may use it at
    the same time as its parent, with a separate lane and bounce memory.

    Parameters
    ----------
    file : DeviceFile
        The rows' open file.
    rows : RowFile
        The rows' description, with scales and page checksums.
    digest : str
        The digest over the rows' bytes.
    """

    def __init__(self, file: DeviceFile, rows: RowFile, digest: str) -> None:
        settings = rows.settings
        self._file = file
        self._rows = rows
        self._digest = digest
        # An extent holds at least one row and fits into the bounce memory.
        self._extent_bytes = max(min(MAX_EXTENT_BYTES, settings.ring_bytes), min_extent_bytes(rows.row_bytes))
        self._lane = ReadLane(
            max(settings.ring_bytes, self._extent_bytes),
            io=settings.io,
            is_direct=file.is_direct,
            depth=settings.queue_depth,
            ring_depth=ring_depth(file.path.parent),
            os_io=rows.os_io,
            when_closed=_WHEN_CLOSED,
        )

    def __repr__(self) -> str:
        """Return the sizes."""
        return f"FeatureStore(num_rows={self.num_rows}, dim={self.dim}, dtype={self.dtype})"

    @classmethod
    def create(
        cls, path: StrPath, array: NDArray[Any], *, dtype: DTypeLike | None = None, overwrite: bool = False
    ) -> Self:
        """Write ``array`` (N, F) to a new store at ``path`` and open it.

        Parameters
        ----------
        path : path
            A folder that does not exist yet.
        array : (N, F)
            Features.
        dtype : dtype, optional
            Stored dtype: float32, float16, "bfloat16" or int8 (with a scale per row); defaults to the array's dtype.
        overwrite : bool
            Replace an existing store, atomically.

        Raises
        ------
        ShapeError
            The array is not a matrix, or cannot be stored as ``dtype``.
        StoreExistsError, StoreLockedError, StoreWriteError
            See `writer`.
        """
        if array.ndim != 2:
            raise ShapeError(f"features must be an (N, F) matrix, got shape {array.shape}")
        rows, dim = array.shape
        stored = array.dtype if dtype is None else dtype
        with cls.writer(path, num_rows=rows, dim=dim, dtype=stored, overwrite=overwrite) as writer:
            writer.append(array)
        return cls.open(path)

    @classmethod
    def writer(
        cls, path: StrPath, *, num_rows: int, dim: int, dtype: DTypeLike, overwrite: bool = False
    ) -> FeatureWriter:
        """Return a writer that takes the rows in chunks and commits at the end of its ``with`` block.

        Parameters
        ----------
        path : path
            A folder that does not exist yet, or a store with ``overwrite``.
        num_rows, dim : int
            N and F.
        dtype : dtype
            Stored dtype, as in `create`.
        overwrite : bool
            Replace an existing store, atomically.

        Raises
        ------
        ShapeError, StoreExistsError, StoreLockedError, StoreWriteError
            See `FeatureWriter`.
        """
        return FeatureWriter(path, num_rows=num_rows, dim=dim, dtype=dtype, overwrite=overwrite)

    @classmethod
    def open(
        cls,
        path: StrPath,
        *,
        column: str = "features",
        manifest: Manifest | None = None,
        os_io: OsIO = REAL_OS,
        **how: Unpack[ReadKeywords],
    ) -> Self:
        """Open a store's or dataset's column for reading. Writes nothing.

        Parameters
        ----------
        path : path
            A store's or dataset's folder.
        column : str
            The array's name.
        manifest : Manifest, optional
            The folder's commit record, if it was read before; by default it is read now.
        os_io : OsIO
            The system calls.
        io : {"auto", "uring", "threads", "buffered"}
            The request method: io_uring, threads that block in ``pread``, or threads that read through the page cache.
            "auto" takes the first method that this system allows.
        verify : {"read", "open", "off"}
            "read" checks each page against its checksum at each read, "open" all pages once, now. "off" never checks:
            damage on the device then goes unnoticed.
        direct : {"auto", "require", "off"}
            "auto" bypasses the page cache if the file system can. "require" raises an error if it cannot. "off" reads
            through the page cache.
        queue_depth : int, optional
            Requests in flight. The default with io_uring is the depth in the device's profile, which a measurement left
            on this machine, or 256 without a profile; with threads it is 16.
        gap_bytes : int, optional
            Longest hole between two needed pages that a read bridges instead of another request. The default is the
            profile's value. Without a profile it is 8 KiB, and 0 for rows of a page or more.
        ring_bytes : int
            Bytes of bounce memory; 8 MiB by default. It grows if a row, with the pages in which it begins and ends,
            does not fit.

        Raises
        ------
        StoreOpenError, NotAStoreError, IncompleteStoreError, TruncatedStoreError
            There is no complete store at ``path``, or the store differs from ``manifest``.
        FormatError, VersionError, ChecksumError
            The store is damaged, or has another version.
        ConfigError
            A setting is unknown or not available here.
        ShapeError
            The column is not a matrix.
        """
        settings = ReadSettings(**how)
        root = Path(path)
        if manifest is None:
            manifest = read_manifest(root, find_manifest_name(root, os_io=os_io), os_io=os_io)
        with detecting_replacement(root, manifest, os_io=os_io):
            file, rows = open_column(root, column, manifest, settings=settings, os_io=os_io)
            try:
                require_same(root, manifest, os_io=os_io)
                store = cls(file, rows, manifest.arrays[column].digest)
            except BaseException:
                file.close()
                raise
        if settings.verify == "open":
            store._verify_all()
        return store

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._rows.num_rows

    @property
    def held(self) -> tuple[int, int]:
        """The first row on this machine, and the last plus one. One part of a divided dataset has only some rows."""
        held = self._rows.held
        return (0, self.num_rows) if held is None else (held.first, held.past)

    @property
    def dim(self) -> int:
        """Number of features in a row."""
        return self._rows.dim

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """A stored element's dtype; uint16 for bfloat16."""
        return self._rows.form.dtype

    @property
    def logical_dtype(self) -> str:
        """The elements' logical dtype, such as "bfloat16"."""
        return self._rows.form.element.name

    @property
    def row_bytes(self) -> int:
        """Bytes in a stored row."""
        return self._rows.row_bytes

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with any byte in the features."""
        return self._digest

    @property
    def max_extent_bytes(self) -> int:
        """Longest single read, in bytes, when a batch's rows are read."""
        return self._extent_bytes

    @property
    def resident_bytes(self) -> int:
        """Memory bytes that the open store holds: bounce memory, page checksums, scales."""
        scale = self._rows.form.scale
        scale_bytes = 0 if scale is None else scale.nbytes
        return self._lane.bounce_bytes + self._rows.checksums.nbytes + scale_bytes

    @property
    def backend(self) -> str:
        """The request method: "uring", "threads" or "plain" (one read at a time)."""
        return self._lane.backend

    @property
    def is_direct(self) -> bool:
        """True if reads bypass the page cache."""
        return self._file.is_direct

    @property
    def stored_rows(self) -> RowFile:
        """The rows' description for a sweep or another lane that also reads them.

        Raises
        ------
        StoreError
            The store is closed.
        """
        if self._file.fd < 0:
            raise StoreError(f"{self._file.path}: {_WHEN_CLOSED}")
        return self._rows

    def require_here(self, first: int, past: int) -> None:
        """Require that rows ``first`` to ``past - 1`` are on this machine.

        Raises
        ------
        RowNotHereError
            Some of these rows are on another machine; the message lists them, with advice.
        """
        if first < past:
            require_here(self._file.path, self._rows.held, first, past - 1)

    def duplicate_file(self) -> DeviceFile:
        """Return another owner of the store's open file, for another reader, such as a sweep. The caller closes it.

        Raises
        ------
        StoreError
            The store is closed.
        StoreOpenError
            The process has no descriptor left.
        """
        if self._file.fd < 0:
            raise StoreError(f"{self._file.path}: {_WHEN_CLOSED}")
        return self._file.duplicate()

    def read_into(
        self,
        rows: IdArray,
        out: NDArray[Any],
        /,
        *,
        at: IdArray | None = None,
        gap_bytes: int | None = None,
    ) -> ReadStats:
        """Read all ``rows`` into ``out``, or raise. Thread-safe.

        Parameters
        ----------
        rows : (M,) int64
            Row ids, in any order, repeats allowed; ascending ids are cheapest.
        out : (M, F), or (K, F) with ``at``
            C-contiguous, with the stored dtype, or float32, which converts the rows. Undefined after an error.
        at : (M,) int64, optional
            Row in ``out`` for each row id; the other rows of ``out`` are left unchanged.
        gap_bytes : int, optional
            Longest hole that a read bridges; defaults to the store's value.

        Raises
        ------
        ShapeError
            A row is out of range, or a shape or dtype does not fit; nothing was read.
        RowNotHereError
            A row is on another machine; nothing was read.
        StoreReadError
            The device failed.
        ChecksumError
            Bytes on the device differ from the written bytes.
        TruncatedStoreError
            The file was truncated after it was opened.
        StoreError
            The store is closed.
        """
        request = check_request(rows, out, num_rows=self.num_rows, dim=self.dim, at=at).in_file_order()
        stored = self._rows
        if stored.held is not None and request.rows.shape[0]:
            require_here(stored.path, stored.held, int(request.rows[0]), int(request.rows[-1]))
        target = make_target(request.rows, request.position, out, stored.form)
        # In file order a page's rows are adjacent, and reads merge.
        extents = plan_extents(
            request.rows,
            row_bytes=self.row_bytes,
            data_offset=DATA_OFFSET,
            max_gap_bytes=stored.gap_bytes if gap_bytes is None else gap_bytes,
            max_extent_bytes=self._extent_bytes,
        )
        requests, page = self._lane.read(
            self._file,
            extents,
            target,
            data_offset=DATA_OFFSET,
            checksums=stored.checksums,
            format_version=stored.format_version,
        )
        if page >= 0:  # the first damaged page; -1 if all are intact
            raise mismatch(stored.path, page, target.rows, row_bytes=self.row_bytes)
        return ReadStats(rows=target.rows.shape[0], requests=requests, bytes_read=extents.num_bytes)

    def load(self, rows: ArrayLike | None = None, *, into: NDArray[np.uint8] | None = None) -> RamFeatures:
        """Read ``rows`` (by default all rows) into memory, in stored form. Thread-safe.

        ``rows`` are (M,) ids in any order, or an (N,) boolean mask. ``into`` is (n,) uint8 memory for the rows. It
        begins at a multiple of an element's bytes, and may be longer than the rows; by default new memory is allocated.

        Raises
        ------
        ShapeError, RowNotHereError, StoreReadError, ChecksumError, TruncatedStoreError, StoreError
            As in `read_into`.
        """
        ids = (
            np.arange(self.num_rows)
            if rows is None
            else as_ids(rows, noun="rows", error=ShapeError, masked=self.num_rows)
        )
        if self._rows.held is not None and ids.shape[0]:  # this check precedes the first read
            self.require_here(int(ids.min()), int(ids.max()) + 1)
        num_bytes = ids.shape[0] * self.row_bytes
        # The memory begins on a page. Rows whose size is a power of two then touch no more cache lines than they fill.
        memory = aligned_bytes(num_bytes) if into is None else into[:num_bytes]
        array = memory.view(self.dtype).reshape(ids.shape[0], self.dim)
        step = max(1, _LOAD_BYTES // self.row_bytes)
        for start in range(0, ids.shape[0], step):
            self.read_into(ids[start : start + step], array[start : start + step])
        form = self._rows.form_of(ids)
        return RamFeatures(array, is_bfloat16=form.is_bfloat16, scale=form.scale)

    def close(self) -> None:
        """Wait for the read in progress and release everything. Idempotent."""
        # The lane closes the file, because only the lane knows when the read in progress has ended.
        self._lane.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _verify_all(self) -> None:
        """Read and verify every row once; later reads then need no verification. Closes the store on an error."""
        step = max(1, _LOAD_BYTES // self.row_bytes)
        scratch = np.empty((min(step, self.num_rows), self.dim), self.dtype)
        try:
            first, past = self.held
            for start in range(first, past, step):
                rows = np.arange(start, min(start + step, past))
                self.read_into(rows, scratch[: rows.shape[0]])
        except BaseException:
            self.close()
            raise
        # Without checksums, reads are not verified.
        self._rows = replace(self._rows, checksums=np.empty(0, np.uint64))
