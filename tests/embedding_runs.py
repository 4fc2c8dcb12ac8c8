"""A driver of `EmbeddingRows` without the pipeline: three threads over given batches, beside torch's own embedding."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gloader.core.signals import Cancellation
from gloader.errors import ChannelClosedError
from gloader.pipeline.embedding_optimizers import Adagrad, RowwiseAdagrad, SparseAdam
from gloader.pipeline.embedding_rows import EmbeddingRows
from gloader.pipeline.superbatch import OrderedRows
from gloader.pipeline.threads import Channel
from gloader.ssd_store.embedding.embedding_record import record_names
from gloader.ssd_store.embedding.embedding_table import EmbeddingTable
from gloader.ssd_store.embedding.initial_rows import InitialRows
from gloader.ssd_store.embedding.row_pieces import least_staging_bytes
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.spill.folder import SpillFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.pipeline.embedding_optimizers import RowOptimizer


def ordered(rows: NDArray[np.int64]) -> OrderedRows:
    """Return a batch's rows, which may repeat, in ascending order."""
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    is_first = np.concatenate([[True], ascending[1:] != ascending[:-1]])[: len(rows)]
    first = order[is_first]
    repeats = None
    if not is_first.all():
        repeats = np.stack([order[~is_first], first[(np.cumsum(is_first) - 1)[~is_first]]])
    return OrderedRows(rows=rows, ascending=ascending[is_first], order=first, repeats=repeats)


def gradient(batch: int, leaf: torch.Tensor) -> torch.Tensor:
    """Return a gradient that depends on the batch's address and on the weights, so that an old version shows."""
    noise = torch.from_numpy(np.random.default_rng(batch).standard_normal(tuple(leaf.shape), np.float32))
    return noise + leaf.detach() * 0.5


def run(
    rows: EmbeddingRows,
    batches: Sequence[NDArray[np.int64]],
    *,
    superbatch: int,
    start: int = 0,
    stop: int | None = None,
    lookahead: bool = True,
    between: Callable[[int], object] = lambda batch: None,
    skipped: Sequence[int] = (),
    ahead: int = 3,
) -> None:
    """Train the batches ``start:stop`` in three threads; raise the first error of any thread.

    Loads run up to ``ahead`` batches ahead of the steps. ``between`` is called before each batch's step.
    """
    numbers = list(range(start, len(batches)))
    plans = [numbers[at : at + superbatch] for at in range(0, len(numbers), superbatch)]
    staged: Channel[Any] = Channel(1)
    loaded: Channel[Any] = Channel(ahead)
    cancellation = Cancellation()
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None], *outs: Channel[Any]) -> Callable[[], None]:
        def body() -> None:
            error: BaseException | None = None
            try:
                work()
            except ChannelClosedError:
                pass
            except BaseException as caught:
                error = caught
                errors.append(caught)
            for out in outs:
                out.close(error)

        return body

    def stage() -> None:
        for number, plan in enumerate(plans):
            after = plans[number + 1] if lookahead and number + 1 < len(plans) else []
            planned = rows.planner.plan(
                [np.unique(batches[b]) for b in plan], [np.unique(batches[b]) for b in after]
            )
            staged.put((rows.stage(planned, cancellation=cancellation), plan))

    def load() -> None:
        while True:
            each, plan = staged.get()
            for index, batch in enumerate(plan):
                loaded.put(
                    (batch, rows.load(each, index, ordered(batches[batch]), cancellation=cancellation))
                )

    threads = [
        threading.Thread(target=guarded(stage, staged), daemon=True),
        threading.Thread(target=guarded(load, loaded), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(start, len(batches) if stop is None else stop):
            try:
                batch, slots = loaded.get()
            except ChannelClosedError:
                break
            between(batch)
            leaf = rows.leaf(slots)
            rows.step(slots, None if batch in skipped else gradient(batch, leaf))
    finally:
        cancellation.set()
        rows.cancel()
        staged.cancel()
        loaded.cancel()
        for thread in threads:
            thread.join(30)
    if errors:
        raise errors[0]


def mean_of_squares(values: NDArray[np.float32]) -> np.float32:
    """Return the mean of squares of a row, added in the order of `RowwiseAdagrad`."""
    whole = len(values) // 8 * 8
    lanes = np.zeros(8, np.float32)
    for block in values[:whole].reshape(-1, 8):
        lanes += block * block
    total = np.float32(0)
    for square in [*lanes, *(values[whole:] ** 2)]:
        total += square
    return total / np.float32(len(values))


@dataclass
class Oracle:
    """The same training by `torch.nn.Embedding`."""

    weights: torch.Tensor  # (N, D), the first weights
    optimizer: RowwiseAdagrad | Adagrad | SparseAdam
    num_steps: int = 0
    state: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.embedding = torch.nn.Embedding.from_pretrained(self.weights.clone(), freeze=False, sparse=True)
        settings = {key: value for key, value in self.optimizer.facts().items() if key != "name"}
        parameters = [self.embedding.weight]
        self.torch: Any = None
        if isinstance(self.optimizer, Adagrad):
            self.torch = torch.optim.Adagrad(parameters, **settings)
        elif isinstance(self.optimizer, SparseAdam):
            self.torch = torch.optim.SparseAdam(parameters, **settings)
        self.state = torch.zeros(len(self.weights), 1)

    def step(self, batch: int, rows: NDArray[np.int64]) -> None:
        """Train one batch."""
        leaf = self.embedding(torch.from_numpy(rows))
        grad = gradient(batch, leaf)
        self.num_steps += 1
        self.embedding.zero_grad()
        leaf.backward(grad)
        if self.torch is not None:
            self.torch.step()
            return
        summed = self.embedding.weight.grad.coalesce()
        weights, state = self.embedding.weight.detach().numpy(), self.state.numpy()
        lr, eps = np.float32(self.optimizer.lr), np.float32(self.optimizer.eps)
        for row, values in zip(summed.indices()[0].numpy(), summed.values().numpy(), strict=True):
            state[row, 0] += mean_of_squares(values)
            weights[row] -= lr / (np.sqrt(state[row, 0]) + eps) * values

    @property
    def result(self) -> NDArray[np.float32]:
        """The weights (N, D)."""
        return self.embedding.weight.detach().numpy()


@contextmanager
def opened(
    folder: Path,
    optimizer: RowOptimizer,
    *,
    num_rows: int,
    dim: int,
    capacity: int,
    depth: int = 3,
    staging_bytes: int | None = None,
    spill_bytes: int | None = 1 << 24,
    os_io: OsIO = REAL_OS,
    spill_io: OsIO = REAL_OS,
    record: str | None = None,
) -> Iterator[EmbeddingRows]:
    """Open the table ``folder`` if there is one, else create it, and yield its rows.

    By default the memory for waiting rows is the least, so that rows are spilled.
    """
    initial = InitialRows(seed=1, dim=dim, kind="uniform", scale=0.1, state=optimizer.initial_state(dim))
    staging_bytes = least_staging_bytes(initial.width) if staging_bytes is None else staging_bytes
    with ExitStack() as stack:
        if folder.is_dir() and record_names([path.name for path in folder.iterdir()]):
            table = EmbeddingTable.open(folder, record=record, os_io=os_io)
        else:
            table = EmbeddingTable.create(
                folder,
                num_rows=num_rows,
                initial=initial,
                facts={"optimizer": optimizer.facts()},
                os_io=os_io,
            )
        stack.callback(table.close)
        table.resize_buffer(40)
        spill = None
        if spill_bytes is not None:
            spill = stack.enter_context(SpillFolder(folder.parent, budget_bytes=spill_bytes, os_io=spill_io))
        rows = EmbeddingRows(
            table, optimizer, capacity=capacity, depth=depth, spill=spill, staging_bytes=staging_bytes
        )
        stack.callback(rows.close)
        yield rows


def first_weights(num_rows: int, dim: int) -> torch.Tensor:
    """Return the weights of rows that were never trained, as `opened` makes them."""
    initial = InitialRows(seed=1, dim=dim, kind="uniform", scale=0.1, state=())
    weights = np.empty((num_rows, dim), np.float32)
    initial.fill(np.arange(num_rows), weights)
    return torch.from_numpy(weights)
