"""Passes over the edges of several relations, one after another, and the choice of passes for a sampler.

A pass reads edges from the SSD for the hops of many batches, see `gloader.dataset.edge_passes`. A frontier is one hop
of one batch, and an owner is the index of a frontier in a pass. With several relations, a frontier has a part in each
relation that it draws from. Its draws are the edges that the sampler chooses for it. `open_passes` returns the passes
for a sampler's rule. For several relations, these are `HeteroPasses`, which make one pass per relation, and
`HeteroHops` combines the results.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gloader.dataset.edge_passes import PassReport, PickedPasses, shared_buffers
from gloader.dataset.list_passes import ListPasses
from gloader.samplers.hetero import HeteroRule
from gloader.samplers.list_rule import ListRule
from gloader.ssd_store.sweep.sweeper import SweepCost
from gloader.types import ReadStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.core.signals import Cancellation
    from gloader.dataset.dataset import Dataset
    from gloader.dataset.edge_passes import EdgePasses, PassSettings, SweptHops
    from gloader.dataset.topology import AnyEdges
    from gloader.samplers.pick_rule import UniformPickRule
    from gloader.samplers.sweeping import Frontier, HeteroFrontier, HopRule
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.ssd_store.spill.regions import SharedBuffers


def open_passes(
    dataset: Dataset | AnyEdges,
    rule: HopRule,
    folder: SpillFolder,
    settings: PassSettings,
    *,
    buffers: SharedBuffers | None = None,
) -> EdgePasses:
    """Return the passes over a dataset's edges for ``rule``. The caller closes them.

    Parameters
    ----------
    dataset : the dataset, or a relation for the rule of one relation
    rule : the sampler's rule
    folder : the spill folder, a folder for temporary files, for the results
    settings : memory and disks
    buffers : buffers from `shared_buffers`, which several passes by a `UniformPickRule` use in turn, and which the
        caller closes. By default, the passes own their buffers. Passes by other rules ignore ``buffers``

    Raises
    ------
    BudgetError
        The memory is too little for any pass.
    StoreOpenError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        As `open_topology`.
    """
    if isinstance(rule, HeteroRule):
        return HeteroPasses(cast("Dataset", dataset), rule, folder, settings)
    if isinstance(rule, ListRule):
        return ListPasses(dataset, rule, folder, settings)
    return PickedPasses(dataset, cast("UniformPickRule", rule), folder, settings, buffers=buffers)


_NO_DRAWS = np.empty(0, dtype=np.int32)  # the draws in a relation that a frontier does not draw from


class HeteroPasses:
    """`EdgePasses` for a `HeteroRule`. A pass reads one relation after another. Thread-safe.

    The passes over a relation hold a lock while they read it.

    Owns the files, read queues and buffers of every relation with edges, until `close`.

    Parameters
    ----------
    dataset : the dataset
    rule : the sampler's rule
    folder : the spill folder for the results
    settings : memory and disks. All relations use the same buffers in turn. If the rule reads full neighbour lists,
        however, every relation with edges has its own buffers, with an equal share of the bytes,
        because `ListPasses` cannot share buffers

    Raises
    ------
    BudgetError
        The memory is too little for any pass.
    StoreOpenError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        As `open_topology`.
    """

    def __init__(
        self,
        dataset: Dataset,
        rule: HeteroRule,
        folder: SpillFolder,
        settings: PassSettings,
    ) -> None:
        self._rule = rule
        self._shared_bytes = 0  # bytes of the buffers that all relations share
        self._passes: list[EdgePasses | None] = []  # by relation; None for a relation without edges
        with ExitStack() as stack:
            buffers = None
            if not looks_at_lists(rule):
                buffers = shared_buffers(settings.memory_bytes)
                self._shared_bytes = buffers.num_bytes
                stack.callback(buffers.close)
            else:
                settings = replace(settings, memory_bytes=settings.memory_bytes // max(num_swept(dataset), 1))
            for table, of_relation in zip(dataset.edge_tables.values(), rule.rules, strict=True):
                passes = None
                if table.num_edges:
                    passes = open_passes(table, of_relation, folder, settings, buffers=buffers)
                    stack.callback(passes.close)
                self._passes.append(passes)
            self._stack = stack.pop_all()

    @property
    def resident_bytes(self) -> int:
        """Bytes of the buffers, the page checksums and the page marks (one bit per page)."""
        held = [passes.resident_bytes for passes in self._passes if passes is not None]
        # Each relation's bytes contain the shared buffers, which exist once.
        return sum(held) - self._shared_bytes * max(len(held) - 1, 0)

    def sweep(
        self, frontiers: Sequence[HeteroFrontier], *, label: str, cancellation: Cancellation
    ) -> HeteroHops:
        """Write the draws for ``frontiers`` in every relation to the spill folder. A failed pass leaves no files.

        Takes the parameters of `EdgePasses.sweep`, and raises its errors.
        """
        # For example, if only frontiers 0 and 2 draw from a relation, its ``numbers`` are {0: 0, 2: 1}.
        parts = [self._rule.parts(frontier) for frontier in frontiers]  # each frontier's parts, by relation
        hops: list[SweptHops | None] = []  # each relation's results
        owners: list[dict[int, int]] = []  # as the parameter of `HeteroHops`
        with ExitStack() as undo:
            for relation, passes in enumerate(self._passes):
                drawing: list[Frontier] = []  # the frontiers' parts in this relation
                numbers: dict[int, int] = {}  # index in ``drawing`` by owner
                for owner, owner_parts in enumerate(parts):
                    part = owner_parts[relation]
                    if part is not None:
                        numbers[owner] = len(drawing)
                        drawing.append(part)
                swept = None
                if passes is not None and drawing:
                    swept = passes.sweep(drawing, label=label, cancellation=cancellation)
                    undo.callback(swept.close)
                hops.append(swept)
                owners.append(numbers if swept is not None else {})
            undo.pop_all()
        return HeteroHops(hops, owners)

    def close(self) -> None:
        """Release everything, and remove the passes' files. Idempotent."""
        self._stack.close()


class HeteroHops:
    """The hops of one pass over all relations, as `SweptHops`. Thread-safe; made by `HeteroPasses.sweep`.

    Parameters
    ----------
    hops : each relation's results; None for a relation without draws
    owners : for each relation, the index of a frontier in the relation's pass, by its index in the whole pass
    """

    def __init__(self, hops: Sequence[SweptHops | None], owners: Sequence[dict[int, int]]) -> None:
        self._hops = hops
        self._owners = owners
        self._report = _sum_of([swept.report for swept in hops if swept is not None])

    @property
    def report(self) -> PassReport:
        """The cost of the pass over all relations."""
        return self._report

    def read(self, owner: int) -> tuple[NDArray[Any], ...]:
        """Return the verified draws for ``frontiers[owner]`` in each relation. Raises as `SweptHops.read`.

        The entry of a relation without draws is empty.
        """
        return tuple(
            swept.read(numbers[owner]) if swept is not None and owner in numbers else _NO_DRAWS
            for swept, numbers in zip(self._hops, self._owners, strict=True)
        )

    def release(self, owner: int) -> None:
        """Release ``frontiers[owner]``. A file is removed once all its frontiers are released. Idempotent."""
        for swept, numbers in zip(self._hops, self._owners, strict=True):
            if swept is not None and owner in numbers:
                swept.release(numbers[owner])

    def close(self) -> None:
        """Remove the files that were not released. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed. The other files are removed.
        """
        with ExitStack() as stack:
            for swept in self._hops:
                if swept is not None:
                    stack.callback(swept.close)


def looks_at_lists(rule: HeteroRule) -> bool:
    """Return True if the rule must read a node's list to choose edges, in any relation. Pure."""
    return any(isinstance(of_relation, ListRule) for of_relation in rule.rules)


def num_swept(dataset: Dataset) -> int:
    """Return the number of relations with edges. A pass reads no other relations."""
    return sum(table.num_edges > 0 for table in dataset.edge_tables.values())


def _sum_of(reports: Sequence[PassReport]) -> PassReport:
    """Return the sum of the passes' reports, with the ``way`` of the pass that read the most bytes. Pure.

    The ways are "direct", "merged" and "full", see `PassReport`.
    """
    costs = [report.cost for report in reports]
    most = max(reports, key=lambda report: report.cost.read.bytes_read, default=None)
    return PassReport(
        way="direct" if most is None else most.way,
        predicted_s=sum(report.predicted_s for report in reports),
        pages_wanted=sum(report.pages_wanted for report in reports),
        cost=SweepCost(
            read=sum((cost.read for cost in costs), ReadStats(rows=0, requests=0, bytes_read=0)),
            writes=sum(cost.writes for cost in costs),
            bytes_written=sum(cost.bytes_written for cost in costs),
            bytes_brought=sum(cost.bytes_brought for cost in costs),
        ),
    )
