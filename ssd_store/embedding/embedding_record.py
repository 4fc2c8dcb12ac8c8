"""The commit records of an embedding table: which runs hold its rows, and what the owner noted about them.

A record ``NAME.json`` is a commit record of the array format (`Manifest`) with the arrays of the runs. Several records
may stand beside each other, each with a name. They share runs.
"""

from __future__ import annotations

import errno
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

from gloader.core.malformed import MALFORMED, shown
from gloader.core.records import Records
from gloader.core.version import __version__
from gloader.errors import ConfigError, FormatError, StoreOpenError
from gloader.ssd_store.embedding.damage import damage
from gloader.ssd_store.embedding.initial_rows import InitialRows
from gloader.ssd_store.embedding.sorted_run import run_files
from gloader.ssd_store.format.format import FORMAT_VERSION, read_manifest
from gloader.ssd_store.format.manifest import EMBEDDING_FEATURE, Manifest, is_plain_name
from gloader.ssd_store.os_io import REAL_OS, OsIO, write_errors
from gloader.ssd_store.write.atomic_file import write_chunks_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.ssd_store.format.manifest import ArrayRecord


EMBEDDING_TABLE: Final = "embedding_table"  # the directory's kind in its commit record
_SUFFIX: Final = ".json"
_RUN: Final = re.compile(r"run-[1-9][0-9]{0,17}")
_RECORDS: Final = Records(InitialRows=InitialRows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metadata:
    """The content of a record beside the arrays."""

    number: int  # records are counted, so the newest has the largest number
    num_rows: int  # N
    num_steps: int  # optimizer steps that made the rows
    initial: InitialRows  # the formula for rows in no run
    runs: tuple[str, ...]  # names of the runs, the newest first
    facts: Any  # a dict of JSON values, from the creation of the table
    record_facts: Any  # a dict of JSON values, of this record


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRecord(_Metadata):
    """A commit record of an embedding table."""

    arrays: tuple[tuple[ArrayRecord, ...], ...]  # of each run: the rows, then the ids if it has them

    def write(self, path: Path, *, os_io: OsIO = REAL_OS) -> None:
        """Replace the record at ``path``. On return it is on the device.

        Raises
        ------
        FormatError
            The facts are not JSON.
        StoreExistsError, StoreWriteError
            The file system refuses.
        """
        manifest = Manifest(
            kind=EMBEDDING_TABLE,
            arrays={record.name: record for run in self.arrays for record in run},
            metadata={
                **{field.name: getattr(self, field.name) for field in fields(_Metadata)},
                "initial": {**asdict(self.initial), "state": list(self.initial.state)},
                "runs": list(self.runs),
            },
            required_features=(EMBEDDING_FEATURE,),
            created_by=f"gloader {__version__}",
        )
        data = manifest.to_bytes()
        with write_errors(path, "committing", needed_bytes=len(data), os_io=os_io):
            # The names of the runs' files are on the device before the record that refers to them.
            os_io.fsync_dir(path.parent)
            write_chunks_atomically(
                path, [data], temporary=path.with_name(path.name + ".tmp"), label="embedding", os_io=os_io
            )

    @classmethod
    def read(cls, path: Path, *, os_io: OsIO = REAL_OS) -> Self:
        """Read the record at ``path``.

        Raises
        ------
        StoreOpenError, StoreReadError
            It is missing or cannot be read.
        FormatError, VersionError, ChecksumError
            It is damaged, or written by an unknown version.
        """
        with damage(lambda _: "restore it from a copy, or move it away and open another record of the table"):
            manifest = read_manifest(path.parent, path.name, os_io=os_io)
        if manifest.kind != EMBEDDING_TABLE or manifest.format_version != FORMAT_VERSION:
            raise FormatError(
                f"{path}: the record of a {shown(manifest.kind)} in format version {manifest.format_version}, not of "
                f"an {EMBEDDING_TABLE} in version {FORMAT_VERSION}"
            )
        try:
            metadata = _RECORDS.read(_Metadata, manifest.metadata)
        except (*MALFORMED, ConfigError) as error:
            raise FormatError(f"{path}: malformed metadata: {error}") from error
        if not isinstance(metadata.facts, dict) or not isinstance(metadata.record_facts, dict):
            raise FormatError(f"{path}: 'facts' and 'record_facts' must be objects")
        left = dict(manifest.arrays)
        arrays = tuple(_arrays_of(path, run, left, metadata) for run in metadata.runs)
        if left or len(set(metadata.runs)) != len(metadata.runs):
            raise FormatError(f"{path}: the runs {shown(metadata.runs)} and the arrays do not match")
        return cls(arrays=arrays, **{each.name: getattr(metadata, each.name) for each in fields(metadata)})


def _arrays_of(
    path: Path, run: str, left: dict[str, ArrayRecord], metadata: _Metadata
) -> tuple[ArrayRecord, ...]:
    """Take the arrays of ``run`` out of ``left``, checked."""
    rows, ids = left.pop(f"{run}.rows", None), left.pop(f"{run}.ids", None)
    width = metadata.initial.width
    is_right = (
        _RUN.fullmatch(run) is not None
        and rows is not None
        and rows.dtype == "float32"
        and rows.shape[1:] == (width,)
        and (
            rows.shape[0] == metadata.num_rows
            if ids is None
            else (ids.dtype, ids.shape) == ("int64", rows.shape[:1]) and ids.shape[0] > 0
        )
    )
    if rows is None or not is_right:
        raise FormatError(
            f"{path}: the run {shown(run)} must have float32 rows of {width} columns and, unless it has all "
            f"{metadata.num_rows} rows, as many int64 ids"
        )
    return (rows,) if ids is None else (rows, ids)


def record_path(folder: Path, record: str) -> Path:
    """Return the file of the record ``record``. Pure.

    Raises
    ------
    ConfigError
        It is no valid name.
    """
    if not is_plain_name(record):
        raise ConfigError(
            f"record={record!r} is no valid name; use 1 to 100 of the characters A-Z a-z 0-9 _ . -"
        )
    return folder / f"{record}{_SUFFIX}"


def record_names(names: list[str]) -> list[str]:
    """Return the records among the ``names`` of a table's files. Pure."""
    stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return [stem for stem in stems if is_plain_name(stem)]


def run_number(name: str) -> int | None:
    """Return the number of the run to which the file ``name`` belongs, or None. Pure."""
    run = name.partition(".")[0]
    is_of_run = _RUN.fullmatch(run) is not None and name in run_files(run)
    return int(run.removeprefix("run-")) if is_of_run else None


def is_draft(name: str) -> bool:
    """Return True if the file ``name`` is a record that was not completed. Pure."""
    return name.endswith(f"{_SUFFIX}.tmp") and is_plain_name(name.removesuffix(f"{_SUFFIX}.tmp"))


def missing_record(folder: Path, record: str | None, names: list[str]) -> StoreOpenError:
    """Return the error for a table without the record ``record``, but with the records ``names``. Pure."""
    wanted = "has no record" if record is None else f"has no record {record!r}"
    there = f"; it has {', '.join(names)}" if names else ": nothing was ever committed, so create it again"
    return StoreOpenError(errno.ENOENT, f"the embedding table {wanted}{there}", str(folder))
