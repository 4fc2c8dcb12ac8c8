"""Twins of the replay, each by another way: shares in exact fractions, and times by who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

from gloader.replay.work import (
    NOTHING,
    RESOURCES,
    BatchWork,
    Demands,
    Machine,
    PipelineShape,
    RunWork,
    SuperbatchWork,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.replay.engine import Event
    from gloader.replay.replay import Replayed


def needs_of(demands: Demands) -> tuple[float, ...]:
    """Return the seconds of each of `RESOURCES`."""
    return (demands.cpu_s, *demands[2:7])


@dataclass(slots=True)
class _Under:
    """A piece of work under way."""

    started: Fraction
    demands: Demands
    used: Fraction  # processor seconds that everybody had used by then
    parts: list[dict[int, Fraction]] = field(
        default_factory=list
    )  # one after another, by resource; -1: the lag

    @property
    def left(self) -> dict[int, Fraction]:
        return self.parts[0]


def shared_times(
    threads: Sequence[Sequence[Demands]], machine: Machine
) -> list[list[tuple[Fraction, Fraction]]]:
    """Return when each piece of work of each thread began and ended: all threads at once, a step to the next end.

    Rates are finite; work that needs nothing takes no time.
    """
    speeds = [Fraction(machine.speed_of(name)) for name in RESOURCES]
    now = used = Fraction(0)
    done: list[list[tuple[Fraction, Fraction]]] = [[] for _ in threads]
    under: dict[int, _Under] = {}

    def begin(number: int) -> None:
        while len(done[number]) < len(threads[number]):
            demands = threads[number][len(done[number])]
            needs = {at: Fraction(one) / speeds[at] for at, one in enumerate(needs_of(demands)) if one}
            parts = [part for part in (needs, {-1: Fraction(demands.lag_s)}) if any(part.values())]
            if parts:
                under[number] = _Under(now, demands, used, parts)
                return
            done[number].append((now, now))

    for number in range(len(threads)):
        begin(number)
    while under:
        cores = sum((Fraction(one.demands.cores) for one in under.values() if 0 in one.left), Fraction(0))
        users = [sum(at in one.left for one in under.values()) for at in range(len(RESOURCES))]

        def rate(one: _Under, at: int, cores: Fraction = cores, users: list[int] = users) -> Fraction:
            if at == -1:
                return Fraction(1)
            if at == 0:
                return Fraction(one.demands.cores) * min(Fraction(1), Fraction(machine.cores) / cores)
            return Fraction(1, users[at])

        step = min(left / rate(one, at) for one in under.values() for at, left in one.left.items())
        now += step
        used += step * sum((rate(one, 0) for one in under.values() if 0 in one.left), Fraction(0))
        for number, one in list(under.items()):
            was_lag = -1 in one.left
            one.parts[0] = {
                at: left - rate(one, at) * step
                for at, left in one.left.items()
                if left > rate(one, at) * step
            }
            if not one.left:
                del one.parts[0]
                others = used - one.used - Fraction(one.demands.cpu_s) / speeds[0]
                if not was_lag and (held_up := Fraction(one.demands.held_up) * others):
                    one.parts = [{-1: Fraction(one.demands.lag_s) + held_up}]
            if not one.parts:
                del under[number]
                done[number].append((one.started, now))
                begin(number)
    return done


def lags(**seconds: float) -> dict[str, Demands]:
    """Return demands of time alone, which nobody shares, by stage."""
    return {name: Demands(lag_s=value) if value else NOTHING for name, value in seconds.items()}


def batches_of(
    num: int, *, epochs: int = 1, ranks: int = 1, pause_s: float = 0.0, **stages: Demands
) -> tuple[BatchWork, ...]:
    """Return ``num`` batches of each rank and epoch that are all alike; before each epoch but the first is a pause."""
    return tuple(
        BatchWork(
            epoch=number // (num * ranks),
            index=number // ranks % num,
            pause_s=pause_s if number // ranks % num == 0 and number >= num * ranks else 0.0,
            **stages,
        )
        for number in range(num * ranks * epochs)
    )


def superbatches_of(
    *sizes: int, inspect: Demands = NOTHING, stage: Demands = NOTHING
) -> tuple[SuperbatchWork, ...]:
    """Return superbatches of these sizes that are all alike."""
    return tuple(SuperbatchWork(num_batches=size, inspect=inspect, stage=stage) for size in sizes)


def events_of(replayed: Replayed, stage: str) -> list[Event]:
    """Return the events of a stage by the positions of their batches."""
    return sorted((event for event in replayed.events if event.stage == stage), key=lambda one: one.batch)


def starts(replayed: Replayed, stage: str) -> list[float]:
    """Return when a stage began with each batch."""
    return [event.started_s for event in events_of(replayed, stage)]


def ends(replayed: Replayed, stage: str) -> list[float]:
    """Return when a stage was done with each batch."""
    return [event.ended_s for event in events_of(replayed, stage)]


class Waits:
    """When everything happens in a pipeline where nobody shares anything: the latest of what it waits for.

    Of work whose demands are lags alone, with a sampler thread for everything. Written from `gloader.pipeline`, not
    from the replay: each method is a moment, and names the moments that it comes behind.
    """

    def __init__(self, work: RunWork, shape: PipelineShape) -> None:
        self.work, self.shape = work, shape
        self.num = len(work.batches)
        self.superbatch_of = [
            number for number, one in enumerate(work.superbatches) for _ in range(one.num_batches)
        ]
        self.first_of = [
            sum(one.num_batches for one in work.superbatches[:number])
            for number in range(len(work.superbatches))
        ]
        self.last_of = [
            first + one.num_batches - 1 for first, one in zip(self.first_of, work.superbatches, strict=True)
        ]
        for name in dir(type(self)):
            if not name.startswith("__") and callable(method := getattr(self, name)):
                setattr(self, name, cache(method))

    @property
    def is_planned(self) -> bool:
        return self.shape.features == "ssd" or self.shape.has_embeddings

    def epoch_s(self) -> dict[int, float]:
        found: dict[int, float] = {}
        begun: dict[int, float] = {}
        for position in range(0, self.num, self.shape.num_ranks):
            epoch = self.work.batches[position].epoch
            begun.setdefault(epoch, self.asks(position))
            found[epoch] = self.step_end(position) - begun[epoch]
        return found

    # --- sampling

    def ready(self, position: int) -> float:
        if not self.work.passes or position < self.work.num_known:
            return 0.0
        number = next(n for n, one in enumerate(self.work.passes) if one.completed > position)
        return self.pass_start(number) + self.work.passes[number].sweep.lag_s

    def pass_start(self, number: int) -> float:
        one = self.work.passes[number]
        before = self.work.passes[number - 1] if number else None
        at = 0.0 if before is None else self.pass_start(number - 1) + before.sweep.lag_s
        swept = self.work.num_known if before is None else before.completed
        made = one.completed - one.most_waiting  # all of them before the pass; samples end in order here
        if one.completed > swept and made > self.work.num_known:
            at = max(at, self.sample_done(made - 1))
        return at

    def trace_done(self, position: int) -> float:
        return self.trace_start(position) + self.work.batches[position].trace.lag_s

    def trace_start(self, position: int) -> float:
        return max(
            self.ready(position),
            self.trace_start(position - 1) if position else 0.0,
            self.trace_taken(position - self.shape.ahead) if position >= self.shape.ahead else 0.0,
        )

    def trace_taken(self, position: int) -> float:
        """The thread that inspects takes the traces of superbatch k + 1 before it plans k, but for k = 0."""
        at = max(self.trace_done(position), self.trace_taken(position - 1) if position else 0.0)
        superbatch = self.superbatch_of[position]
        if superbatch and position == self.first_of[superbatch]:
            at = max(at, self.inspect_put(max(superbatch - 1, 1) - 1))
        return at

    def sample_done(self, position: int) -> float:
        return self.sample_start(position) + self.work.batches[position].sample.lag_s

    def sample_start(self, position: int) -> float:
        return max(
            self.ready(position),
            self.sample_start(position - 1) if position else 0.0,
            self.sample_taken(position - self.shape.ahead) if position >= self.shape.ahead else 0.0,
            self.trace_taken(position) if self.is_planned else 0.0,
        )

    def sample_taken(self, position: int) -> float:
        at = self.sample_done(position)
        if not self.is_planned:
            return max(at, self.gather_put(position - 1) if position else 0.0)
        if position == self.first_of[self.superbatch_of[position]]:
            at = max(at, self.staged_taken(self.superbatch_of[position]))
        return max(at, self.read_put(position - 1) if position else 0.0)

    # --- superbatches

    def inspect_start(self, number: int) -> float:
        ahead = min(number + 1, len(self.work.superbatches) - 1) if number else 0
        permit = number - self.shape.planned_at_once
        return max(
            self.trace_taken(self.last_of[ahead]),
            self.inspect_put(number - 1) if number else 0.0,
            self.gather_end(self.last_of[permit]) if permit >= 0 else 0.0,
        )

    def inspect_put(self, number: int) -> float:
        at = self.inspect_start(number) + self.work.superbatches[number].inspect.lag_s
        before = number - self.shape.waiting
        return max(at, self.planned_taken(before) if before >= 0 else 0.0)

    def planned_taken(self, number: int) -> float:
        return max(self.inspect_put(number), self.stage_put(number - 1) if number else 0.0)

    def stage_start(self, number: int) -> float:
        at = self.planned_taken(number)
        return max(at, self.read_put(self.shape.unit - 1)) if number == 1 else at

    def stage_put(self, number: int) -> float:
        at = self.stage_start(number) + self.work.superbatches[number].stage.lag_s
        before = number - self.shape.waiting
        return max(at, self.staged_taken(before) if before >= 0 else 0.0)

    def staged_taken(self, number: int) -> float:
        return max(self.stage_put(number), self.read_put(self.last_of[number - 1]) if number else 0.0)

    # --- batches

    def buffer(self, position: int) -> float:
        before = position - self.shape.num_buffers * self.shape.num_ranks
        return self.released(before) if before >= 0 else 0.0

    def read_start(self, position: int) -> float:
        buffer = self.buffer(position) if self.shape.features == "ssd" else 0.0
        return max(self.sample_taken(position), buffer, self.steps(position))

    def steps(self, position: int) -> float:
        """The trained rows of a batch are loaded when only ``open_steps`` steps before its own are left."""
        open_steps = self.work.batches[position].open_steps
        last = -1 if open_steps is None else position - (1 + open_steps) * self.shape.num_ranks
        return self.step_end(last) if last >= 0 else 0.0

    def read_put(self, position: int) -> float:
        at = self.read_start(position) + self.work.batches[position].read.lag_s
        before = position - self.shape.waiting
        return max(at, self.filled_taken(before) if before >= 0 else 0.0)

    def filled_taken(self, position: int) -> float:
        return max(self.read_put(position), self.gather_put(position - 1) if position else 0.0)

    def gather_start(self, position: int) -> float:
        buffer = 0.0 if self.shape.features == "ssd" else self.buffer(position)
        taken = self.filled_taken(position) if self.is_planned else self.sample_taken(position)
        return max(taken, buffer)

    def gather_end(self, position: int) -> float:
        return self.gather_start(position) + self.work.batches[position].gather.lag_s

    def gather_put(self, position: int) -> float:
        before = position - self.shape.waiting
        return max(self.gather_end(position), self.gathered_taken(before) if before >= 0 else 0.0)

    def gathered_taken(self, position: int) -> float:
        if self.shape.num_ranks > 1:
            return max(self.gather_put(position), self.gathered_taken(position - 1) if position else 0.0)
        return self.sender_takes(position) if self.shape.is_sending else self.loop_takes(position)

    def arrived(self, position: int) -> float:
        """A batch is where its rank takes it from."""
        return self.gathered_taken(position) if self.shape.num_ranks > 1 else self.gather_put(position)

    # --- ranks

    def sender_takes(self, position: int) -> float:
        before = position - self.shape.num_ranks
        return max(self.arrived(position), self.sent_put(before) if before >= 0 else 0.0)

    def transfer_start(self, position: int) -> float:
        if not self.shape.is_sending:
            return self.loop_takes(position)
        second = position - self.shape.sent_ahead * self.shape.num_ranks
        return max(self.sender_takes(position), self.loop_takes(second) if second >= 0 else 0.0)

    def transfer_end(self, position: int) -> float:
        return self.transfer_start(position) + self.work.batches[position].transfer.lag_s

    def sent_put(self, position: int) -> float:
        before = position - self.shape.sent_ahead * self.shape.num_ranks
        return max(self.transfer_end(position), self.loop_takes(before) if before >= 0 else 0.0)

    def step_before(self, position: int) -> float:
        before = position - self.shape.num_ranks
        return self.step_end(before) if before >= 0 else 0.0

    def asks(self, position: int) -> float:
        return self.step_before(position) + self.work.batches[position].pause_s

    def loop_takes(self, position: int) -> float:
        is_there = self.sent_put(position) if self.shape.is_sending else self.arrived(position)
        return max(self.asks(position), is_there)

    def computes(self, position: int) -> float:
        return self.loop_takes(position) if self.shape.is_sending else self.transfer_end(position)

    def step_end(self, position: int) -> float:
        ranks = self.shape.num_ranks if self.shape.is_synchronous else 1
        first = position - position % ranks
        return max(
            self.computes(one) + self.work.batches[one].compute.lag_s for one in range(first, first + ranks)
        )

    def released(self, position: int) -> float:
        """A buffer is free again: sent, or the loop has let go of its batch."""
        if self.shape.is_sending:
            return self.transfer_end(position)
        following = position + self.shape.num_ranks
        if self.work.batches[following].epoch != self.work.batches[position].epoch:
            return self.step_end(position)
        if self.shape.num_buffers == 1 and self.shape.num_ranks == 1:
            return self.asks(following)
        return self.computes(following)


def changed(work: RunWork, **of_batch: Any) -> RunWork:
    """Return ``work`` with these values in every batch."""
    return replace(work, batches=tuple(replace(one, **of_batch) for one in work.batches))
