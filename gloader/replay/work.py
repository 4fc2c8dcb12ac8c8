"""A run's work as values: batch counts, demands, the machine, and the pipeline's shape.

A piece of work is one stage's work on one batch, one superbatch or one pass. Its demands are the seconds for which it
uses each resource. `gloader.replay.demands` makes the values from a recorded run, and `gloader.replay.planned_work`
from a plan. `gloader.replay.replay` turns demands into time, for a machine and a pipeline shape. The terms:

- A superbatch is a number of consecutive batches that are planned together. A batch's stream position is its number in
  the order of the loop, over all epochs and ranks.
- A trace has a batch's nodes. It is sampled ahead of the batch, so that its superbatch can be planned.
- The stage "inspect" plans a superbatch: which of its rows are in the host cache, and which are read.
- The stage "stage" sweeps a superbatch's missing rows: it reads them in file order, before their batches. It keeps them
  in memory ("staged") or writes a pack, a spill file with one region per batch ("packed"). With "direct", it does not
  sweep: each batch reads its own rows.
- A pass reads the edges in file order. Its stage is "sweep".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple


class BatchCounts(NamedTuple):
    """One batch's counts over all tables."""

    rows: int  # rows gathered on the host, without the rows that the device's cache holds
    hits: int  # rows found in the host cache
    misses: int  # rows read from the disk
    admitted: int  # rows put into the host cache
    read_requests: int  # number of the batch's own reads; 0 if its superbatch is staged in memory
    read_bytes: int  # bytes in the batch's own reads; with a pack, its region's bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperbatchCounts:
    """One superbatch's counts over all tables."""

    batches: tuple[BatchCounts, ...]  # in stream order
    strategy: str  # "direct", "staged" or "packed", for the table with the most reads
    accesses: int  # rows in the traces; a row in several traces counts several times
    stage_requests: int  # number of the sweep's reads; 0 if each batch reads its own rows
    stage_bytes: int  # bytes that the sweep reads
    written_bytes: int  # bytes written into packs
    unique_rows: int  # distinct missing rows

    @property
    def num_batches(self) -> int:
        """S, the number of batches."""
        return len(self.batches)

    @property
    def misses(self) -> int:
        """Missing rows over all batches."""
        return sum(batch.misses for batch in self.batches)


# Resources that pieces of work share, in the order of `Demands`. Runnable threads share the cores ("cpu"). All users
# share every other resource evenly.
RESOURCES: Final = ("cpu", "disk", "spill", "link", "device", "network")

# Sampled batches per rank that may wait for the gather. The sampler threads hold further batches.
SAMPLED_AHEAD: Final = 2


class Demands(NamedTuple):
    """A piece of work's need for each resource, in seconds of use without competition.

    The work uses all resources at the same time and ends when all needs are met: while a thread verifies and copies
    read bytes, the disk serves the queued reads. ``lag_s`` follows, without use of any resource: hand-overs, locks
    and latencies that a record cannot explain.
    """

    cpu_s: float = 0.0  # processor seconds over all threads in the work
    cores: float = 1.0  # cores that the work keeps busy without competition
    disk_s: float = 0.0  # seconds on the disk with the features and edges
    spill_s: float = 0.0  # seconds on the disk with the spill folder, if it is a second disk
    link_s: float = 0.0  # seconds on the link between host and device
    device_s: float = 0.0  # seconds on the device
    network_s: float = 0.0  # seconds on the network between machines
    lag_s: float = 0.0  # seconds after the needs are met
    # Additional seconds of lag per processor second of other threads during the work. The other threads hold the
    # interpreter's lock and fill the processor's caches.
    held_up: float = 0.0
    # Additional seconds of lag if other work uses the disk when this work arrives. This work waits behind the queued
    # requests.
    in_line_s: float = 0.0

    @property
    def alone_s(self) -> float:
        """Seconds that the work takes without other work on the machine."""
        # The fields 2 to 6 are `disk_s` to `network_s`.
        return max(self.cpu_s / self.cores, *self[2:7]) + self.lag_s


NOTHING: Final = Demands()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWork:
    """The work for one batch."""

    epoch: int
    index: int  # in the epoch and rank
    trace: Demands = NOTHING  # sampling ahead, for the trace
    sample: Demands = NOTHING  # sampling again, or finishing the batch that was kept from the trace on
    read: Demands = NOTHING  # moving missing rows into the batch's feature buffer
    gather: Demands = NOTHING  # copying cached rows into the buffer
    transfer: Demands = NOTHING  # copying the batch to the device
    compute: Demands = NOTHING  # the training step
    # Earlier steps that may be incomplete when the batch is read, because an embedding's rows are loaded then. None
    # without such a limit.
    open_steps: int | None = None
    # The loop's other work before it requests this batch, such as an evaluation.
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperbatchWork:
    """Consecutive batches that are planned and staged together."""

    num_batches: int
    inspect: Demands = NOTHING  # the planning
    stage: Demands = NOTHING  # the sweep of the missing rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """One pass over the edges."""

    sweep: Demands
    completed: int  # stream positions below this number can be sampled after the pass
    # The pass waits while more positions than this, below ``completed``, have no batch yet.
    most_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork:
    """A run's complete work."""

    batches: tuple[BatchWork, ...]  # batches in the loop's order, with all ranks interleaved
    superbatches: tuple[SuperbatchWork, ...] = ()  # empty if features are in memory
    passes: tuple[PassWork, ...] = ()  # empty if edges are in memory or read page by page
    num_known: int = 0  # stream positions that can be sampled before the first pass

    @property
    def num_epochs(self) -> int:
        """Number of epochs with a batch."""
        return len({batch.epoch for batch in self.batches})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine's resources, relative to the recorded machine."""

    cores: float  # cores that the process may use
    # Each resource's speed divided by its recorded speed. Missing resources have speed 1.
    speed: dict[str, float] = field(default_factory=dict)

    def speed_of(self, resource: str) -> float:
        """Return the speed of ``resource`` divided by its recorded speed; infinite if its use costs no time."""
        return self.speed.get(resource, 1.0)


class StageLink(NamedTuple):
    """A pipeline stage, run by one thread, with the names of its input and output channels."""

    stage: str
    # Input channels; "traces" and "sampled" come from the samplers, all others from a stage.
    takes: tuple[str, ...]
    puts: str  # output channel
    is_of_superbatches: bool = False  # True if an item is a superbatch, False if it is a batch


# The stages from the samplers to the ranks, in the order in which a batch runs through them. A replay runs the same
# stages as `gloader.pipeline.run`: a test compares both.
OUT_OF_CORE: Final = (
    StageLink("inspect", ("traces",), "planned", is_of_superbatches=True),
    StageLink("stage", ("planned",), "staged", is_of_superbatches=True),
    StageLink("read", ("staged", "sampled"), "filled"),
    StageLink("gather", ("filled",), "gathered"),
)
IN_MEMORY: Final = (StageLink("gather", ("sampled",), "gathered"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """Numbers of threads, and limits for the batches and superbatches between them; see `gloader.pipeline.run`."""

    features: str  # "ram" or "ssd"
    has_embeddings: bool = (
        False  # True if embeddings are trained; their rows are planned like features on the SSD
    )
    sampler_threads: int = 1
    ahead: int = 3  # limit for batches, and for traces, that samplers start before the pipeline takes them
    num_buffers: int = 3  # feature buffers per rank
    planned_at_once: int = 2  # limit for superbatches that have a plan and are not completely gathered
    waiting: int = 1  # limit for items that wait between two stages
    # Number of superbatch 0's batches that are read before superbatch 1 gets the disk. If machines exchange rows, these
    # are the batches of one step.
    unit: int = 1
    num_ranks: int = 1  # ranks that this loader serves in turn
    is_synchronous: bool = True  # True if ranks wait for each other at each step's end
    is_sending: bool = False  # True if a thread sends batches to an asynchronous device
    sent_ahead: int = 2  # limit for batches on the device that wait for their computation

    @property
    def is_planned(self) -> bool:
        """True if superbatches are planned."""
        return self.features == "ssd" or self.has_embeddings

    @property
    def links(self) -> tuple[StageLink, ...]:
        """The stages from the samplers to the ranks."""
        return OUT_OF_CORE if self.is_planned else IN_MEMORY

    @property
    def filling(self) -> str:
        """The first stage that needs a feature buffer."""
        return "read" if self.features == "ssd" else "gather"
