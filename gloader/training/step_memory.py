"""The host memory of one training step, known before it is taken."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gloader.core.order import EpochOrder
from gloader.dataset.topology import FEW_BYTES, open_topology
from gloader.pipeline.transfer import to_device_block
from gloader.samplers.make import make_sampler
from gloader.training.process import private_randomness
from gloader.training.replica import logits_and_loss
from gloader.types import BatchId, Block, ReadyBatch, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.config import Autocast, SamplingSettings
    from gloader.dataset import Dataset
    from gloader.training.checkpoint.save import ModelSpec

# Batches of an epoch differ by some percent in size; the share for a step has room for more.
_PROBE_BATCHES = 3
_SAMPLE_BYTES = 2 << 20  # the least input of the step that is measured
_WEIGHTS_PER_SAMPLE = 16  # so that what has the size of the weights hardly counts
_CPU = torch.device("cpu")


def probe_batches(dataset: Dataset, sampling: SamplingSettings) -> list[SampledBatch]:
    """Return the first batches that a loader would sample, fewer where an epoch has fewer."""
    order = EpochOrder(
        seeds=dataset.train, num_nodes=dataset.num_nodes, batch_size=sampling.batch_size, seed=sampling.seed
    )
    seeds = order.epoch_seeds(0)
    with open_topology(dataset, max_bytes=FEW_BYTES) as topology:
        sampler = make_sampler(
            sampling.sampler, topology, sampling.hops, seed=sampling.seed, layout=sampling.layout
        )
        return [
            sampler.sample(BatchId(epoch=0, index=i), order.batch_seeds(seeds, i))
            for i in range(min(_PROBE_BATCHES, order.num_batches))
        ]


def step_bytes(spec: ModelSpec, batch: SampledBatch, *, autocast: Autocast = "none") -> int:
    """Return the most bytes that a forward and backward pass over ``batch`` holds beside the weights and the batch.

    A step over a much smaller batch of the same proportions is taken and measured. What a step holds grows by the
    rows and edges, except for what has the size of the weights: the gradients count in full, and once more as part
    of the smaller step, which errs on the safe side.

    Parameters
    ----------
    spec : the network
    batch : topology of the step
    autocast : precision of the forward and backward pass
    """
    # A full step here would take the memory that is still to be shared out; a small one shows its proportions.
    weights = parameter_bytes(spec)
    smaller = max(_SAMPLE_BYTES, _WEIGHTS_PER_SAMPLE * weights)
    shrunk = max(1, 4 * len(batch.nodes) * spec.in_dim // smaller)
    measured = _measure(spec, batch, autocast, shrunk=shrunk)
    return measured if shrunk == 1 else weights + shrunk * measured


def parameter_bytes(spec: ModelSpec) -> int:
    """Return the bytes of the trained weights."""
    # Sizes without memory: the network is not there yet.
    with torch.device("meta"):
        model = spec.build()
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def largest(batches: list[SampledBatch]) -> SampledBatch | None:
    """Return the batch with the most nodes and edges together; None if there is no batch."""
    return max(batches, key=_size, default=None)


def _size(batch: SampledBatch) -> int:
    return len(batch.nodes) + sum(block.num_edges for block in batch.blocks)


def _measure(spec: ModelSpec, batch: SampledBatch, autocast: Autocast, *, shrunk: int) -> int:
    with private_randomness(_CPU):
        model = spec.build()
        blocks = [_shrink(block, shrunk) for block in batch.blocks]
        num_rows, num_seeds = blocks[0].num_src, blocks[-1].num_dst
        degree = torch.ones(num_rows)
        ready = ReadyBatch(
            id=batch.id,
            x=torch.zeros(num_rows, spec.in_dim),
            y=torch.zeros(num_seeds, dtype=torch.int64),
            blocks=tuple(to_device_block(block, degree, _CPU) for block in blocks),
            nodes=batch.nodes[:num_rows],
            num_seeds=num_seeds,
        )
        # What is held beside the step is counted by the run's budget already.
        given = [ready.x, ready.y, degree, *model.parameters(), *model.buffers()]
        given += [tensor for block in ready.blocks for tensor in (block.indptr, block.indices)]
        with LiveBytes(given) as live:
            _, loss = logits_and_loss(model, ready, autocast)
            loss.backward()  # type: ignore[no-untyped-call]
    return live.peak_bytes


def _shrink(block: Block, by: int) -> Block:
    """Return a block with one ``by``-th of the nodes and edges; who neighbours whom does not matter here."""
    num_src, num_dst, num_edges = (-(-n // by) for n in (block.num_src, block.num_dst, block.num_edges))
    weight = block.edge_weight
    return replace(
        block,
        indptr=(np.arange(num_dst + 1) * num_edges // max(num_dst, 1)).astype(block.indptr.dtype),
        indices=(np.arange(num_edges) % max(num_src, 1)).astype(block.indices.dtype),
        edge_ids=block.edge_ids[:num_edges],
        num_src=num_src,
        num_dst=num_dst,
        edge_weight=None if weight is None else weight[:num_edges],
    )


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that are made inside the block and still alive.

    Works on the meta device as well, where a tensor has a size and no memory: what a computation would take is
    known without taking it.

    Parameters
    ----------
    known : tensors that exist already and do not count
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: dict[int, int] = {}  # storages and their bytes
        self._live_bytes = 0
        self._peak_bytes = 0
        for tensor in known:
            self._add(tensor, counts=False)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import its compiler, 70 MB and a second, to keep it away from this class."""
        return False

    @property
    def peak_bytes(self) -> int:
        """Most bytes that were alive at once."""
        return self._peak_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` and count what it returns."""
        del types
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                self._add(item, counts=True)
        return result

    def _add(self, tensor: torch.Tensor, *, counts: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - its identity; on the meta device the address is always 0
        # Views share a storage, which takes its memory once.
        if key in self._seen:
            return
        self._seen[key] = storage.nbytes() if counts else 0
        self._live_bytes += self._seen[key]
        self._peak_bytes = max(self._peak_bytes, self._live_bytes)
        # The bytes go when the last tensor over the storage goes, wherever autograd kept it.
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self._live_bytes -= self._seen.pop(key)
