"""Reads from a topology on the SSD: page by page, or in sweeps that many batches share.

The edges of a graph lie in a file of 4 KiB pages. A hop draws some edges of each node; an edge's position is its index
in the file. `mark_pages` finds the pages that each hop of each batch needs. Degrees and hashes determine the drawn
positions before any edge is read, so the last hop's edges are not read. `inspect_topology` then evaluates the ways to
read these pages:

- direct: a batch alone reads its pages, hop after hop.
- sweeps: S_t batches form a topology superbatch. One pass over the file serves hop 2 of superbatch k, hop 1 of k + 1
  and hop 0 of k + 2. A pass has three ways to read: the whole file ("full"), the needed pages ("direct"), or these and
  the short gaps between them ("merged").

A frontier is the nodes of a batch whose edges the next hop draws.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.ids import id_dtype
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError
from gloader.pipeline.open.device_rows import LARGER_THAN_PROBED
from gloader.plan.sweep_plan import SweepDemand, plan_sweeps
from gloader.samplers.pick_rule import UniformPickRule
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.sweep.passes import plan_pass
from gloader.ssd_store.sweep.sweeper import EXTENT_BYTES
from gloader.ssd_store.sweep.wanted_rows import count_bits
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.core.order import EpochOrder
    from gloader.dataset.edge_passes import PassWay
    from gloader.plan.topology_home import TopologyChoice
    from gloader.samplers import NeighborSampler
    from gloader.samplers.sweeping import Frontier
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.ssd_store.sweep.passes import WayReads
    from gloader.types import IdArray


_POSITION_BYTES: Final = 16  # bytes per requested position and its index in the result, without its value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageMarks:
    """The pages with edges that each of L hops of K batches needs, among P pages."""

    bits: NDArray[np.uint64]  # (K, L, ceil(P / 64)), a bit for each page
    nodes: IdArray  # (K, L) nodes that draw
    edges: IdArray  # (K, L) distinct drawn positions
    num_pages: int
    epoch_batches: int  # batches per epoch

    @property
    def num_batches(self) -> int:
        """K, the number of sampled batches."""
        return self.bits.shape[0]


def mark_pages(
    sampler: NeighborSampler,
    order: EpochOrder,
    *,
    edge_bytes: int,
    batches: int,
    epoch: int = 0,
    budget_bytes: int | None = None,
) -> PageMarks:
    """Mark the pages for the first batches in ``epoch``, for a loader with this sampler and order.

    Only the earlier hops are read: many batches together, in file order. The last hop's edges follow from its nodes.

    Parameters
    ----------
    sampler : the loader's sampler, without weights
    order : the order of the loader's seeds, the training nodes
    edge_bytes : bytes per edge in the file, which holds each edge's source
    batches : largest number of batches
    epoch : 0, 1, ...
    budget_bytes : half is for the marks, half for reads. None means no bound.

    Raises
    ------
    ConfigError
        ``batches`` is not positive, or there are no seeds; or the sampler draws by weights.
    BudgetError
        The marks would not fit; raised before anything is read.
    """
    num_batches = min(batches, order.num_batches)
    if num_batches < 1:
        raise ConfigError(
            f"{batches} batches of {len(order.seeds)} training nodes: there is nothing to sample"
        )
    rule, num_edges = sampler.rule, sampler.graph.num_edges
    if not isinstance(rule, UniformPickRule):
        raise ConfigError(
            "pages can be marked for uniform sampling alone, whose edges follow from degrees and hashes"
        )
    num_pages = -(-num_edges * edge_bytes // PAGE_BYTES)
    shape = (num_batches, rule.num_hops, -(-num_pages // 64))
    _require_room(shape, budget_bytes)
    marks = PageMarks(
        bits=np.zeros(shape, dtype=np.uint64),
        nodes=np.zeros(shape[:2], dtype=np.int64),
        edges=np.zeros(shape[:2], dtype=np.int64),
        num_pages=num_pages,
        epoch_batches=order.num_batches,
    )
    seeds = order.epoch_seeds(epoch)
    room = None if budget_bytes is None else budget_bytes // 2
    done, together = 0, 1  # the first batch predicts the other batches' size
    while done < num_batches:
        indices = range(done, min(done + together, num_batches))
        frontiers = [
            rule.begin(BatchId(epoch=epoch, index=index), order.batch_seeds(seeds, index))
            for index in indices
        ]
        held = _mark_together(sampler, rule, frontiers, marks, done, per_page=PAGE_BYTES // edge_bytes)
        done += len(indices)
        together = num_batches if room is None else max(room * len(indices) // max(held, 1), 1)
    return marks


def _mark_together(
    sampler: NeighborSampler,
    rule: UniformPickRule,
    frontiers: list[Frontier],
    marks: PageMarks,
    first: int,
    *,
    per_page: int,
) -> int:
    """Mark all hops for the batches from number ``first`` on, hop by hop, and return the peak of the held bytes.

    Each hop marks its pages. Every hop but the last then reads its drawn edges for all batches together, in file order,
    and extends the frontiers by them.

    Parameters
    ----------
    sampler, rule : the sampler, and its rule for drawing positions
    frontiers : each batch's frontier
    marks : receives the marks
    first : number of the first batch in ``marks``
    per_page : edges per page
    """
    most = 0
    for hop in range(rule.num_hops):
        counts = rule.counts(frontiers)
        for row, frontier in enumerate(frontiers):
            rule.mark(frontier, marks.bits[first + row, hop], per_page=per_page)
            marks.nodes[first + row, hop] = len(frontier.nodes)
        marks.edges[first : first + len(frontiers), hop] = counts
        held = sum(frontier.nodes.nbytes + frontier.seen.nbytes for frontier in frontiers)
        if hop < rule.num_hops - 1:
            total = int(counts.sum())
            held += _POSITION_BYTES * total + sampler.graph.sources.fetch_bytes(total)
            positions = np.concatenate([_positions(rule, frontier) for frontier in frontiers])
            values, places = sampler.graph.sources.at(positions)
            drawn = np.split(values[places], np.cumsum(counts)[:-1])
            frontiers = [rule.extend(*pair) for pair in zip(frontiers, drawn, strict=True)]
        most = max(most, held)
    return most


def _positions(rule: UniformPickRule, frontier: Frontier) -> IdArray:
    """Return the positions that ``frontier`` draws, ascending. They come in portions of up to 65,536."""
    portions = rule.portions([frontier])
    ids = np.empty((1, 1 << 16), dtype=np.int64)
    # For the only row of ``ids``: the numbers of used and of filled columns, and whether more positions will come.
    taken, ends, has_more = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.bool_)
    pieces: list[IdArray] = []
    while has_more[0]:
        taken[:] = ends
        portions.fill(ids, taken, ends, has_more)
        pieces.append(ids[0, : ends[0]].copy())
    return np.concatenate(pieces)


def _require_room(shape: Sequence[int], budget_bytes: int | None) -> None:
    """Raise BudgetError for marks that would not fit, with the number of batches that would fit."""
    per_batch = 8 * int(np.prod(shape[1:]))
    needed = per_batch * shape[0]
    if budget_bytes is not None and needed > budget_bytes // 2:
        raise BudgetError(
            f"the marks of {shape[0]:,} batches take {format_bytes(needed)}; allowed are "
            f"{format_bytes(budget_bytes // 2)}. Inspect fewer with --batches {max(budget_bytes // 2 // per_batch, 1)}"
        )


PASS_SIZES: Final = tuple(2**power for power in range(10))  # 1 to 512 batches


@dataclass(frozen=True, slots=True, kw_only=True)
class HopReads:
    """A batch's mean reads in one hop."""

    nodes: float  # nodes that draw
    edges: float  # distinct edges
    pages: float  # pages with these edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Mean requests to the disk."""

    requests: float
    num_bytes: float
    seconds: float  # predicted by the disk's rates

    @classmethod
    def mean(cls, reads: Sequence[WayReads]) -> Reads:
        """Return the mean of ``reads``."""
        rows = [(found.requests, found.num_bytes, found.seconds) for found in reads]
        requests, num_bytes, seconds = np.mean(rows, axis=0).tolist()
        return cls(requests=requests, num_bytes=num_bytes, seconds=seconds)

    def times(self, factor: float) -> Reads:
        """Return the reads multiplied by ``factor``."""
        return Reads(
            requests=factor * self.requests,
            num_bytes=factor * self.num_bytes,
            seconds=factor * self.seconds,
        )

    def part(self, size: int) -> Reads:
        """Return one batch's part of the reads for ``size`` batches."""
        return self.times(1 / size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReads:
    """A pass over the edges: one superbatch's last hop, the next superbatch's hop before it, and so on."""

    num_batches: int  # S_t, batches per superbatch
    pages: float | None  # pages per pass; None if too few batches were sampled
    ways: dict[PassWay, Reads]  # a batch's reads, for each evaluated way

    @property
    def fastest(self) -> PassWay:
        """The way with the least time."""
        return min(self.ways, key=lambda way: self.ways[way].seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDemand:
    """A run's files, memory and disk."""

    edge_bytes: int  # bytes per edge in the file
    num_nodes: int
    num_edges: int
    home: TopologyChoice  # the place in which a loader keeps the edges
    budget_bytes: int  # memory
    spill_bytes: int  # disk; 0 without spilling


@dataclass(frozen=True, slots=True, kw_only=True)
class GapBytes:
    """The longest gaps between needed pages that one read may include, in bytes."""

    alone: int  # longest gap in a batch's own reads
    of_passes: int  # longest gap in a pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepChoice:
    """A loader's choice of sweeps within this budget, with its cost."""

    num_batches: int  # S_t
    reason: str  # reason for this number
    memory_bytes: int  # memory for the sweeps
    spill_bytes: int  # disk for the edges that passes write
    read_bytes: float  # bytes per batch: its part of full passes, and twice its written output
    seconds: float  # disk seconds per batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyReads:
    """The sampled batches' cost for each way to read edges."""

    num_pages: int  # P, pages of the file
    file_bytes: int
    num_batches: int  # sampled batches
    epoch_batches: int  # batches per epoch
    hops: tuple[HopReads, ...]  # the hop next to the seeds first
    faults: float  # page faults per batch with a mapped file and no page in memory
    direct: Reads  # reads for a single batch, hop after hop
    drawn_bytes: float  # bytes per batch that passes write; the sampler reads them back twice
    passes: tuple[PassReads, ...]  # one for each of `PASS_SIZES`
    home: str  # the place in which a loader keeps the edges: "ram", "sweep" or "direct"
    reason: str  # reason for this place
    sweep: SweepChoice | None  # a loader's sweeps, or the sweeps that it would make
    refusal: str  # reason against sweeps; "" if they are possible

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values. Pure."""
        values = asdict(self)
        values["passes"] = [asdict(found) | {"fastest": found.fastest} for found in self.passes]
        return values


def inspect_topology(marks: PageMarks, demand: ReadDemand, rates: IoRates, gaps: GapBytes) -> TopologyReads:
    """Evaluate every way to read the pages that batches touch. Pure, but it overwrites the marks.

    Parameters
    ----------
    marks : the marks for K batches. Passes for more batches are evaluated only if they read the whole file.
    demand : the run's files and budget
    rates : the disk's rates
    gaps : the longest gaps that reads include
    """
    sweep, refusal = _choose(marks, demand, rates)
    hops, direct, faults = _alone(marks, rates, gaps.alone)
    drawn_bytes = float(demand.edge_bytes * marks.edges.sum(axis=1).mean())
    whole = marks.num_pages * PAGE_BYTES
    full = Reads(
        requests=math.ceil(whole / EXTENT_BYTES), num_bytes=whole, seconds=whole / rates.read_bytes_per_s
    )
    sampled = {found.num_batches: found for found in _passes(marks, rates, gaps.of_passes)}
    passes = []
    for size in PASS_SIZES:
        unknown = PassReads(num_batches=size, pages=None, ways={"full": full.part(size)})
        passes.append(sampled.get(size, unknown))
    return TopologyReads(
        num_pages=marks.num_pages,
        file_bytes=demand.edge_bytes * demand.num_edges,
        num_batches=marks.num_batches,
        epoch_batches=marks.epoch_batches,
        hops=hops,
        faults=faults,
        direct=direct,
        drawn_bytes=drawn_bytes,
        passes=tuple(passes),
        home=demand.home.home,
        reason=demand.home.reason,
        sweep=sweep,
        refusal=refusal,
    )


def _alone(marks: PageMarks, rates: IoRates, gap_bytes: int) -> tuple[tuple[HopReads, ...], Reads, float]:
    """Return the mean reads of each hop, a batch's mean requests, and its mean page faults, for single batches."""
    plans = [
        [plan_pass(hop, marks.num_pages, rates, gap_bytes=gap_bytes, written_bytes=0) for hop in batch]
        for batch in marks.bits
    ]
    pages = np.array([[plan.pages_wanted for plan in batch] for batch in plans])
    hops = tuple(
        HopReads(nodes=nodes, edges=edges, pages=wanted)
        for nodes, edges, wanted in zip(
            marks.nodes.mean(axis=0).tolist(), marks.edges.mean(axis=0).tolist(), pages.mean(axis=0).tolist(),
            strict=True,
        )
    )  # fmt: skip
    # As in `PagedArray`, a gap is read if that is faster than a second request. The whole file is never read.
    direct = Reads.mean([plan.ways["merged"] for batch in plans for plan in batch]).times(len(hops))
    together = [count_bits(np.bitwise_or.reduce(batch)) for batch in marks.bits]
    return hops, direct, float(np.mean(together))


def _passes(marks: PageMarks, rates: IoRates, gap_bytes: int) -> Iterator[PassReads]:
    """Yield the pages per pass, and a batch's part of the reads, for superbatch sizes 1, 2, 4, ... up to K.

    ``level`` has the marks (superbatches, L, words) for superbatches of ``size`` batches. Each round joins pairs of
    superbatches by the union of their marks, in place.
    """
    level, size = marks.bits, 1
    while len(level):
        plans = [
            plan_pass(pages_of_pass, marks.num_pages, rates, gap_bytes=gap_bytes, written_bytes=0)
            for pages_of_pass in _pages_of_passes(level)
        ]
        ways: dict[PassWay, Reads] = {
            way: Reads.mean([plan.ways[way] for plan in plans]).part(size) for way in plans[0].ways
        }
        pages = float(np.mean([plan.pages_wanted for plan in plans]))
        yield PassReads(num_batches=size, pages=pages, ways=ways)
        # Two superbatches make one superbatch with twice the size. A single remaining one is not counted.
        pairs = len(level) // 2
        level[: 2 * pairs : 2] |= level[1 : 2 * pairs : 2]
        level, size = level[: 2 * pairs : 2], 2 * size


def _pages_of_passes(level: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """Yield the pages for each pass: a superbatch's last hop, the next one's hop before it, and so on.

    The first superbatch follows the last one, because all are alike.
    """
    num_superbatches, num_hops, _ = level.shape
    for first in range(num_superbatches):
        pages = np.zeros_like(level[0, 0])
        for ahead in range(num_hops):
            pages |= level[(first + ahead) % num_superbatches, num_hops - 1 - ahead]
        yield pages


def _choose(marks: PageMarks, demand: ReadDemand, rates: IoRates) -> tuple[SweepChoice | None, str]:
    """Return the sweeps that a loader would choose, or the reason why it cannot sweep."""
    # A loader's `sweep_demand` measures a few batches in the same way.
    nodes, edges = (
        [math.ceil(LARGER_THAN_PROBED * most) for most in counts.max(axis=0)]
        for counts in (marks.nodes, marks.edges)
    )
    try:
        plan = plan_sweeps(
            SweepDemand(
                file_bytes=demand.edge_bytes * demand.num_edges,
                node_bytes=id_dtype(demand.num_nodes).itemsize,
                hop_nodes=tuple(nodes),
                hop_bytes=tuple(demand.edge_bytes * count + PAGE_BYTES for count in edges),
                touched_pages=sum(edges),
            ),
            budget_bytes=demand.budget_bytes,
            spill_bytes=demand.spill_bytes,
        )
    except BudgetError as error:
        return None, str(error)
    sweep = SweepChoice(
        num_batches=plan.num_batches,
        reason=plan.reason,
        memory_bytes=plan.memory_bytes,
        spill_bytes=plan.spill_bytes,
        read_bytes=plan.read_bytes,
        seconds=plan.pass_seconds(rates),
    )
    return sweep, ""
