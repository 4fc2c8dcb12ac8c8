"""Renumbering of the nodes of a source: edges, labels and splits; `ordered_rows` does the features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.csc.edge_rules import EdgeEnds, check_chunk
from gloader.convert.source import ChangedEdges, Splits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.convert.order.row_order import RowOrder
    from gloader.convert.source import EdgeChunk, Source
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RenumberedEdges(ChangedEdges):
    """An edge stream whose nodes have new ids."""

    new_ids: IdArray  # (N,)
    where: str  # the source, for messages

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time.

        Raises
        ------
        GraphError
            An id is out of range or a weight is not a finite number of at least 0. The message has the ids
            of the source.
        """
        ends, done = EdgeEnds.of(self.new_ids.shape[0], self.where), 0
        # Old and new ids are alive together, three copies instead of two: smaller chunks take the memory of plain ones.
        for chunk in self.edges.chunks(max(1, 2 * max_edges // 3)):
            # Before the lookup: a bad id would read past the end of the table, or wrap around.
            check_chunk(chunk, ends=ends, first=done)
            done += chunk.src.shape[0]
            yield replace(chunk, src=self.new_ids[chunk.src], dst=self.new_ids[chunk.dst])


def renumbered(source: Source, order: RowOrder) -> Source:
    """Return ``source`` with edges, labels and splits in the new numbering; the features stay as they are. Pure."""
    splits = source.splits
    return replace(
        source,
        edges=RenumberedEdges(edges=source.edges, new_ids=order.new_ids, where=source.edge_origin),
        labels=np.ascontiguousarray(source.labels[order.original_ids]),
        splits=Splits(
            train=order.new_ids[splits.train],
            valid=order.new_ids[splits.valid],
            test=order.new_ids[splits.test],
        ),
    )
