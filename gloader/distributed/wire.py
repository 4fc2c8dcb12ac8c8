"""Connections between the ranks of a machine: each message arrives whole, as JSON, with a descriptor beside it."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import secrets
import select
import socket
import struct
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from gloader.core.malformed import MALFORMED
from gloader.distributed.messages import parse, to_json
from gloader.errors import RankError

if TYPE_CHECKING:
    from gloader.distributed.messages import Message

# Bytes of a message. The longest one explains the host's tiers; a batch of a few blocks takes some hundred.
_LONGEST = 1 << 17
# Between the agreement of all ranks and their connections: a loaded machine takes seconds to schedule a process.
CONNECT_S: Final = 30.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message and the descriptor that came with it, which the receiver owns."""

    message: Message
    descriptor: int | None


# Every socket of this process, for a child that is forked from it.
_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close the sockets that a forked child inherited.

    Its finalizers must not release what its parent still uses, and it must not keep the connection of a dead parent
    open.
    """
    for inherited in list(_OPEN):
        inherited.close()


os.register_at_fork(after_in_child=_close_in_child)


class Connection:
    """One end of a connection. Any thread may send, without a lock, since a send is atomic; one at a time receives.

    Owns the socket until `close`.
    """

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        _OPEN.add(peer)
        self._socket.setblocking(True)
        self._posted: collections.deque[bytes] = collections.deque()

    @classmethod
    def to(cls, address: str, *, timeout_s: float) -> Self:
        """Connect to a `Listener`.

        Raises
        ------
        RankError
            Nobody listens there any more.
        """
        # SEQPACKET keeps the borders of messages and sends each at once or not at all: no lock, no framing.
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            peer.settimeout(timeout_s)
            peer.connect(f"\0{address}")
        except OSError as error:
            peer.close()
            raise RankError(f"the rank that loads for this machine cannot be reached: {error}") from error
        return cls(peer)

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: Message, *, descriptor: int | None = None) -> None:
        """Send ``message``, and give the other side a copy of ``descriptor``.

        Raises
        ------
        EOFError
            The other side is gone.
        """
        data = _encoded(message)
        try:
            if descriptor is None:
                self._socket.send(data)
            else:
                socket.send_fds(self._socket, [data], [descriptor])
        except OSError as error:
            raise EOFError(f"the connection is closed: {error}") from error

    def post(self, message: Message) -> None:
        """Send ``message`` without waiting, if the other side is there; safe inside a weakref callback."""
        # Queued first: a finalizer may interrupt a thread in the middle of `flush`, and must not wait for it.
        self._posted.append(_encoded(message))
        self.flush()

    def flush(self) -> None:
        """Send what was posted and did not fit into the socket at that time."""
        with contextlib.suppress(OSError, IndexError):
            while self._posted:
                data = self._posted.popleft()
                try:
                    self._socket.send(data, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    self._posted.appendleft(data)
                    return

    def receive(self, timeout_s: float | None) -> Received | None:
        """Return the next message, or None if none came in ``timeout_s`` (None: waits as long as it takes).

        Raises
        ------
        EOFError
            The other side is gone, and everything that it sent was received.
        RankError
            What came is no message.
        """
        try:
            if not self._is_readable(timeout_s):
                return None
            data, descriptors, flags, _ = self._receive_whole()
        except (OSError, ValueError) as error:
            raise EOFError(f"the connection is closed: {error}") from error
        if not data:
            raise EOFError("the connection is closed")
        try:
            message = _decoded(data, is_whole=not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC))
        except RankError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return Received(message=message, descriptor=descriptors[0] if descriptors else None)

    def peer_user(self) -> int:
        """Return the user id of the other side."""
        raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(raw)[1])

    def close(self) -> None:
        """Close the socket; the other side still receives what was sent. Idempotent."""
        self._socket.close()

    def _receive_whole(self) -> tuple[bytes, list[int], int, Any]:
        try:
            return socket.recv_fds(self._socket, _LONGEST, 1)
        except ConnectionResetError:
            # The other side closed without reading all that it was sent. Linux says so once, before it gives out
            # what the other side had sent itself (unix_release_sock, sock_error).
            return socket.recv_fds(self._socket, _LONGEST, 1)

    def _is_readable(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000))


def _encoded(message: Message) -> bytes:
    return json.dumps(to_json(message)).encode()


def _decoded(data: bytes, *, is_whole: bool) -> Message:
    if not is_whole:
        raise RankError(f"a message of more than {_LONGEST} bytes, or with more than one descriptor, came")
    try:
        document = json.loads(data)
    except MALFORMED as error:
        raise RankError(f"another rank sent what is no JSON: {error}") from error
    return parse(document)


class Listener:
    """The address at which the ranks of a machine reach its host; in no file system, gone with the process.

    Owns the socket until `close`.
    """

    def __init__(self) -> None:
        self.address = f"gloader-{secrets.token_hex(12)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"\0{self.address}")
        self._socket.listen(64)
        _OPEN.add(self._socket)

    def accept(self, timeout_s: float) -> Connection | None:
        """Return the next connection of this user's processes, or None if none came in ``timeout_s``."""
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            peer, _ = self._socket.accept()
        except TimeoutError:
            return None
        connection = Connection(peer)
        # The abstract name is open to every user of the machine; the token is checked by the first message.
        if connection.peer_user() != os.getuid():
            connection.close()
            return None
        return connection

    def close(self) -> None:
        """Close the socket; a rank that waits for an answer sees the end of its connection. Idempotent."""
        self._socket.close()
