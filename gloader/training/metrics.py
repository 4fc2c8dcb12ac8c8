"""Training metrics: an epoch's record, running sums, and the combined statistics of all ranks.

`Trainer` adds each batch to a `RunningMetrics`. After an epoch it combines the sums and the loader's statistics
(`EpochStats`) of all ranks, the processes that train together, and makes an `EpochRecord` from them.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader.errors import DivergedError
from gloader.observe.epoch_stats import STAGES, EpochStats, add_tables
from gloader.training.objectives import NODE_CLASSES
from gloader.types import EDGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.dataset.mirrored import Mirrored
    from gloader.training.group import RankGroup
    from gloader.training.objectives import Objective
    from gloader.types import Delivered

_NO_BATCH: Final = 2**62  # larger than every batch's index; means that no batch had a bad loss
_DIVERGED_ADVICE: Final = "the network diverged: lower --lr"
# Figures of an epoch that are equal on every rank, and figures that are the slowest rank's. All others are summed.
_EQUAL_ON_RANKS = ("epoch", "batches")
_OF_SLOWEST_RANK = ("seconds", "retrieval_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """One line of ``metrics.jsonl``."""

    epoch: int  # from 0
    loss: float  # mean over the seeds, or over the predicted edges
    # Share of correct predictions during training; None if predictions are values, which are not right or wrong.
    train_acc: float | None
    valid_acc: float | None  # value of ``metric``; None if this epoch was not evaluated
    lr: float  # learning rate
    seconds: float  # training time
    evaluate_seconds: float  # time of the evaluation after the epoch
    rows_per_second: float  # feature rows delivered per training second
    bottleneck: str  # a sentence on the slowest part of the epoch
    stats: EpochStats  # the loader's counts and times, over all ranks
    # Name of the validation metric. In the file the value has the key ``valid_<metric>``.
    metric: str = "acc"
    # The time of the epoch and its evaluation is cut into several equal parts. For each part: the peak of anonymous
    # memory of all ranks of the first machine, counted as a memory budget counts it.
    memory_bytes: tuple[int, ...] = ()
    # Bytes that embeddings read from the disk and wrote to it since the epoch before, evaluations and checkpoints
    # included, on the first rank; None without embeddings. `stats` has the part of the loader among its bytes.
    embedding_bytes: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object, the statistics flattened into it."""
        record = {
            name.replace("valid_acc", f"valid_{self.metric}"): getattr(self, name)
            for name in self.__slots__
            if name not in ("stats", "metric", "memory_bytes", "embedding_bytes")
        }
        if self.memory_bytes:
            record["memory_bytes"] = list(self.memory_bytes)
        if self.embedding_bytes is not None:
            record["embedding_bytes_read"], record["embedding_bytes_written"] = self.embedding_bytes
        stats = {
            name: value for name, value in asdict(self.stats).items() if name not in ("epoch", "seconds")
        }
        if not self.stats.tables:
            del stats["tables"]  # the figures of a single table are the totals
        return record | stats | {"hit_rate": self.stats.hit_rate}


class RunningMetrics:
    """Loss and accuracy over the batches of an epoch so far, kept on the device until they are read.

    The objective's items are the seeds of a batch, or its predicted edges.

    Parameters
    ----------
    device : the device of the batches
    objective : the loss; it also counts the predicted items of a batch, and the correct ones
    saved : a result of `state` to continue from; None starts at zero
    """

    def __init__(
        self,
        device: torch.device,
        *,
        objective: Objective = NODE_CLASSES,
        saved: dict[str, float] | None = None,
    ) -> None:
        self._objective = objective
        saved = saved or {"loss_sum": 0.0, "correct": 0.0, "seeds": 0.0, "rows": 0.0, "seconds": 0.0}
        self._loss_sum = torch.tensor(saved["loss_sum"], dtype=torch.float64, device=device)
        self._correct = torch.tensor(saved["correct"], dtype=torch.float64, device=device)
        self._seeds = int(saved["seeds"])
        self._rows = int(saved["rows"])
        self._epoch = 0
        # If True, reading a number waits for all earlier work on the device.
        self._is_far = device.type != "cpu"
        # Index of the first batch with a NaN or infinite loss.
        self._bad_at = torch.full((), _NO_BATCH, device=device)
        # A resumed epoch continues the sums of the interrupted one.
        self._started = time.perf_counter() - saved["seconds"]

    def add(self, batch: Delivered, logits: torch.Tensor, loss: torch.Tensor) -> None:
        """Count one batch.

        Parameters
        ----------
        batch : the batch, with its labels and its numbers of seeds and rows
        logits : (B, classes) logits of the seeds, or the objective's outputs
        loss : mean loss over the seeds, or over the objective's items

        Raises
        ------
        DivergedError
            The loss is NaN or infinite. On a GPU the error is raised when the sum is read next.
        """
        self._epoch = batch.id.epoch
        if not self._is_far:
            if not loss.isfinite():
                raise DivergedError(_diverged_text(batch.id.epoch, batch.id.index, _cause(batch)))
        else:
            bad_index = torch.where(loss.detach().isfinite(), _NO_BATCH, batch.id.index)
            self._bad_at = torch.minimum(self._bad_at, bad_index)
        # The sum stays on the device: `item` in every step would wait for the GPU. In float32, the sum of a long
        # epoch would lose the last digits of each loss.
        num_seeds = self._objective.count(batch)
        self._loss_sum += loss.detach().double() * num_seeds
        self._correct += self._objective.right(logits.detach(), batch)
        self._seeds += num_seeds
        self._rows += _num_rows(batch)

    @property
    def loss(self) -> float:
        """Mean loss per predicted item, such as a seed; DivergedError if a batch's loss is NaN or infinite."""
        return self._read_loss() / max(self._seeds, 1)

    @property
    def accuracy(self) -> float | None:
        """Share of correctly predicted items, in training mode; None for values, which are not right or wrong."""
        return self._correct.item() / max(self._seeds, 1) if self._objective.has_accuracy else None

    @property
    def seconds(self) -> float:
        """Wall time since the epoch began."""
        return time.perf_counter() - self._started

    @property
    def rows_per_second(self) -> float:
        """Feature rows delivered per second of the epoch."""
        return self._rows / max(self.seconds, 1e-9)

    def over(self, group: RankGroup) -> RunningMetrics:
        """Return the sums over all ranks and the slowest rank's time. Collective."""
        if group.is_alone:
            return self
        states = group.gather(self.state())
        total = {name: sum(state[name] for state in states) for name in states[0]}
        return RunningMetrics(
            torch.device("cpu"),
            objective=self._objective,
            saved=total | {"seconds": max(state["seconds"] for state in states)},
        )

    def state(self) -> dict[str, float]:
        """Return the sums as plain numbers, for ``saved``; raises DivergedError like `loss`."""
        return {
            "loss_sum": self._read_loss(),
            "correct": self._correct.item(),
            "seeds": float(self._seeds),
            "rows": float(self._rows),
            "seconds": self.seconds,
        }

    def _read_loss(self) -> float:
        """Return the sum of losses from the device. Raises DivergedError if it is NaN or infinite."""
        loss_sum = self._loss_sum.item()
        if not math.isfinite(loss_sum):
            # The batch is no longer on the device, so its features cannot be checked.
            raise DivergedError(
                _diverged_text(
                    self._epoch,
                    int(self._bad_at.item()),
                    f"if the dataset was prepared with --allow-nan, features may be NaN; otherwise {_DIVERGED_ADVICE}",
                )
            )
        return loss_sum


def _diverged_text(epoch: int, index: int, cause: str) -> str:
    """Return an error's text. ``epoch`` and ``index`` count from 0."""
    return f"epoch {epoch + 1}, batch {index + 1}: the loss is NaN or infinite, so that the run ends; {cause}"


def _cause(batch: Delivered) -> str:
    """Return the likely cause of a batch's bad loss, with advice. For batches on the CPU. Pure."""
    typed = batch.typed
    for name, rows in typed.x.items():
        if text := _bad_rows(rows, name, typed.nodes[name]):
            return f"clean the features: {text}"
    for hop in typed.blocks:
        for relation, block in hop.items():
            if block.edge_x is None:
                continue
            noun = "edge" if relation == EDGE else f"edge of {relation[1]}"
            if text := _bad_rows(block.edge_x, noun, block.edge_ids):
                return f"clean the edge features: {text}"
    return f"the features of the batch are finite, so {_DIVERGED_ADVICE}"


_MOST_NAMED: Final = 5  # columns and rows that a message names


def _bad_rows(rows: torch.Tensor, noun: str, ids: Any) -> str:
    """Return a text on the NaN and infinite numbers in ``rows`` (m, F), or "" without any. Pure.

    Parameters
    ----------
    rows : (m, F) features
    noun : what a row belongs to, such as "node"
    ids : (m,) id of each row
    """
    bad = (~rows.isfinite()).nonzero()
    if not len(bad):
        return ""
    row, column = bad[0].tolist()
    text = f"column {column} of {noun} {int(ids[row])} is {rows[row, column].item()}"
    if len(bad) == 1:
        return text
    columns, places = (np.unique(bad[:, axis].numpy()).tolist() for axis in (1, 0))
    return (
        f"{text}; in the batch, {len(bad):,} numbers are NaN or infinite, in column{'s' * (len(columns) > 1)} "
        f"{_some(columns)} of {noun} {_some([int(ids[place]) for place in places])}"
    )


def _some(numbers: Sequence[int]) -> str:
    """Return the first few numbers as text."""
    return ", ".join(map(str, numbers[:_MOST_NAMED])) + (", ..." if len(numbers) > _MOST_NAMED else "")


def _num_rows(batch: Delivered) -> int:
    """Return the batch's number of feature rows. Rows of types without features have width 0 and do not count."""
    return sum(len(rows) for rows in batch.typed.x.values() if rows.shape[1])


def with_traffic(stats: EpochStats, mirrored: Mirrored | None) -> EpochStats:
    """Return ``stats`` with the traffic from the dataset's URL since the last epoch; unchanged without a URL."""
    if mirrored is None:
        return stats
    moved = mirrored.unreported()
    return replace(
        stats,
        object_requests=moved.requests,
        object_bytes=moved.num_bytes,
        object_retries=moved.retries,
        object_wait_s=moved.waited_s,
    )


def merge_stats(parts: Sequence[EpochStats]) -> EpochStats:
    """Return all ranks' summed traffic, and the slowest rank's times. Pure.

    If one rank loads for its machine, its part counts the rows of all ranks there. With private loaders each rank
    counts its own rows. The batches of all ranks in one step count as one batch.
    """
    # The part of a single rank is returned as it is.
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(EpochStats) if field.name not in ("stage_seconds", "tables")]
    values = {name: [getattr(part, name) for part in parts] for name in names}
    merged = {
        name: max(column) if name in _EQUAL_ON_RANKS + _OF_SLOWEST_RANK else sum(column)
        for name, column in values.items()
    }
    # A stage is as slow as on its slowest rank, because the other ranks wait for it in the next step.
    stages: dict[str, float] = {stage: max(part.stage_seconds[stage] for part in parts) for stage in STAGES}
    return EpochStats(stage_seconds=stages, tables=add_tables(part.tables for part in parts), **merged)
