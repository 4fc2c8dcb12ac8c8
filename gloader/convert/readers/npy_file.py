"""Readers of arrays in files.

`NpyFile` describes a ``.npy`` file, or one member of an ``.npz`` archive, and its `NpyReader` reads the elements from
start to end. Nothing is ever unpickled, because a pickle can run code. `StoredArray` is an array at any byte offset of
a file, such as a file of DGL. Its file (`MappedFile`) is memory-mapped at the first access. A mapped file may become
shorter while it is read. Then the process ends with a message, see `tell_where_cut`.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import warnings
import zipfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import IO, TYPE_CHECKING, Any, Final, Self, cast

import numpy as np

from gloader.core.malformed import MALFORMED
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, SourceError
from gloader.ssd_store.read.device_file import StreamFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray


# Bytes of memory per element of an array that `NpyFile.read` reads whole, such as labels: an int64, and a copy during
# the check. The element itself comes on top.
_COPY_BYTES = 16
# Bytes per read from a file. They stay in the processor's cache while an archive's reader copies and checks them.
_PIECE_BYTES = 1 << 20
# Largest accepted .npy header. numpy writes 128 bytes, and no array of numbers needs more than this.
MAX_HEADER_BYTES: Final = 1 << 16
# The compression methods of `numpy.savez` and `numpy.savez_compressed`. With other methods, one read call may unpack a
# kilobyte to a gigabyte.
_COMPRESSIONS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_MAGIC = b"\x93NUMPY"  # the first bytes of a .npy file
# The errors of numpy and `zipfile` for a corrupt file.
_CORRUPT = (zipfile.BadZipFile, RuntimeError, *MALFORMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyFile:
    """The file, shape and dtype of an array on disk. Each method that reads elements opens the file again.

    Raises
    ------
    SourceError
        From every method: the file is missing, truncated, corrupt, or holds Python objects.
    """

    path: Path
    member: str | None  # the array's name in an archive; None if the file is not an archive
    shape: tuple[int, ...]  # the array's shape; reversed, as on disk, if ``is_fortran``
    dtype: np.dtype[Any]
    is_fortran: bool  # True if the array is written column after column
    data_offset: int  # bytes before the first element, in the file or the member

    @classmethod
    def open(cls, path: Path, member: str | None = None) -> NpyFile:
        """Read the header of the array at ``path``, or of the array ``member`` in the archive at ``path``."""
        where = _name(path, member)
        with raising_source_errors(where), _opened(path, member) as file:
            shape, is_fortran, dtype = _read_header(file, where)
            offset = file.tell()
        # Objects are pickles, and reading a pickle runs code.
        if dtype.hasobject or dtype.names is not None:
            raise SourceError(
                f"{where} holds Python objects or records (dtype {dtype}), which are never read; save plain numbers"
            )
        array = cls(
            path=path,
            member=member,
            shape=tuple(reversed(shape)) if is_fortran else tuple(shape),
            dtype=dtype,
            is_fortran=is_fortran and len(shape) > 1,
            data_offset=offset,
        )
        array._check_size()
        return array

    @classmethod
    def raw(cls, path: Path, *, dtype: np.dtype[Any], row_shape: tuple[int, ...] = ()) -> NpyFile:
        """Open a file of numbers without a header. The number of rows follows from the file's size.

        Parameters
        ----------
        path : the file
        dtype : the numbers' dtype, with byte order
        row_shape : shape of a row; () means one number per row
        """
        with raising_source_errors(str(path)):
            held = path.stat().st_size
        row_bytes = prod(row_shape) * dtype.itemsize
        if held % row_bytes:
            raise SourceError(
                f"{path} is truncated: it holds {held} bytes, not a multiple of the {row_bytes} of a row of shape "
                f"{row_shape} and dtype {dtype}"
            )
        shape = (held // row_bytes, *row_shape)
        return cls(path=path, member=None, shape=shape, dtype=dtype, is_fortran=False, data_offset=0)

    @property
    def where(self) -> str:
        """The file and member, for messages."""
        return _name(self.path, self.member)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def reader(self, *, start: int = 0) -> NpyReader:
        """Open a reader of the elements from number ``start`` on, in disk order."""
        return NpyReader(self, start=start)

    def flat(self, max_elements: int, *, start: int = 0, stop: int | None = None) -> Iterator[NDArray[Any]]:
        """Yield elements in disk order as new arrays.

        Parameters
        ----------
        max_elements : length of each array; only the last one may be shorter
        start : number of the first element
        stop : number after the last element; None means the end of the array
        """
        stop = self.size if stop is None else stop
        with self.reader(start=start) as reader:
            for first in range(start, stop, max_elements):
                yield reader.take(min(max_elements, stop - first))

    def rows(self, max_rows: int) -> Iterator[NDArray[Any]]:
        """Yield consecutive rows in disk order, in arrays of at most ``max_rows``."""
        width = prod(self.shape[1:])
        # Rows without columns have no bytes to read.
        if width == 0:
            return
        for piece in self.flat(max_rows * width):
            yield piece.reshape(-1, *self.shape[1:])

    def read(self, *, budget_bytes: int | None = None) -> NDArray[Any]:
        """Return the whole array.

        Parameters
        ----------
        budget_bytes : memory for the array and its copies; None means no limit

        Raises
        ------
        SourceError
            As in every method.
        BudgetError
            The array needs more memory; the message names needed and allowed bytes.
        """
        needed = self.num_bytes + self.size * _COPY_BYTES
        if budget_bytes is not None and needed > budget_bytes:
            raise BudgetError(
                f"{self.where} has shape {self.shape}: reading it takes {format_bytes(needed)}, the memory budget is "
                f"{format_bytes(budget_bytes)}. Raise --memory-budget, if the file is the right one"
            )
        pieces = list(self.flat(max(1, self.size)))
        whole = pieces[0] if pieces else np.empty(0, self.dtype)
        array = whole.reshape(self.shape)
        return array.T if self.is_fortran else array

    def _check_size(self) -> None:
        """Raise SourceError if the file or the member is too short for the array."""
        if self.member is not None:
            with raising_source_errors(self.where), zipfile.ZipFile(self.path) as archive:
                held = archive.getinfo(f"{self.member}.npy").file_size
        else:
            held = self.path.stat().st_size
        # Checked at the start, so that a truncated download does not fail only after hours of conversion.
        if held < self.data_offset + self.num_bytes:
            raise SourceError(
                f"{self.where} is truncated: its header promises {self.num_bytes} bytes of shape {self.shape} and "
                f"dtype {self.dtype}, it holds {max(0, held - self.data_offset)}"
            )


def open_headerless(path: Path, *, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> NpyFile:
    """Open a file of numbers that may have a ``.npy`` header or none.

    Parameters
    ----------
    path : the file
    dtype, row_shape : the numbers' dtype and row shape in a file without a header

    Raises
    ------
    SourceError
        The file is missing, truncated or corrupt.
    """
    with raising_source_errors(str(path)), path.open("rb") as file:
        has_header = file.read(len(_MAGIC)) == _MAGIC
    return NpyFile.open(path) if has_header else NpyFile.raw(path, dtype=dtype, row_shape=row_shape)


class NpyReader:
    """Reads the elements of an array in order. A context manager. Owns the open file until ``close()``."""

    def __init__(self, array: NpyFile, *, start: int) -> None:
        self._where = array.where
        self._dtype = array.dtype
        self._data_offset = array.data_offset
        self._stack = ExitStack()
        with raising_source_errors(self._where):
            self._file = self._stack.enter_context(_streamed(array.path, array.member))
            self._skip(array.data_offset + start * array.dtype.itemsize, is_member=array.member is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    def seek(self, start: int) -> None:
        """Continue at element number ``start``. Not for members of an archive.

        Raises
        ------
        SourceError
            The system refuses to seek.
        """
        with raising_source_errors(self._where):
            self._file.seek(self._data_offset + start * self._dtype.itemsize)

    def take(self, count: int) -> NDArray[Any]:
        """Return the next ``count`` elements as a new array.

        Raises
        ------
        SourceError
            The file ends too early, or is corrupt.
        """
        piece = np.empty(count, self._dtype)
        with raising_source_errors(self._where):
            self._read_full(piece.view(np.uint8).data)
        return piece

    def _skip(self, offset: int, *, is_member: bool) -> None:
        """Continue at byte ``offset``, from the start of the file or the member."""
        if not is_member:
            self._file.seek(offset)
            return
        # A compressed member can only be read from its start, so the bytes before ``offset`` are read and dropped.
        while offset:
            skipped = len(self._file.read(min(_PIECE_BYTES, offset)))
            if not skipped:
                raise EOFError(f"it ends {offset} bytes before the first requested one")
            offset -= skipped

    def _read_full(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the next bytes. Raises EOFError if the file ends early."""
        done = 0
        while done < len(buffer):
            # A raw file may return fewer bytes than requested, and 0 at its end.
            count = self._file.readinto(buffer[done : done + _PIECE_BYTES])  # type: ignore[attr-defined] # all that _opened gives have it
            if not count:
                raise EOFError(f"it ends {len(buffer) - done} bytes early")
            done += count


def npz_members(path: Path) -> tuple[str, ...]:
    """Return the names of the arrays in the archive at ``path``.

    Raises
    ------
    SourceError
        The archive is missing, or the file is not an archive.
    """
    with raising_source_errors(str(path)), zipfile.ZipFile(path) as archive:
        return tuple(name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy"))


def _read_header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a ``.npy`` array. Return its shape, whether it is in Fortran order, and its dtype."""
    try:
        version = np.lib.format.read_magic(file)
        size_bytes = {(1, 0): 2, (2, 0): 4}[version]  # bytes of the header's length, by the format's version
        size = file.read(size_bytes)
        length = int.from_bytes(size, "little")
        # Checked before reading, because four bytes can claim a header of 4 GiB.
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"its header has {length} bytes; at most {MAX_HEADER_BYTES} are read")
        header = io.BytesIO(size + file.read(length))
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        with warnings.catch_warnings():
            # Headers from Python 2 are valid; numpy only warns that they take longer to read.
            warnings.simplefilter("ignore", UserWarning)
            shape, is_fortran, dtype = read(header, max_header_size=MAX_HEADER_BYTES)
    except MALFORMED as error:
        reason = "its format version is not known" if isinstance(error, KeyError) else str(error)
        raise SourceError(f"{where} is not a .npy array: {reason or repr(error)}") from error
    if dtype.itemsize < 1 or dtype.subdtype is not None or min(shape, default=0) < 0:
        raise SourceError(f"{where} is not a .npy array: shape {shape} and dtype {dtype} hold no numbers")
    return shape, is_fortran, dtype


@contextmanager
def _streamed(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    """Open an array for reading from start to end. Reads bypass the page cache, because the array may be larger."""
    with StreamFile(path) as file:
        if member is None:
            yield cast("IO[bytes]", file)
            return
        with zipfile.ZipFile(io.BufferedReader(file)) as archive, _open_member(archive, member) as inner:
            yield inner


@contextmanager
def _opened(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    """Open an array for reading its header."""
    if not path.is_file():  # a pipe could block, and a device could be endless
        raise FileNotFoundError(path)
    if member is None:
        with path.open("rb", buffering=0) as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive, _open_member(archive, member) as inner:
        yield inner


def _open_member(archive: zipfile.ZipFile, member: str) -> IO[bytes]:
    """Open an array in an archive. Raises KeyError without such an array."""
    info = archive.getinfo(f"{member}.npy")
    if info.compress_type not in _COMPRESSIONS:
        raise NotImplementedError(f"compression method {info.compress_type} is not one that numpy writes")
    return archive.open(info)


@contextmanager
def raising_source_errors(where: str) -> Iterator[None]:
    """Turn a file's read errors into a `SourceError` that names ``where``."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise SourceError(f"{where} is missing, or is not a file") from error
    except KeyError as error:
        raise SourceError(f"{where} is missing: the archive has no such array") from error
    except OSError as error:
        raise SourceError(f"{where} cannot be read: {error}") from error
    except _CORRUPT as error:
        raise SourceError(f"{where} is corrupt: {str(error) or repr(error)}") from error


def _name(path: Path, member: str | None) -> str:
    """Return the name of an array for messages."""
    return str(path) if member is None else f"{path}[{member}]"


_mapped: dict[Path, int] = {}  # each mapped file's size in bytes when it was mapped
_previous_handlers: list[int | None] = []  # at most one: the address of the SIGBUS handler before ours


def tell_where_cut(path: Path) -> None:
    """Prepare for mapping ``path``. If the file becomes shorter while it is read, the process ends with a message.

    A read beyond the end of a mapped file raises the signal SIGBUS. By default, this signal ends the process without a
    message. The handler installed here writes the message. It cannot raise an exception.
    """
    _mapped[path] = path.stat().st_size
    _handle_sigbus()


def _handle_sigbus() -> None:
    """Install the handler, and remember the previous one."""
    # Installed again for every file, because another library, such as faulthandler, may have replaced the handler.
    before = _set_handler(signal.SIGBUS, _handler())
    # If our handler was still installed, the handler before it is already known.
    if before != ctypes.cast(_handler(), ctypes.c_void_p).value:
        _previous_handlers[:] = [before]


@cache
def _handler() -> Any:
    """Return the handler as a C function."""
    # Python runs a handler of the module `signal` only after the failed instruction. That instruction would be repeated
    # for ever. The system calls a C function at once. It must not be freed, so the cache keeps it.
    return ctypes.CFUNCTYPE(None, ctypes.c_int)(_on_sigbus)


def _set_handler(number: int, handler: Any) -> int | None:
    """Install a C handler for signal ``number``. Return the address of the previous handler, or None for the default.

    ``handler`` is a C function or an address.
    """
    # A separate library handle, so that other code cannot change the function's result type.
    set_handler = ctypes.CDLL(None).signal
    set_handler.restype = ctypes.c_void_p
    return cast("int | None", set_handler(number, handler))


def _on_sigbus(number: int) -> None:
    """Handle signal ``number``: end the process with a message that names the mapped files which became shorter."""
    cut = [str(path) for path, size in _mapped.items() if not path.exists() or path.stat().st_size < size]
    # If no file here was cut, another library's file caused the signal. After the return, the failed read is repeated,
    # and raises the signal for the previous handler.
    if not cut:
        _set_handler(number, ctypes.c_void_p(_previous_handlers[0]))
        return
    os.write(2, f"\nerror: {', '.join(cut)} became shorter while it was read; copy it again\n".encode())
    os._exit(1)


class MappedFile:
    """The bytes of a file. The file is mapped once, at the first request.

    Parameters
    ----------
    path : the file
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes: NDArray[np.uint8] | None = None

    def part(self, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return ``num_bytes`` bytes from ``offset`` on, without reading them.

        Raises
        ------
        SourceError
            The file cannot be mapped, or no longer has these bytes.
        """
        if self._bytes is None:
            with raising_source_errors(str(self._path)):
                tell_where_cut(self._path)
                # Read-only, because the system refuses writable mappings that are larger than its memory.
                self._bytes = np.memmap(self._path, np.uint8, "r").view(np.ndarray)
        part = self._bytes[offset : offset + num_bytes]
        if len(part) < num_bytes:
            raise SourceError(f"{self._path} became shorter while it was read; copy it again")
        return part


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """An array at an offset of a file, stored row after row."""

    file: MappedFile  # shared by all arrays of the file
    offset: int  # the first byte's position in the file, with any alignment
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # the stored elements' dtype; uint16 for bfloat16, which numpy lacks
    is_bfloat16: bool  # True if the uint16 numbers are the bits of bfloat16 numbers

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that `values` allocates."""
        return 2 * self.num_bytes if self._is_loaded else 0

    def values(self) -> NDArray[Any]:
        """Return the values as a view of the mapped file. The view may be unaligned, and bfloat16 becomes float32.

        No element is read here, except if an array has one bfloat16 number per row. Then the array is read and widened.
        Rows of several bfloat16 numbers are widened when the result is indexed.
        """
        if self._is_loaded:
            return self.load()
        return cast("NDArray[Any]", _WidenedRows(self._mapped())) if self.is_bfloat16 else self._mapped()

    def load(self) -> NDArray[Any]:
        """Return a copy of the values in memory; bfloat16 becomes float32."""
        return _widened(self._mapped()) if self.is_bfloat16 else self._mapped().copy()

    @property
    def _is_loaded(self) -> bool:
        """True if `values` copies the array: one bfloat16 number per row, such as labels."""
        return self.is_bfloat16 and (len(self.shape) < 2 or prod(self.shape[1:]) == 1)

    def _mapped(self) -> NDArray[Any]:
        """Return the stored elements as a view of the mapped file."""
        if self.num_bytes == 0:
            return np.empty(self.shape, self.dtype)
        return self.file.part(self.offset, self.num_bytes).view(self.dtype).reshape(self.shape)


class _WidenedRows:
    """Rows of bfloat16 numbers, stored as their bits (N, F) uint16. Behaves like an array: indexing gives float32."""

    def __init__(self, bits: NDArray[Any]) -> None:
        self._bits = bits
        self.shape = bits.shape
        self.ndim = bits.ndim
        self.size = bits.size
        self.dtype = np.dtype(np.float32)
        self.nbytes = 4 * bits.size

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        return _widened(self._bits[rows])


def _widened(bits: NDArray[Any]) -> NDArray[np.float32]:
    """Return bfloat16 numbers, given as uint16 bits, as float32."""
    # A bfloat16 is the upper half of a float32.
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
