"""A process's claim to a private folder of temporary files, and the removal of dead processes' folders.

A spill folder, ``gloader-KIND-BOOT-XXXX``, belongs to one process. KIND is its use, such as "spill", and BOOT the first
characters of the kernel's boot id. Two things show that its process lives: a lock on the folder, and the owner file
``owner.json``, which names the process. A process that was killed leaves its folder behind. The next run removes the
folder once the lock is free and the owner file's process has ended.

`SpillClaim` creates and locks a folder, for a `SpillFolder` or, in `scratch_folder`, for one ``with`` block.
`remove_dead_spills` removes dead processes' folders.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import secrets
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from gloader.core.malformed import MALFORMED
from gloader.core.signals import act_at_sigterm, close_in_finalizer, forget_sigterm, uninterrupted
from gloader.errors import FormatError, StoreLockedError
from gloader.ssd_store.os_io import REAL_OS, Descriptor, OsIO, StrPath, close_quietly, read_full, spill_errors
from gloader.ssd_store.write.atomic_file import lock_folder, write_chunks_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator


_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys" / "kernel" / "random" / "boot_id"
_MAX_BYTES: Final = 4096  # longest part that is read of an owner file, or of a file in /proc
# Index of the start time in /proc/PID/stat, counted from the state, which is the first field after the name.
_START_FIELD: Final = 19
_DEAD_STATES: Final = frozenset("ZXx")  # states of ended processes: a zombie holds no lock and writes no more


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillOwner:
    """A process, identified so that no later process is mistaken for it."""

    pid: int  # process number
    # Start of the process, in clock ticks since boot: a process number may return, but not with the same start. 0
    # without /proc.
    start_ticks: int
    boot_id: str  # the kernel's boot id; empty if unknown
    host: str  # the machine's name

    @classmethod
    def this_process(cls, *, os_io: OsIO = REAL_OS) -> Self:
        """Return the calling process; raises `OSError` if /proc exists and is unreadable."""
        try:
            start_ticks = int(_stat_fields(_read_text(_PROC / "self" / "stat", os_io))[_START_FIELD])
        except FileNotFoundError:  # a sandbox without /proc: the number alone must suffice
            start_ticks = 0
        return cls(
            pid=os.getpid(),
            start_ticks=start_ticks,
            boot_id=_boot_id(os_io),
            host=os.uname().nodename,
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the owner from the result of `to_json`. Pure.

        Raises
        ------
        FormatError
            The text is no result of `to_json`.
        """
        try:
            members = json.loads(text)
            # The fields' types are checked below, because a dataclass accepts anything.
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
        """Return the owner file's text. Pure."""
        return json.dumps(asdict(self)) + "\n"

    def is_gone(self, *, os_io: OsIO = REAL_OS) -> bool:
        """Return True if the process has certainly ended, for a folder with a free lock.

        The boot ids of the owner and of this kernel, and the host names, decide:

        - Equal and known boot ids, or both unknown on the same host: the owner is looked up in /proc by its number and
          its start.
        - Different boot ids, same host: True, because a restart ends all processes.
        - One boot id is unknown, same host: True if no process has the owner's number.
        - Different or unknown boot ids, other host: False. The answer is unknown, because the free lock proves nothing:
          locks on a shared file system may be local to each host.
        """
        # Process numbers and start times are meaningful only within one boot of one kernel.
        boot_id, is_same_host = _boot_id(os_io), self.host == os.uname().nodename
        if self.boot_id != boot_id:
            is_known = bool(self.boot_id and boot_id)
            return is_same_host and (is_known or not _is_running(self.pid))
        # Without a boot id, only the host's name shows that the process number is one of this kernel.
        if not boot_id and not is_same_host:
            return False
        try:
            fields = _stat_fields(_read_text(_PROC / str(self.pid) / "stat", os_io))
        except (FileNotFoundError, ProcessLookupError):  # no such process, or no /proc
            return not _is_running(self.pid)
        except OSError:  # the state is unknown, so the folder stays
            return False
        is_another = self.start_ticks not in (0, int(fields[_START_FIELD]))
        return fields[0] in _DEAD_STATES or is_another


def _is_running(pid: int) -> bool:
    """Return True if a process with this number exists."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's process
        return True
    return True


def _stat_fields(text: str) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may itself hold spaces and brackets. Pure."""
    return text[text.rindex(")") + 1 :].split()


def _boot_id(os_io: OsIO) -> str:
    """Return the id of this boot of the kernel, or an empty text if it is unknown."""
    try:
        return _read_text(_BOOT_ID, os_io).strip()
    except OSError:
        return ""


def _read_text(path: Path, os_io: OsIO, flags: int = 0) -> str:
    """Return a small file's text; ``flags`` are further flags for its opening. Raises `OSError`."""
    buffer = bytearray(_MAX_BYTES)
    with Descriptor(path, os.O_RDONLY | flags, os_io=os_io) as fd:
        count = read_full(fd, memoryview(buffer), 0, os_io=os_io)
    return buffer[:count].decode("utf-8", "replace")


_LOG = logging.getLogger(__name__)

SPILL_PREFIX: Final = "gloader-spill-"
# A folder with such a name is removed only if its owner file identifies the owner.
_CLAIMED: Final = re.compile(r"gloader-[a-z]+-.+")
# No other program gives a folder such a name, so an empty folder is removed even without an owner file.
_GENERATED: Final = re.compile(r"gloader-[a-z]+-(?:([0-9a-f]{8})-)?[0-9a-f]{8}")
SPILL_DIR_VARIABLE: Final = "GLOADER_SPILL_DIR"  # environment variable: the parent folder of spill folders
OWNER_NAME: Final = "owner.json"
# Age at which an empty folder without an owner file is removed. A younger folder may be new: its process may run under
# another kernel, whose locks are invisible here.
UNCLAIMED_GRACE_S: Final = 600.0
# The lines at which a crash test may end the process, in their order. The "owner." lines are in
# `write_chunks_atomically`, which writes the owner file.
KILL_POINTS: Final = (
    "spill.after_mkdtemp",
    "spill.after_lock",
    "owner.after_write",
    "owner.after_fsync",
    "owner.after_rename",
    "owner.after_folder_fsync",
    "spill.after_files_removed",
    "spill.after_owner_removed",
)
_NAME_ATTEMPTS: Final = 100  # names tried for a new folder
_REMOVAL_ATTEMPTS: Final = 100  # attempts to remove a folder while threads write to it
_UNKNOWN_BOOT: Final = "0" * 8  # the boot id's part in the name if the id is unknown
_OWNER_TEMPORARY: Final = OWNER_NAME + ".tmp"


class SpillClaim:
    """A new folder ``gloader-KIND-BOOT-XXXX`` for only this process. Owns it until `remove`.

    An ``flock`` locks the folder while the claim is held. Its owner file identifies the owner after the lock is gone.
    If SIGTERM has no handler, a claim made on the main thread installs one. It removes the folder, and then the signal
    ends the process.

    Parameters
    ----------
    parent : an existing folder
    prefix : ``gloader-KIND-``
    os_io : the system calls

    Raises
    ------
    SpillError
        The folder cannot be created; no part of it is left.
    """

    __slots__ = ("_fd", "_os_io", "_owner_pid", "_prefix", "path")

    def __init__(self, parent: Path, *, prefix: str = SPILL_PREFIX, os_io: OsIO = REAL_OS) -> None:
        self._os_io = os_io
        self._prefix = prefix
        self._fd = -1
        # These fields are set before the folder exists, because `__del__` and the handler may read them at any time.
        self._owner_pid = 0  # the process that has to remove the folder; 0 if there is none
        self.path = parent
        # This call installs a handler for SIGTERM before `uninterrupted`, which delays only signals with a handler.
        act_at_sigterm(id(self), lambda: None)
        doing = f"creating a spill folder in {parent} (set {SPILL_DIR_VARIABLE} to another)"
        try:
            # In the message about a full disk, 1 byte stands for the small, unknown size of a folder's entry.
            with spill_errors(parent / prefix, doing, needed_bytes=1, os_io=os_io), uninterrupted():
                # Between `_make` and `_lock`, another run may take this folder for a dead process's, and remove it.
                while not (self._make(parent) and self._lock()):
                    self._owner_pid = 0
                self._sign()
        except BaseException as error:
            if self._owner_pid:
                self._give_up(error)
            forget_sigterm(id(self))
            raise

    def __del__(self) -> None:
        # A signal may arrive before the caller holds the claim, and nothing else would remove the folder then. A
        # removed claim does nothing here, because the interpreter may have cleared this module.
        owner_pid = getattr(self, "_owner_pid", 0)
        if owner_pid and owner_pid == os.getpid():
            close_in_finalizer(lambda: self._give_up(None))

    def release(self) -> None:
        """Release the lock and leave the folder. Idempotent."""
        self._owner_pid = 0
        forget_sigterm(id(self))
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            close_quietly(fd, os_io=self._os_io)

    def remove(self) -> None:
        """Remove the folder, then release the lock. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; the next run removes it after this process has ended.
        """
        if self._fd < 0:
            return
        with uninterrupted():
            try:
                with spill_errors(self.path, "removing the spill folder", os_io=self._os_io):
                    _remove_folder(self.path, self._os_io)
            finally:
                self.release()

    def _make(self, parent: Path) -> bool:
        """Create a folder with a free name, closed to other users, and return True."""
        for _ in range(_NAME_ATTEMPTS):
            # The boot tag in the name shows the kernel of the folder's creator. Processes under the same kernel can
            # rely on the lock: see `_is_abandoned`.
            name = f"{self._prefix}{_boot_tag(self._os_io)}-{secrets.token_hex(4)}"
            self.path = parent / name
            try:
                self.path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            self._owner_pid = os.getpid()
            act_at_sigterm(id(self), partial(_remove_under_writers, self.path, self._os_io))
            return True
        raise FileExistsError(errno.EEXIST, "every name tried for a spill folder is taken", str(parent))

    def _lock(self) -> bool:
        """Lock the new folder. Return False if another run has removed the folder, or is removing it."""
        self._os_io.kill_point("spill.after_mkdtemp")
        try:
            self._fd = lock_folder(self.path, os_io=self._os_io)
            is_there = os.path.samestat(self._os_io.fstat(self._fd), self._os_io.stat(self.path))
        except (FileNotFoundError, StoreLockedError):
            is_there = False
        if not is_there:
            self.release()
        return is_there

    def _sign(self) -> None:
        """Write the owner file."""
        # The lock precedes the owner file. So if a folder has an owner file, its lock shows if the owner lives.
        self._os_io.kill_point("spill.after_lock")
        owner = SpillOwner.this_process(os_io=self._os_io)
        # The owner file is forced to the device: after a power loss only a readable file permits the removal.
        write_chunks_atomically(
            self.path / OWNER_NAME,
            [owner.to_json().encode()],
            temporary=self.path / _OWNER_TEMPORARY,
            label="owner",
            os_io=self._os_io,
        )

    def _give_up(self, error: BaseException | None) -> None:
        """Remove the folder after ``error``, which gets a note if the removal fails; then release the lock."""
        try:
            _remove_folder(self.path, self._os_io)
        except OSError as failure:
            if error is not None:
                error.add_note(f"and {self.path} could not be removed ({failure}); a later run removes it")
        finally:
            self.release()


def spill_parent(parent: StrPath | None = None) -> Path:
    """Return the parent for spill folders: ``parent``, else $GLOADER_SPILL_DIR, else the temporary folder.

    Raises
    ------
    SpillError
        No folder is given and the system has no writable temporary folder.
    """
    chosen = parent or os.environ.get(SPILL_DIR_VARIABLE)
    if not chosen:
        with spill_errors(Path.cwd(), f"choosing a folder for spills (set {SPILL_DIR_VARIABLE})"):
            chosen = tempfile.gettempdir()
    return Path(chosen).absolute()


@contextmanager
def scratch_folder(parent: StrPath | None, *, prefix: str) -> Iterator[Path]:
    """Yield a folder in ``parent`` for the block, see `spill_parent`; dead folders are removed first.

    Parameters
    ----------
    parent : an existing folder, or None
    prefix : ``gloader-KIND-``

    Raises
    ------
    SpillError
        See `SpillClaim` and its `remove`.
    """
    folder = spill_parent(parent)
    remove_dead_spills(folder)
    claim = SpillClaim(folder, prefix=prefix)
    try:
        yield claim.path
    finally:
        claim.remove()


def remove_dead_spills(parent: StrPath | None = None, *, os_io: OsIO = REAL_OS) -> list[Path]:
    """Remove the folders in ``parent`` whose owner is dead, whatever their kind, and return them.

    A folder stays if its lock is held, if its owner may run, or if it belongs to another user. Links and files stay.
    A folder without an owner file stays too, unless its process was killed while creating it. Such a folder has a
    generated name and at most the owner file's draft in it. It is removed if this kernel's boot tag is in its name, or
    if it is older than `UNCLAIMED_GRACE_S`. A folder that cannot be removed is logged and stays.
    """
    folder = spill_parent(parent)
    removed: list[Path] = []
    try:
        names = os_io.listdir(folder)
    except OSError as error:
        _LOG.warning("cannot look for abandoned spill folders in %s: %s", folder, error)
        return removed
    for path in (folder / name for name in names if _CLAIMED.fullmatch(name)):
        try:
            with uninterrupted():
                is_removed = _remove_if_dead(path, os_io)
        except FileNotFoundError:  # its owner or another run removed it meanwhile
            continue
        except OSError as error:
            _LOG.warning("the abandoned spill folder %s could not be removed: %s", path, error)
            continue
        if is_removed:
            _LOG.info("removed %s, the spill folder of a run that was killed", path)
            removed.append(path)
    return removed


def _remove_if_dead(path: Path, os_io: OsIO) -> bool:
    """Remove a spill folder whose owner is gone. Return True if it was removed."""
    # The parent is often /tmp, where any user can create a link with this name, so links are never followed.
    try:
        fd = os_io.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (NotADirectoryError, PermissionError):  # a link, a file, or another user's folder
        return False
    try:
        if os_io.fstat(fd).st_uid != os.geteuid() or not _is_abandoned(path, os_io):
            return False
        try:
            os_io.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # The check repeats under the lock: another run may have removed the folder, and a new one may have its name.
        if not _is_abandoned(path, os_io):
            return False
        _remove_folder(path, os_io)
        return True
    finally:
        close_quietly(fd, os_io=os_io)


def _is_abandoned(path: Path, os_io: OsIO) -> bool:
    """Return True if ``path`` is a spill folder whose owner is gone, assuming that its lock is free."""
    try:
        owner = SpillOwner.read(path / OWNER_NAME, os_io=os_io)
    except FileNotFoundError:
        made = _GENERATED.fullmatch(path.name)
        if made is None or not set(os_io.listdir(path)) <= {_OWNER_TEMPORARY}:
            return False
        # Removal is safe if the creator ran under this kernel, where the free lock means that it is dead, or has not
        # locked the folder yet. A living creator then finds that the folder is gone or locked, and makes another one.
        is_of_this_boot = made[1] not in (None, _UNKNOWN_BOOT) and made[1] == _boot_tag(os_io)
        return is_of_this_boot or time.time() - os_io.stat(path).st_mtime > UNCLAIMED_GRACE_S
    except (OSError, FormatError) as error:
        _LOG.info("%s stays: its owner file cannot be read (%s)", path, error)
        return False
    return owner.is_gone(os_io=os_io)


def _boot_tag(os_io: OsIO) -> str:
    """Return the boot tag: the first 8 characters of the boot id that `_sign` writes, or `_UNKNOWN_BOOT`."""
    return SpillOwner.this_process(os_io=os_io).boot_id[:8] or _UNKNOWN_BOOT


def _remove_folder(path: Path, os_io: OsIO) -> None:
    """Remove a spill folder, if necessary in a second attempt.

    There is no third attempt: a folder that remains only costs space until a later run removes it.
    """
    try:
        _remove_once(path, os_io)
    except FileNotFoundError:  # another process removed all of it
        return
    except OSError:
        _remove_once(path, os_io)


def _remove_under_writers(path: Path, os_io: OsIO) -> None:
    """Remove a spill folder while threads may create files in it."""
    for _ in range(_REMOVAL_ATTEMPTS):
        with suppress(OSError):
            _remove_folder(path, os_io)
            return


def _remove_once(path: Path, os_io: OsIO) -> None:
    """Remove the files in a spill folder, the owner file last, and then the folder."""
    names = os_io.listdir(path)
    # The owner file is removed last, so that the next run can finish an interrupted removal.
    for name in sorted(names, key=lambda name: name == OWNER_NAME):
        if name == OWNER_NAME:
            os_io.kill_point("spill.after_files_removed")
        try:
            os_io.unlink(path / name)
        except IsADirectoryError:
            os_io.rmtree(path / name)
        except FileNotFoundError:  # a file that another thread removes
            continue
    os_io.kill_point("spill.after_owner_removed")
    os_io.rmdir(path)
