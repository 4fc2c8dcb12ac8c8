"""The files of one pack, from their reservation in a spill folder until the last is given back."""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from gloader.errors import SpillError, StoreOpenError
from gloader.ssd_store.read.device_file import DeviceFile
from gloader.ssd_store.spill.file import SpillFile
from gloader.ssd_store.write.disk_errors import spill_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gloader.ssd_store.read.device_file import Direct
    from gloader.ssd_store.regions.layout import RegionLayout
    from gloader.ssd_store.spill.folder import SpillFolder


class RegionFiles:
    """Creates the files of a pack, lends them to readers and gives each back when its batches are released.

    Thread-safe. Owns the files until `close`. Their descriptors are open while a pack is written and while a region is
    read, no longer: packs of many relations are there at a time.

    Parameters
    ----------
    folder : takes the files, within its budget
    layout : of the pack
    label : whose pack it is, for messages
    direct : go around the page cache if the file system can
    """

    def __init__(self, folder: SpillFolder, layout: RegionLayout, label: str, *, direct: bool) -> None:
        self.is_direct = direct
        self._folder = folder
        self._layout = layout
        self._label = label
        self._lock = threading.Lock()
        self._paths: dict[int, Path] = {}  # of the files that are there, by number
        self._writing: dict[int, SpillFile] = {}
        self._is_live = np.ones(layout.file.shape[0], np.bool_)  # batches that were not released

    @property
    def is_gone(self) -> bool:
        """Whether every file was given back or removed."""
        return not self._paths

    def create(self) -> list[SpillFile | None]:
        """Reserve all files, and create those that no idle file of the folder serves; return them, None for empty ones.

        Raises
        ------
        BudgetError, SpillError
            As `SpillFolder.reserve_file`; or a file cannot be created or grow. The caller calls `give_up`.
        """
        what = f"the pack of {self._label}"
        # For all files together first: the message then tells what the whole pack needs, and nothing was reserved.
        self._folder.require_room(self._layout.num_bytes, what)
        sizes, reused = self._layout.file_bytes.tolist(), set()
        for number, size in enumerate(sizes):
            if size and (path := self._folder.reuse_file(size)) is not None:
                self._paths[number] = path
                reused.add(number)
            elif size:
                self._paths[number] = self._folder.reserve_file(size, what)
        os_io = self._folder.os_io
        for number, path in self._paths.items():
            with spill_errors(path, f"creating {what}", needed_bytes=self._layout.num_bytes, os_io=os_io):
                file = SpillFile(
                    path, sizes[number], direct=self.is_direct, is_new=number not in reused, os_io=os_io
                )
            self._writing[number] = file
            self.is_direct &= file.is_direct
        os_io.kill_point("pack.in_sweep")
        return [self._writing.get(number) for number in range(len(sizes))]

    def complete(self) -> None:
        """Say that everything has been written.

        Raises
        ------
        SpillError
            The device failed after all.
        """
        os_io = self._folder.os_io
        for number in list(self._writing):
            file = self._writing.pop(number)
            with spill_errors(file.path, f"completing the pack of {self._label}", os_io=os_io):
                file.close()

    def give_up(self, error: BaseException) -> None:
        """Remove what there is because of ``error``, which gets a note if that fails too."""
        for file in self._writing.values():
            file.abandon()
        self._writing.clear()
        try:
            self.close()
        except SpillError as failure:
            error.add_note(f"and a part of the pack of {self._label} could not be removed ({failure})")

    @contextmanager
    def reading(self, batch: int, label: str) -> Iterator[DeviceFile]:
        """Lend the file with the region of ``batch``; it stays as long as the block lasts.

        Raises
        ------
        SpillError
            The batch was released, or the file cannot be opened.
        """
        number = int(self._layout.file[batch])
        # Held while the caller reads: nobody removes the file under it. The lane makes readers take turns anyway.
        with self._lock:
            if not self._is_live[batch]:
                raise SpillError(errno.ENOENT, f"the pack of {label} was released", str(self._folder.path))
            file = self._opened(number, label)
            try:
                yield file
            finally:
                file.close()

    def release(self, batch: int) -> None:
        """Say that ``batch`` is done, and give its file back to the folder if it was the last. Idempotent."""
        with self._lock:
            self._is_live[batch] = False
            number = int(self._layout.file[batch])
            if number in self._paths and not self._is_live[self._layout.file == number].any():
                self._folder.keep_file(self._paths.pop(number))

    def close(self) -> None:
        """Remove the files that were not given back. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; the others are.
        """
        # One file that cannot be removed must not keep the others on the disk.
        failure: SpillError | None = None
        with self._lock:
            self._is_live[:] = False
            for number in list(self._paths):
                try:
                    self._remove(number)
                except SpillError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def _opened(self, number: int, label: str) -> DeviceFile:
        path = self._paths[number]
        direct: Direct = "auto" if self.is_direct else "off"
        try:
            return DeviceFile(path, direct=direct, os_io=self._folder.os_io)
        except StoreOpenError as error:
            text = f"opening the pack of {label} failed: {error.strerror}"
            raise SpillError(error.errno or errno.EIO, text, str(path)) from error

    def _remove(self, number: int) -> None:
        self._folder.remove_file(self._paths[number])
        del self._paths[number]
