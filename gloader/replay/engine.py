"""A clock for threads that share resources: discrete events, processor sharing. Pure.

A thread is a generator. It yields a `Job` and continues when the job is done, or yields a `Gate` and continues when
the gate is opened. A `Resource` divides its rate among the jobs that use it: a disk, a link or a network evenly, cores
among the threads that want to run, as the scheduler of the system does.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

from gloader.errors import ReplayError
from gloader.replay.work import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Generator

    from gloader.replay.work import Demands, Machine


T = TypeVar("T")

# Of a second, or of the time on the clock where that is more: what is left of a demand by rounding is nothing.
ROUNDING: Final = 1e-12


class Resource(Generic[T]):
    """A resource that is shared out evenly: each unit that is wanted gets as much as any other, and no more than one.

    So one number, what a unit had that was there all the time, tells what everybody had since they came.

    Parameters
    ----------
    capacity : units of it, such as cores; infinite where everybody has their own
    """

    __slots__ = ("_at_s", "_capacity", "_ends", "_had_s", "_rate", "_units", "_used_s", "due_s")

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._units = 0.0  # that are wanted
        self._rate = 1.0  # seconds of service in a second, for each of these
        self._had_s = 0.0  # seconds of service of one that was there all the time
        self._used_s = 0.0  # seconds of service of all of them
        self._at_s = 0.0  # the time at which that was so
        # A heap of those who use it: what will have been had when each has enough, and how many units it wants.
        self._ends: list[tuple[float, int, float, T]] = []
        self.due_s = math.inf  # the time at which the next of them has

    def begin(self, user: T, number: int, seconds: float, units: float, now_s: float) -> None:
        """Let ``user`` have ``units`` of it until they had ``seconds`` in all.

        Parameters
        ----------
        user : whoever it is
        number : of no other user
        seconds : of service, of all of its units together
        units : that it could use at a time
        now_s : the time
        """
        self._advance(now_s)
        heappush(self._ends, (self._had_s + seconds / units, number, units, user))
        self._share(self._units + units)

    def release(self, now_s: float) -> list[T]:
        """Let those go who have had enough by ``now_s``, the next time at which any has, and return them."""
        self._advance(now_s)
        enough_s = self._had_s + ROUNDING * max(1.0, now_s)
        units, ends, released = self._units, self._ends, []
        while ends and ends[0][0] <= enough_s:
            _, _, its_units, user = heappop(ends)
            units -= its_units
            released.append(user)
        self._share(units)
        return released

    @property
    def is_in_use(self) -> bool:
        """Whether anybody uses it."""
        return bool(self._ends)

    def used_s(self, now_s: float) -> float:
        """Return the seconds of service that all had by ``now_s``, the time."""
        return self._used_s + self._units * self._rate * (now_s - self._at_s)

    def _advance(self, now_s: float) -> None:
        had_s = self._rate * (now_s - self._at_s)
        self._had_s += had_s
        self._used_s += self._units * had_s
        self._at_s = now_s

    def _share(self, units: float) -> None:
        self._units = units
        if self._ends:
            self._rate = min(1.0, self._capacity / units)
            self.due_s = self._at_s + (self._ends[0][0] - self._had_s) / self._rate
        else:
            self.due_s = math.inf


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
