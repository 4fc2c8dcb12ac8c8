"""The files of a mirror, opened when they are first asked for, and closed together."""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gloader.core.units import format_bytes
from gloader.errors import BudgetError, StoreError, StoreOpenError, StoreReadError
from gloader.ssd_store.mirror.mirrored_file import HERE, MirroredFile
from gloader.ssd_store.mirror.record import FILES, MARKS
from gloader.ssd_store.os_io import read_full
from gloader.ssd_store.read.descriptor import Descriptor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from gloader.ssd_store.mirror.keeper import Keeper
    from gloader.ssd_store.mirror.page_sums import FileCheck
    from gloader.ssd_store.mirror.record import MirrorRecord
    from gloader.ssd_store.os_io import OsIO

WINDOW_BLOCKS: Final = 16  # that a budget has room for beside what is always here


class MirrorFiles:
    """Thread-safe. Owns descriptors until `close`.

    Parameters
    ----------
    folder : of the mirror
    record : its owner record
    checks : how each of its files is checked, by name
    keeper : takes charge of each
    os_io : the system calls to make

    Raises
    ------
    BudgetError
        The keeper's budget has no room for what must always be here.
    StoreOpenError
        A file cannot be opened.
    """

    def __init__(
        self,
        folder: Path,
        record: MirrorRecord,
        checks: Mapping[str, FileCheck],
        keeper: Keeper,
        *,
        os_io: OsIO,
    ) -> None:
        self._folder = folder
        self._record = record
        self._checks = checks
        self._keeper = keeper
        self._os_io = os_io
        self._lock = threading.RLock()
        self._files: dict[str, MirroredFile] = {}
        self._require_budget(keeper.budget_bytes)
        with self._opening():
            # By what a descriptor is open on, not by its number: that may be closed past `os_io`, and come again.
            statuses = {name: os_io.stat(folder / FILES / name) for name in record.files}
        self._names = {(status.st_dev, status.st_ino): name for name, status in statuses.items()}
        if keeper.budget_bytes is not None:
            try:
                for name in record.files:
                    self.named(name)
            except BaseException:
                self.close()
                raise

    @property
    def num_blocks(self) -> tuple[int, int]:
        """The blocks that are here, and all there are."""
        here = total = 0
        for name, facts in self._record.files.items():
            marks = bytearray(-(-facts.size // self._record.block_bytes))
            # By its name: most files are never opened here, and this is asked for behind `close`, too.
            with self._opening(), Descriptor(self._folder / MARKS / name, os_io=self._os_io) as fd:
                read_full(fd, memoryview(marks), 0, os_io=self._os_io)
            here += marks.count(HERE)
            total += len(marks)
        return here, total

    def of(self, fd: int) -> MirroredFile | None:
        """Return the file of the mirror that ``fd`` is open on, or None; raises `OSError`, `StoreOpenError`."""
        status = self._os_io.fstat(fd)
        name = self._names.get((status.st_dev, status.st_ino))
        return None if name is None else self.named(name)

    def named(self, name: str) -> MirroredFile:
        """Return a file by its name; raises `StoreOpenError`."""
        file = self._files.get(name)
        if file is not None:
            return file
        with self._lock, self._opening():
            if name not in self._files:
                file = MirroredFile(
                    self._folder / FILES / name,
                    self._folder / MARKS / name,
                    name=name,
                    facts=self._record.files[name],
                    block_bytes=self._record.block_bytes,
                    os_io=self._os_io,
                )
                try:
                    self._keeper.add(file, is_evictable=self._checks[name].pages_name is not None)
                except BaseException:
                    file.close()
                    raise
                self._files[name] = file
            return self._files[name]

    def is_checked_whole(self, file: MirroredFile) -> bool:
        """Return whether nothing of ``file`` can be believed before all of it is here. Pure."""
        return self._checks[file.name].pages_name is None

    def close(self) -> None:
        """Close them. Idempotent."""
        with self._lock:
            for file in self._files.values():
                file.close()

    def _opening(self) -> AbstractContextManager[None]:
        return disk_errors(StoreOpenError, "the mirror cannot be opened", self._folder)

    def _require_budget(self, budget_bytes: int | None) -> None:
        sizes = {name: facts.size for name, facts in self._record.files.items()}
        always = sum(size for name, size in sizes.items() if self._checks[name].pages_name is None)
        least = min(always + WINDOW_BLOCKS * self._record.block_bytes, sum(sizes.values()))
        if budget_bytes is not None and budget_bytes < least:
            raise BudgetError(
                f"{self._record.url}: a mirror needs at least {least} bytes ({format_bytes(least)}) for checksums and "
                f"the blocks in use, and --mirror-budget allows {budget_bytes}; allow more"
            )


@contextmanager
def disk_errors(kind: type[StoreReadError | StoreOpenError], text: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` inside into an error of ours; those that are ours pass."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        text = f"{text}: {error.strerror or error}; check the disk, or remove the folder and open it again"
        raise kind(error.errno or errno.EIO, text, str(path)) from error
