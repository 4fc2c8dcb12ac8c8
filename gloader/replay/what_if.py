"""Changes that need no new plan: of rates, cores, threads and the time that a computation takes. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gloader.errors import ConfigError
from gloader.replay.work import SAMPLED_AHEAD
from gloader.ssd_store.cost.read_times import MEDIUM_BYTES, SMALL_BYTES, WIDE_BYTES

if TYPE_CHECKING:
    from gloader.replay.changes import Changes
    from gloader.replay.work import Demands, Machine, PipelineShape, Work
    from gloader.ssd_store.cost.strategy import IoRates


def changed_rates(rates: IoRates, changes: Changes) -> IoRates:
    """Return the rates of a disk with ``changes``.

    A first read takes less by as much as reads at random do; dealing rows out is the processor's, and stays.
    """
    both = changes.ratio("disk")
    random, write = both * changes.ratio("disk.random"), both * changes.ratio("disk.write")
    in_order = rates.read_bytes_per_s * both

    def reads(per_s: float, size: int) -> float:
        # No read at random is faster than in file order; those that were measured so stay as they were.
        return min(per_s * random, max(in_order / size, per_s * both))

    return replace(
        rates,
        random_reads_per_s=reads(rates.random_reads_per_s, SMALL_BYTES),
        medium_reads_per_s=reads(rates.medium_reads_per_s, MEDIUM_BYTES),
        wide_reads_per_s=reads(rates.wide_reads_per_s, WIDE_BYTES),
        read_bytes_per_s=in_order,
        pack_read_bytes_per_s=rates.pack_read_bytes_per_s * both,
        write_bytes_per_s=rates.write_bytes_per_s * write,
        latency_s=rates.latency_s / random,
    )


def changed_machine(machine: Machine, changes: Changes) -> Machine:
    """Return a machine with ``changes``; those of the disk are in its rates."""
    speed = {**machine.speed, "network": machine.speed_of("network") * changes.ratio("network")}
    return replace(machine, cores=float(count_of(changes, "cores", int(machine.cores))), speed=speed)


def changed_shape(shape: PipelineShape, changes: Changes) -> PipelineShape:
    """Return a pipeline with ``changes``; ConfigError where there cannot be one."""
    ranks = count_of(changes, "ranks", shape.num_ranks)
    threads = count_of(changes, "threads", shape.sampler_threads)
    buffers = count_of(changes, "buffers", shape.num_buffers)
    if ranks > 1 and buffers < 2:
        raise ConfigError("ranks that share a loader need two feature buffers each; ask for buffers=2")
    more = threads - shape.sampler_threads + SAMPLED_AHEAD * (ranks - shape.num_ranks)
    return replace(
        shape,
        num_ranks=ranks,
        sampler_threads=threads,
        num_buffers=buffers,
        ahead=max(shape.ahead + more, 1),
    )


def changed_compute(work: Work, changes: Changes) -> Work:
    """Return ``work`` with computations that take longer, or less long."""
    factor = changes.ratio("compute") / changes.ratio("gpu")
    if factor == 1.0:
        return work

    def of(demands: Demands) -> Demands:
        return demands._replace(
            cpu_s=demands.cpu_s * factor, device_s=demands.device_s * factor, lag_s=demands.lag_s * factor
        )

    return replace(work, batches=tuple(replace(one, compute=of(one.compute)) for one in work.batches))


def count_of(changes: Changes, name: str, before: int) -> int:
    """Return the number that ``name`` is changed to; ``before`` where it is not."""
    value = changes.values.get(name, before)
    return value if isinstance(value, int) else before
