"""The processes that train one network together.

A rank is one process of a launch by torchrun; a machine runs one or several ranks. A collective is a call that all
ranks make in the same order. The transport, gloo or NCCL below ``torch.distributed``, carries it. `RankGroup` gathers
values from the ranks, runs work on some of them while the others wait, and turns the transport's errors into RankError.
The classes after it run this work: `_Heartbeat` and `_StatusExchange` show that a working rank is alive.

A rank is lost if its process has ended or is silent for too long. `RankWatch` looks at the processes of this machine.
`RankSigns` shows signs of life, small entries in a store, to the ranks of other machines.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from gloader.core.machine import host_id, machine_id, shown_machine
from gloader.core.signals import Cancellation, uninterrupted
from gloader.errors import ChannelClosedError, RankError
from gloader.training.rank_watch import RankWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from gloader.training.rank_signs import RankSigns


logger = logging.getLogger("gloader")

T = TypeVar("T")
# Work of a waiting rank. Its argument is a flag that is set when the work should end early.
SideWork: TypeAlias = "Callable[[Cancellation], None]"

# Seconds between two messages of a working rank, while other ranks wait.
_BEAT_S = 1.0
# Longest search for an ended process, in seconds. A killed process closes its sockets a little before it ends, so the
# other ranks' collectives fail while its process still exists.
_SEARCH_S = 2.0
_SEARCH_PAUSE_S = 0.02  # seconds between two checks of the processes
_SIDE_END_S: Final = 10.0  # seconds for a side thread to receive its last message
# Words in the text of a transport's error. gloo raises plain RuntimeErrors, which name its source files.
_TRANSPORTS = ("gloo", "NCCL", "ncclSystemError")


class RankGroup:
    """The ranks of the default process group, or this process alone without a group. Owns nothing.

    `gather`, `sum`, `run_on_first`, `run_on_machines`, `agree` and `require_equal` are collective: every rank calls
    them, in the same order. Values are sent as JSON. A lost rank ends them with RankError. A hanging rank ends them
    after the process group's timeout.

    Parameters
    ----------
    rank : this process's rank
    machines : the machine id of each rank
    processes : each rank's process, a result of `own_process`, to find and name a lost rank; empty if unknown
    hosts : the host of each rank. One host can simulate several machines. Empty means one host per machine
    names : the machine name of each rank, for messages; empty means ``machines``
    """

    def __init__(
        self,
        *,
        rank: int,
        machines: Sequence[str],
        processes: Sequence[Mapping[str, Any]] = (),
        hosts: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> None:
        self.rank = rank
        self._processes = processes
        self._names = names or machines
        # Both are set inside `watching`. `_signs` stays None on a single machine.
        self._watch: RankWatch | None = None
        self._signs: RankSigns | None = None
        self.world_size = len(machines)
        # The number of ranks on the machine with the most ranks.
        self.most_local = max(machines.count(machine) for machine in machines)
        self.local_rank = machines[:rank].count(machines[rank])
        # The ranks on rank 0's machine.
        self.first_machine = [other for other, machine in enumerate(machines) if machine == machines[0]]
        self.machines = tuple(machines)
        places = {(machines[other], host) for other, host in enumerate(hosts) if host == hosts[rank]}
        self.machines_here = max(1, len(places))  # number of machines that share this host's memory

    @classmethod
    def alone(cls) -> Self:
        """Return the group of one process."""
        return cls(rank=0, machines=[""])

    @classmethod
    def current(cls) -> Self:
        """Return the ranks of the process group, or `alone` without a group. Collective."""
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            return cls.alone()
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        # `gather` works without machine names, so a temporary group can collect them.
        unknown = cls(rank=rank, machines=[""] * world_size)
        places = unknown.gather_able(_own_place)
        return cls(
            rank=rank,
            machines=[place["machine"] for place in places],
            processes=[place["process"] for place in places],
            hosts=[place["host"] for place in places],
            names=[place["name"] for place in places],
        )

    @property
    def is_first(self) -> bool:
        """True if this rank prints and writes."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """True if there is no other rank."""
        return self.world_size == 1

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's ``value``, in rank order."""
        if self.is_alone:
            return [value]
        # torch is imported only for several ranks, so that a single process starts without it.
        from gloader.distributed.agree import gather_bytes

        text = json.dumps(value).encode()
        with self.lost_rank_errors():
            return [json.loads(other) for other in gather_bytes(text)]

    def gather_able(self, value: Callable[[], Any]) -> list[Any]:
        """Return every rank's ``value()``. A failing rank raises its own error, the others RankError. Collective."""
        result, error = None, None
        try:
            result = value()
        except Exception as caught:  # noqa: BLE001 - raised below, after the exchange
            error = caught
        outcomes = self.gather({"value": result, "error": None if error is None else _text(error)})
        _raise_first([outcome["error"] for outcome in outcomes], error)
        return [outcome["value"] for outcome in outcomes]

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the sums over the ranks, added in rank order: bit-identical on every rank and in every run."""
        # all_reduce is not used: the library chooses the order of its additions, which may vary between runs.
        parts = self.gather(dict(values))
        return {name: sum(part[name] for part in parts) for name in values}

    @property
    def machine_hosts(self) -> tuple[int, ...]:
        """Each machine's first rank, ascending."""
        return tuple(sorted({self.machines.index(machine) for machine in self.machines}))

    def run_on_first(self, work: Callable[[], T], *, meanwhile: SideWork | None = None) -> T:
        """Call ``work`` on the first rank and return its result, a JSON value, on all.

        The other ranks wait without the group's timeout, because the first rank sends them signs of life.

        Parameters
        ----------
        work : function for the first rank
        meanwhile : side work for a thread on each other rank. It has to return when the first rank's work is over, or
            early when its argument is set. If None, the ranks only wait

        Raises
        ------
        RankError
            Raised on the other ranks if the first rank failed or is lost.
        Exception
            The error of ``meanwhile``, on its rank.
        """
        if self.is_alone:
            return work()
        # A plain broadcast would time out while the first rank works for longer than the group's timeout.
        if self.is_first:
            return self._lead(work)
        if meanwhile is None:
            return self._follow()
        with ExitStack() as stack:
            # A signal must not come between the thread's start and the stack that ends the thread.
            with uninterrupted():
                stack.enter_context(_SideThread(meanwhile))
            return self._follow()

    def run_on_machines(self, work: Callable[[], T]) -> T:
        """Call ``work`` on the first rank of each machine, at the same time; return this machine's result.

        Results are JSON values. The other ranks wait without the group's timeout.

        Raises
        ------
        RankError
            Another rank failed or is lost.
        """
        if len(set(self.machines)) == 1:
            return self.run_on_first(work)
        exchange = _StatusExchange(self)
        if self.local_rank:
            exchange.attend()
        else:
            exchange.work(work)
        _raise_first([status.get("error") for status in exchange.statuses], exchange.error)
        result: T = exchange.statuses[self.machines.index(self.machines[self.rank])]["result"]
        return result

    def agree(self, error: BaseException | None) -> None:
        """Raise this rank's ``error``. If it is None, raise RankError for the first rank that has an error."""
        _raise_first(self.gather(None if error is None else _text(error)), error)

    def require_equal(self, facts: Mapping[str, Any]) -> None:
        """Raise RankSettingsError on every rank if ``facts``, JSON values, differ; name the first difference."""
        from gloader.distributed.agree import require_equal

        cards = self.gather(json.loads(json.dumps(dict(facts), default=str)))
        require_equal(dict(enumerate(cards)), "on every rank")

    @contextmanager
    def watching(self, *, timeout_s: float = 0.0) -> Iterator[None]:
        """Watch the ranks inside the block. A collective that waits for a lost rank raises RankError. Collective.

        The error names the lost rank. A rank is lost if its process on this machine has ended, or if its signs of life
        are missing for too long.

        Parameters
        ----------
        timeout_s : seconds without signs of life after which a rank is lost; 0 means no limit
        """
        if self.is_alone:
            yield
            return
        key = self.gather(secrets.token_hex(8))[0]  # the first rank's random name for this watch's entries
        with ExitStack() as stack:
            # A signal must not come between the threads' starts and the stack that ends the threads.
            with uninterrupted():
                self._signs = self._show_signs(key, timeout_s, stack)
                self._watch = RankWatch(self._processes, self._signs)
                stack.callback(self._watch.close)
            with self._announcing_errors(), self.lost_rank_errors():
                yield
                # The watch ends before this last collective. After the collective, a rank may end its process.
                self._watch.end()
                self.gather(None)

    @contextmanager
    def lost_rank_errors(self) -> Iterator[None]:
        """Turn a process group's errors about a lost rank into RankError."""
        try:
            yield
        # gloo and NCCL raise RuntimeError for everything. Only errors about a lost rank become RankError.
        except RuntimeError as error:
            has_ended = self._watch is not None and self._watch.has_ended_group
            if self.is_alone or not (has_ended or _is_loss(error)):
                raise
            # The traceback leaves out the transport's error, because its text names the transport's source files.
            raise self._explained(" ".join(str(error).split())[:200]) from None

    @contextmanager
    def log_failures(self) -> Iterator[None]:
        """Log an error of the block at once, before this rank closes connections and the other ranks fail too."""
        try:
            with self.lost_rank_errors():
                yield
        except RankError:
            raise
        except Exception as error:
            # The signs carry the error to ranks on other machines, and the log shows it to the user.
            if self._signs is not None:
                self._signs.fail(error)
            if not self.is_alone:
                notes = "; ".join(getattr(error, "__notes__", ()))
                text = f"{_text(error)} ({notes})" if notes else _text(error)
                logger.error("rank %d failed: %s", self.rank, text)  # noqa: TRY400 - the caller shows the rest
            raise

    def _show_signs(self, key: str, timeout_s: float, stack: ExitStack) -> RankSigns | None:
        """Begin to show this rank's signs of life until ``stack`` closes. Returns None on a single machine."""
        if len(set(self.machines)) == 1:
            return None
        from gloader.training.rank_signs import RankSigns

        signs = RankSigns(rank=self.rank, machines=self._names, key=key, timeout_s=timeout_s)

        def hide() -> None:
            self._signs = None
            signs.close()

        stack.callback(hide)
        return signs

    @contextmanager
    def _announcing_errors(self) -> Iterator[None]:
        """Announce an error of the block in this rank's signs."""
        try:
            yield
        except BaseException as error:
            if self._signs is not None:
                self._signs.fail(error)
            raise

    def _explained(self, cause: str) -> RankError:
        """Return the error that names the lost rank. Waits a moment until the rank is known.

        ``cause`` is the transport's error, for the end of the text.
        """
        if self._signs is not None:
            return self._signs.explain(cause)
        lost = (self._watch and self._watch.lost) or self._find_lost()
        loss = _have_ended(lost) if lost else "another rank ended, failed or did not answer in time"
        return RankError(
            f"{loss}; see what it or torchrun says. Start all ranks again from the last checkpoint ({cause})"
        )

    def _find_lost(self) -> list[int]:
        """Return this machine's ranks whose processes have ended. Waits a moment until there is one."""
        if not self._processes:
            return []
        from gloader.distributed.agree import is_gone

        deadline = time.monotonic() + _SEARCH_S
        while True:
            lost = [rank for rank, process in enumerate(self._processes) if is_gone(process)]
            if lost or time.monotonic() > deadline:
                return lost
            time.sleep(_SEARCH_PAUSE_S)

    def _lead(self, work: Callable[[], T]) -> T:
        """Call ``work`` while a thread sends signs of life, then send its outcome. For the first rank."""
        heartbeat = _Heartbeat(self)
        try:
            # The signs start before the work: followers wait for the first sign from now on.
            heartbeat.start()
            result = work()
        except BaseException as error:
            # The followers raise too, instead of waiting for a result that never comes.
            heartbeat.end({"error": _text(error)})
            raise
        heartbeat.end({"result": result})
        # The check comes after the result: a lost rank must not keep the result from the other ranks.
        heartbeat.require_others()
        return result

    def _follow(self) -> Any:
        """Receive the first rank's messages until its outcome arrives; return the result. For all other ranks."""
        with self.lost_rank_errors():
            # A size of 0 is a sign of life. Any other number is the size of the outcome that follows.
            while (size := _broadcast_size(0)) == 0:
                pass
            outcome = json.loads(_broadcast_bytes(b"", size))
        if "error" in outcome:
            raise RankError(f"rank 0 failed: {outcome['error']}")
        return outcome["result"]


class _SideThread:
    """Runs a function on a waiting rank, until the end of the ``with`` block. Owns a thread."""

    def __init__(self, work: SideWork) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._cancellation = Cancellation()
        self._thread = threading.Thread(target=self._run, name="gloader-meanwhile", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # If the first rank's work succeeded, the message that ends this thread is already sent.
        if error is None:
            self._thread.join(_SIDE_END_S)
        self._cancellation.set()
        self._thread.join()
        # The thread's error is raised: it can be the cause of the first rank's failure. Two errors are only effects:
        # ChannelClosedError ends the thread, and RankError repeats the block's error.
        effects = (ChannelClosedError,) if error is None else (ChannelClosedError, RankError)
        if self._error is not None and not isinstance(self._error, effects):
            raise self._error from error

    def _run(self) -> None:
        """Call the work and keep its error. Body of the thread."""
        try:
            self._work(self._cancellation)
        except BaseException as error:  # noqa: BLE001 - raised where the rank waits
            self._error = error


class _Heartbeat:
    """Sends the first rank's sign of life to the waiting ranks once a second. Owns its thread until `end`.

    The first rank calls `start`, works, and calls `end` and `require_others`. The others call `RankGroup._follow`.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._lost: RankError | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="gloader-pulse", daemon=True)

    def start(self) -> None:
        """Begin to send signs."""
        with uninterrupted():
            self._thread.start()

    def end(self, outcome: Mapping[str, Any]) -> None:
        """Send the work's outcome to the other ranks."""
        # The thread must end before this broadcast: two collectives at the same time could mix their messages.
        self._is_over.set()
        if self._thread.ident is not None:  # Ctrl-C may come before the thread's start
            self._thread.join()
        text = json.dumps(outcome).encode()
        if self._lost is None:
            self._send(lambda: (_broadcast_size(len(text)), _broadcast_bytes(text, len(text))))

    def require_others(self) -> None:
        """Raise RankError if another rank is lost."""
        if self._lost is not None:
            raise self._lost

    def _beat(self) -> None:
        """Send signs until the end. Body of the thread."""
        # A lost rank ends this thread without an error. `require_others` raises the error in the calling thread.
        while self._lost is None and not self._is_over.wait(_BEAT_S):
            self._send(lambda: _broadcast_size(0))

    def _send(self, send: Callable[[], object]) -> None:
        """Call ``send``, a collective, and record the error if a rank is lost."""
        try:
            with self._group.lost_rank_errors():
                send()
        except RankError as error:
            self._lost = error


class _StatusExchange:
    """Exchanges the ranks' statuses once a second, until no rank works or one has failed. For one use.

    Each rank calls either `work` or `attend`. A status has the entry ``busy``, and after the work ``result`` or
    ``error``.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._status: dict[str, Any] = {"busy": False}
        # Set when this rank's status changes: this rank then begins the next exchange without a pause.
        self._has_changed = threading.Event()
        self._lost: RankError | None = None
        self.statuses: list[dict[str, Any]] = []  # last statuses of all ranks
        self.error: BaseException | None = None  # the error of this rank's work

    def attend(self) -> None:
        """Exchange statuses until the working ranks have finished."""
        while True:
            self._has_changed.wait(_BEAT_S)
            self.statuses = self._group.gather(self._status)
            is_over = not any(status["busy"] for status in self.statuses)
            if is_over or any("error" in status for status in self.statuses):
                return

    def work(self, work: Callable[[], Any]) -> None:
        """Call ``work`` while a thread exchanges statuses. Keeps its error in `error`. A lost rank raises RankError."""
        self._status = {"busy": True}
        thread = threading.Thread(target=self._attend_quietly, name="gloader-pulse", daemon=True)
        try:
            with uninterrupted():
                thread.start()
            self._status = {"busy": False, "result": work()}
        except BaseException as error:  # noqa: BLE001 - raised by the caller, after the exchange
            self.error = error
            self._status = {"busy": False, "error": _text(error)}
        self._has_changed.set()
        if thread.ident is not None:  # Ctrl-C may come before the thread's start
            thread.join()
        if self.error is None and self._lost is not None:
            raise self._lost

    def _attend_quietly(self) -> None:
        """Exchange statuses, and record the error if a rank is lost. Body of the thread."""
        try:
            self.attend()
        except RankError as error:
            self._lost = error


def _own_place() -> dict[str, Any]:
    """Return the machine, host and process of this rank, as JSON."""
    # torch is imported only for several ranks, so that a single process starts without it.
    from gloader.distributed.agree import own_process

    return {"machine": machine_id(), "name": shown_machine(), "host": host_id(), "process": own_process()}


def _raise_first(texts: Sequence[str | None], error: BaseException | None) -> None:
    """Raise this rank's ``error``. If it is None, raise RankError for the first rank with a text in ``texts``."""
    for rank, text in enumerate(texts):
        if text is not None and error is None:
            raise RankError(f"rank {rank} failed: {text}")
    if error is not None:
        raise error


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _have_ended(ranks: Sequence[int]) -> str:
    """Return a clause such as "ranks 1, 2 and 5 have ended"."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last} have ended" if others else f"rank {last} has ended"


def _is_loss(error: RuntimeError) -> bool:
    """Return whether the transport raised ``error``."""
    from torch import distributed

    return isinstance(error, distributed.DistError) or any(name in str(error) for name in _TRANSPORTS)


def _broadcast_size(num_bytes: int) -> int:
    """Send ``num_bytes`` on the first rank; return the first rank's number on all. Collective."""
    import torch
    from torch import distributed

    from gloader.distributed.agree import collective_device

    size = torch.tensor([num_bytes], device=collective_device())
    distributed.broadcast(size, 0)
    return int(size)


def _broadcast_bytes(text: bytes, size: int) -> bytes:
    """Send the ``size`` bytes of ``text`` on the first rank; return them on all. Other ranks pass b"". Collective."""
    import torch
    from torch import distributed

    from gloader.distributed.agree import collective_device

    sent = torch.frombuffer(bytearray(text.ljust(size)), dtype=torch.uint8).to(collective_device())
    distributed.broadcast(sent, 0)
    return sent.cpu().numpy().tobytes()
