"""The pages of edges that the hops of some batches touch: found from degrees and hashes, the last hop unread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError
from gloader.samplers.pick_rule import UniformPickRule
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.core.order import EpochOrder
    from gloader.samplers import NeighborSampler
    from gloader.samplers.sweeping import Frontier, PickRule
    from gloader.types import IdArray

_POSITION_BYTES: Final = 16  # of a position that is asked for, beside its value: itself, and its place


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageMarks:
    """What each of L hops of K batches wants of the P pages of edges."""

    bits: NDArray[np.uint64]  # (K, L, P / 64), a bit for each page
    nodes: IdArray  # (K, L) that draw
    edges: IdArray  # (K, L) distinct positions that are taken
    num_pages: int
    epoch_batches: int  # batches of the whole epoch

    @property
    def num_batches(self) -> int:
        """K."""
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
    """Mark the pages of the first batches that a loader with this sampler and order takes in ``epoch``.

    Which edges the last hop takes follows from its nodes, so only the hops before it are read: those of many batches
    together, in file order.

    Parameters
    ----------
    sampler : of the loader, without weights
    order : of the loader's seeds, the training nodes
    edge_bytes : of a source in the file
    batches : how many, at most
    epoch : 0, 1, ...
    budget_bytes : half of it for the marks, half for what is read; None: any

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
    done, together = 0, 1  # the first tells what others will take
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
    rule: PickRule,
    frontiers: list[Frontier],
    marks: PageMarks,
    first: int,
    *,
    per_page: int,
) -> int:
    """Mark all hops of batches from number ``first`` on, a hop of all of them at a time; return the bytes held."""
    most = 0
    for hop in range(rule.num_hops):
        counts = rule.counts(frontiers)
        for at, frontier in enumerate(frontiers):
            rule.mark(frontier, marks.bits[first + at, hop], per_page=per_page)
            marks.nodes[first + at, hop] = len(frontier.nodes)
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


def _positions(rule: PickRule, frontier: Frontier) -> IdArray:
    """Return the positions that ``frontier`` takes, ascending."""
    portions = rule.portions([frontier])
    ids = np.empty((1, 1 << 16), dtype=np.int64)
    taken, ends, has_more = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.bool_)
    found: list[IdArray] = []
    while has_more[0]:
        taken[:] = ends
        portions.fill(ids, taken, ends, has_more)
        found.append(ids[0, : ends[0]].copy())
    return np.concatenate(found)


def _require_room(shape: Sequence[int], budget_bytes: int | None) -> None:
    """Refuse marks that would not fit, with the number of batches whose marks would."""
    each = 8 * int(np.prod(shape[1:]))
    needed = each * shape[0]
    if budget_bytes is not None and needed > budget_bytes // 2:
        raise BudgetError(
            f"the marks of {shape[0]:,} batches take {format_bytes(needed)}; allowed are "
            f"{format_bytes(budget_bytes // 2)}. Inspect fewer with --batches {max(budget_bytes // 2 // each, 1)}"
        )
