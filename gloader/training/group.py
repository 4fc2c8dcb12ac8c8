"""The processes that train one network together."""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from gloader.errors import RankError
from gloader.training.rank_watch import RankWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


logger = logging.getLogger("gloader")

T = TypeVar("T")

_BEAT_S = 1.0  # between two signs of life of the first rank while the others wait for it
# A process that is killed closes its sockets, which the others notice, a moment before it is seen to have ended.
_NAMED_S = 2.0
_LOOK_S = 0.02
# gloo raises plain RuntimeErrors; they name its source files.
_TRANSPORTS = ("gloo", "NCCL", "ncclSystemError")


class RankGroup:
    """The ranks of the default process group; without one, this process alone. Owns nothing.

    `gather`, `sum`, `run_on_first`, `agree` and `require_equal` are collective: every rank calls them, in the same
    order. What is sent is JSON. A rank that is gone ends them with RankError, a rank that hangs after the timeout of
    the process group.

    Parameters
    ----------
    rank : of this process
    machines : which machine each rank runs on
    processes : `own_process` of each rank, by which a lost one is named; empty: nobody knows
    """

    def __init__(
        self, *, rank: int, machines: Sequence[str], processes: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.rank = rank
        self._processes = processes
        self._lost: list[int] = []  # ranks of this machine, as `watching` saw
        self.world_size = len(machines)
        self.most_local = max(machines.count(machine) for machine in machines)  # ranks on one machine
        self.local_rank = machines[:rank].count(machines[rank])
        self.first_machine = [
            other for other, machine in enumerate(machines) if machine == machines[0]
        ]  # its ranks

    @classmethod
    def alone(cls) -> Self:
        """Return the group of one process."""
        return cls(rank=0, machines=[""])

    @classmethod
    def current(cls) -> Self:
        """Return the ranks of the process group, collective; `alone` where none was started."""
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            return cls.alone()
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        # A group that does not know its machines yet can already gather what they are.
        unknown = cls(rank=rank, machines=[""] * world_size)
        from gloader.distributed.agree import machine_name, own_process

        found = unknown.gather({"machine": machine_name(), "process": own_process()})
        return cls(
            rank=rank,
            machines=[one["machine"] for one in found],
            processes=[one["process"] for one in found],
        )

    @property
    def is_first(self) -> bool:
        """Whether this rank prints and writes."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there are no other ranks."""
        return self.world_size == 1

    def gather(self, value: Any) -> list[Any]:
        """Return the ``value`` of every rank, in the order of ranks."""
        if self.is_alone:
            return [value]
        # torch is imported where ranks are, so that a process alone starts without it.
        from gloader.distributed.agree import gather_bytes

        own = json.dumps(value).encode()
        with self.lost_rank_errors():
            return [json.loads(text) for text in gather_bytes(own)]

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the sums over the ranks, added up in their order: the same bits on every rank and in every run."""
        # Not all_reduce: the order of its additions is the library's, and may differ from run to run.
        parts = self.gather(dict(values))
        return {name: sum(part[name] for part in parts) for name in values}

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Do ``work`` on the first rank and return its result, a JSON value, on all.

        The others wait for as long as it takes, not for the timeout of the group: the first rank shows them that it
        is alive.

        Raises
        ------
        RankError
            On the other ranks: the first one failed or is gone.
        """
        if self.is_alone:
            return work()
        # A plain broadcast would time out while the first rank works for longer than the group's timeout.
        return self._lead(work) if self.is_first else self._follow()

    def agree(self, error: BaseException | None) -> None:
        """Raise ``error``, and on the ranks that have none, the RankError of the first that has one."""
        for rank, text in enumerate(self.gather(None if error is None else _text(error))):
            if text is not None and error is None:
                raise RankError(f"rank {rank} failed: {text}")
        if error is not None:
            raise error

    def require_equal(self, facts: Mapping[str, Any]) -> None:
        """Raise RankSettingsError on every rank naming the first of ``facts``, JSON values, in which ranks differ."""
        from gloader.distributed.agree import require_equal

        cards = self.gather(json.loads(json.dumps(dict(facts), default=str)))
        require_equal(dict(enumerate(cards)), "on every rank")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """End collectives that wait for a rank of this machine whose process has ended, inside the block; collective.

        Use it inside `lost_rank_errors`, which tells who it was.
        """
        if self.is_alone:
            yield
            return
        watch = RankWatch(self._processes)
        try:
            yield
            # Told to look no more before the ranks meet: one may end its process as soon as they have.
            watch.end()
            self.gather(None)
        finally:
            self._lost = watch.lost
            watch.close()

    @contextmanager
    def lost_rank_errors(self) -> Iterator[None]:
        """Turn the errors of a process group that lost a rank into RankError."""
        try:
            yield
        # gloo and NCCL raise RuntimeError for everything; only texts of theirs that name a lost rank are turned.
        except RuntimeError as error:
            if self.is_alone or not (self._lost or _is_loss(error)):
                raise
            lost = self._lost or self._find_lost()
            who = _have_ended(lost) if lost else "another rank ended, failed or did not answer in time"
            text = " ".join(str(error).split())[:200]
            # Not `from error`: a traceback would begin with the transport's text, which names its source files.
            raise RankError(
                f"{who}; see what it or torchrun says. Start all ranks again from the last checkpoint ({text})"
            ) from None

    @contextmanager
    def log_failures(self) -> Iterator[None]:
        """Log an error of this rank at once: before anything is released, which is when the other ranks notice."""
        try:
            with self.lost_rank_errors():
                yield
        except RankError:
            raise
        except Exception as error:
            if not self.is_alone:
                notes = "; ".join(getattr(error, "__notes__", ()))
                text = f"{_text(error)} ({notes})" if notes else _text(error)
                logger.error("rank %d failed: %s", self.rank, text)  # noqa: TRY400 - the caller shows the rest
            raise

    def _find_lost(self) -> list[int]:
        """Return the ranks of this machine whose processes have ended, waiting a moment for the first."""
        if not self._processes:
            return []
        from gloader.distributed.agree import is_gone

        deadline = time.monotonic() + _NAMED_S
        while True:
            lost = [rank for rank, process in enumerate(self._processes) if is_gone(process)]
            if lost or time.monotonic() > deadline:
                return lost
            time.sleep(_LOOK_S)

    def _lead(self, work: Callable[[], T]) -> T:
        # The pulse starts before the work: a follower waits for its first sign from now on.
        pulse = _Pulse(self)
        try:
            result = work()
        except BaseException as error:
            # The followers raise as well, instead of waiting for a result that never comes.
            pulse.end({"error": _text(error)})
            raise
        pulse.end({"result": result})
        # Asked after the result is out: a rank that was lost meanwhile must not take the result from the others.
        pulse.require_others()
        return result

    def _follow(self) -> Any:
        with self.lost_rank_errors():
            # A size of 0 is a sign of life, any other that of the outcome which follows.
            while (size := _broadcast_size(0)) == 0:
                pass
            outcome = json.loads(_broadcast_bytes(b"", size))
        if "error" in outcome:
            raise RankError(f"rank 0 failed: {outcome['error']}")
        return outcome["result"]


class _Pulse:
    """Tells the waiting ranks once a second that the first one is at work. Owns its thread until `end`."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._lost: RankError | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="gloader-pulse", daemon=True)
        self._thread.start()

    def end(self, outcome: Mapping[str, Any]) -> None:
        """Tell the others what came of the work."""
        # The thread has to be gone before this one broadcasts: two collectives at once would meet in any order.
        self._is_over.set()
        self._thread.join()
        text = json.dumps(outcome).encode()
        if self._lost is None:
            self._send(lambda: (_broadcast_size(len(text)), _broadcast_bytes(text, len(text))))

    def require_others(self) -> None:
        """Raise RankError where another rank is gone."""
        if self._lost is not None:
            raise self._lost

    def _beat(self) -> None:
        # Ends at a loss without a word: this thread has no caller; `require_others` raises in the one that has.
        while self._lost is None and not self._is_over.wait(_BEAT_S):
            self._send(lambda: _broadcast_size(0))

    def _send(self, send: Callable[[], object]) -> None:
        try:
            with self._group.lost_rank_errors():
                send()
        except RankError as error:
            self._lost = error


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _have_ended(ranks: Sequence[int]) -> str:
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last} have ended" if others else f"rank {last} has ended"


def _is_loss(error: RuntimeError) -> bool:
    from torch import distributed

    return isinstance(error, distributed.DistError) or any(name in str(error) for name in _TRANSPORTS)


def _broadcast_size(own: int) -> int:
    import torch
    from torch import distributed

    from gloader.distributed.own_gpus import collective_device

    size = torch.tensor([own], device=collective_device())
    distributed.broadcast(size, 0)
    return int(size)


def _broadcast_bytes(own: bytes, size: int) -> bytes:
    import torch
    from torch import distributed

    from gloader.distributed.own_gpus import collective_device

    sent = torch.frombuffer(bytearray(own.ljust(size)), dtype=torch.uint8).to(collective_device())
    distributed.broadcast(sent, 0)
    return sent.cpu().numpy().tobytes()
