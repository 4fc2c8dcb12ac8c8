"""A clock for threads that share resources: a discrete-event simulation with processor sharing. Pure.

`gloader.replay.replay` runs its threads on this clock. No thread is a real one: a thread is a generator. It yields a
`Job`, a piece of work, and continues when the job is done, or yields a `Gate` and continues when the gate is opened.
A `Resource` divides its rate among its users. A disk, a link or a network is divided evenly. The cores are divided
among the runnable threads, as the system's scheduler does.

A job ends when its needs for all resources are met and then its lag, a time without use of a resource, has passed. If
other work uses the disk when a job arrives, the job is *in line*, which makes its lag longer. Each finished job is an
`Event`. The event's cause is the event whose end let the job start, so the causes lead back along the critical path.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

from gloader.errors import ReplayError
from gloader.replay.work import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Generator

    from gloader.replay.work import Demands, Machine


T = TypeVar("T")  # a resource's user

# A smaller remainder of a demand is a rounding error: in seconds, or as a share of the clock's time if that is larger.
ROUNDING: Final = 1e-12


class Resource(Generic[T]):
    """A resource with equal shares. A user requests units, such as cores, and every requested unit is served equally.

    If more units are requested than exist, each is served at the same reduced rate. So one number determines every
    user's service: `_service_s`, the seconds of service for a unit that is in use since the beginning. A user is done
    when this number has grown by the user's seconds per unit since the user's begin.

    Parameters
    ----------
    capacity : number of units, such as cores; infinite if users do not compete
    """

    __slots__ = ("_at_s", "_capacity", "_ends", "_rate", "_service_s", "_units", "_used_s", "due_s")

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._units = 0.0  # units that are requested at present
        self._rate = 1.0  # seconds of service per second, for each requested unit
        self._service_s = 0.0  # seconds of service for a unit in use since the beginning
        self._used_s = 0.0  # seconds of service over all units
        self._at_s = 0.0  # the time of these values
        # A heap of users: the value of `_service_s` at which each user is done, its number, and its units.
        self._ends: list[tuple[float, int, float, T]] = []
        self.due_s = math.inf  # the time at which the next user is done

    def begin(self, user: T, number: int, seconds: float, units: float, now_s: float) -> None:
        """Give ``user`` up to ``units`` units until it has ``seconds`` of service.

        Parameters
        ----------
        user : the user
        number : the user's unique number
        seconds : seconds of service, summed over the user's units
        units : number of units that the user can use at the same time
        now_s : the present time
        """
        self._advance(now_s)
        heappush(self._ends, (self._service_s + seconds / units, number, units, user))
        self._share(self._units + units)

    def release(self, now_s: float) -> list[T]:
        """Remove and return the users that are done at ``now_s``, the next due time."""
        self._advance(now_s)
        # Users that end here up to rounding are done too.
        reached_s = self._service_s + ROUNDING * max(1.0, now_s)
        units, ends, released = self._units, self._ends, []
        while ends and ends[0][0] <= reached_s:
            _, _, user_units, user = heappop(ends)
            units -= user_units
            released.append(user)
        self._share(units)
        return released

    @property
    def is_in_use(self) -> bool:
        """True if the resource has a user."""
        return bool(self._ends)

    def used_s(self, now_s: float) -> float:
        """Return the seconds of service over all users until ``now_s``, the present time."""
        return self._used_s + self._units * self._rate * (now_s - self._at_s)

    def _advance(self, now_s: float) -> None:
        """Count the service since the last call."""
        service_s = self._rate * (now_s - self._at_s)
        self._service_s += service_s
        self._used_s += self._units * service_s
        self._at_s = now_s

    def _share(self, units: float) -> None:
        """Divide the resource among ``units`` requested units, and find the next due time."""
        self._units = units
        if self._ends:
            self._rate = min(1.0, self._capacity / units)
            self.due_s = self._at_s + (self._ends[0][0] - self._service_s) / self._rate
        else:
            self.due_s = math.inf


# Indices in `RESOURCES`.
_CPU: Final = 0
_DISKS: Final = (RESOURCES.index("disk"), RESOURCES.index("spill"))
_NUM_SHARED: Final = len(RESOURCES)
_LAG: Final = _NUM_SHARED  # index of the lag, after the shared resources; its "resource" has no limit
_NUMBER: Final = attrgetter("number")

Thread: TypeAlias = "Generator[Job | Gate, None, None]"


class Event(NamedTuple):
    """A finished piece of work."""

    stage: str  # see `gloader.replay.work`
    thread: int  # the thread's number
    batch: int  # stream position of the batch, or of the first batch
    started_s: float  # by the clock, as all times
    ended_s: float
    demands: Demands  # the job's
    # Index in `RESOURCES` of the resource whose need was met last; ``len(RESOURCES)`` if the job had no needs.
    limit: int
    cause: int  # index in `Clock.events` of the event whose end started this work; -1 without such an event
    meanwhile_s: float = 0.0  # processor seconds of other work while this work used resources
    in_line: bool = False  # True if other work was at the disk when this work arrived

    @property
    def in_line_s(self) -> float:
        """Seconds in line at the disk."""
        return self.demands.in_line_s * self.in_line

    @property
    def lag_s(self) -> float:
        """Seconds of lag, without the additional seconds for being in line."""
        return self.demands.lag_s + self.demands.held_up * self.meanwhile_s


@dataclass(slots=True, eq=False)
class Job:
    """A piece of work. A thread yields a job to have it done."""

    stage: str
    batch: int  # stream position of the batch, or of the first batch
    demands: Demands
    # The clock sets the other fields. `Event` explains `limit`, `cause`, `meanwhile_s` and `in_line`.
    left: int = 0  # number of resources with a remaining demand
    is_lagging: bool = False  # True while the lag passes, after all demands are met
    limit: int = _LAG
    number: int = 0  # the job's number, in the order of the jobs' beginnings
    runner: _Runner = field(init=False)  # the thread that yielded the job
    started_s: float = 0.0
    used_s: float = 0.0  # all jobs' processor seconds when this job began
    meanwhile_s: float = 0.0
    in_line: bool = False
    cause: int = -1


class Gate:
    """A condition that threads wait for. They check it again when the gate is opened, as with a condition variable."""

    __slots__ = ("_clock", "_waiters")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: list[_Runner] = []

    def open(self) -> None:
        """Let all waiting threads check again. The present thread's last event becomes their cause."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            self._clock.wake(waiters)

    def park(self, runner: _Runner) -> None:
        """Let ``runner`` wait."""
        self._waiters.append(runner)


@dataclass(slots=True, eq=False)
class _Runner:
    """A thread, with the event that let it reach its present step."""

    number: int  # the thread's number, in the order of `Clock.start`
    thread: Thread
    cause: int = -1  # index in `Clock.events`, or -1 without an event


class Clock:
    """Runs threads on a machine.

    The loop of `run` alternates two steps. First every ready thread continues until it yields. Then the clock advances
    to the next moment at which a job has met a demand, or its lag has passed.

    Parameters
    ----------
    machine : the cores and the resources' speeds
    """

    def __init__(self, machine: Machine) -> None:
        self.now_s = 0.0  # the present time
        self.events: list[Event] = []  # finished jobs, in the order of their ends
        self._speeds = [machine.speed_of(name) for name in RESOURCES]
        # The cores, the other shared resources, and the lag, whose users do not compete.
        capacities = [machine.cores, *(1.0 for _ in RESOURCES[1:]), math.inf]
        self._resources: list[Resource[Job]] = [Resource(capacity) for capacity in capacities]
        self._ready: deque[_Runner] = deque()  # threads that can continue at the present time
        self._current: _Runner | None = None  # the thread that is running
        self._num_threads = 0
        self._num_begun = 0  # jobs begun so far
        self._num_under_way = 0  # jobs begun and not finished
        self._awaited: set[int] = set()  # numbers of the threads whose ends `run` waits for

    @property
    def cause(self) -> int:
        """Index of the event that let the present thread reach its step, or -1 without such an event."""
        return -1 if self._current is None else self._current.cause

    def start(self, thread: Thread) -> None:
        """Add a thread."""
        self._ready.append(_Runner(self._num_threads, thread))
        self._num_threads += 1

    def wake(self, runners: list[_Runner]) -> None:
        """Let ``runners`` continue, with the present thread's last event as their cause."""
        cause = self.cause
        for runner in runners:
            runner.cause = cause
        self._ready.extend(runners)

    def run(self, *, awaited: int) -> None:
        """Run until the ``awaited`` threads that were started first have ended. Other threads may be at any step.

        Raises
        ------
        ReplayError
            Threads wait for each other: no pipeline can have this shape.
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
        """Let a thread continue until it works or waits."""
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
        """Start a job: it requests its resources now."""
        demands, now_s = job.demands, self.now_s
        job.started_s, job.runner, job.cause, job.number = now_s, runner, runner.cause, self._num_begun
        job.used_s = self._resources[_CPU].used_s(now_s)
        self._num_begun += 1
        self._num_under_way += 1
        # The fields 2 to 6 are "disk_s" to "network_s", so the numbers are indices in `RESOURCES`.
        for number, seconds in enumerate((demands.cpu_s, *demands[2:7])):
            if seconds and (scaled_s := seconds / self._speeds[number]) > ROUNDING:
                units = demands.cores if number == _CPU else 1.0
                job.in_line = job.in_line or (number in _DISKS and self._resources[number].is_in_use)
                self._resources[number].begin(job, job.number, scaled_s, units, now_s)
                job.left += 1
        if not job.left:
            self._lag(job, demands.lag_s)

    def _lag_of(self, job: Job) -> float:
        """Return the lag of ``job`` after its demands, with the delays by other jobs."""
        demands, cores = job.demands, self._resources[_CPU]
        cpu_s = demands.cpu_s / self._speeds[_CPU]
        job.meanwhile_s = max(cores.used_s(self.now_s) - job.used_s - cpu_s, 0.0)
        return demands.lag_s + demands.held_up * job.meanwhile_s + demands.in_line_s * job.in_line

    def _lag(self, job: Job, lag_s: float) -> None:
        """Let the lag of ``job`` pass, after its demands."""
        job.left, job.is_lagging = 1, True
        self._resources[_LAG].begin(job, job.number, lag_s, 1.0, self.now_s)

    def _advance(self) -> None:
        """Advance to the next moment at which a job has met a demand."""
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
        # Jobs that are done at the same time end in the order of their beginnings.
        for job in sorted(done, key=_NUMBER) if len(done) > 1 else done:
            if not job.is_lagging and (lag_s := self._lag_of(job)) > ROUNDING:
                self._lag(job, lag_s)
            else:
                self._finish(job)

    def _finish(self, job: Job) -> None:
        """Record a finished job, and let its thread continue."""
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
