"""The averaging over ranks of the gradients of learned rows: of those alone that a step looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence


def average_rows(tables: Sequence[torch.Tensor]) -> None:
    """Replace the sparse gradient of each table by the mean over the ranks, the same on all; collective.

    Each rank gets the rows of all others. Sums are in the order of the ranks.

    Parameters
    ----------
    tables : (N_t, F) each, with a sparse gradient, which may be of no row
    """
    for table in tables:
        grad = table.grad
        if grad is None:
            raise AssertionError("each table has a gradient in every step")
        grad = grad.coalesce()
        ids, rows = _gathered(grad.indices()[0], grad.values())
        world_size = torch.distributed.get_world_size()
        table.grad = torch.sparse_coo_tensor(
            ids.unsqueeze(0), rows / world_size, grad.shape, check_invariants=False
        ).coalesce()


def _gathered(ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids (M,) and rows (M, F) of all ranks, one behind another."""
    from gloader.distributed.own_gpus import collective_device

    place = collective_device()
    # Collectives send equally many rows: as many as the rank with the most has.
    count = torch.tensor([len(ids)], device=place)
    counts = [int(found) for found in _all(count)]
    most = max(counts)
    all_ids = _all(functional.pad(ids.to(place), (0, most - len(ids))))
    all_rows = _all(functional.pad(rows.to(place), (0, 0, 0, most - len(rows))))
    picked = [(a[:n], b[:n]) for a, b, n in zip(all_ids, all_rows, counts, strict=True)]
    return (
        torch.cat([part for part, _ in picked]).to(ids.device),
        torch.cat([part for _, part in picked]).to(rows.device),
    )


def _all(own: torch.Tensor) -> list[torch.Tensor]:
    found = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(found, own.contiguous())
    return found
