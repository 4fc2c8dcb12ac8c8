"""Predictions from a checkpoint, over all neighbours: labels, embeddings or scores of pairs.

`gloader infer` calls these functions. `predictions` gives named columns for every node: classes, probabilities or
values. `predict` returns the class of every node, `embed` a layer's output, and `score_pairs` the scores of given node
pairs from a model of links, which predicts edges.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gloader.config import CORRECT_AND_SMOOTH
from gloader.core.ids import node_at_id, outside
from gloader.errors import ConfigError, ShapeError
from gloader.training.correct_and_smooth import TrainingLabels, require_smoothing, smoothed
from gloader.training.dataset_checks import KIND_OF_TASK
from gloader.training.evaluate import checked_logits, logits_in_order, predict_classes
from gloader.training.link_prediction import SCORING_SHARE, pair_scorer
from gloader.training.model_spec import LinkSpec
from gloader.training.open_model import open_model, require_no_triples
from gloader.training.process import eager_release
from gloader.training.table_inference import open_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.dataset.tables import NodeTable
    from gloader.dataset.values import LabelKind
    from gloader.training.checkpoint.save import Checkpoint
    from gloader.training.evaluate import Inference
    from gloader.training.open_model import OpenedModel
    from gloader.training.run_inference import MachineRows
    from gloader.types import IdArray

    Progress = Callable[[float], None]
    Content = Literal["classes", "probabilities", "values"]


def predict(
    dataset: Dataset,
    checkpoint: Checkpoint,
    *,
    memory_budget_bytes: int | None = None,
    device: str | torch.device = "cpu",
    scratch: Path | None = None,
    on_progress: Progress = lambda _: None,
    rows: MachineRows | None = None,
) -> IdArray:
    """Return the most likely class of each node of the labelled type, (N,) int64, over all neighbours.

    Nodes are in the order of ``dataset``, like its labels and splits. A dataset may have another node order than its
    source; `Dataset.in_original_order` converts the result to the source's order.

    Parameters
    ----------
    dataset : dataset with the nodes
    checkpoint : the network, with its best weights
    memory_budget_bytes : budget for all memory, the topology included; defaults to half the free memory
    device : the compute device
    scratch : folder for activations that do not fit; defaults to the system's temporary folder
    on_progress : called with the finished share, 0 to 1
    rows : readers of all machines' rows if each machine has a part; otherwise None

    Raises
    ------
    ConfigError
        The checkpoint does not predict classes, or other machines hold some rows and ``rows`` is None.
    CheckpointError
        The checkpoint belongs to a dataset with other types, relations, features or classes.
    BudgetError
        The budget is too small.
    """
    if kind_of_checkpoint(checkpoint) != "classes":
        raise ConfigError(
            f"the checkpoint is of the task {checkpoint.task}, and predicts no classes; gloader infer writes what it "
            "predicts"
        )
    require_no_table(checkpoint)
    with _open_outputs(
        dataset,
        checkpoint,
        budget_bytes=memory_budget_bytes,
        device=device,
        scratch=scratch,
        on_progress=on_progress,
        rows=rows,
    ) as (opened, outputs):
        all_nodes = np.arange(dataset.labelled.num_nodes, dtype=np.int64)
        return predict_classes(opened.model, outputs, all_nodes, on_progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Predicted columns for all nodes of the labelled type, or for all rows of a task table."""

    num_nodes: int  # or rows
    content: Content
    # Names of the columns, such as "class", "probability", or "probability_" with the name of a class or label.
    names: tuple[str, ...]
    class_names: (
        tuple[str, ...] | None
    )  # names of the predicted classes; None without names, or for other columns
    # Consecutive rows (., columns), in the order of the nodes' original ids, or of the table: int64 classes, float32
    # otherwise.
    chunks: Iterator[NDArray[Any]]

    @property
    def is_flat(self) -> bool:
        """True if a node has one number, so that an array of all nodes is (N,)."""
        return self.names in (("class",), ("probability",))


@contextmanager
def predictions(
    dataset: Dataset,
    checkpoint: Checkpoint,
    *,
    probabilities: bool = False,
    memory_budget_bytes: int | None = None,
    device: str | torch.device = "cpu",
    scratch: Path | None = None,
    on_progress: Progress = lambda _: None,
    rows: MachineRows | None = None,
) -> Iterator[Predictions]:
    """Open the predictions for all nodes of the labelled type, over all neighbours.

    These are the most likely class of each node, the probabilities of label 1 (binary, multilabel), or values
    (regression). The computation starts when the first chunk is requested. Of a checkpoint of correct-and-smooth, both
    steps follow the network, with the labels of the dataset's training nodes; they are computed before the block.

    Parameters
    ----------
    dataset, checkpoint, memory_budget_bytes, device, scratch, on_progress, rows : see `predict`
    probabilities : whether the probability of every class is predicted instead of the most likely class

    Raises
    ------
    ConfigError
        The checkpoint predicts links or values, which have no probabilities.
    DivergedError
        Outputs are NaN; raised by the chunks, behind the last one without NaN.
    CheckpointError, BudgetError
        See `predict`.
    """
    kind = kind_of_checkpoint(checkpoint)
    content = _content_of(kind, probabilities=probabilities)
    require_no_table(checkpoint)
    table = dataset.labelled
    with _open_outputs(
        dataset,
        checkpoint,
        budget_bytes=memory_budget_bytes,
        device=device,
        scratch=scratch,
        on_progress=on_progress,
        rows=rows,
    ) as (opened, outputs):
        chunks = logits_in_order(opened.model, outputs, table.num_nodes, table.original_ids, on_progress)
        with eager_release(), closing(chunks):
            yield Predictions(
                num_nodes=table.num_nodes,
                content=content,
                names=_column_names(content, kind, dataset.label_names, opened.encoder.out_dim),
                class_names=dataset.label_names if content == "classes" else None,
                chunks=(_predicted(chunk, kind, probabilities=probabilities) for chunk in chunks),
            )


@contextmanager
def row_predictions(
    dataset: Dataset,
    checkpoint: Checkpoint,
    table: str,
    *,
    probabilities: bool = False,
    memory_budget_bytes: int | None = None,
    device: str | torch.device = "cpu",
    scratch: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> Iterator[Predictions]:
    """Open the predictions for all rows of a task table, in the table's order.

    They are those of `predictions`. A row with a time has a sampled tree of its own, with the fan-outs of the training:
    the predictions are those of an evaluation. Rows without times are predicted over all neighbours.

    Parameters
    ----------
    dataset, checkpoint, probabilities, memory_budget_bytes, device, scratch, on_progress : see `predictions`
    table : the task table, such as "churn.test"; its rows need no labels

    Raises
    ------
    ConfigError
        There is no such table, its rows are of another type than the network's, they have no times and the training
        rows had, or the checkpoint learned no table. Or as `predictions`.
    DivergedError, CheckpointError, BudgetError
        See `predictions`.
    """
    kind = kind_of_checkpoint(checkpoint)
    content = _content_of(kind, probabilities=probabilities)
    rows = dataset.task_table(table)
    encoder = checkpoint.spec.encoder
    if checkpoint.table is None or rows.node_type != encoder.schema.targets[0]:
        of = "nodes" if checkpoint.table is None else f"table {checkpoint.table!r}"
        raise ConfigError(
            f"the checkpoint predicts {of}, of type {encoder.schema.targets[0]!r}, and table {rows.name!r} has rows of "
            f"type {rows.node_type!r}; give a checkpoint that learned such rows with --table"
        )
    # Rows to predict may have no labels, and then no names. The training rows have the same classes and columns.
    learned = dataset.task_tables.get(f"{checkpoint.table}.train", rows)
    label_names = rows.label_names or learned.label_names
    with open_rows(
        dataset, checkpoint, rows, budget_bytes=memory_budget_bytes, device=device, scratch=scratch
    ) as (model, inference):
        numbers = np.arange(rows.num_rows, dtype=np.int64)
        chunks = checked_logits(model, inference, numbers, on_progress)
        with eager_release(), closing(chunks):
            yield Predictions(
                num_nodes=rows.num_rows,
                content=content,
                names=_column_names(content, kind, label_names, encoder.out_dim),
                class_names=label_names if content == "classes" else None,
                chunks=(_predicted(chunk, kind, probabilities=probabilities) for _, chunk in chunks),
            )


def require_no_table(checkpoint: Checkpoint) -> None:
    """Raise ConfigError if the network learned the rows of a task table, so that nodes alone are not its input."""
    if checkpoint.table is not None:
        raise ConfigError(
            f"the checkpoint learned the rows of table {checkpoint.table!r}: predict the rows of a table, such as "
            f"gloader infer --table {checkpoint.table}.test, or in Python row_predictions(...)"
        )


def _content_of(kind: LabelKind, *, probabilities: bool) -> Content:
    """Return what is predicted; ConfigError for probabilities of values. Pure."""
    if probabilities and kind == "values":
        raise ConfigError(
            "the checkpoint predicts values, which have no probabilities; leave probabilities=True out"
        )
    return kind if kind == "values" or (kind == "classes" and not probabilities) else "probabilities"


@contextmanager
def _open_outputs(
    dataset: Dataset, checkpoint: Checkpoint, *, on_progress: Progress, **place: Any
) -> Iterator[tuple[OpenedModel, Inference]]:
    """Open the network, and the outputs of all nodes of the labelled type, behind the step that follows the network.

    Parameters
    ----------
    dataset, checkpoint, on_progress : see `predict`
    place : budget_bytes, device, scratch and rows of `open_model`
    """
    table, is_binary = dataset.labelled, kind_of_checkpoint(checkpoint) == "binary"
    is_smoothed = uses_training_labels(checkpoint)
    labels = TrainingLabels.of(dataset, is_binary=is_binary) if is_smoothed else None

    def require(opened: OpenedModel) -> None:
        opened.require_memory(node_type=table.name, num_outputs=table.num_nodes)
        if is_smoothed:
            require_smoothing(opened.model, opened.inference, dataset, is_binary=is_binary)

    with open_model(dataset, checkpoint, require=require, **place) as opened:
        if labels is None:
            yield opened, opened.inference
            return
        with smoothed(opened.model, opened.inference, labels, on_progress) as outputs:
            yield opened, outputs


def uses_training_labels(checkpoint: Checkpoint) -> bool:
    """Return whether predictions with a checkpoint read the labels of a dataset's training nodes. Pure."""
    return checkpoint.spec.encoder.config.name == CORRECT_AND_SMOOTH


def kind_of_checkpoint(checkpoint: Checkpoint) -> LabelKind:
    """Return the kind of the labels that a checkpoint predicts; ConfigError if it predicts links. Pure."""
    require_no_triples(checkpoint)
    if isinstance(checkpoint.spec, LinkSpec) or checkpoint.task not in KIND_OF_TASK:
        raise ConfigError(
            "the checkpoint predicts links, and knows no classes of nodes: ask for embeddings, or for scores of pairs"
        )
    return KIND_OF_TASK[checkpoint.task]


def _column_names(
    content: Content, kind: LabelKind, names: tuple[str, ...] | None, width: int
) -> tuple[str, ...]:
    """Return the names of the predicted columns. Pure.

    Parameters
    ----------
    content, kind : the predicted numbers, and the kind of the learned labels
    names : the names of the classes or label columns, if there are some
    width : number of the network's outputs
    """
    if content == "classes":
        return ("class",)
    stem = "value" if content == "values" else "probability"
    if kind == "binary" or (kind == "values" and width == 1):
        return (stem,)
    if names is None or len(names) != width:
        names = tuple(map(str, range(width)))
    return tuple(f"{stem}_{name}" for name in names)


def _predicted(logits: torch.Tensor, kind: LabelKind, *, probabilities: bool) -> NDArray[Any]:
    """Return the predicted rows for the network's outputs (m, width): (m, columns). Pure."""
    if kind == "values":
        return logits.numpy()
    if kind == "classes":
        return (logits.softmax(dim=1) if probabilities else logits.max(dim=1, keepdim=True).indices).numpy()
    return logits.sigmoid().numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """A layer's output for all nodes of a type."""

    num_nodes: int
    width: int
    # Consecutive rows (., width), in the order of the nodes' original ids.
    chunks: Iterator[NDArray[np.float32]]


@contextmanager
def embed(  # noqa: PLR0913 - what is computed, from what, and within which bounds
    dataset: Dataset,
    checkpoint: Checkpoint,
    *,
    layer: int | None = None,
    node_type: str | None = None,
    memory_budget_bytes: int | None = None,
    device: str | torch.device = "cpu",
    scratch: Path | None = None,
    on_progress: Progress = lambda _: None,
    rows: MachineRows | None = None,
) -> Iterator[Embeddings]:
    """Open a layer's output for all nodes of a type, over all neighbours.

    The computation starts when the first chunk is requested. The output is taken before the batch norm and the
    activation that follow the layer.

    Parameters
    ----------
    dataset, checkpoint, memory_budget_bytes, device, scratch, on_progress, rows : see `predict`
    layer : number of the layer, from 1 (next to the features) to L; None means L. For links, layer L gives the
        embeddings
    node_type : node type; defaults to the labelled type, or to the links' end type

    Raises
    ------
    ConfigError
        There is no such type or layer, the layer computes no rows of this type because they would not reach the output,
        or the ends of links have two types and ``node_type`` is None.
    CheckpointError, BudgetError
        See `predict`.
    """
    name = embedded_type(dataset, checkpoint) if node_type is None else node_type
    if name not in dataset.node_tables:
        raise ConfigError(
            f"{dataset.location} has no node type {name!r}; there are {', '.join(map(repr, dataset.node_types))}"
        )
    table = dataset.node_tables[name]

    def require(opened: OpenedModel) -> None:
        depth = len(opened.encoder.layers) if layer is None else layer
        _require_made(opened.encoder, name, depth)
        opened.require_memory(node_type=name, layer=depth)

    with open_model(
        dataset,
        checkpoint,
        budget_bytes=memory_budget_bytes,
        device=device,
        scratch=scratch,
        rows=rows,
        require=require,
    ) as opened:
        model = opened.encoder
        layer = len(model.layers) if layer is None else layer
        all_nodes = np.arange(table.num_nodes, dtype=np.int64)
        order = node_at_id(table.original_ids)
        chunks = opened.activations(name, layer, all_nodes, order=order, on_progress=on_progress)
        with eager_release(), closing(chunks):
            yield Embeddings(
                num_nodes=table.num_nodes,
                width=model.layers[layer - 1].out_dim,
                chunks=(chunk.numpy() for _, chunk in chunks),
            )


def embedded_type(dataset: Dataset, checkpoint: Checkpoint) -> str:
    """Return the default node type for `embed`. Raises ConfigError if links have two end types."""
    if not isinstance(checkpoint.spec, LinkSpec):
        return dataset.labelled.name if checkpoint.table is None else checkpoint.spec.schema.targets[0]
    source, destination = checkpoint.spec.ends
    if source != destination:
        raise ConfigError(
            f"the links lead from type {source!r} to {destination!r}: choose one of these types for the embeddings"
        )
    return source


def _require_made(model: Any, node_type: str, layer: int) -> None:
    """Raise ConfigError if there is no such layer (1 to L), or if it computes no rows of the type."""
    layers = range(1, len(model.layers) + 1)
    if layer not in layers:
        raise ConfigError(f"layer is {layer}; the network has the layers 1 to {len(layers)}")
    computing = [number for number in layers if node_type in model.layers[number - 1].types]
    if layer not in computing:
        allowed = f"allowed: {', '.join(map(str, computing))}" if computing else "no other layer does either"
        raise ConfigError(
            f"layer {layer} computes no rows of type {node_type!r}: they would not reach the classes of "
            f"{model.targets[0]!r}; {allowed}"
        )


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
    """Return each pair's score over all neighbours, (n,) float32, or (n, C) for C classes.

    Parameters
    ----------
    dataset, checkpoint, memory_budget_bytes, device, scratch, on_progress, rows : see `predict`
    pairs : (n, 2) sources and destinations, by their ids in the dataset's source

    Raises
    ------
    ConfigError
        The checkpoint predicts labels of nodes.
    ShapeError
        ``pairs`` has another shape or dtype, or contains ids of missing nodes.
    CheckpointError, BudgetError
        See `predict`.
    """
    spec = checkpoint.spec
    if not isinstance(spec, LinkSpec):
        raise ConfigError("the checkpoint predicts labels of nodes, and scores no pairs")
    ids = checked_pairs(pairs)
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
            _dataset_ids(dataset.node_tables[name], column)
            for name, column in zip(spec.ends, ids.T, strict=True)
        )
        budget = int(SCORING_SHARE * opened.inference.memory_budget_bytes)
        with pair_scorer(
            opened.model, opened.inference, spec, budget_bytes=budget, on_progress=on_progress
        ) as scorer:
            step = scorer.rows_per_call()
            scores = [
                scorer.score(sources[start : start + step], destinations[start : start + step])
                for start in range(0, len(sources), step)
            ]
    return np.concatenate([np.empty((0, *scores[0].shape[1:]) if scores else 0, np.float32), *scores])


def checked_pairs(pairs: Any) -> IdArray:
    """Return ``pairs`` as (n, 2) int64. Raises ShapeError for another shape or a dtype that has no integers."""
    array = np.asarray(pairs)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        advice = ", as .T makes it" if array.shape[:1] == (2,) else ""
        raise ShapeError(
            f"pairs are {array.dtype} of shape {array.shape}; they must be whole numbers, (n, 2){advice}"
        )
    return array.astype(np.int64)


def _dataset_ids(table: NodeTable, ids: IdArray) -> IdArray:
    """Return the dataset's node numbers (n,) for ids (n,) from its source. Raises ShapeError for missing nodes."""
    wrong = outside(ids, table.num_nodes)
    if len(wrong):
        raise ShapeError(
            f"nodes of type {table.name!r} are 0..{table.num_nodes - 1}; these pairs name {wrong[:5].tolist()}"
        )
    node = node_at_id(table.original_ids)
    return np.ascontiguousarray(ids) if node is None else node[ids]
