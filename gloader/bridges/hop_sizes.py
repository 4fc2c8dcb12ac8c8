"""How many nodes of each type a batch of several types knows hop by hop, which other libraries want spelled out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.types import Block, DeviceBlock, Relation


def nodes_by_hop(
    num_seeds: Mapping[str, int], blocks: Sequence[Mapping[Relation, Block | DeviceBlock]]
) -> dict[str, list[int]]:
    """Return for each type the (L + 1) nodes that are known before each hop, next to the seeds first, and after all.

    The seeds of the type come first, and its nodes of the batch last. Pure.

    Parameters
    ----------
    num_seeds : of each type
    blocks : of a `HeteroBatch` or a `HeteroReadyBatch`
    """
    known = {name: [count] for name, count in num_seeds.items()}
    for hop in reversed(blocks):
        # A type that no relation comes from gains no nodes.
        after = {source: block.num_src for (source, _, _), block in hop.items()}
        for name, counts in known.items():
            counts.append(after.get(name, counts[-1]))
    return known
