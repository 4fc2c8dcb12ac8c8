"""Simulated power loss: a file system that records which writes are not yet forced to the device.

The idea is from SQLite's ``test6.c``. A test writes files through a `CrashRecorder`, which performs every call and logs
it. `CrashRecorder.crash` then builds a folder as a power loss at any point of the log could leave it, and the test
opens this folder. Synced data survives. Each other 512-byte sector and each other change of a folder may or may not
survive. Only a rename is atomic, as on every journaling file system. Only fsync guarantees an order.

The log has three kinds of operations: a write to a file, a sync of a file or folder, and a change of folder entries,
the names in a folder. A node is the number of a file or a folder, like an inode.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

from gloader.ssd_store.os_io import OsIO, StrPath

if TYPE_CHECKING:
    from random import Random

SECTOR_BYTES: Final = 512
# Names for the part of unsynced data that survives, see `CrashRecorder.crash`.
Survival: TypeAlias = Literal["none", "all", "last", "torn"]
SURVIVALS: Final[tuple[Survival, ...]] = ("none", "all", "last", "torn")
_ROOT: Final = 0  # the root folder's node


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """Bytes written to a file, or a change of its size."""

    node: int  # the file
    offset: int  # position in the file
    data: bytes  # empty if only the size is set, to ``offset``


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sync:
    """A sync of a file's data or of a folder's entries."""

    node: int  # the file or folder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entries:
    """Changes of folder entries in one step. A rename has two changes: a removal and a new entry."""

    # The folder's node, the entry's name, and the file's node, or None for a removal.
    changes: tuple[tuple[int, str, int | None], ...]

    @property
    def folders(self) -> set[int]:
        """The nodes of the changed folders."""
        return {folder for folder, _, _ in self.changes}


_Op: TypeAlias = _Write | _Sync | _Entries


class CrashRecorder(OsIO):
    """Performs and logs the calls below the folder ``root``. The initial content counts as durable."""

    is_real: ClassVar[bool] = False  # these are not the plain system calls

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))
        self._log: list[_Op] = []
        self._tree: dict[int, dict[str, int]] = {_ROOT: {}}  # folder -> name -> node, as seen by the program
        self._folders = {_ROOT}  # the nodes that are folders
        self._open_files: dict[int, list[int]] = {}  # fd -> [node, position]
        self._next_node = 1
        # The initial content counts as durable, so the log begins with this content, synced.
        self._import(self._root, _ROOT)

    @property
    def num_ops(self) -> int:
        """Number of points at which the power can fail."""
        return len(self._log) + 1

    def crash(self, at: int, into: Path, *, survival: Survival, random: Random) -> None:
        """Create the folder ``into`` with content that ``root`` could have after a power loss.

        Parameters
        ----------
        at : the operation before which the power fails, 0..num_ops - 1
        into : the folder to create
        survival : the unsynced data that survives: "none", "all", "last" for only the last operation, or "torn" for a
            random choice of sectors and folder changes
        random : random numbers for "torn"
        """
        log = self._log[:at]
        tree: dict[int, dict[str, int]] = {node: {} for node in self._folders}
        for entries in _surviving_entries(log, survival, random):
            for folder, name, node in entries.changes:
                if node is None:
                    tree[folder].pop(name, None)
                else:
                    tree[folder][name] = node
        contents = _surviving_contents(log, survival, random)
        into.mkdir()
        self._export(tree, contents, _ROOT, into)

    def _export(
        self, tree: dict[int, dict[str, int]], contents: dict[int, bytes], folder: int, to: Path
    ) -> None:
        """Write a folder's content, with all folders below it.

        Parameters
        ----------
        tree : names and nodes in each folder, by the folder's node
        contents : bytes by a file's node
        folder : node of the written folder
        to : existing empty folder to write into
        """
        for name, node in tree[folder].items():
            if node in self._folders:
                (to / name).mkdir()
                self._export(tree, contents, node, to / name)
            else:
                (to / name).write_bytes(contents.get(node, b""))

    def _import(self, path: Path, folder: int) -> None:
        """Log the content of the folder ``path`` as synced. ``folder`` is the folder's node."""
        for child in sorted(path.iterdir()):
            node = self._add(is_folder=child.is_dir())
            self._change((folder, child.name, node))
            if child.is_dir():
                self._import(child, node)
            else:
                self._log.append(_Write(node=node, offset=0, data=child.read_bytes()))
                self._log.append(_Sync(node=node))
        self._log.append(_Sync(node=folder))

    def _add(self, *, is_folder: bool) -> int:
        """Return a new node."""
        node, self._next_node = self._next_node, self._next_node + 1
        if is_folder:
            self._folders.add(node)
            self._tree[node] = {}
        return node

    def _locate(self, path: StrPath) -> tuple[int, str]:
        """Return the node of the folder that holds ``path``, and the last name in ``path``."""
        parts = Path(path).relative_to(self._root).parts
        folder = _ROOT
        for part in parts[:-1]:
            folder = self._tree[folder][part]
        return folder, parts[-1]

    def _node(self, path: StrPath) -> int:
        """Return the node of ``path``, as the program sees it."""
        if Path(path) == self._root:
            return _ROOT
        folder, name = self._locate(path)
        return self._tree[folder][name]

    def _change(self, *changes: tuple[int, str, int | None]) -> None:
        """Change folder entries, and log the changes as one step."""
        for folder, name, node in changes:
            if node is None:
                self._tree[folder].pop(name, None)
            else:
                self._tree[folder][name] = node
        self._log.append(_Entries(changes=changes))

    # --- the calls ---

    def open(self, path: StrPath, flags: int, mode: int = 0o666) -> int:
        """See `OsIO.open`."""
        fd = super().open(path, flags, mode)
        if flags & (os.O_WRONLY | os.O_RDWR):
            folder, name = self._locate(path)
            if flags & os.O_TRUNC or name not in self._tree[folder]:
                self._change((folder, name, self._add(is_folder=False)))
            position = os.fstat(fd).st_size if flags & os.O_APPEND else 0
            self._open_files[fd] = [self._tree[folder][name], position]
        return fd

    def close(self, fd: int) -> None:
        """See `OsIO.close`."""
        self._open_files.pop(fd, None)
        super().close(fd)

    def write(self, fd: int, data: memoryview) -> int:
        """See `OsIO.write`."""
        count = super().write(fd, data)
        file = self._open_files[fd]
        self._log.append(_Write(node=file[0], offset=file[1], data=bytes(data[:count])))
        file[1] += count
        return count

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """See `OsIO.pwrite`."""
        count = super().pwrite(fd, data, offset)
        self._log.append(_Write(node=self._open_files[fd][0], offset=offset, data=bytes(data[:count])))
        return count

    def seek(self, fd: int, offset: int) -> None:
        """See `OsIO.seek`."""
        super().seek(fd, offset)
        self._open_files[fd][1] = offset

    def truncate(self, fd: int, num_bytes: int) -> None:
        """See `OsIO.truncate`; files only grow."""
        super().truncate(fd, num_bytes)
        self._log.append(_Write(node=self._open_files[fd][0], offset=num_bytes, data=b""))

    def fsync(self, fd: int) -> None:
        """See `OsIO.fsync`."""
        super().fsync(fd)
        self._log.append(_Sync(node=self._open_files[fd][0]))

    def datasync(self, fd: int) -> None:
        """See `OsIO.datasync`."""
        super().datasync(fd)
        self._log.append(_Sync(node=self._open_files[fd][0]))

    def punch_hole(self, fd: int, offset: int, num_bytes: int) -> None:
        """See `OsIO.punch_hole`. The zeros may or may not survive a crash."""
        super().punch_hole(fd, offset, num_bytes)
        self._log.append(_Write(node=self._open_files[fd][0], offset=offset, data=bytes(num_bytes)))

    def fsync_dir(self, path: StrPath) -> None:
        """See `OsIO.fsync_dir`."""
        super().fsync_dir(path)
        self._log.append(_Sync(node=self._node(path)))

    def mkdir(self, path: StrPath, mode: int = 0o777) -> None:
        """See `OsIO.mkdir`."""
        super().mkdir(path, mode)
        self._change((*self._locate(path), self._add(is_folder=True)))

    def replace(self, source: StrPath, target: StrPath) -> None:
        """See `OsIO.replace`."""
        node = self._node(source)
        super().replace(source, target)
        self._change((*self._locate(source), None), (*self._locate(target), node))

    def rename_noreplace(self, source: StrPath, target: StrPath) -> None:
        """See `OsIO.rename_noreplace`."""
        node = self._node(source)
        super().rename_noreplace(source, target)
        self._change((*self._locate(source), None), (*self._locate(target), node))

    def exchange(self, first: StrPath, second: StrPath) -> None:
        """See `OsIO.exchange`."""
        nodes = self._node(first), self._node(second)
        super().exchange(first, second)
        self._change((*self._locate(first), nodes[1]), (*self._locate(second), nodes[0]))

    def link(self, source: StrPath, target: StrPath) -> None:
        """See `OsIO.link`."""
        node = self._node(source)
        super().link(source, target)
        self._change((*self._locate(target), node))

    def unlink(self, path: StrPath) -> None:
        """See `OsIO.unlink`."""
        super().unlink(path)
        self._change((*self._locate(path), None))

    def rmdir(self, path: StrPath) -> None:
        """See `OsIO.rmdir`."""
        super().rmdir(path)
        self._change((*self._locate(path), None))

    def rmtree(self, path: StrPath) -> None:
        """See `OsIO.rmtree`. Removes entries one by one, and each removal may or may not survive a crash."""
        super().rmtree(path)
        self._remove_below(self._node(path))
        self._change((*self._locate(path), None))

    def _remove_below(self, node: int) -> None:
        """Log the removal of all entries below the folder ``node``, innermost first. Does nothing for a file."""
        for name, child in sorted(self._tree.get(node, {}).items()):
            self._remove_below(child)
            self._change((node, name, None))


def _surviving_entries(log: list[_Op], survival: Survival, random: Random) -> list[_Entries]:
    """Return the folder changes that survive the crash, in order."""
    durable = _durable_entries(log)
    return [
        op
        for index, op in enumerate(log)
        if isinstance(op, _Entries)
        and (index in durable or _survives(survival, random, is_last=index == len(log) - 1))
    ]


def _durable_entries(log: list[_Op]) -> set[int]:
    """Return the log's indices of the durable folder changes.

    A change is durable if one of its folders is synced later, or is also changed by a later durable change.
    """
    durable: set[int] = set()
    synced: set[int] = set()
    # The loop runs backwards, because a sync makes earlier changes durable. A durable change is durable in all its
    # folders, and so are earlier changes of these folders.
    for index in range(len(log) - 1, -1, -1):
        op = log[index]
        if isinstance(op, _Sync):
            synced.add(op.node)
        elif isinstance(op, _Entries) and op.folders & synced:
            durable.add(index)
            synced |= op.folders
    return durable


def _survives(survival: Survival, random: Random, *, is_last: bool) -> bool:
    """Return whether one unsynced sector or change survives. ``is_last`` means it belongs to the last operation."""
    return (
        survival == "all"
        or (survival == "last" and is_last)
        or (survival == "torn" and random.random() < 0.5)
    )


def _surviving_contents(log: list[_Op], survival: Survival, random: Random) -> dict[int, bytes]:
    """Return the content of every written file after the crash, by node."""
    last_sync = {op.node: index for index, op in enumerate(log) if isinstance(op, _Sync)}
    contents: dict[int, bytearray] = {}
    for index, op in enumerate(log):
        if not isinstance(op, _Write):
            continue
        content = contents.setdefault(op.node, bytearray())
        is_durable = index < last_sync.get(op.node, -1)
        if not op.data and (is_durable or _survives(survival, random, is_last=index == len(log) - 1)):
            _put(content, op.offset, b"")  # the set size survives
        # A disk writes full sectors, and the sectors of one write in any order.
        for start in range(0, len(op.data), SECTOR_BYTES):
            if is_durable or _survives(survival, random, is_last=index == len(log) - 1):
                _put(content, op.offset + start, op.data[start : start + SECTOR_BYTES])
        # The new size may survive without the data. The sectors then read as zeros.
        if survival == "torn" and random.random() < 0.5:
            _put(content, op.offset + len(op.data), b"")
    return {node: bytes(content) for node, content in contents.items()}


def _put(content: bytearray, offset: int, data: bytes) -> None:
    """Write ``data`` at ``offset``. A file that is too short grows by zeros."""
    content.extend(bytes(max(0, offset + len(data) - len(content))))
    content[offset : offset + len(data)] = data
