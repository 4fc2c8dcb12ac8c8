"""A process's use of memory and disk, sampled from outside."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path


class Watch:
    """Samples a process's anonymous memory and the size of a folder until stopped."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._process = Path(f"/proc/{pid}")
        self._folder = folder
        self._peaks = {"peak_anonymous_bytes": 0, "peak_disk_bytes": 0}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self._thread.start()

    def stop(self) -> dict[str, int]:
        """Return the peaks."""
        self._stopped.set()
        self._thread.join()
        return self._peaks

    def _run(self) -> None:
        while not self._stopped.wait(0.05):
            self._keep("peak_anonymous_bytes", anonymous_bytes(self._process))
            self._keep("peak_disk_bytes", _disk_bytes(self._folder) + _nameless_bytes(self._process))

    def _keep(self, name: str, value: int) -> None:
        self._peaks[name] = max(self._peaks[name], value)


def anonymous_bytes(process: Path) -> int:
    """Return the process's memory that is no file's; 0 once it is gone."""
    try:
        text = (process / "status").read_text("ascii")
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon:"))


def _nameless_bytes(process: Path) -> int:
    """Return the disk that the process's open files take which no folder lists any more."""
    total = 0
    try:
        for link in (process / "fd").iterdir():
            status = link.stat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                total += 512 * status.st_blocks
    except OSError:  # a file was closed, or the process ended
        return total
    return total


def _disk_bytes(folder: Path) -> int:
    """Return what the files below ``folder`` take; those that vanish meanwhile count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += 512 * (Path(parent) / name).stat().st_blocks
            except OSError:
                continue
    return total


def drop_from_page_cache(folder: Path) -> None:
    """Have the files below ``folder`` read from the disk the next time."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
