"""Which passes over the edges a sampler needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gloader.dataset.list_passes import ListPasses
from gloader.dataset.picked_passes import PickedPasses
from gloader.samplers.list_rule import ListRule

if TYPE_CHECKING:
    from gloader.config import IoMode
    from gloader.dataset.any_edges import AnyEdges
    from gloader.dataset.edge_passes import EdgePasses, PassWay
    from gloader.samplers.sweeping import HopRule, PickRule
    from gloader.ssd_store.cost.strategy import IoRates
    from gloader.ssd_store.regions.shared import SharedBuffers
    from gloader.ssd_store.spill.folder import SpillFolder


def open_passes(
    dataset: AnyEdges,
    rule: HopRule,
    folder: SpillFolder,
    *,
    memory_bytes: int,
    rates: IoRates,
    io: IoMode = "auto",
    way: PassWay | None = None,
    buffers: SharedBuffers | None = None,
) -> EdgePasses:
    """Return the passes over the edges of ``dataset`` that ``rule`` needs; the caller closes them.

    Parameters
    ----------
    dataset : of one type, or a relation, whose edges they are
    rule : of the sampler: a `ListRule`, else a `PickRule`
    folder : takes what passes bring, within its budget
    memory_bytes : of all buffers
    rates : of the disks
    io : how requests are made
    way : how every pass reads; None: by what ``rates`` predict
    buffers : of `shared_buffers`, for passes of a `PickRule` that take turns with others; their owner closes them

    Raises
    ------
    BudgetError
        ``memory_bytes`` is too little for any pass.
    StoreOpenError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        As `open_topology`.
    """
    if isinstance(rule, ListRule):
        return ListPasses(dataset, rule, folder, memory_bytes=memory_bytes, rates=rates, io=io, way=way)
    picks = cast("PickRule", rule)
    return PickedPasses(
        dataset, picks, folder, memory_bytes=memory_bytes, rates=rates, io=io, way=way, buffers=buffers
    )
