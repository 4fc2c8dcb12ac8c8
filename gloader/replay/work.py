"""The work of a run as values: counts of its batches, demands, the machine, and the shape of the pipeline.

A machine turns demands into time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple


class BatchCounts(NamedTuple):
    """Counts of one batch, over all tables."""

    rows: int  # gathered on the host, without those that the device holds
    hits: int
    misses: int
    admitted: int
    read_requests: int  # of the batch itself: none in a superbatch that is staged in memory
    read_bytes: int  # likewise; for a pack, those of its region


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperbatchCounts:
    """Counts of one superbatch, over all tables."""

    batches: tuple[BatchCounts, ...]
    strategy: str  # of the table with the most reads: "direct", "staged" or "packed"
    accesses: int  # of its trace
    stage_requests: int  # reads of the sweep; 0 if each batch reads alone
    stage_bytes: int  # that the sweep reads
    written_bytes: int  # into packs
    unique_rows: int  # distinct missing rows

    @property
    def num_batches(self) -> int:
        """S."""
        return len(self.batches)

    @property
    def misses(self) -> int:
        """Missing rows of all batches."""
        return sum(batch.misses for batch in self.batches)


# The resources that pieces of work share, in the order of `Demands`: runnable threads share the cores, and all users
# share every other resource evenly.
RESOURCES: Final = ("cpu", "disk", "spill", "link", "device", "network")

# Sampled batches that wait for each rank's gather, besides those in the sampler threads.
SAMPLED_AHEAD: Final = 2


class Demands(NamedTuple):
    """The needs of a piece of work of each resource, in seconds of use without competition.

    The work uses all of them at the same time, and is done when all needs are met: while a thread verifies and copies
    the bytes that it read, the disk serves the queued reads. ``lag_s`` follows: time without use of any resource,
    such as hand-overs, locks and latencies that a record cannot account for.
    """

    cpu_s: float = 0.0  # processor seconds, of all of its threads
    cores: float = 1.0  # that it keeps busy without competition
    disk_s: float = 0.0  # of the disk with the features and the edges
    spill_s: float = 0.0  # of the disk with the spill folder, if it is another one
    link_s: float = 0.0  # of the link between host and device
    device_s: float = 0.0  # of the device
    network_s: float = 0.0  # of the network between machines
    lag_s: float = 0.0
    # Further seconds of lag for each processor second of others during the work: for the interpreter's
    # lock, and for caches that others have filled.
    held_up: float = 0.0
    # Further seconds of lag if others are at the disk when it comes: it waits behind their requests.
    in_line_s: float = 0.0

    @property
    def alone_s(self) -> float:
        """Seconds without other work on the machine."""
        return max(self.cpu_s / self.cores, *self[2:7]) + self.lag_s


NOTHING: Final = Demands()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWork:
    """One batch of the stream, in the order of the loop."""

    epoch: int
    index: int
    trace: Demands = NOTHING  # sampling ahead, for its trace
    sample: Demands = NOTHING  # making the batch itself, or taking the kept one
    read: Demands = NOTHING
    gather: Demands = NOTHING
    transfer: Demands = NOTHING
    compute: Demands = NOTHING
    # Other work of the loop before it requests this batch, such as an evaluation.
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
    completed: int  # positions of the stream that can be sampled after it: all before this one
    most_waiting: int  # bound of swept positions without a made batch, with those that this pass completes


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The complete work of a run."""

    batches: tuple[BatchWork, ...]  # in order, with all ranks interleaved
    superbatches: tuple[SuperbatchWork, ...] = ()  # empty for features in memory
    passes: tuple[PassWork, ...] = ()  # empty for edges in memory, or read page by page
    num_known: int = 0  # positions that can be sampled before the first pass

    @property
    def num_epochs(self) -> int:
        """Number of epochs with a batch."""
        return len({batch.epoch for batch in self.batches})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The resources of a run."""

    cores: float
    # The speed of each resource over that in the recording.
    speed: dict[str, float] = field(default_factory=dict)  # of `RESOURCES`; 1 for missing ones

    def speed_of(self, resource: str) -> float:
        """Return the speed of ``resource`` over that in the recording; infinite for one without cost."""
        return self.speed.get(resource, 1.0)


class StageLink(NamedTuple):
    """A stage of the pipeline, which one thread runs, and the channels that it takes from and puts into."""

    stage: str
    takes: tuple[str, ...]  # "traces" and "sampled" are the sequences of the samplers
    puts: str
    is_of_superbatches: bool = False  # an item is a superbatch, else a batch


# The stages behind the samplers up to the ranks, in the order of a batch: those of `gloader.pipeline.run`, whose
# threads a test compares with them, and those of a replay.
OUT_OF_CORE: Final = (
    StageLink("inspect", ("traces",), "planned", is_of_superbatches=True),
    StageLink("stage", ("planned",), "staged", is_of_superbatches=True),
    StageLink("read", ("staged", "sampled"), "filled"),
    StageLink("gather", ("filled",), "gathered"),
)
IN_MEMORY: Final = (StageLink("gather", ("sampled",), "gathered"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """Threads, and the bounds between them; see `gloader.pipeline.run`."""

    features: str  # "ram" or "ssd"
    sampler_threads: int = 1
    ahead: int = 3  # sampled batches that may wait to be executed, and traces to be inspected
    num_buffers: int = 3  # of features, of each rank
    planned_at_once: int = 2  # superbatches with plans
    waiting: int = 1  # items between two stages
    # Batches that are read before superbatch 1 gets the disk: those of a step that machines share.
    unit: int = 1
    num_ranks: int = 1  # served by this loader, in turn
    is_synchronous: bool = True  # ranks wait for each other at the end of each step
    is_sending: bool = False  # a thread sends batches to an asynchronous device
    sent_ahead: int = 2  # batches on the device before the one in computation

    @property
    def links(self) -> tuple[StageLink, ...]:
        """The stages behind the samplers, up to the ranks."""
        return OUT_OF_CORE if self.features == "ssd" else IN_MEMORY
