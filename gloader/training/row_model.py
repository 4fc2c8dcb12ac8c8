"""A checkpoint's network, opened for the rows of a task table.

`gloader.training.predict.row_predictions` calls `open_rows`. Rows with times are computed batch by batch, with the
sampling that the checkpoint records, as an evaluation does. Rows without times are computed layer by layer.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gloader.config import LoaderSettings, SamplingSettings
from gloader.errors import BudgetError, ConfigError
from gloader.plan.available import default_budget_bytes
from gloader.plan.too_small import naming_enough
from gloader.training.open_model import open_model, require_fit
from gloader.training.table_inference import (
    NodeRowInference,
    RowInference,
    evaluated_settings,
    forward_bytes_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from gloader.dataset import Dataset
    from gloader.dataset.task_table import TaskTable
    from gloader.training.checkpoint.save import Checkpoint
    from gloader.training.evaluate import Inference

_WEIGHT_COPIES = 2  # one in the checkpoint, one in the network
_ROW_BYTES = 8  # the number of a row


@contextmanager
def open_rows(
    dataset: Dataset,
    checkpoint: Checkpoint,
    table: TaskTable,
    *,
    budget_bytes: int | None,
    device: str | torch.device,
    scratch: Path | None,
) -> Iterator[tuple[Any, Inference]]:
    """Open a checkpoint's network and the inference of a table's rows, within a budget.

    Parameters
    ----------
    dataset, checkpoint, budget_bytes, device, scratch : see `open_model`
    table : the rows

    Raises
    ------
    ConfigError, CheckpointError, BudgetError
        See `open_model`. Also, the rows have no times, and the network's training rows had.
    """
    is_timed = checkpoint.settings.get("time_strategy", "none") != "none"
    if is_timed != table.has_times:
        has, had = ("times", "none") if table.has_times else ("no times", "times")
        raise ConfigError(
            f"the rows of table {table.name!r} have {has}, and the rows that the network learned had {had}; a network "
            "predicts rows like those that it learned"
        )
    if not is_timed:
        num_rows = table.num_rows
        with open_model(
            dataset,
            checkpoint,
            budget_bytes=budget_bytes,
            device=device,
            scratch=scratch,
            require=lambda opened: NodeRowInference.of(table, opened.inference).inference.require_memory(
                opened.model, num_outputs=num_rows
            ),
        ) as opened:
            yield opened.model, NodeRowInference.of(table, opened.inference)
        return
    require_fit(dataset, checkpoint)
    settings = _recorded_settings(checkpoint, table)
    given = default_budget_bytes() if budget_bytes is None else budget_bytes
    model = checkpoint.model()
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
    beside = _WEIGHT_COPIES * weight_bytes + _ROW_BYTES * table.num_rows
    forward_bytes = forward_bytes_of(dataset, table, checkpoint.spec.encoder, settings)

    def within(budget: int) -> RowInference:
        found = RowInference(
            dataset=dataset,
            table=table,
            spec=checkpoint.spec.encoder,
            settings=settings,
            memory_budget_bytes=budget - beside,
            forward_bytes=forward_bytes,
        )
        found.require_memory()
        return found

    try:
        inference = within(given)
    except BudgetError as error:
        raise naming_enough(error, within, given, first=0, keyword="memory_budget_bytes") from error
    yield model.to(device), inference


def _recorded_settings(checkpoint: Checkpoint, table: TaskTable) -> LoaderSettings:
    """Return the settings of an evaluation's loader, with the sampling that the checkpoint records."""
    recorded = checkpoint.settings
    sampling: dict[str, Any] = {
        each.name: recorded[each.name] for each in fields(SamplingSettings) if each.name in recorded
    }
    batch_size = recorded["global_batch_size"]
    given = LoaderSettings.of(**{**sampling, "batch_size": batch_size})
    return evaluated_settings(given, table, batch_size=batch_size)
