"""Runs in a process and a memory control group (version 1) of their own, and what they held below its limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = Path("/sys/fs/cgroup/memory")
_WATCHED = {"total_rss": "anonymous", "total_mapped_file": "mapped", "total_cache": "page_cache"}
_PERIOD_S = 0.02
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@contextmanager
def limited(parent: Path, limit_bytes: int | None) -> Iterator[Path | None]:
    """Make a control group with a memory limit, and remove it; None without a limit, or where none can be made."""
    group = parent / f"gloader-bench-{os.getpid()}"
    if limit_bytes is None:
        yield None
        return
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError as error:
        print(f"  no memory control group ({error}): this run is not limited", flush=True)
        with suppress(OSError):
            group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Remove a group whose last process may still be on its way out."""
    for _ in range(50):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.1)
        else:
            return


def call_child(
    script: Path, job: dict[str, Any], *, group: Path | None, timeout_s: float
) -> tuple[int | None, str, str]:
    """Run ``script`` with a job as its one word; return exit status (None: stopped), output and errors.

    Parameters
    ----------
    script : beside which the modules lie that it imports
    job : what it is to do
    group : the control group that it enters before it begins
    timeout_s : it is stopped then
    """
    command = [sys.executable, str(script), json.dumps(job)]
    if group is not None:
        command = ["/bin/sh", "-c", _ENTER, str(group), *command]
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, str(script.parent), os.environ.get("PYTHONPATH"))))
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    try:
        output, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        output, errors = child.communicate()
        return None, output, errors
    except BaseException:
        child.kill()
        child.wait()
        raise
    return child.returncode, output, errors


class GroupWatch:
    """Samples the memory of a control group, and what the files of a folder take, until stopped.

    Parameters
    ----------
    group : None: no memory is sampled
    folder : None: no files are looked at
    """

    def __init__(self, group: Path | None, folder: Path | None = None) -> None:
        self._group, self._folder = group, folder
        self._peaks = {} if group is None else dict.fromkeys(_WATCHED, 0)
        self._disk_bytes = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gloader-bench-watch")
        self._thread.start()

    def stop(self) -> dict[str, int]:
        """Return the peaks in bytes: of anonymous memory, mapped pages of files, page cache, all together; of disk."""
        self._stopped.set()
        self._thread.join()
        peaks = {f"group_peak_{_WATCHED[name]}_bytes": value for name, value in self._peaks.items()}
        if self._group is not None:
            peaks["group_peak_bytes"] = int((self._group / "memory.max_usage_in_bytes").read_text())
        return peaks if self._folder is None else peaks | {"peak_disk_bytes": self._disk_bytes}

    def look(self) -> None:
        """Take a sample."""
        stat = "" if self._group is None else (self._group / "memory.stat").read_text()
        for line in stat.splitlines():
            name, _, value = line.partition(" ")
            if name in self._peaks:
                self._peaks[name] = max(self._peaks[name], int(value))
        if self._folder is not None:
            self._disk_bytes = max(self._disk_bytes, _disk_bytes(self._folder))

    def _run(self) -> None:
        while not self._stopped.wait(_PERIOD_S):
            self.look()


def _disk_bytes(folder: Path) -> int:
    """Return what the files below ``folder`` take; those that vanish meanwhile count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += 512 * (Path(parent) / name).stat().st_blocks
    return total
