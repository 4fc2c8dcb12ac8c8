"""Scores of given pairs of nodes, from a checkpoint and all neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.ids import outside
from gloader.errors import ConfigError, ShapeError
from gloader.training.link_prediction import SCORING_SHARE, pair_scorer
from gloader.training.model_spec import LinkSpec
from gloader.training.open_model import open_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.dataset.node_table import NodeTable
    from gloader.training.checkpoint.save import Checkpoint
    from gloader.training.machine_rows import MachineRows
    from gloader.types import IdArray

    Progress = Callable[[float], None]


def score_pairs(
    dataset: Dataset,
    checkpoint: Checkpoint,
    pairs: IdArray,
    *,
    memory_budget_bytes: int | None = None,
    device: str | torch.device = "cpu",
    scratch: Path | None = None,
    on_progress: Progress = lambda _: None,
    rows: MachineRows | None = None,
) -> NDArray[np.float32]:
    """Return the score of each of ``pairs``, (n,) float32, from all neighbours of both nodes; (n, C) of C classes.

    Parameters
    ----------
    dataset, checkpoint, memory_budget_bytes, device, scratch, on_progress, rows : as of `predict`
    pairs : (n, 2) sources and destinations, by their ids in the source of the dataset

    Raises
    ------
    ConfigError
        The checkpoint is of nodes' classes.
    ShapeError
        Pairs are no such array, or name nodes that are not there.
    CheckpointError, BudgetError
        As `predict`.
    """
    spec = checkpoint.spec
    if not isinstance(spec, LinkSpec):
        raise ConfigError("the checkpoint predicts classes of nodes, and scores no pairs")
    given = checked_pairs(pairs)
    with open_model(
        dataset,
        checkpoint,
        budget_bytes=memory_budget_bytes,
        device=device,
        scratch=scratch,
        rows=rows,
        require=lambda model: model.require_memory(node_type=spec.ends[0]),
    ) as opened:
        sources, destinations = (
            _own_ids(dataset.node_tables[name], ids) for name, ids in zip(spec.ends, given.T, strict=True)
        )
        budget = int(SCORING_SHARE * opened.inference.memory_budget_bytes)
        with pair_scorer(
            opened.model, opened.inference, spec, budget_bytes=budget, on_progress=on_progress
        ) as scorer:
            step = scorer.rows_per_call()
            found = [
                scorer.score(sources[start : start + step], destinations[start : start + step])
                for start in range(0, len(sources), step)
            ]
    return np.concatenate([np.empty((0, *found[0].shape[1:]) if found else 0, np.float32), *found])


def checked_pairs(pairs: Any) -> IdArray:
    """Return ``pairs`` as (n, 2) int64; ShapeError where they are none."""
    found = np.asarray(pairs)
    if found.ndim != 2 or found.shape[1] != 2 or found.dtype.kind not in "iu":
        cure = ", as .T makes it" if found.shape[:1] == (2,) else ""
        raise ShapeError(
            f"pairs are {found.dtype} of shape {found.shape}; they must be whole numbers, (n, 2){cure}"
        )
    return found.astype(np.int64)


def _own_ids(table: NodeTable, ids: IdArray) -> IdArray:
    """Return the numbers in the dataset of nodes that are named as in its source."""
    wrong = outside(ids, table.num_nodes)
    if len(wrong):
        raise ShapeError(
            f"nodes of type {table.name!r} are 0..{table.num_nodes - 1}; these pairs name {wrong[:5].tolist()}"
        )
    if table.original_ids is None:
        return np.ascontiguousarray(ids)
    number = np.empty(table.num_nodes, dtype=np.int64)
    number[table.original_ids] = np.arange(table.num_nodes)
    return number[ids]
