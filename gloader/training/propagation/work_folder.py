"""The work folder of a propagation, beside its output: finished columns, kept until the output is complete.

After a kill or Ctrl-C, the same propagation goes on with what the folder has.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from gloader.core.paths import bytes_on_disk
from gloader.errors import StoreLockedError
from gloader.ssd_store.os_io import REAL_OS, OsIO, write_errors
from gloader.ssd_store.write.atomic_file import LockedFolder, empty_folder, make_output_folder, remove_empty

if TYPE_CHECKING:
    from types import TracebackType

_SUFFIX: Final = ".propagate"  # fixed: a later version must find the folder of an earlier one
_OWNER_ONLY: Final = 0o700  # hop columns say as much as the features, whose permissions are not known here


def work_path(out: Path) -> Path:
    """Return the work folder of an output. Pure."""
    target = Path(os.path.realpath(out))
    return target.with_name(f".{target.name}{_SUFFIX}")


class WorkFolder:
    """The folder ``.NAME.propagate`` beside the output NAME, for one process at a time. A context manager.

    The end of the block without an error removes the folder. After an error it stays, unless it is empty.

    Parameters
    ----------
    out : the output, a folder or a file
    os_io : the system calls

    Raises
    ------
    StoreLockedError
        On entry: another process propagates to the same output, or another user owns the folder.
    StoreWriteError
        The file system refuses.
    """

    def __init__(self, out: Path, *, os_io: OsIO = REAL_OS) -> None:
        self.path = work_path(out)
        self._os_io = os_io
        self._folder = LockedFolder(self.path, mode=_OWNER_ONLY, os_io=os_io)
        self._made: list[Path] = []  # new folders above the output, the topmost first

    def __enter__(self) -> Self:
        self._made = make_output_folder(self.path.parent, os_io=self._os_io)
        with write_errors(self.path, "creating the work folder", os_io=self._os_io):
            self._folder.acquire(is_kept=True)
            owner = self._os_io.stat(self.path).st_uid
        if owner != os.geteuid():
            self._folder.release()
            raise StoreLockedError(
                f"{self.path} belongs to another user, number {owner}, and its columns are not to be trusted; remove "
                "it, or choose another output"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self._os_io.listdir(self.path):
            with write_errors(self.path, "removing the work folder", os_io=self._os_io):
                self._folder.remove()
        self._folder.release()
        if error is not None:
            remove_empty(self._made, os_io=self._os_io)

    @property
    def used_bytes(self) -> int:
        """Bytes of the files in the folder."""
        return bytes_on_disk(self.path, has_holes=False)

    def empty(self) -> None:
        """Remove everything in the folder. Raises StoreWriteError."""
        with write_errors(self.path, "emptying the work folder", os_io=self._os_io):
            empty_folder(self.path, os_io=self._os_io)
