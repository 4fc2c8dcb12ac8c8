"""What the link tables of a conversion take: known before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.convert.links.locate_plan import SPILLED_ROW_BYTES, plan_locate
from gloader.convert.links.shares import PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.convert.links.link_source import LinkSource
    from gloader.convert.source import EdgeStream

_PAIR_BYTES = 32  # source, destination, position and reverse position
_LABEL_BYTES = {None: 0, "float32": 4, "int64": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSizes:
    """Memory and disk of the link tables of a conversion, which are written one after another."""

    memory_bytes: int = 0  # at most, beside what is resident
    dataset_bytes: int = 0  # of their arrays; without the tables whose number of rows is not known
    scratch_bytes: int = 0  # at most, while one is made
    num_arrays: int = 0


def link_sizes(
    links: Sequence[LinkSource], split: EdgeStream | None, *, num_nodes: int, budget_bytes: int
) -> LinkSizes:
    """Return what link tables take. Pure.

    Parameters
    ----------
    links : that are given
    split : the edges that are dealt out to tables, before they are; None: none are
    num_nodes : of the largest type
    budget_bytes : memory that each may take

    Raises
    ------
    BudgetError
        It is too small; says needed and allowed.
    """
    rows = [each.rows.num_rows for each in links]
    disk = [_table_bytes(each, num_nodes) for each in links]
    num_arrays = 4 * len(links)
    if split is not None:
        # Together they have as many rows as there are edges, and one of them may have nearly all.
        rows.append(split.num_edges)
        disk.append((split.num_edges or 0) * (_PAIR_BYTES + 8 * split.has_times))
        num_arrays += 2 * len(PARTS)
    plans = [plan_locate(num_nodes, budget_bytes=budget_bytes, num_rows=count) for count in rows]
    return LinkSizes(
        memory_bytes=max((plan.memory_bytes for plan in plans), default=0),
        dataset_bytes=sum(disk),
        scratch_bytes=max(
            (
                (count or 0) * SPILLED_ROW_BYTES
                for count, plan in zip(rows, plans, strict=True)
                if (count or 0) * SPILLED_ROW_BYTES > plan.held_bytes
            ),
            default=0,
        ),
        num_arrays=num_arrays,
    )


def _table_bytes(table: LinkSource, num_nodes: int) -> int:
    rows = table.rows
    negative_bytes = rows.negatives_per_row * (4 if num_nodes < 2**31 else 8)
    row_bytes = _PAIR_BYTES + _LABEL_BYTES[rows.label_dtype] + 8 * rows.has_times + negative_bytes
    return (rows.num_rows or 0) * row_bytes
