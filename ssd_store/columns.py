"""Arrays added to a committed directory, as a new version of its manifest."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Any, Self

from gloader.errors import StoreExistsError, StoreWriteError
from gloader.ssd_store.feature_column import FeatureColumnWriter
from gloader.ssd_store.format import load_manifest, read_manifest
from gloader.ssd_store.manifest import Manifest
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath
from gloader.ssd_store.stage import Stage, created_by, resolve_target, write_manifest
from gloader.ssd_store.write_errors import write_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from gloader.ssd_store.array_writer import ArrayWriter

_LOG = logging.getLogger(__name__)


class StagedColumns:
    """Adds arrays to a committed directory as a new version of its manifest; the old is valid until then.

    Files are only added, never changed: readers of the old version are not disturbed.
    """

    def __init__(self, path: StrPath, *, manifest_name: str, os_io: OsIO = REAL_OS) -> None:
        self._target = resolve_target(path)
        self._manifest_name = manifest_name
        self._os_io = os_io
        self._stage = Stage(self._target, os_io)
        self._base: Manifest | None = None
        self._moved: list[Path] = []
        self._is_committed = False

    def __enter__(self) -> Self:
        """Take the staging folder and read the committed manifest.

        Raises
        ------
        StoreLockedError, StoreWriteError
            As `StagedDirectory`.
        StoreOpenError, NotAStoreError, IncompleteStoreError, TruncatedStoreError, StoreReadError
            There is no store at the path, or not all of it.
        FormatError, VersionError, ChecksumError
            The store is damaged, or of another version.
        """
        load_manifest(self._target, self._manifest_name, os_io=self._os_io)
        self._stage.acquire()
        try:
            # Read again, under the lock: another process may have added columns meanwhile.
            self._base = load_manifest(self._target, self._manifest_name, os_io=self._os_io)
        except BaseException as error:
            self._stage.discard(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_committed:
            self._stage.discard(error)

    @property
    def base(self) -> Manifest:
        """The manifest that the new version extends."""
        if self._base is None:
            raise StoreWriteError(errno.EINVAL, "use StagedColumns in a with block", str(self._target))
        return self._base

    def array(self, name: str, *, dtype: str, shape: tuple[int, ...], pages: bool = False) -> ArrayWriter:
        """Start writing the new array ``name``.

        Raises
        ------
        StoreExistsError
            The store has an array of this name.
        FormatError, ShapeError, StoreWriteError
            As `StagedDirectory.array`.
        """
        if name in self.base.arrays:
            raise StoreExistsError(
                errno.EEXIST,
                f"the store has an array {name!r} already; choose another name",
                str(self._target),
            )
        return self._stage.array(name, dtype, shape, pages=pages)

    def features(
        self, name: str, *, num_rows: int, dim: int, dtype: str, check_finite: bool = False
    ) -> FeatureColumnWriter:
        """Start writing a matrix of feature rows with page checksums; see `FeatureColumnWriter`."""
        return FeatureColumnWriter(
            self, name, num_rows=num_rows, dim=dim, dtype=dtype, check_finite=check_finite
        )

    def scratch(self) -> Path:
        """Return a folder for temporary files on the target's file system, gone at the end."""
        return self._stage.scratch()

    def require_feature(self, name: str) -> None:
        """Let only builds that know the format feature ``name`` read the result."""
        self._stage.required_features.append(name)

    def commit(self, metadata: Mapping[str, Any] | None = None) -> Manifest:
        """Make the new arrays visible, durably and in one step; ``metadata`` is merged into the old.

        Raises
        ------
        ShapeError, FormatError, StoreWriteError
            As `StagedDirectory.commit`.
        """
        self._stage.complete()
        features = (*self.base.required_features, *self._stage.required_features)
        manifest = Manifest(
            kind=self.base.kind,
            arrays={**self.base.arrays, **self._stage.records},
            metadata={**self.base.metadata, **(metadata or {})},
            required_features=tuple(dict.fromkeys(features)),
            created_by=created_by(),
        )
        with write_errors(self._target, "committing", os_io=self._os_io):
            try:
                self._move_files()
                # Without this, the new manifest may survive a power loss and the files' new names not.
                self._os_io.fsync_dir(self._target)
                self._os_io.kill_point("columns.after_move")
                self._replace_manifest(manifest.to_bytes())
            except BaseException:
                self._undo()
                raise
        self._is_committed = True
        self._os_io.kill_point("columns.after_commit")
        try:
            self._stage.discard(None)
        except StoreWriteError as error:
            _LOG.warning("%s is committed; its staging folder could not be removed: %s", self._target, error)
        return manifest

    def _move_files(self) -> None:
        for record in self._stage.records.values():
            for name in (record.file, record.pages_file):
                if name is not None:
                    self._os_io.replace(self._stage.path / name, self._target / name)
                    self._moved.append(self._target / name)

    def _replace_manifest(self, data: bytes) -> None:
        path = self._target / self._manifest_name
        try:
            write_manifest(path, data, os_io=self._os_io)
        except BaseException:
            if read_manifest(self._target, self._manifest_name, os_io=self._os_io) != self.base:
                write_manifest(path, self.base.to_bytes(), os_io=self._os_io)
            raise

    def _undo(self) -> None:
        for path in self._moved:
            self._os_io.unlink(path)
