"""Correct and smooth: probabilities of classes, improved by the labels of the training nodes.

A network without edges predicts the probabilities Z. Correct: its errors at the training nodes spread along the edges,
and are added to Z. Smooth: the corrected rows, with the labels themselves at the training nodes, spread in the same way
(Huang et al., "Combining Label Propagation and Simple Models Out-performs Graph Neural Networks", ICLR 2021, sections
2.1 to 2.3). `smoothed` opens the result. Shapes: N nodes, T training nodes with a label, C classes; probabilities are
(N, C) float32.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from gloader.dataset.values import has_label
from gloader.errors import BudgetError
from gloader.plan.too_small import least_enough
from gloader.ssd_store.spill.claim import scratch_folder
from gloader.training.class_weights import plain_classes
from gloader.training.dataset_checks import require_edges, require_training_nodes
from gloader.training.evaluate import logits_in_order
from gloader.training.inference.layer_plan import FILE_BYTES
from gloader.training.inference.layer_rows import RamRows, SsdRows
from gloader.training.inference.placement import SCRATCH_PREFIX
from gloader.training.process import eager_release
from gloader.training.propagation.iterate_rows import Repeats, iterate, slab_width

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.models import GraphNetwork
    from gloader.training.inference.layer_rows import MadeRows
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.types import IdArray

    Matrix = NDArray[np.float32]
    Progress = Callable[[float], None]

# The share of a row that comes from its neighbours, in each hop of both steps: 0.8, as in the authors' program.
# With 0.5 or 0.95 the validation accuracies were lower (experiments/results/2026-11-29-correct-and-smooth.md).
SHARE: Final = 0.8
# Hops of each step. A node's row reaches others h hops away with the weight SHARE ** h, so that 1% is left at 20 hops.
# The authors take 50; the accuracies were the same.
HOPS: Final = 20
# The authors' program adds the spread errors unscaled where the scale would exceed this.
_MOST_SCALE: Final = 1000.0
# Bytes of the rows that are read at once. It does not follow from the budget, so that sums do not either.
_CHUNK_BYTES: Final = 1 << 20
_CHUNKS: Final = 6  # chunks and their temporary copies
_MATRICES: Final = 3  # matrices (N, C) that exist at the same time
# Bytes of a training node: its id and class, the sorted copies, and the sort's order.
_LABEL_BYTES: Final = 40
_LEAST: Final = float(np.finfo(np.float32).tiny)  # the logit of probability 0 is finite


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLabels:
    """The labels of the training nodes, and how they spread; those of other nodes are never read."""

    nodes: IdArray  # (T,) int64, ascending
    classes: IdArray  # (T,) int64
    num_classes: int  # C
    is_binary: bool  # whether the network has one output, the logit of class 1, instead of C
    add_self_loops: bool = True  # False if the graph stores a loop at each node

    @classmethod
    def of(cls, dataset: Dataset, *, is_binary: bool) -> TrainingLabels:
        """Return the labels of ``dataset``.

        Raises
        ------
        ConfigError
            There are no training nodes or no edges.
        """
        require_training_nodes(dataset)
        require_edges(dataset)
        nodes = np.sort(dataset.train)
        labels = dataset.labels_of(nodes)
        is_known = has_label(labels)
        return cls(
            nodes=nodes[is_known],
            classes=plain_classes(labels[is_known]),
            num_classes=2 if is_binary else dataset.num_classes,
            is_binary=is_binary,
            add_self_loops=not dataset.has_self_loops,
        )

    def probabilities(self, outputs: torch.Tensor) -> Matrix:
        """Return the probabilities (n, C) of the classes for the network's outputs (n, width). Pure."""
        if self.is_binary:
            outputs = torch.cat([-outputs, outputs], dim=1) / 2  # whose softmax is the sigmoid
        found: Matrix = outputs.softmax(dim=1).numpy()
        return found

    def logits(self, probabilities: Matrix) -> torch.Tensor:
        """Return outputs (n, width) as the network's for ``probabilities`` (n, C) that need not add up to 1. Pure."""
        logs = torch.from_numpy(probabilities).clamp(min=_LEAST).log()
        return logs[:, 1:] - logs[:, :1] if self.is_binary else logs

    def among(self, start: int, stop: int) -> tuple[IdArray, IdArray]:
        """Return (rows, classes) of the training nodes ``start`` to ``stop``; row 0 is node ``start``."""
        first, last = np.searchsorted(self.nodes, [start, stop])
        return self.nodes[first:last] - start, self.classes[first:last]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothedOutputs:
    """The improved outputs of all nodes, in the place of a network's; see `gloader.training.evaluate.Inference`."""

    rows: MadeRows  # (N, C)
    labels: TrainingLabels

    def logits(
        self,
        _network: GraphNetwork,
        nodes: IdArray,
        _on_progress: Progress = lambda _: None,
        *,
        order: IdArray | None = None,
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield position ranges and their logits, as `HeteroInference.logits` does. All work is done already."""
        for positions in _chunks(len(nodes), self.labels.num_classes):
            chosen = nodes[positions] if order is None else nodes[order[positions]]
            rows = np.empty((len(chosen), self.labels.num_classes), dtype=np.float32)
            self.rows.take(chosen, rows)
            yield positions, self.labels.logits(rows)


@contextmanager
def smoothed(
    model: GraphNetwork, inference: HeteroInference, labels: TrainingLabels, on_progress: Progress
) -> Iterator[SmoothedOutputs]:
    """Open the outputs of ``model`` for all nodes, corrected and smoothed.

    Parameters
    ----------
    model, inference : see `gloader.training.evaluate.evaluate`; the graph has one type and one relation
    labels : the labels of the training nodes
    on_progress : called with the finished share, 0 to 1

    Raises
    ------
    BudgetError
        The inference or one column of the hops does not fit the budget.
    DivergedError
        Outputs are NaN.
    SpillError
        Rows do not fit in memory, and the scratch folder cannot be made.
    """
    plan = _Plan.of(inference, num_labels=len(labels.nodes), num_classes=labels.num_classes)
    with ExitStack() as stack:
        folder = None
        if plan.is_on_disk:
            folder = stack.enter_context(scratch_folder(inference.scratch, prefix=SCRATCH_PREFIX))
        run = _Smoothing(inference=inference, labels=labels, plan=plan, folder=folder, stack=stack)
        # The matrices are freed at once, so that they leave no holes in the heap; see `predict_classes`.
        with eager_release():
            base = run.base(model, _part(on_progress, 0.0, 0.2))
            errors = _Errors(base=base, labels=labels)
            spread = run.spread("errors", errors, -1.0, _part(on_progress, 0.2, 0.6))
            guesses = _Guesses(base=base, errors=spread, labels=labels, size=errors.mean_size())
            result = run.spread("result", guesses, 0.0, _part(on_progress, 0.6, 1.0))
            base.close()
            spread.close()
        yield SmoothedOutputs(rows=result, labels=labels)


def _part(on_progress: Progress, begin: float, end: float) -> Progress:
    """Return a progress function for a part of the work."""
    return lambda share: on_progress(begin + (end - begin) * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Smoothing:
    """The steps of `smoothed`, which has the other parameters."""

    inference: HeteroInference
    labels: TrainingLabels
    plan: _Plan
    folder: Path | None  # folder for rows on the SSD; None for rows in memory
    stack: ExitStack  # closes the rows

    def base(self, model: GraphNetwork, on_progress: Progress) -> MadeRows:
        """Return Z, the network's probabilities of all nodes."""
        rows = self._open("base", num_slabs=1)
        inference = replace(self.inference, memory_budget_bytes=self.plan.part_bytes)
        outputs = logits_in_order(model, inference, self.plan.num_nodes, None, on_progress)
        rows.write_slab(slice(0, self.labels.num_classes), map(self.labels.probabilities, outputs))
        return rows

    def spread(self, name: str, first: _Errors | _Guesses, low: float, on_progress: Progress) -> MadeRows:
        """Return the rows ``first`` behind all hops, with numbers from ``low`` to 1 as in the authors' program."""
        width, budget = self.labels.num_classes, self.plan.part_bytes
        (topology,) = self.inference.graph.relations.values()
        num_slabs = -(-width // slab_width(topology, width=width, memory_budget_bytes=budget))
        rows = self._open(name, num_slabs=num_slabs)
        hops = Repeats(number=HOPS, share=SHARE, low=low, add_self_loops=self.labels.add_self_loops)
        iterate(topology, first, rows, hops, width=width, memory_budget_bytes=budget, on_progress=on_progress)
        return rows

    def _open(self, name: str, *, num_slabs: int) -> MadeRows:
        """Return rows (N, C) to be written, in memory or in a new folder ``name``."""
        num_rows, width = self.plan.num_nodes, self.labels.num_classes
        rows: MadeRows
        if self.folder is None:
            rows = RamRows(num_rows=num_rows, width=width)
        else:
            rows = SsdRows(self.folder / name, num_rows=num_rows, num_slabs=num_slabs)
        self.stack.callback(rows.close)
        return rows


def require_smoothing(
    model: GraphNetwork, inference: HeteroInference, dataset: Dataset, *, is_binary: bool
) -> None:
    """Raise BudgetError if `smoothed` does not fit the budget of ``inference``; reads nothing."""
    num_labels = dataset.labelled.split_sizes["train"]
    width = 2 if is_binary else dataset.num_classes
    (topology,) = inference.graph.relations.values()

    def attempt(budget: int) -> None:
        given = replace(inference, memory_budget_bytes=budget)
        plan = _Plan.of(given, num_labels=num_labels, num_classes=width)
        replace(given, memory_budget_bytes=plan.part_bytes).require_memory(model, num_outputs=plan.num_nodes)
        slab_width(topology, width=width, memory_budget_bytes=plan.part_bytes)

    budget = inference.memory_budget_bytes
    try:
        attempt(budget)
    except BudgetError as error:
        # The parts divide the budget, so what one part lacks is less than what the budget lacks.
        short_bytes = max(least_enough(attempt, first=0) - budget, error.short_bytes)
        raise BudgetError(error.cause, short_bytes=short_bytes) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The memory of the parts of `smoothed`."""

    num_nodes: int  # N
    is_on_disk: bool  # whether the rows of all nodes are on the SSD
    part_bytes: int  # for the network's inference, and later for the hops

    @classmethod
    def of(cls, inference: HeteroInference, *, num_labels: int, num_classes: int) -> _Plan:
        """Return the plan within the budget of ``inference``. Pure."""
        num_nodes = inference.graph.num_nodes[inference.target]
        rows = 4 * num_nodes * num_classes
        left = inference.memory_budget_bytes - _LABEL_BYTES * num_labels - _CHUNKS * min(_CHUNK_BYTES, rows)
        # Three matrices at the end: Z, the spread errors and the result. The hops' tables take as much in one slab.
        is_on_disk = _MATRICES * rows > left // 2
        held = _MATRICES * (min(FILE_BYTES, rows) if is_on_disk else rows)
        return cls(num_nodes=num_nodes, is_on_disk=is_on_disk, part_bytes=left - held)


def _chunks(num_rows: int, width: int) -> Iterator[slice]:
    """Yield consecutive ranges of ``num_rows`` rows of ``width`` floats, `_CHUNK_BYTES` each."""
    step = max(1, _CHUNK_BYTES // (4 * width))
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Errors:
    """E, the errors of the probabilities: label minus probability at a training node, 0 elsewhere (section 2.2)."""

    base: MadeRows  # Z
    labels: TrainingLabels

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Read rows ``start`` to ``stop`` into ``out``."""
        self.base.read(start, stop, out)
        rows, classes = self.labels.among(start, stop)
        errors = -out[rows]
        errors[np.arange(len(rows)), classes] += 1.0
        out[:] = 0.0
        out[rows] = errors

    def mean_size(self) -> float:
        """Return the mean over the training nodes of a row's sum of absolute numbers; 0 without training nodes."""
        nodes, width = self.labels.nodes, self.labels.num_classes
        total = 0.0
        for positions in _chunks(len(nodes), width):
            rows = np.empty((len(nodes[positions]), width), dtype=np.float32)
            self.base.take(nodes[positions], rows)
            rows[np.arange(len(rows)), self.labels.classes[positions]] -= 1.0
            total += float(np.abs(rows).sum(dtype=np.float64))
        return total / max(1, len(nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guesses:
    """G, the start of the smoothing: the label at a training node, Z plus scaled errors elsewhere (section 2.3).

    The scale gives each row of errors the size of the training nodes' errors (autoscale). The paper's other way,
    FDiff-scale, keeps the errors of the training nodes fixed in every hop, and needs the mean over the neighbours.
    """

    base: MadeRows  # Z
    errors: MadeRows  # the spread errors
    labels: TrainingLabels
    size: float  # mean size of the training nodes' errors

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Read rows ``start`` to ``stop`` into ``out``."""
        self.base.read(start, stop, out)
        errors = np.empty_like(out)
        self.errors.read(start, stop, errors)
        sizes = np.abs(errors).sum(axis=1, keepdims=True)
        is_small = sizes * np.float32(_MOST_SCALE) <= self.size  # also where nothing arrived
        scale = np.divide(self.size, sizes, out=np.ones_like(sizes), where=~is_small)
        errors *= scale
        out += errors
        rows, classes = self.labels.among(start, stop)
        out[rows] = 0.0
        out[rows, classes] = 1.0
