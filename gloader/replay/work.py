"""The work of a run as values: counts of its batches, demands, the machine, and the shape of the pipeline.

A machine turns demands into time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple


class BatchCounts(NamedTuple):
    """Of one batch, of all tables together."""

    rows: int  # that are gathered on the host, those that the device holds left out
    hits: int
    misses: int
    admitted: int
    read_requests: int  # of the batch itself: none of a superbatch that is staged in memory
    read_bytes: int  # likewise; of a pack, those of its region


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperbatchCounts:
    """Of one superbatch, of all tables together."""

    batches: tuple[BatchCounts, ...]
    strategy: str  # of the table that most is read of: "direct", "staged" or "packed"
    accesses: int  # of its trace
    stage_requests: int  # reads of the sweep; 0 where each batch reads alone
    stage_bytes: int  # that the sweep reads
    written_bytes: int  # into packs
    unique_rows: int  # that it misses

    @property
    def num_batches(self) -> int:
        """S."""
        return len(self.batches)

    @property
    def misses(self) -> int:
        """Missing rows of all batches."""
        return sum(batch.misses for batch in self.batches)


# The resources that pieces of work share, in the order of `Demands`: cores are shared out by threads that want to run,
# everything else evenly among those who use it.
RESOURCES: Final = ("cpu", "disk", "spill", "link", "device", "network")

# Sampled batches that wait for each rank's gather, beside those that are being sampled.
SAMPLED_AHEAD: Final = 2


class Demands(NamedTuple):
    """What a piece of work needs of each resource, in seconds that it would have it alone.

    It uses them at the same time, and is done when it has had all of them: while a thread compares what it read with
    checksums, and copies it, the disk goes on with the reads that are queued. ``lag_s`` follows: time in which nothing
    is used, such as hand-overs, locks and latencies that a record cannot account for.
    """

    cpu_s: float = 0.0  # processor seconds, of all of its threads
    cores: float = 1.0  # cores that it keeps busy where nobody else wants them
    disk_s: float = 0.0  # of the disk under the features and the edges
    spill_s: float = 0.0  # of the disk under the spill folder, where that is another one
    link_s: float = 0.0  # of the link between host and device
    device_s: float = 0.0  # of the device
    network_s: float = 0.0  # of the network between machines
    lag_s: float = 0.0
    # Seconds of lag, beside these, for each processor second that others use while it is at work: for the lock of the
    # interpreter, and for caches that others have filled.
    held_up: float = 0.0
    # Seconds of lag, beside these, where others are at the disk as it comes: it stands in line behind their requests.
    in_line_s: float = 0.0

    @property
    def alone_s(self) -> float:
        """Seconds where nobody else is at work."""
        return max(self.cpu_s / self.cores, *self[2:7]) + self.lag_s


NOTHING: Final = Demands()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWork:
    """One batch of the stream, in the order in which the loop takes them."""

    epoch: int
    index: int
    trace: Demands = NOTHING  # sampling it ahead, for its trace
    sample: Demands = NOTHING  # making the batch itself, or taking the one that was kept
    read: Demands = NOTHING
    gather: Demands = NOTHING
    transfer: Demands = NOTHING
    compute: Demands = NOTHING
    # That the loop does something else before it asks for this batch, such as an evaluation.
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperbatchWork:
    """Consecutive batches that are planned and staged together."""

    num_batches: int
    inspect: Demands = NOTHING
    stage: Demands = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """One pass over the edges."""

    sweep: Demands
    completed: int  # positions of the stream that can be sampled behind it: all before this one
    most_waiting: int  # positions that may be swept and not made yet, those that this pass completes included


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All that a run has to do."""

    batches: tuple[BatchWork, ...]  # in order, those of all ranks interleaved
    superbatches: tuple[SuperbatchWork, ...] = ()  # none where features are in memory
    passes: tuple[PassWork, ...] = ()  # none where edges are in memory, or read page by page
    num_known: int = 0  # positions that can be sampled before the first pass

    @property
    def num_epochs(self) -> int:
        """Epochs that any batch is of."""
        return len({batch.epoch for batch in self.batches})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a run has to do it with."""

    cores: float
    # How much faster each resource is than where the demands were recorded.
    speed: dict[str, float] = field(default_factory=dict)  # of `RESOURCES`; 1 where it is not named

    def speed_of(self, resource: str) -> float:
        """Return how much faster ``resource`` is than where demands were recorded; infinite for one that is free."""
        return self.speed.get(resource, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """Threads, and the bounds between them; see `gloader.pipeline.run`."""

    features: str  # "ram" or "ssd"
    sampler_threads: int = 1
    ahead: int = 3  # sampled batches that may wait to be executed, and traces to be inspected
    num_buffers: int = 3  # of features, of each rank
    planned_at_once: int = 2  # superbatches whose plans exist
    waiting: int = 1  # items between two stages
    # Batches that are read before the disk is superbatch 1's: those of a step that machines share.
    unit: int = 1
    num_ranks: int = 1  # whose batches are loaded here, in turn
    is_synchronous: bool = True  # ranks wait for each other at the end of each step
    is_sending: bool = False  # a thread sends batches to a device that works beside the host
    sent_ahead: int = 2  # batches on the device before the one that is computed on
