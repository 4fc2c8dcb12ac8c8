"""The host memory of one training step, estimated before the run begins.

`RunLoader` calls this module to divide the memory budget. `probe` samples a loader's first batches, and `largest`
chooses one. `step_bytes` trains on a much smaller batch with the same proportions, counts the bytes of all tensors
(`LiveBytes`), and scales the result.

A node type without features has learned rows: one trained vector per node, a part of the weights.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gloader.core.order import RowOrder
from gloader.dataset.topology import FEW_BYTES
from gloader.pipeline.open.disk import SWEPT_SAMPLERS, open_edges, open_files
from gloader.pipeline.open.first_batches import first_seeds, probe_in_passes
from gloader.pipeline.open.load_plan import sampler_for
from gloader.pipeline.send import to_device_block
from gloader.training.model_spec import KnowledgeSpec, LinkSpec, ModelSpec
from gloader.training.objectives import NODE_CLASSES
from gloader.training.process import private_randomness
from gloader.training.replica import logits_and_loss
from gloader.types import BatchId, HeteroReadyBatch, LinkBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gloader.config import Autocast, LoaderSettings
    from gloader.dataset import Dataset
    from gloader.models import Schema
    from gloader.pipeline.seeds import SeedPlan
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.training.model_spec import AnyModelSpec, EncoderSpec
    from gloader.training.objectives import Objective
    from gloader.types import AnyBatch, Block, Delivered, DeviceBlock

_SAMPLE_BYTES = 2 << 20  # minimum size of the measured step's input, so that fixed costs hardly count
# Minimum bytes of this input for each byte of the weights. With this ratio, the parts of the memory that are in
# proportion to the weights hardly count.
_WEIGHTS_PER_SAMPLE = 16
_CPU = torch.device("cpu")


def probe(dataset: Dataset, seeds: SeedPlan, settings: LoaderSettings) -> list[AnyBatch]:
    """Sample a loader's first batches, and a later one if its seeds have many more edges (see `first_seeds`).

    The batches hold the topology only, without feature rows.

    Parameters
    ----------
    dataset : dataset with the edges
    seeds : every epoch's seeds
    settings : the loader's settings
    """
    with (
        open_edges(
            dataset, seeds.types, max_bytes=FEW_BYTES, times=settings.sampling.is_temporal
        ) as topology,
        ExitStack() as stack,
    ):
        order = seeds.order
        if seeds.task is not None and isinstance(order, RowOrder):
            # The order is over rows of a table; `bind` turns rows into seed nodes.
            order = seeds.task.bind(order, topology, settings, stack, budget_bytes=FEW_BYTES).order
        sampler = sampler_for(topology, order, settings)
        first = first_seeds(order, topology, settings.sampling.fanouts, epochs=settings.stages.epochs)
        return [sampler.sample(batch_id, seeds) for batch_id, seeds in first]


def look_ahead(dataset: Dataset, seeds: SeedPlan, settings: LoaderSettings, spill: SpillFolder) -> None:
    """Compile the kernels that a loader's first batches need, by sampling these batches. Returns nothing.

    A graph of several types may have swept edges: the sampler reads the edges from the SSD in file order, in passes
    (sweeps), and does not load them. Then one batch is also sampled in this way.

    Parameters
    ----------
    dataset, seeds, settings : see `probe`
    spill : folder for the passes' output
    """
    probe(dataset, seeds, settings)
    order = seeds.order
    if not seeds.types.are_named or settings.memory.topology != "sweep" or seeds.task is not None:
        return
    with open_edges(dataset, seeds.types, max_bytes=FEW_BYTES) as topology, ExitStack() as stack:
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

    A much smaller batch with the same proportions is run and measured. A step's memory grows with its rows and edges,
    except for parts in proportion to the weights. The result is the measured bytes times the ratio of the batches,
    plus the gradients. The measured bytes contain the gradients too, so the estimate is rather too large.

    Parameters
    ----------
    spec : the network's specification
    batch : the step's batch, of a kind that the network accepts
    autocast : precision of the forward and backward pass
    objective : the loss
    """
    # A full step is not run: it would take memory before the budget is divided. Learned rows do not count as weights:
    # a step holds gradients only of the rows that the batch uses, as many as the batch has nodes. Learned numbers of
    # categories have dense gradients of a known size, so that the measured network needs no large tables.
    given, spec = spec, spec.with_one_value()
    code_bytes = parameter_bytes(given) - parameter_bytes(spec)
    weight_bytes = parameter_bytes(spec.with_rows({}))
    sample_bytes = max(_SAMPLE_BYTES, _WEIGHTS_PER_SAMPLE * weight_bytes)
    shrunk = max(1, 4 * _num_inputs(spec, batch) // sample_bytes)  # 4 bytes per float32 input
    measured = _measure(spec, batch, autocast, objective, shrunk=shrunk)
    return code_bytes + (measured if shrunk == 1 else weight_bytes + shrunk * measured)


def parameter_bytes(spec: AnyModelSpec) -> int:
    """Return the bytes of all trained weights, learned rows included."""
    # The meta device gives sizes without memory: the network does not exist yet.
    with torch.device("meta"):
        model = spec.build()
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def learned_row_bytes(spec: AnyModelSpec) -> int:
    """Return the bytes of all learned rows, except one row per type."""
    return parameter_bytes(spec) - parameter_bytes(spec.with_rows({}))


def largest(batches: Sequence[AnyBatch]) -> AnyBatch | None:
    """Return the batch with the most nodes and edges together, or None without batches."""
    return max(batches, key=_size, default=None)


def _size(batch: AnyBatch) -> int:
    """Return the number of nodes and edges in ``batch``, over all types and hops."""
    return sum(map(len, batch.node_arrays)) + sum(block.num_edges for block in batch.all_blocks)


def _num_inputs(spec: AnyModelSpec, batch: AnyBatch) -> int:
    """Return the number of floats that the first layer and the pair decoder (for links) take as input."""
    if isinstance(spec, LinkSpec):
        num_pairs = 0 if batch.links is None else len(batch.links.pairs)
        # Each pair has its own copies of both ends. With many drawn pairs, the copies are most of the step's memory.
        return _num_inputs(spec.encoder, batch) + 2 * spec.encoder.out_dim * num_pairs
    if isinstance(spec, KnowledgeSpec):
        num_pairs = 0 if batch.links is None else len(batch.links.pairs)
        num_wrong = 0 if batch.links is None or batch.links.shared is None else batch.links.shared.size
        # A triple has a score with each negative, for which rotate makes a row.
        score_width = spec.dim if spec.name == "rotate" else 1
        return spec.dim * (len(batch.node_arrays[0]) + 3 * num_pairs) + num_pairs * num_wrong * score_width
    schema = spec.schema
    num_edges = sum(block.num_edges for block in batch.all_blocks)
    learned_width = schema.learned_dim or spec.config.hidden
    # A type without features has dimension 0, and learned rows instead.
    dims = [(dim or learned_width) + schema.added_dim(name) for name, dim in schema.feature_dims.items()]
    # The first layer may turn each row into a hidden row before anything else, or into one for each group of columns.
    num_hidden = len(spec.groups) if isinstance(spec, ModelSpec) else 0
    if num_hidden or spec.config.residual:
        dims = [max(dim, spec.config.hidden * max(num_hidden, 1)) for dim in dims]
    rows = sum(len(nodes) * dim for nodes, dim in zip(batch.node_arrays, dims, strict=True))
    return rows + spec.edge_dim * num_edges


def _measure(
    spec: AnyModelSpec, batch: AnyBatch, autocast: Autocast, objective: Objective, *, shrunk: int
) -> int:
    """Return the peak bytes of a step over one ``shrunk``-th of ``batch``, without the weights and the batch."""
    # The caller's random generators of torch keep their state.
    with private_randomness(_CPU):
        ready = (
            _small_links(spec, batch, objective, shrunk)
            if isinstance(spec, LinkSpec | KnowledgeSpec)
            else _small(spec, batch, objective, shrunk)
        )
        # The loader's plan counts the rows of embeddings and their gradients; a step has those of their columns.
        ready = with_blank_rows(ready, spec.encoder.schema)
        model = spec.with_rows({name: len(ids) for name, ids in ready.typed.nodes.items()}).build()
        # The run's budget counts the batch and the model elsewhere.
        given = [*_tensors(ready), *model.parameters(), *model.buffers()]
        with LiveBytes(given) as live:
            _, loss = logits_and_loss(model, ready, autocast, objective)
            loss.backward()  # type: ignore[no-untyped-call]
    return live.peak_bytes


def _small_links(
    spec: LinkSpec | KnowledgeSpec, batch: AnyBatch, objective: Objective, shrunk: int
) -> LinkBatch:
    """Return a batch with one ``shrunk``-th of the pairs, nodes and edges.

    Negatives that all pairs share stay as many: the memory grows with their product with the pairs.
    """
    links = batch.links
    # -(-n // shrunk) divides and rounds up.
    num_pairs, num_positives = (
        (1, 1) if links is None else (-(-n // shrunk) for n in (len(links.pairs), links.num_positives))
    )
    return LinkBatch(
        # The labels of links take the place of those of nodes.
        batch=_small(spec.encoder, batch, NODE_CLASSES, shrunk),
        # The pairs' values do not change the memory, so all pairs are (0, 0).
        pairs=torch.zeros(num_pairs, 2, dtype=torch.int64),
        labels=objective.blank(num_pairs),
        edge_ids=np.zeros(num_pairs, np.int64),
        num_positives=num_positives,
        shared=None
        if links is None or links.shared is None
        else torch.zeros(links.shared.shape, dtype=torch.int64),
    )


def _small(
    spec: EncoderSpec | KnowledgeSpec, batch: AnyBatch, objective: Objective, shrunk: int
) -> HeteroReadyBatch:
    """Return a batch with one ``shrunk``-th of the nodes and edges, and zeros as features."""
    schema = spec.schema
    # Every count is divided and rounded up in the same way. So the blocks' counts agree with each other and with the
    # number of rows. Both results are dictionaries by node type.
    rows, num_seeds = (
        {name: -(-count // shrunk) for name, count in zip(schema.num_nodes, counts, strict=True)}
        for counts in (map(len, batch.node_arrays), batch.seed_counts)
    )
    relations = [
        (relation, [_small_block(spec, block, shrunk) for block in batch.edges_of(number)])
        for number, relation in enumerate(schema.relations)
    ]
    return HeteroReadyBatch(
        id=batch.id,
        x={
            name: torch.zeros(rows[name], dim - schema.embedded.get(name, 0))
            for name, dim in schema.feature_dims.items()
        },
        y=objective.blank(num_seeds[schema.targets[0]]),
        blocks=tuple(
            {relation: blocks[depth] for relation, blocks in relations} for depth in range(spec.num_layers)
        ),
        nodes={name: np.arange(count) for name, count in rows.items()},
        num_seeds=num_seeds,
        weights=torch.ones(num_seeds[schema.targets[0]]),
        row_age={name: torch.zeros(rows[name]) for name in schema.aged},
    )


def with_blank_rows(batch: Any, schema: Schema) -> Any:
    """Return a batch of any kind with zeros for the rows of embeddings, behind its features, with a gradient."""
    if not schema.embedded:
        return batch
    if isinstance(batch, LinkBatch):
        return replace(batch, batch=with_blank_rows(batch.batch, schema))
    if isinstance(batch, HeteroReadyBatch):
        return replace(
            batch,
            x={**batch.x, **{name: _widened(batch.x[name], dim) for name, dim in schema.embedded.items()}},
        )
    (dim,) = schema.embedded.values()
    return replace(batch, x=_widened(batch.x, dim))


def _widened(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return ``x`` (U, F) with ``dim`` columns behind it, which have a gradient."""
    return torch.cat([x, torch.zeros(len(x), dim, device=x.device, requires_grad=True)], dim=1)


def _small_block(spec: EncoderSpec | KnowledgeSpec, block: Block, shrunk: int) -> DeviceBlock:
    """Return one ``shrunk``-th of ``block`` as tensors, with arbitrary degrees and with zeros as edge features."""
    small = _shrink(block, shrunk)
    # In batches with several types, blocks carry no degrees.
    degree = torch.ones(0 if spec.has_types else small.num_src)
    device_block = to_device_block(small, degree, _CPU)
    if not spec.uses_edge_features:
        return device_block
    return replace(device_block, edge_x=torch.zeros(len(device_block.indices), spec.edge_dim))


def _tensors(ready: Delivered) -> list[torch.Tensor]:
    """Return all tensors of ``ready``, except edge ids, which no model reads here."""
    blocks = [block for hop in ready.typed.blocks for block in hop.values()]
    edges = [tensor for block in blocks for tensor in (block.indptr, block.indices, block.src_degree)]
    edge_x = [block.edge_x for block in blocks if block.edge_x is not None]
    pairs = [ready.pairs, ready.labels] if isinstance(ready, LinkBatch) else []
    of_rows = [
        tensor
        for tensor in (ready.typed.weights, *(ready.typed.row_age or {}).values())
        if tensor is not None
    ]
    return [*ready.typed.x.values(), ready.typed.y, *edges, *edge_x, *pairs, *of_rows]


def _shrink(block: Block, by: int) -> Block:
    """Return a block with one ``by``-th of the nodes and edges, rounded up. Its neighbours are arbitrary."""
    num_src, num_dst, num_edges = (-(-n // by) for n in (block.num_src, block.num_dst, block.num_edges))
    weight = block.edge_weight
    return replace(
        block,
        # The edges are spread evenly over the destinations and, in turn, over the sources.
        indptr=(np.arange(num_dst + 1) * num_edges // max(num_dst, 1)).astype(block.indptr.dtype),
        indices=(np.arange(num_edges) % max(num_src, 1)).astype(block.indices.dtype),
        edge_ids=block.edge_ids[:num_edges],
        num_src=num_src,
        num_dst=num_dst,
        edge_weight=None if weight is None else weight[:num_edges],
    )


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that are created inside the ``with`` block and still alive.

    torch calls `__torch_dispatch__` for every operation inside the block. The meta device works too: its tensors have a
    size but no memory. So a computation's memory is known without an allocation.

    Parameters
    ----------
    known : existing tensors, which do not count
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # The bytes of each known storage, by its identity; 0 for storages that do not count.
        self._storages: dict[int, int] = {}
        self._live_bytes = 0
        self._peak_bytes = 0
        for tensor in known:
            self._add(tensor, counts=False)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. Otherwise torch would import its compiler, 70 MB and a second, to exclude this class."""
        return False

    @property
    def peak_bytes(self) -> int:
        """The peak of bytes alive at once."""
        return self._peak_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func`` and count its new tensors."""
        del types
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                self._add(item, counts=True)
        return result

    def _add(self, tensor: torch.Tensor, *, counts: bool) -> None:
        """Register the tensor's storage until it is freed, with its bytes, or with 0 bytes if not ``counts``."""
        # A sparse tensor has no storage of its own: the storages belong to its two parts.
        if tensor.is_sparse:
            for part in (tensor._indices(), tensor._values()):  # noqa: SLF001 - the public names want them coalesced
                self._add(part, counts=counts)
            return
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - its identity; on the meta device the address is always 0
        # Views share a storage, whose memory counts once.
        if key in self._storages:
            return
        self._storages[key] = storage.nbytes() if counts else 0
        self._live_bytes += self._storages[key]
        self._peak_bytes = max(self._peak_bytes, self._live_bytes)
        # The storage is freed with the last tensor that uses it, also if autograd held that tensor.
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        """Subtract the bytes of a freed storage."""
        self._live_bytes -= self._storages.pop(key)
