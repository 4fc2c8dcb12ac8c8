"""A clock for threads that share resources: discrete events, each resource shared out among those who use it. Pure.

A thread is a generator. It yields a `Job`, and goes on when that is done; or a `Gate`, and goes on when somebody opened
it. Cores are shared as the system's scheduler does, by threads that want to run; a disk, a link or a network evenly
among the jobs that use it (processor sharing).
"""

from __future__ import annotations

import math
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from gloader.errors import ReplayError
from gloader.replay.resource import ROUNDING, Resource
from gloader.replay.work import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Generator

    from gloader.replay.work import Demands, Machine

_CPU: Final = 0
_DISKS: Final = (RESOURCES.index("disk"), RESOURCES.index("spill"))
_NUM_SHARED: Final = len(RESOURCES)
_LAG: Final = _NUM_SHARED  # what follows the resources: it is nobody's
_NUMBER: Final = attrgetter("number")

Thread: TypeAlias = "Generator[Job | Gate, None, None]"


class Event(NamedTuple):
    """A piece of work that was done."""

    stage: str
    thread: int  # number of its thread
    batch: int  # position of the batch, or of the first of several, in the stream
    started_s: float
    ended_s: float
    demands: Demands
    limit: int  # number of the resource that it had last, see `RESOURCES`; their count: it had none
    cause: int  # number of the event whose end let it begin; -1: none
    meanwhile_s: float = 0.0  # processor seconds of others while it used resources
    in_line: bool = False  # others were at its disk when it came

    @property
    def in_line_s(self) -> float:
        """Seconds for which it stood in line at the disk."""
        return self.demands.in_line_s * self.in_line

    @property
    def lag_s(self) -> float:
        """Seconds of its lag without these."""
        return self.demands.lag_s + self.demands.held_up * self.meanwhile_s


class Job:
    """A piece of work: what a thread yields to have it done."""

    __slots__ = (
        "batch",
        "cause",
        "demands",
        "in_line",
        "is_lagging",
        "left",
        "limit",
        "meanwhile_s",
        "number",
        "runner",
        "stage",
        "started_s",
        "used_s",
    )

    def __init__(self, stage: str, batch: int, demands: Demands) -> None:
        self.stage = stage
        self.batch = batch
        self.demands = demands
        self.left = 0  # resources that it has not had all of yet
        self.is_lagging = False  # it has had all that it needs of resources
        self.limit = _LAG
        self.number = 0  # of those that were begun
        self.runner: _Runner
        self.started_s = 0.0
        self.used_s = 0.0  # processor seconds that everybody had used by then
        self.meanwhile_s = 0.0
        self.in_line = False
        self.cause = -1


class Gate:
    """Something that threads wait for. They look again when it was opened, as with a condition variable."""

    __slots__ = ("_clock", "_waiters")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: list[_Runner] = []

    def open(self) -> None:
        """Let everybody who waits look again: what the thread under way did last is why they may go on."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            self._clock.wake(waiters)

    def park(self, runner: _Runner) -> None:
        """Let ``runner`` wait."""
        self._waiters.append(runner)


class _Runner:
    """A thread, with the event that let it be where it is."""

    __slots__ = ("cause", "number", "thread")

    def __init__(self, number: int, thread: Thread) -> None:
        self.number = number
        self.thread = thread
        self.cause = -1


class Clock:
    """Runs threads on a machine until nothing more happens.

    Parameters
    ----------
    machine : its cores, and how fast its resources are
    """

    def __init__(self, machine: Machine) -> None:
        self.now_s = 0.0
        self.events: list[Event] = []
        self._speeds = [machine.speed_of(name) for name in RESOURCES]
        # The cores, everything else that there is one of, and time, of which everybody has their own.
        capacities = [machine.cores, *(1.0 for _ in RESOURCES[1:]), math.inf]
        self._resources: list[Resource[Job]] = [Resource(capacity) for capacity in capacities]
        self._ready: deque[_Runner] = deque()
        self._current: _Runner | None = None
        self._num_threads = 0
        self._num_begun = 0
        self._num_under_way = 0
        self._awaited: set[int] = set()

    @property
    def cause(self) -> int:
        """Number of the event that let the thread under way be where it is; -1: none."""
        return -1 if self._current is None else self._current.cause

    def start(self, thread: Thread) -> None:
        """Add a thread."""
        self._ready.append(_Runner(self._num_threads, thread))
        self._num_threads += 1

    def wake(self, runners: list[_Runner]) -> None:
        """Let ``runners`` go on, because of what the thread under way did."""
        cause = self.cause
        for runner in runners:
            runner.cause = cause
        self._ready.extend(runners)

    def run(self, *, awaited: int) -> None:
        """Run until the first ``awaited`` threads that were started have ended; the others may be anywhere.

        Raises
        ------
        ReplayError
            Threads wait for each other: the shape is none that a pipeline can have.
        """
        self._awaited = set(range(awaited))
        while self._awaited:
            while self._ready:
                self._step(self._ready.popleft())
            if not self._awaited:
                return
            if not self._num_under_way:
                raise ReplayError("the threads of the replay wait for each other")
            self._advance()

    def _step(self, runner: _Runner) -> None:
        """Let a thread go on until it works or waits."""
        self._current = runner
        try:
            wanted = next(runner.thread)
        except StopIteration:
            self._awaited.discard(runner.number)
        else:
            if isinstance(wanted, Gate):
                wanted.park(runner)
            else:
                self._begin(wanted, runner)
        self._current = None

    def _begin(self, job: Job, runner: _Runner) -> None:
        demands, now_s = job.demands, self.now_s
        job.started_s, job.runner, job.cause, job.number = now_s, runner, runner.cause, self._num_begun
        job.used_s = self._resources[_CPU].used_s(now_s)
        self._num_begun += 1
        self._num_under_way += 1
        for number, seconds in enumerate((demands.cpu_s, *demands[2:7])):
            if seconds and (scaled_s := seconds / self._speeds[number]) > ROUNDING:
                units = demands.cores if number == _CPU else 1.0
                job.in_line = job.in_line or (number in _DISKS and self._resources[number].is_in_use)
                self._resources[number].begin(job, job.number, scaled_s, units, now_s)
                job.left += 1
        if not job.left:
            self._lag(job, demands.lag_s)

    def _lag_of(self, job: Job) -> float:
        """Return the lag of ``job``, which has all that it needs of resources: others may have held it up."""
        demands, cores = job.demands, self._resources[_CPU]
        own_s = demands.cpu_s / self._speeds[_CPU]
        job.meanwhile_s = max(cores.used_s(self.now_s) - job.used_s - own_s, 0.0)
        return demands.lag_s + demands.held_up * job.meanwhile_s + demands.in_line_s * job.in_line

    def _lag(self, job: Job, lag_s: float) -> None:
        """Let the time pass that follows what ``job`` needs of resources."""
        job.left, job.is_lagging = 1, True
        self._resources[_LAG].begin(job, job.number, lag_s, 1.0, self.now_s)

    def _advance(self) -> None:
        """Go on to the moment in which a job has had all that it needs of some resource."""
        due_s = [resource.due_s for resource in self._resources]
        now_s = self.now_s = min(due_s)
        late_s = now_s + ROUNDING * max(1.0, now_s)
        done = []
        for number, at_s in enumerate(due_s):
            if at_s > late_s:
                continue
            for job in self._resources[number].release(now_s):
                job.left -= 1
                if number != _LAG:
                    job.limit = number
                if not job.left:
                    done.append(job)
        # In the order in which they began, whatever they waited for.
        for job in sorted(done, key=_NUMBER) if len(done) > 1 else done:
            if not job.is_lagging and (lag_s := self._lag_of(job)) > ROUNDING:
                self._lag(job, lag_s)
            else:
                self._finish(job)

    def _finish(self, job: Job) -> None:
        self._num_under_way -= 1
        runner = job.runner
        runner.cause = len(self.events)
        self.events.append(
            Event(
                job.stage,
                runner.number,
                job.batch,
                job.started_s,
                self.now_s,
                job.demands,
                job.limit,
                job.cause,
                job.meanwhile_s,
                job.in_line,
            )
        )
        self._ready.append(runner)
