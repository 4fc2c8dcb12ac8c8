"""Outputs of a network for the rows of a task table, which is a set of rows to predict: a node, and perhaps a time.

A row with a time sees only what is older, so two rows of one node have different outputs, and layer-wise inference,
which computes a node once, does not apply. `RowInference` samples a tree for each row instead, as training does, with
the run's fan-outs. Rows without times are nodes: `NodeRowInference` computes them layer by layer over all neighbours.
Both have the method `logits` of `HeteroInference`. `open_rows` opens a checkpoint's network and one of the two.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader.config import LoaderSettings, SamplingSettings
from gloader.errors import BudgetError, ConfigError
from gloader.loader import HeteroLoader, Loader
from gloader.observe.peak_memory import release_freed_memory
from gloader.pipeline.open.load_plan import LoadRequest, plan_load
from gloader.pipeline.seeds import plan_training_seeds
from gloader.plan.available import default_budget_bytes
from gloader.plan.too_small import naming_enough
from gloader.training.embeddings import open_saved
from gloader.training.open_model import open_model, require_fit
from gloader.training.step_memory import largest, probe, step_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    from gloader.dataset import Dataset
    from gloader.dataset.task_table import TaskTable
    from gloader.loader.node_embedding import FrozenEmbedding
    from gloader.models import GraphNetwork
    from gloader.pipeline.seeds import SeedPlan
    from gloader.training.checkpoint.save import Checkpoint
    from gloader.training.evaluate import Inference
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.training.model_spec import EncoderSpec
    from gloader.types import IdArray

# Rows that are read at once, so that temporary arrays stay small.
_STEP_ROWS: Final = 1 << 16
_WEIGHT_COPIES: Final = 2  # one in the checkpoint, one in the network
_ROW_BYTES: Final = 8  # the number of a row
_SEED: Final = 0  # of the trees of evaluated rows: runs with other seeds are compared on the same trees


@dataclass(frozen=True, kw_only=True)
class RowInference:
    """The outputs for a table's rows, each with its own sampled tree, batch by batch.

    The batches have the rows in the table's order and the address of epoch 0, so every call draws the same trees.

    Parameters
    ----------
    dataset : the graph and its features
    table : the rows
    spec : the network's specification
    settings : a loader's settings, of `evaluated_settings` for the table
    memory_budget_bytes : host memory for a loader and for a forward pass
    forward_bytes : bytes of a forward pass over a batch, see `forward_bytes_of`
    embeddings : trained rows by type, which are not trained here
    """

    dataset: Dataset
    table: TaskTable
    spec: EncoderSpec
    settings: LoaderSettings
    memory_budget_bytes: int
    forward_bytes: int
    embeddings: Mapping[str, FrozenEmbedding] = field(default_factory=dict)

    def require_memory(self, model: Any) -> None:
        """Raise BudgetError if a loader of the rows does not fit; reads edges, and samples a few batches."""
        del model  # `forward_bytes` has what a forward pass takes
        left = self.memory_budget_bytes - self.forward_bytes
        if left <= 0:
            raise BudgetError(
                f"an evaluation of the rows of table {self.table.name!r} has no memory left for its batches",
                short_bytes=1 - left,
            )
        with ExitStack() as stack:
            settings = self.settings.changed(memory_budget=left)
            seeds = _seeds_of(self.dataset, self.table, self.spec, settings)
            request = LoadRequest(dataset=self.dataset, seeds=seeds, settings=settings)
            try:
                plan_load(request, stack, budget_bytes=left)
            except BudgetError as error:
                raise BudgetError(
                    f"an evaluation of the rows of table {self.table.name!r} opens a loader of its own: {error.cause}",
                    short_bytes=error.short_bytes,
                ) from error

    def logits(
        self,
        network: GraphNetwork,
        rows: IdArray,
        on_progress: Callable[[float], None] = lambda _: None,
        *,
        order: IdArray | None = None,  # noqa: ARG002 - rows come in the table's order
    ) -> Generator[tuple[slice, torch.Tensor]]:
        """Yield position ranges and their logits, (., width), for ``rows`` (n,), ascending numbers of table rows.

        The network computes in evaluation mode. Its mode is restored afterwards.

        Parameters
        ----------
        network : the network, on its device
        rows : (n,) int64
        on_progress : called with the finished share, 0 to 1
        order : not used

        Raises
        ------
        BudgetError
            The budget is too small for a loader.
        """
        kind: Any = HeteroLoader if self.spec.has_types else Loader
        settings = self.settings.changed(
            memory_budget=max(self.memory_budget_bytes - self.forward_bytes, 1),
            device=str(next(network.parameters()).device),
        )
        given = {"embeddings": self.embeddings} if self.embeddings else {}
        was_training = network.training
        network.eval()
        try:
            with (
                torch.no_grad(),
                kind.from_settings(self.dataset, settings, table=self.table.name, **given) as loader,
            ):
                start = 0
                for batch in loader:
                    outputs = network(batch).float().cpu()
                    first, last = np.searchsorted(rows, (start, start + len(outputs)))
                    if last > first:
                        yield slice(int(first), int(last)), outputs[rows[first:last] - start]
                    start += len(outputs)
                    on_progress((batch.id.index + 1) / len(loader))
        finally:
            network.train(was_training)
            release_freed_memory()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRowInference:
    """The outputs for a table's rows without times: those of their nodes, over all neighbours."""

    inference: HeteroInference
    nodes: IdArray  # (n,) the node of each row of the table

    @classmethod
    def of(cls, table: TaskTable, inference: HeteroInference) -> NodeRowInference:
        """Return the inference of a table's rows. Reads the nodes, whose bytes are taken off the budget."""
        nodes = np.concatenate(list(column_parts(table, "nodes")))
        left = inference.memory_budget_bytes - nodes.nbytes
        return cls(inference=replace(inference, memory_budget_bytes=left), nodes=nodes)

    def require_memory(self, model: Any) -> None:
        """Raise BudgetError if the layers of ``model`` do not fit."""
        self.inference.require_memory(model, num_outputs=len(self.nodes))

    def logits(
        self,
        network: GraphNetwork,
        rows: IdArray,
        on_progress: Callable[[float], None] = lambda _: None,
        *,
        order: IdArray | None = None,
    ) -> Any:
        """Yield position ranges and their logits, (., width), for ``rows`` (n,); see `HeteroInference.logits`."""
        return self.inference.logits(network, self.nodes[rows], on_progress, order=order)


def evaluated_settings(settings: LoaderSettings, table: TaskTable, *, batch_size: int) -> LoaderSettings:
    """Return the settings of a loader of one process that evaluates rows: in order, once, with all that fits. Pure.

    Parameters
    ----------
    settings : the settings of the training's loader
    table : the evaluated rows
    batch_size : the rows of a training step on all ranks together. Draws depend on a row's place in its batch, so this
        size makes results independent of the number of ranks
    """
    return settings.changed(
        batch_size=min(batch_size, table.num_rows),  # a loader refuses batches larger than the table
        seed=_SEED,
        shuffle=False,
        drop_last=False,
        epochs=1,
        trace=False,
        rank=0,
        world_size=1,
        sharing="private",
        # The training's loader keeps its memory. This loader takes what its own part of the budget allows.
        features="auto",
        topology="auto",
        cache=None,
        device_cache=0,
    )


def forward_bytes_of(dataset: Dataset, table: TaskTable, spec: EncoderSpec, settings: LoaderSettings) -> int:
    """Return a bound on the bytes of a forward pass over a batch. Reads edges, and samples a few batches.

    Parameters
    ----------
    dataset, table, spec, settings : see `RowInference`
    """
    batch = largest(probe(dataset, _seeds_of(dataset, table, spec, settings), settings))
    # A forward pass holds no gradients, so the bytes of a whole step are a bound.
    return 0 if batch is None else step_bytes(spec, batch)


def _seeds_of(dataset: Dataset, table: TaskTable, spec: EncoderSpec, settings: LoaderSettings) -> SeedPlan:
    """Return the rows as a loader's seeds, for a plan."""
    return plan_training_seeds(dataset, settings.sampling, are_named=spec.has_types, table=table.name)


def column_parts(table: TaskTable, name: str) -> Iterator[Any]:
    """Yield a column of a table's rows, (.,) or (., k), in order: "nodes", "times", "labels" or "weights"."""
    with table.open(max_bytes=0) as rows:
        for start in range(0, table.num_rows, _STEP_ROWS):
            ids = np.arange(start, min(start + _STEP_ROWS, table.num_rows))
            yield rows.read(ids, names=(name,))[name]


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
        with open_model(
            dataset,
            checkpoint,
            budget_bytes=budget_bytes,
            device=device,
            scratch=scratch,
            require=lambda opened: NodeRowInference.of(table, opened.inference).require_memory(opened.model),
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

    def within(budget: int, embeddings: Mapping[str, FrozenEmbedding] | None = None) -> RowInference:
        found = RowInference(
            dataset=dataset,
            table=table,
            spec=checkpoint.spec.encoder,
            settings=settings,
            memory_budget_bytes=budget - beside,
            forward_bytes=forward_bytes,
            embeddings=embeddings or {},
        )
        found.require_memory(model)
        return found

    with ExitStack() as stack:
        embeddings = open_saved(checkpoint, dataset, stack)
        try:
            inference = within(given, embeddings)
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
