"""The host memory of one training step, estimated before it is allocated."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gloader.core.order import RowOrder
from gloader.dataset.topology import FEW_BYTES, open_hetero_topology, open_topology
from gloader.pipeline.open.disk import SWEPT_SAMPLERS, open_files
from gloader.pipeline.open.first_batches import first_seeds, probe_in_passes
from gloader.pipeline.open.load_plan import sampler_for
from gloader.pipeline.seeds import plan_training_seeds
from gloader.pipeline.send import to_device_block
from gloader.training.model_spec import HeteroModelSpec, LinkSpec, ModelSpec
from gloader.training.process import private_randomness
from gloader.training.replica import logits_and_loss
from gloader.training.task import NODE_CLASSES
from gloader.types import (
    BatchId,
    Block,
    HeteroBatch,
    HeteroReadyBatch,
    LinkBatch,
    ReadyBatch,
    SampledBatch,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gloader.config import Autocast, LoaderSettings
    from gloader.dataset import Dataset
    from gloader.pipeline.link_task import LinkTask
    from gloader.pipeline.seeds import SeedPlan
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.training.model_spec import AnyModelSpec, EncoderSpec
    from gloader.training.task import Objective
    from gloader.types import AnyBatch, Delivered

_SAMPLE_BYTES = 2 << 20  # the smallest input of the measured step
_WEIGHTS_PER_SAMPLE = 16  # so that parts of the weights' size hardly count
_CPU = torch.device("cpu")


def probe(dataset: Dataset, seeds: SeedPlan, settings: LoaderSettings) -> list[AnyBatch]:
    """Return the first batches of a loader; fewer if an epoch has fewer.

    Parameters
    ----------
    dataset : the dataset with the edges
    seeds : of every epoch
    settings : of the loader
    """
    opener = open_hetero_topology if seeds.is_typed else open_topology
    with (
        opener(dataset, max_bytes=FEW_BYTES, times=settings.sampling.is_temporal) as topology,
        ExitStack() as stack,
    ):
        order = seeds.order
        if seeds.links is not None and isinstance(order, RowOrder):
            order = seeds.links.bind(order, topology, settings, stack, budget_bytes=FEW_BYTES).order
        sampler = sampler_for(topology, order, settings)
        first = first_seeds(order, topology, settings.sampling.fanouts, epochs=settings.stages.epochs)
        return [sampler.sample(batch_id, seeds) for batch_id, seeds in first]


def look_ahead(
    dataset: Dataset, settings: LoaderSettings, spill: SpillFolder, *, links: LinkTask | None, is_typed: bool
) -> None:
    """Sample the first batches as `probe` does; for several types, also sweep edges for them besides held edges.

    Compiles the kernels of these steps.

    Parameters
    ----------
    dataset, settings : as of `probe`
    spill : folder for the output of passes
    links : the link task of the seeds; None if they are nodes
    is_typed : whether batches have several types
    """
    seeds = plan_training_seeds(dataset, settings.sampling, is_typed=is_typed, links=links)
    probe(dataset, seeds, settings)
    order = seeds.order
    if not is_typed or settings.memory.topology != "sweep" or links is not None:
        return
    with open_hetero_topology(dataset, max_bytes=FEW_BYTES) as topology, ExitStack() as stack:
        sampler = sampler_for(topology, order, settings)
        if isinstance(sampler, SWEPT_SAMPLERS):
            rates = open_files(dataset, settings, spill, stack).rates
            batch = BatchId(epoch=0, index=0)
            first = [(batch, order.seeds_of(batch))]
            probe_in_passes(dataset, sampler, order, first, spill, rates=rates, io=settings.reading.io)


def step_bytes(
    spec: AnyModelSpec,
    batch: AnyBatch,
    *,
    autocast: Autocast = "none",
    objective: Objective = NODE_CLASSES,
) -> int:
    """Return the peak bytes of a forward and backward pass over ``batch``, without the weights and the batch.

    A step over a much smaller batch with the same proportions is run and measured. A step's memory grows with its
    rows and edges, except for parts of the weights' size: the gradients count in full, and once more as part
    of the smaller step, which errs on the safe side.

    Parameters
    ----------
    spec : the network
    batch : topology of the step, of a kind that the network accepts
    autocast : precision of the forward and backward pass
    objective : the loss
    """
    # A full step here would take memory that is not yet divided; a small one shows its proportions. Learned
    # rows are no weights here: a step holds gradients only of the rows that it uses, as many as the batch has nodes.
    weights = parameter_bytes(_with_rows(spec, {}))
    smaller = max(_SAMPLE_BYTES, _WEIGHTS_PER_SAMPLE * weights)
    shrunk = max(1, 4 * _num_inputs(spec, batch) // smaller)
    measured = _measure(spec, batch, autocast, objective, shrunk=shrunk)
    return measured if shrunk == 1 else weights + shrunk * measured


def parameter_bytes(spec: AnyModelSpec) -> int:
    """Return the bytes of the trained weights, learned rows included."""
    # Sizes without memory: the network does not exist yet.
    with torch.device("meta"):
        model = spec.build()
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def learned_row_bytes(spec: AnyModelSpec) -> int:
    """Return the bytes of trained weights that are node rows of types without features, except one row of each."""
    return parameter_bytes(spec) - parameter_bytes(_with_rows(spec, {}))


def largest(batches: Sequence[AnyBatch]) -> AnyBatch | None:
    """Return the batch with the most nodes and edges together; None without batches."""
    return max(batches, key=_size, default=None)


def _size(batch: AnyBatch) -> int:
    return sum(map(len, batch.node_arrays)) + sum(block.num_edges for block in batch.all_blocks)


def _num_inputs(spec: AnyModelSpec, batch: AnyBatch) -> int:
    """Return the number of inputs of the network's first layer, and of the decoder of pairs."""
    if isinstance(spec, LinkSpec):
        num_pairs = 0 if batch.links is None else len(batch.links.pairs)
        # Each pair has its own copies of both ends: with many drawn pairs these are most of the step.
        return _num_inputs(spec.encoder, batch) + 2 * spec.encoder.out_dim * num_pairs
    if isinstance(spec, ModelSpec):
        num_edges = sum(block.num_edges for block in batch.all_blocks)
        return spec.in_dim * sum(map(len, batch.node_arrays)) + spec.edge_dim * num_edges
    dims = spec.schema.feature_dims.values()
    width = spec.schema.learned_dim or spec.config.hidden
    return sum(len(nodes) * (dim or width) for nodes, dim in zip(batch.node_arrays, dims, strict=True))


def _with_rows(spec: AnyModelSpec, counts: Mapping[str, int]) -> AnyModelSpec:
    """Return ``spec`` with the batch's number of nodes of each type, at least one: small tables of learned rows."""
    if isinstance(spec, LinkSpec):
        return replace(spec, encoder=_encoder_with_rows(spec.encoder, counts))
    return _encoder_with_rows(spec, counts)


def _encoder_with_rows(spec: EncoderSpec, counts: Mapping[str, int]) -> EncoderSpec:
    if isinstance(spec, ModelSpec):
        return spec
    num_nodes = {name: max(1, counts.get(name, 1)) for name in spec.schema.num_nodes}
    return replace(spec, schema=replace(spec.schema, num_nodes=num_nodes))


def _measure(
    spec: AnyModelSpec, batch: AnyBatch, autocast: Autocast, objective: Objective, *, shrunk: int
) -> int:
    with private_randomness(_CPU):
        ready = _shrunk_batch(spec, batch, shrunk)
        model = _with_rows(spec, _row_counts(ready)).build()
        # The run's budget already counts memory besides the step.
        given = [*_tensors(ready), *model.parameters(), *model.buffers()]
        with LiveBytes(given) as live:
            _, loss = logits_and_loss(model, ready, autocast, objective)
            loss.backward()  # type: ignore[no-untyped-call]
    return live.peak_bytes


def _shrunk_batch(spec: AnyModelSpec, batch: AnyBatch, shrunk: int) -> Delivered:
    """Return a batch with one ``shrunk``-th of the nodes, edges and pairs, and features of zeros."""
    if isinstance(spec, LinkSpec):
        return _small_links(spec, batch, shrunk)
    if isinstance(spec, HeteroModelSpec):
        return _small_hetero_batch(spec, cast("HeteroBatch", batch), shrunk)
    return _small_batch(spec, cast("SampledBatch", batch), shrunk)


def _small_links(spec: LinkSpec, batch: AnyBatch, shrunk: int) -> LinkBatch:
    inner = _shrunk_batch(spec.encoder, batch, shrunk)
    assert not isinstance(inner, LinkBatch)  # noqa: S101 - by its spec
    links = batch.links
    num_pairs, num_positives = (
        (1, 1) if links is None else (-(-n // shrunk) for n in (len(links.pairs), links.num_positives))
    )
    dtype = torch.int64 if spec.learns == "classes" else torch.float32
    return LinkBatch(
        batch=inner,
        # The choice of pairs does not matter here.
        pairs=torch.zeros(num_pairs, 2, dtype=torch.int64),
        labels=torch.zeros(num_pairs, dtype=dtype),
        edge_ids=np.zeros(num_pairs, np.int64),
        num_positives=num_positives,
    )


def _row_counts(ready: Delivered) -> dict[str, int]:
    """Return the number of nodes of each type in a batch of several."""
    ready = ready.batch if isinstance(ready, LinkBatch) else ready
    nodes = ready.nodes if isinstance(ready, HeteroReadyBatch) else {}
    return {name: len(ids) for name, ids in nodes.items()}


def _small_batch(spec: ModelSpec, batch: SampledBatch, shrunk: int) -> ReadyBatch:
    blocks = [_shrink(block, shrunk) for block in batch.blocks]
    num_rows, num_seeds = blocks[0].num_src, blocks[-1].num_dst
    degree = torch.ones(num_rows)
    given = [to_device_block(block, degree, _CPU) for block in blocks]
    if spec.uses_edge_features:
        given = [replace(block, edge_x=torch.zeros(len(block.indices), spec.edge_dim)) for block in given]
    return ReadyBatch(
        id=batch.id,
        x=torch.zeros(num_rows, spec.in_dim),
        y=torch.zeros(num_seeds, dtype=torch.int64),
        blocks=tuple(given),
        nodes=batch.nodes[:num_rows],
        num_seeds=num_seeds,
    )


def _small_hetero_batch(spec: HeteroModelSpec, batch: HeteroBatch, shrunk: int) -> HeteroReadyBatch:
    degree = torch.empty(0)
    # All counts are divided in the same way, so that the blocks fit one another, and the rows.
    rows = {name: -(-len(ids) // shrunk) for name, ids in batch.nodes.items()}
    num_seeds = {name: -(-count // shrunk) for name, count in batch.num_seeds.items()}
    return HeteroReadyBatch(
        id=batch.id,
        x={name: torch.zeros(rows[name], dim) for name, dim in spec.schema.feature_dims.items()},
        y=torch.zeros(num_seeds[spec.schema.targets[0]], dtype=torch.int64),
        blocks=tuple(
            {key: to_device_block(_shrink(block, shrunk), degree, _CPU) for key, block in hop.items()}
            for hop in batch.blocks
        ),
        nodes={name: np.arange(count) for name, count in rows.items()},
        num_seeds=num_seeds,
    )


def _tensors(ready: Delivered) -> list[torch.Tensor]:
    """Return all tensors of ``ready``."""
    if isinstance(ready, LinkBatch):
        return [*_tensors(ready.batch), ready.pairs, ready.labels]
    if isinstance(ready, HeteroReadyBatch):
        blocks = [block for hop in ready.blocks for block in hop.values()]
        inputs = list(ready.x.values())
    else:
        blocks, inputs = list(ready.blocks), [ready.x]
    found = [tensor for block in blocks for tensor in (block.indptr, block.indices, block.src_degree)]
    told = [block.edge_x for block in blocks if block.edge_x is not None]
    return [*inputs, ready.y, *found, *told]


def _shrink(block: Block, by: int) -> Block:
    """Return a block with one ``by``-th of the nodes and edges; the neighbours themselves do not matter here."""
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

    Works on the meta device as well, with tensors that have a size and no memory: so the memory of a computation is
    known without allocating it.

    Parameters
    ----------
    known : existing tensors, which do not count
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
        """Return False: torch would import its compiler, 70 MB and a second, to exclude this class from it."""
        return False

    @property
    def peak_bytes(self) -> int:
        """Peak of the bytes alive at once."""
        return self._peak_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func`` and count its results."""
        del types
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                self._add(item, counts=True)
        return result

    def _add(self, tensor: torch.Tensor, *, counts: bool) -> None:
        if tensor.is_sparse:  # it has no storage; its parts do, and an operation makes them inside
            for part in (tensor._indices(), tensor._values()):  # noqa: SLF001 - the public names want them coalesced
                self._add(part, counts=counts)
            return
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - its identity; on the meta device the address is always 0
        # Views share a storage, which takes its memory once.
        if key in self._seen:
            return
        self._seen[key] = storage.nbytes() if counts else 0
        self._live_bytes += self._seen[key]
        self._peak_bytes = max(self._peak_bytes, self._live_bytes)
        # The bytes are released with the last tensor over the storage, even if autograd keeps it.
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self._live_bytes -= self._seen.pop(key)
