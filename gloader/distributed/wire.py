"""Messages between the ranks of a machine, and the connections that carry them.

The host is the rank that loads for all ranks of its machine (`gloader.distributed.host`); the clients are the other
ranks (`gloader.distributed.client`). Each kind of message is a frozen dataclass; `parse` checks the arriving JSON. A
message arrives complete, with a file descriptor if it needs one. The kinds are defined in the order of their use: in
the opening of the loader, during a run, and at an end. `Connection` and `Listener` follow.

- A segment is a buffer in shared memory. The host sends its descriptor once, and then its number with every batch.
- A run is a sequence of batches from one position on. Both sides count the runs, so that late messages are recognised.
- A rank takes part in a run from `Begin` to `Leave`.
- A table is the feature rows of a node type or of a relation.
- An embedding is the trainable rows of a node type. The host holds the rows of the next batches in slots, which the
  clients map. A step is one update of an embedding, by the gradients of one batch of each rank.
"""

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
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self, TypeAlias, get_args

from gloader.config import Features
from gloader.core.dtypes import FEATURE_DTYPES, STORED_DTYPES
from gloader.core.malformed import MALFORMED
from gloader.core.records import Records
from gloader.distributed.shared_memory import BatchShape
from gloader.errors import RankError
from gloader.plan.memory_plan import MemoryPlan
from gloader.plan.sweep_plan import SweepPlan
from gloader.ssd_store.cost.io_rates import Strategy

RowDtype: TypeAlias = str  # numpy's name of the dtype in which features are stored
NO_SEGMENT: Final = 0  # segments are numbered from 1
_ROW_DTYPES: Final = {STORED_DTYPES[name].stored.name for name in FEATURE_DTYPES}


# --- during the opening of the loader


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A client introduces itself."""

    rank: int
    token: str  # proves that the client belongs to the host's team


@dataclass(frozen=True, slots=True, kw_only=True)
class TryStep:
    """The host's request to measure a client's device memory for rows, by a trial step of the model.

    The step's batch comes in shared memory, whose descriptor comes with this message.
    """

    shape: BatchShape | None  # None without a trial batch


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRows:
    """The host's request to hold rows on a client's device. Row ids come in shared memory, except for all or none."""

    count: int  # number of rows
    hit_rate: float | None  # expected hit rate; None if unknown
    # Whether the host sends the other rows in their storage format instead of float32.
    as_stored: bool = False
    table: int = 0  # number of the table


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachFeatures:
    """The host's request to read all rows in place, in the shared memory of this message."""

    table: int = 0  # number of the table


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleFeatures:
    """The host's decision whether all devices read the rows in place, or none does."""

    by_all: bool  # True if all devices do
    table: int = 0  # number of the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A client's answer to a device request."""

    room: int | None = None  # answer to `TryStep`: bytes for rows
    reaches: bool = False  # answer to `ReachFeatures`: whether the device reads the rows in place
    is_asynchronous: bool = False  # answer to `TryStep`: whether the device is asynchronous


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The slots of an embedding; comes before `Welcome`, with the descriptor of their memory."""

    embedding: int  # number of the embedding
    num_slots: int  # C
    width: int  # float32 values of a row: its weights, then the optimizer's state
    dim: int  # D, the weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The host has opened its tiers (caches and feature sources), and serves from now on."""

    plan: MemoryPlan
    text: str  # explains the tiers, for the user
    # Each table's stored dtype, in which its features come through shared memory.
    row_dtypes: tuple[RowDtype, ...] = ("float32",)

    def __post_init__(self) -> None:
        """Raise ValueError for other row dtypes."""
        if unknown := set(self.row_dtypes) - _ROW_DTYPES:
            raise ValueError(
                f"field 'row_dtypes' is {min(unknown)!r:.80}, not one of {', '.join(sorted(_ROW_DTYPES))}"
            )


# --- while a run is under way


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A client's request to begin run ``run`` at a given batch."""

    run: int
    epoch: int  # epoch of the run's first batch
    index: int  # index of this batch in the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Run ``run`` has begun: every rank has requested it."""

    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A new shared-memory buffer of the host; its descriptor comes with this message."""

    segment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A client's batch in two segments, lent until the client releases them."""

    run: int
    segments: tuple[
        int, int
    ]  # the features' segment, or `NO_SEGMENT` without features, and the topology's segment
    rows: tuple[int, ...]  # feature rows of each table; 0 if the client's device serves the full table
    shape: BatchShape  # sizes of the arrays in the topology's segment
    number: int = 0  # of the batch in the plan of the embeddings' slots
    num_slots: tuple[int, ...] = ()  # of the batch in each embedding; they lie behind the topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A client no longer uses a segment."""

    segment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmap:
    """The host freed a segment, which the client unmaps."""

    segment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """A client's part of a step: in its own segment the slots (num_rows,) int64, then the gradients as float32.

    The descriptor of a new segment comes with this message.
    """

    run: int
    embedding: int
    step: int  # number of the step in the run
    num_rows: int  # number of gradient rows; 0 without a gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The host has ended a step of an embedding: the rows have their new values."""

    run: int
    embedding: int
    step: int
    num_steps: int  # optimizer steps in the life of the embedding's table


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """A client's request for newest weights: in its own segment the ids (num_rows,) int64, then room for the weights.

    The descriptor of a new segment comes with this message.
    """

    embedding: int
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRead:
    """The host's answer to `ReadRows`: the weights are in the segment, or could not be read."""

    error: str = ""  # empty if they are in the segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """A client that waits for a batch reports its progress, and requests a sign of life."""

    run: int
    waits: bool  # whether the consumer waits, or only a thread that reads ahead
    received: int  # batches received in this run
    epoch: int  # epoch of the next batch
    index: int  # index of this batch in the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The host is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A client takes no more batches of run ``run``."""

    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The host sends no more batches of run ``run``; comes after the last batch."""

    run: int


# --- at an end


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A client failed."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """The host's error that ends a run or the loader."""

    text: str
    notes: tuple[str, ...]  # the notes of the raised error
    run: int | None = None  # None if the loader is unusable
    now: bool = False  # whether the error is raised immediately, or after the run's earlier batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """A rank closed its loader."""


Message: TypeAlias = (
    Hello
    | TryStep
    | HoldRows
    | ReachFeatures
    | SettleFeatures
    | Answer
    | Slots
    | Welcome
    | Begin
    | Started
    | Segment
    | Batch
    | Release
    | Unmap
    | Gradient
    | Applied
    | ReadRows
    | RowsRead
    | Ping
    | Pong
    | Leave
    | Left
    | Failed
    | ErrorReport
    | Bye
)

# Types are listed by name, because the plan's modules import some of them for type checkers only.
_RECORDS: Final = Records(BatchShape=BatchShape, Features=Features, Strategy=Strategy, SweepPlan=SweepPlan)
_KINDS: Final[dict[str, type[Message]]] = {kind.__name__: kind for kind in get_args(Message)}


def to_json(message: Message) -> dict[str, Any]:
    """Return ``message`` as a JSON object: its kind as "op", and its fields without default values. Pure."""
    document: dict[str, Any] = {"op": type(message).__name__}
    for field in fields(message):
        value = getattr(message, field.name)
        if value != field.default:
            document[field.name] = asdict(value) if isinstance(value, MemoryPlan) else value
    return document


def parse(document: object) -> Message:
    """Return the message whose `to_json` form is ``document``. Pure.

    Raises
    ------
    RankError
        ``document`` is not a message; the error names the wrong kind, field or value.
    """
    op = document.get("op") if isinstance(document, dict) else None
    kind = _KINDS.get(op) if isinstance(op, str) else None
    if kind is None or not isinstance(document, dict):
        raise _refusal(f"{str(document)[:200]!r}, which is no kind of message")
    try:
        message = _RECORDS.read(kind, {name: value for name, value in document.items() if name != "op"})
    except ValueError as error:
        raise _refusal(f"a message {op!r} whose {error}") from None
    return message


def _refusal(received: str) -> RankError:
    """Return the error for bytes that are not a message of this version; ``received`` describes them."""
    return RankError(f"another rank sent {received}; use one version of gloader on all ranks")


# Maximum bytes of a message. The longest message explains the host's tiers; a batch takes some hundred bytes.
_LONGEST = 1 << 17
# Maximum seconds to connect, after all ranks have agreed. A busy machine takes seconds to schedule a process.
CONNECT_S: Final = 30.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message and its file descriptor, if any. The receiver owns the descriptor."""

    message: Message
    descriptor: int | None


# Every socket of this process; a forked child closes them.
_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close the sockets that a forked child inherited.

    The child's finalizers must not release its parent's objects. The child must not keep a dead parent's connection
    open.
    """
    for inherited in list(_OPEN):
        inherited.close()


os.register_at_fork(after_in_child=_close_in_child)


class Connection:
    """One end of a connection. Any thread may send without a lock, as a send is atomic; only one thread receives.

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
            The listener is gone.
        """
        # SEQPACKET keeps message borders, and sends a message completely or not at all. So no lock or length is needed.
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
        """Send ``message``, and give the peer a copy of ``descriptor``.

        Raises
        ------
        EOFError
            The peer is gone.
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
        """Send ``message`` without waiting; drop it if the peer is gone. Never raises. Safe in a weakref callback."""
        # The message is queued first: a finalizer may interrupt a thread inside `flush`, and must not wait for it.
        self._posted.append(_encoded(message))
        self.flush()

    def flush(self) -> None:
        """Send the posted messages that the socket had no room for."""
        with contextlib.suppress(OSError, IndexError):
            while self._posted:
                data = self._posted.popleft()
                try:
                    self._socket.send(data, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    self._posted.appendleft(data)
                    return

    def receive(self, timeout_s: float | None) -> Received | None:
        """Return the next message; None if none came in ``timeout_s`` (None means no limit).

        Raises
        ------
        EOFError
            The peer is gone, and all of its messages were received.
        RankError
            The received bytes are not a message.
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
        """Return the peer's user id."""
        raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(raw)[1])

    def close(self) -> None:
        """Close the socket; the peer still receives the messages sent before. Idempotent."""
        self._socket.close()

    def _receive_whole(self) -> tuple[bytes, list[int], int, Any]:
        """Return one message's bytes, its file descriptors, the socket's flags, and the peer's address."""
        try:
            return socket.recv_fds(self._socket, _LONGEST, 1)
        except ConnectionResetError:
            # The peer closed with unread messages. Linux reports this once, before it hands out the messages that the
            # peer had sent (unix_release_sock, sock_error).
            return socket.recv_fds(self._socket, _LONGEST, 1)

    def _is_readable(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000))


def _encoded(message: Message) -> bytes:
    return json.dumps(to_json(message)).encode()


def _decoded(data: bytes, *, is_whole: bool) -> Message:
    """Return the message in ``data``. Raises RankError for anything else, or if a part of the message was cut off."""
    if not is_whole:
        raise _refusal(f"a message of more than {_LONGEST} bytes, or with more than one file descriptor")
    try:
        document = json.loads(data)
    except MALFORMED as error:
        raise RankError(f"another rank sent a message that is not JSON: {error}") from error
    return parse(document)


class Listener:
    """The address at which clients reach their host. It is no file, and it ends with the process.

    Owns the socket until `close`.
    """

    def __init__(self) -> None:
        self.address = f"gloader-{secrets.token_hex(12)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"\0{self.address}")
        self._socket.listen(64)
        _OPEN.add(self._socket)

    def accept(self, timeout_s: float) -> Connection | None:
        """Return the next connection from one of this user's processes, or None if none came in ``timeout_s``."""
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            peer, _ = self._socket.accept()
        except TimeoutError:
            return None
        connection = Connection(peer)
        # The abstract name is open to every user of the machine; the first message proves the token.
        if connection.peer_user() != os.getuid():
            connection.close()
            return None
        return connection

    def close(self) -> None:
        """Close the socket; a rank that waits for an answer sees the end of its connection. Idempotent."""
        self._socket.close()
