"""Memory that this process can still allocate within the system's and its control groups' limits.

A loader without a memory budget gets its part of `default_budget_bytes`. A control group (cgroup) of Linux is a set of
processes with limits, such as a container's. Groups are nested, and each group on the path to the root may have a
limit. In version 1 each kind of limit has its own tree of group folders; in version 2 there is one tree.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMINFO = Path("/proc/meminfo")  # the system's memory, one figure per line
_SELF_CGROUP = Path("/proc/self/cgroup")  # this process's groups, one line per hierarchy
_CGROUP_MOUNT = Path("/sys/fs/cgroup")  # a folder for each group, with its limits


def available_memory_bytes() -> int:
    """Return the bytes that can be allocated without swapping or breaking a control-group limit.

    The result is the least of several values: the system's available memory, and the room below each memory limit
    (cgroup v1 or v2) on the path from the process's group to the root. Reclaimable file pages count as room.
    """
    return max(0, min([_system_bytes(_MEMINFO), *cgroup_rooms(_SELF_CGROUP, _CGROUP_MOUNT)]))


def default_budget_bytes() -> int:
    """Return the default memory budget: half of the available memory, in bytes."""
    # The other half serves the model, other programs and the page cache.
    return available_memory_bytes() // 2


def cgroup_rooms(self_cgroup: Path, mount: Path) -> Iterator[int]:
    """Yield the bytes left below each memory limit that binds the process.

    Parameters
    ----------
    self_cgroup : Path
        A file like ``/proc/self/cgroup``. If it is missing, nothing is yielded.
    mount : Path
        The control groups' mount point. Groups that are not visible there (in a container) are skipped.
    """
    for line in (_read(self_cgroup) or "").splitlines():
        # A line is "number:controllers:path". In cgroup v2 there are no controllers, and the number is 0.
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            # The second folder is the place of v2 on systems that use both versions.
            for root in (mount, mount / "unified"):
                yield from _rooms(
                    root, group, limit="memory.max", usage="memory.current", cached="inactive_file"
                )
        elif "memory" in controllers.split(","):
            yield from _rooms(
                mount / "memory",
                group,
                limit="memory.limit_in_bytes",
                usage="memory.usage_in_bytes",
                cached="total_inactive_file",
            )


def _system_bytes(meminfo: Path) -> int:
    """Return the system's available memory in bytes. Without ``MemAvailable``, the free pages count."""
    kilobytes = _stat(meminfo, "MemAvailable:")
    return 1024 * kilobytes if kilobytes else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _rooms(root: Path, group: str, *, limit: str, usage: str, cached: str) -> Iterator[int]:
    """Yield the bytes left in ``group`` and in each group above it.

    Parameters
    ----------
    root : folder of the root group
    group : the group's path below ``root``
    limit, usage : names of the files with the group's limit and with its used bytes
    cached : entry of ``memory.stat`` with the bytes of reclaimable file pages
    """
    folder = root / group.strip("/")
    while True:
        allowed, used = _number(folder / limit), _number(folder / usage)
        if allowed is not None and used is not None:
            yield allowed - used + _stat(folder / "memory.stat", cached)
        if folder == root:
            return
        folder = folder.parent


def _number(path: Path) -> int | None:
    """Return the number in a file, or None if there is none."""
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() else None  # "max" is no limit


def _stat(path: Path, key: str) -> int:
    """Return the number behind ``key`` in a file with one entry per line, or 0."""
    for line in (_read(path) or "").splitlines():
        words = line.split()
        if words[:1] == [key]:
            return int(words[1])
    return 0


def _read(path: Path) -> str | None:
    """Return a file's text, or None if it cannot be read."""
    try:
        return path.read_text("ascii")
    except OSError:
        return None
