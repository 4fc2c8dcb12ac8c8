"""Streams of Arrow from other programs, kept in a temporary file so that they can be read several times.

A conversion reads its tables more than once, but a stream, such as the result of a query, can be read only once.
`spilled_stream` reads it batch by batch into an Arrow file, and returns the table over that file. pyarrow, polars,
pandas, DuckDB and database drivers export streams by the method ``__arrow_c_stream__`` (Apache Arrow PyCapsule
Interface).
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.ipc as paipc

from gloader.convert.readers.arrow_file import open_arrow_batches
from gloader.convert.readers.column_names import require_different
from gloader.convert.readers.typed_table import TypedTable, plain_type
from gloader.core.malformed import MALFORMED
from gloader.core.units import format_bytes
from gloader.errors import GloaderError, SourceError
from gloader.ssd_store.os_io import (
    REAL_OS,
    OsIO,
    close_quietly,
    require_free_space,
    write_errors,
    write_full,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.convert.readers.table_streams import ColumnNotes


_LOG = logging.getLogger(__name__)
# Larger batches are written in slices, because pyarrow copies the texts of a slice while it writes them.
_SLICE_BYTES: Final = 8 << 20
# Bytes that a slice takes on the disk beyond its values: the head of its message, and the padding of its buffers.
_HEAD_BYTES: Final = 1 << 16


# Methods that return a result, of a LazyFrame of polars, and of connections and cursors of DuckDB and ADBC.
_RESULTS: Final = ("collect", "fetch_record_batch", "to_arrow_reader", "to_arrow_table")


def spilled_stream(
    stream: Any, folder: Path, name: str, *, notes: ColumnNotes | None = None, os_io: OsIO = REAL_OS
) -> TypedTable:
    """Read a stream once into a file in ``folder``, and return the table over the file.

    Parameters
    ----------
    stream : an object with ``__arrow_c_stream__`` or ``__arrow_c_array__``, or a scanner or dataset of pyarrow
    folder : an existing folder. The caller removes the file with it
    name : the table's name, for messages, such as "nodes['user']"
    notes : collects the receipt's line on the disk space, or None
    os_io : the system calls

    Raises
    ------
    SourceError
        The object is no stream, two columns share a name, or the stream fails. The message has ``name``.
    StoreWriteError
        The disk is full or fails. For a full disk, the message has the needed and the free bytes.
    """
    reader = _reader_of(stream, name)
    # Views and dictionaries are written as their values, because a stream may change its dictionary at every batch.
    fields = [pa.field(each.name, plain_type(each.type)) for each in reader.schema]
    schema = pa.schema(fields).with_metadata(reader.schema.metadata)
    require_different(schema.names, name)
    path, descriptor = _new_file(folder, name, os_io)
    try:
        try:
            sink: Any = _Sink(descriptor, path, os_io)
            with pa.PythonFile(sink, mode="w") as file, paipc.new_stream(file, schema) as writer:
                for part in _slices(reader, schema, name):
                    needed_bytes = part.nbytes + _HEAD_BYTES
                    with write_errors(path, "writing", needed_bytes=needed_bytes, os_io=os_io):
                        require_free_space(folder, needed_bytes, os_io=os_io)
                    writer.write_batch(part)
        finally:
            close_quietly(descriptor, os_io=os_io)
        file_batches = replace(open_arrow_batches(path), path=Path(name))
        table = TypedTable.over(file_batches)
    except BaseException:
        with suppress(OSError):  # the caller removes the folder
            os_io.unlink(path)
        raise
    disk = f"{format_bytes(sink.num_bytes)} of temporary disk space"
    line = f"{name}: a stream of {table.num_rows:,} rows, kept in {disk}"
    _LOG.info("%s at %s", line, path)
    if notes is not None:
        notes.lines.append(line)
    return table


def _reader_of(stream: Any, name: str) -> pa.RecordBatchReader:
    """Return pyarrow's reader of a stream."""
    if isinstance(stream, pa.RecordBatchReader):
        return stream  # not exported again, because the C interface would turn its errors into texts
    try:
        if hasattr(stream, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(stream)
        if hasattr(stream, "__arrow_c_array__"):
            batch = pa.record_batch(stream)
            return pa.RecordBatchReader.from_batches(batch.schema, [batch])
        # A dataset of pyarrow has a scanner, and a scanner has a reader.
        scanner = stream.scanner() if hasattr(stream, "scanner") else stream
        if hasattr(scanner, "to_reader"):
            reader: pa.RecordBatchReader = scanner.to_reader()
            return reader
    except (pa.ArrowException, *MALFORMED) as error:
        raise SourceError(f"{name} cannot be read as a stream of Arrow: {error}") from error
    # Queries that are not run yet, and connections, name the method that gives their result.
    method = next((each for each in _RESULTS if hasattr(stream, each)), None)
    cure = (
        "From columns in memory: pyarrow.table({'src': [0, 1], 'dst': [1, 2]})"
        if method is None
        else f"Its method {method}() returns one"
    )
    raise SourceError(
        f"{name} is a {type(stream).__name__}; give a table or a stream of Arrow, an object with __arrow_c_stream__. "
        f"{cure}"
    )


def _slices(reader: pa.RecordBatchReader, schema: pa.Schema, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a stream with the types of ``schema``, in slices of about `_SLICE_BYTES`."""
    done = 0
    try:
        for batch in reader:
            num_parts = 1 + batch.nbytes // _SLICE_BYTES
            rows = max(1, -(-batch.num_rows // num_parts))
            for first in range(0, batch.num_rows, rows):
                part = batch.slice(first, rows)
                # pyarrow casts each column to the schema's type.
                yield pa.RecordBatch.from_arrays(part.columns, schema=schema)
                done += part.num_rows
    except GloaderError:
        raise
    # The program behind the stream may raise anything, such as an error of its database.
    except Exception as error:
        raise SourceError(f"{name}: the stream failed after {done:,} rows: {error}") from error


def _new_file(folder: Path, name: str, os_io: OsIO) -> tuple[Path, int]:
    """Create a file in ``folder`` with a name like the table's. Return its path and its descriptor."""
    stem = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:100]
    for number in count():
        path = folder / f"{stem}.{number}.arrows"
        with write_errors(path, "creating", os_io=os_io), suppress(FileExistsError):
            return path, os_io.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    raise AssertionError  # `count` never ends


class _Sink:
    """A file as pyarrow writes to it: an object with `write`, `flush` and `closed`."""

    def __init__(self, descriptor: int, path: Path, os_io: OsIO) -> None:
        self._descriptor = descriptor
        self._path = path
        self._os_io = os_io
        self.num_bytes = 0  # written so far
        self.closed = False

    def write(self, data: Any) -> int:
        """Write all bytes of ``data``. Raises StoreWriteError."""
        piece = memoryview(data).cast("B")
        with write_errors(self._path, "writing", needed_bytes=len(piece), os_io=self._os_io):
            write_full(self._descriptor, piece, os_io=self._os_io)
        self.num_bytes += len(piece)
        return len(piece)

    def flush(self) -> None:
        """Do nothing, because `write` keeps nothing back."""

    def close(self) -> None:
        """Mark the file as closed. The caller closes the descriptor."""
        self.closed = True
