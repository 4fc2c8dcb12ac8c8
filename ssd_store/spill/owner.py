"""The process that owns a spill folder, and whether it still runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from gloader.core.malformed import MALFORMED
from gloader.errors import FormatError
from gloader.ssd_store.os_io import REAL_OS, OsIO, read_full
from gloader.ssd_store.read.descriptor import Descriptor

_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys" / "kernel" / "random" / "boot_id"
_MAX_BYTES: Final = 4096  # an owner file, or a file of /proc
_START_FIELD: Final = 19  # of /proc/PID/stat, counted from the state, the first field after the name
_DEAD_STATES: Final = frozenset("ZXx")  # a zombie holds no lock and writes no more


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillOwner:
    """A process, named so that no later process is taken for it."""

    pid: int
    # Since boot, in clock ticks: a process number returns, but not with the same start. 0 where /proc is missing.
    start_ticks: int
    boot_id: str  # of the kernel; empty where it does not say
    host: str

    @classmethod
    def this_process(cls, *, os_io: OsIO = REAL_OS) -> Self:
        """Return the calling process; raises `OSError` where /proc is there and cannot be read."""
        try:
            start_ticks = int(_stat_fields(_read_text(_PROC / "self" / "stat", os_io))[_START_FIELD])
        except FileNotFoundError:  # a sandbox without /proc: the number alone has to do
            start_ticks = 0
        return cls(
            pid=os.getpid(),
            start_ticks=start_ticks,
            boot_id=_boot_id(os_io),
            host=os.uname().nodename,
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the owner that `to_json` wrote. Pure.

        Raises
        ------
        FormatError
            The text is nothing that `to_json` writes.
        """
        try:
            members = json.loads(text)
            # The types of the fields are checked below: a dataclass takes anything.
            owner = cls(**members)
        except MALFORMED as error:
            raise FormatError(f"{text[:80]!r} is not the owner file of a spill folder") from error
        numbers, names = (owner.pid, owner.start_ticks), (owner.boot_id, owner.host)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise FormatError(f"process number and start time must be whole numbers, not {numbers}")
        if not all(isinstance(name, str) for name in names):
            raise FormatError(f"boot id and host must be texts, not {names}")
        return owner

    @classmethod
    def read(cls, path: Path, *, os_io: OsIO = REAL_OS) -> Self:
        """Read an owner file; raises `OSError` or `FormatError`. A link is not followed."""
        return cls.parse(_read_text(path, os_io, os.O_NOFOLLOW))

    def to_json(self) -> str:
        """Return the text of the owner file. Pure."""
        return json.dumps(asdict(self)) + "\n"

    def is_gone(self, *, os_io: OsIO = REAL_OS) -> bool:
        """Return whether the process has certainly ended, for a folder whose lock nobody holds.

        Another boot of the same host has ended everything. Of another kernel on another host nothing is known:
        locks of a shared file system may be local to each host.
        """
        # Process numbers and start times mean something only within one boot of one kernel.
        boot_id, is_same_host = _boot_id(os_io), self.host == os.uname().nodename
        if self.boot_id != boot_id:
            is_known = bool(self.boot_id and boot_id)
            return is_same_host and (is_known or not _is_running(self.pid))
        try:
            fields = _stat_fields(_read_text(_PROC / str(self.pid) / "stat", os_io))
        except (FileNotFoundError, ProcessLookupError):  # of this number, or of all where there is no /proc
            return (bool(boot_id) or is_same_host) and not _is_running(self.pid)
        except OSError:  # nobody can say: let it stay
            return False
        is_another = self.start_ticks not in (0, int(fields[_START_FIELD]))
        return fields[0] in _DEAD_STATES or is_another


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def _stat_fields(text: str) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may itself hold spaces and brackets. Pure."""
    return text[text.rindex(")") + 1 :].split()


def _boot_id(os_io: OsIO) -> str:
    try:
        return _read_text(_BOOT_ID, os_io).strip()
    except OSError:
        return ""


def _read_text(path: Path, os_io: OsIO, flags: int = 0) -> str:
    buffer = bytearray(_MAX_BYTES)
    with Descriptor(path, os.O_RDONLY | flags, os_io=os_io) as fd:
        count = read_full(fd, memoryview(buffer), 0, os_io=os_io)
    return buffer[:count].decode("utf-8", "replace")
