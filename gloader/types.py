"""The values that gloader's parts exchange, and the protocols between the parts.

A mini-batch passes through these types. A `Sampler` turns seeds into a `SampledBatch`, which has the batch's nodes and
edges (its topology). A `CacheStep` plans the host cache's work for the batch: the cache holds feature rows in host
memory. The loader delivers a `ReadyBatch`, whose tensors are on the compute device. With several node types, the batch
is a `HeteroBatch` and then a `HeteroReadyBatch`. If the model predicts edges, a `LinkBatch` holds the ready batch.

- A seed is a node at which sampling starts. The model predicts the seeds' labels, or edges between seeds.
- A hop adds sampled in-neighbours to the nodes found so far. The hop's edges are a block.
- A relation is an edge type. An edge's position is its index in its relation's ``indices``.
- A global id counts all nodes in the graph, or in one type. A local id counts the nodes in a batch.
- A link is an edge that the model predicts. A link table lists links.
- A seed may have a query time: then sampling takes only edges before this time. Such a seed shares no nodes with other
  seeds. The nodes sampled from one seed are its tree.
- A slot is the room for one row in the host cache. To admit a row is to copy it into a slot.

Shape legend, used in every docstring of the project:
N nodes, E edges, F feature dimension, B seeds of a batch, U unique nodes of a batch, H hits, M misses,
C host-cache slots, S batches per superbatch (batches that are planned together), L layers, R bytes per feature row,
W world size, T node types, K relations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch


_MAX_SHOWN: Final = 2  # mapping items in a repr; a graph may have hundreds of relations


class ByShapes:
    """The base of dataclasses whose repr shows shapes and omits fields that are None.

    Subclasses are declared with ``repr=False``, so that this repr is used.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # mypy reports a misspelled name by itself

        def __getattr__(self, name: str) -> Any:
            # Python calls this method after AttributeError. If the class has the name, a property raised the error.
            # Reading the property again raises the property's own message.
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)
            raise AttributeError(f"a {type(self).__name__} has no {name!r}" + _advice(name, self))

    def __repr__(self) -> str:
        """Return one line, such as ``Block(indptr=[3], num_src=5)``. Functions and None are left out."""
        # A class with an `OnDemand` field has a ``__dict__``. Its entry for the field is a function until the first
        # read; `getattr` would call the function.
        held = getattr(self, "__dict__", None)
        parts = {
            each.name: getattr(self, each.name) if held is None else held[each.name]
            for each in fields(self)  # type: ignore[arg-type]  # the subclass is a dataclass
        }
        shown = [
            f"{name}={_short(part)}"
            for name, part in parts.items()
            if part is not None and not callable(part)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


def _advice(name: str, value: ByShapes) -> str:
    """Return the end of an error message on the missing attribute ``name``: a similar name, or all names."""
    if name.startswith("_"):  # Python's modules, such as copy, look for these names and expect a plain error
        return ""
    members = {each for each in dir(type(value)) if each[0] != "_"}
    names = members | {each.name for each in fields(value)}  # type: ignore[arg-type]  # the subclass is a dataclass
    near = get_close_matches(name, names, n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(names))}"


def _short(value: Any) -> str:
    """Return a short text for a field: an array's shape, a mapping's first items, or a tuple's length."""
    if (shape := getattr(value, "shape", None)) is not None:
        return str(list(shape))
    if isinstance(value, Mapping):
        items = [f"{_name(key)}: {_short(item)}" for key, item in islice(value.items(), _MAX_SHOWN)]
        more = len(value) - len(items)
        return f"{{{', '.join(items)}{f', {more} more' if more > 0 else ''}}}"
    if isinstance(value, tuple):
        return str(len(value))
    if isinstance(value, ByShapes):
        return f"{type(value).__name__}(...)"
    return repr(value)


def _name(key: object) -> str:
    """Return the text for a mapping's key: a type's name, or a relation as "author:writes:paper"."""
    return ":".join(map(str, key)) if isinstance(key, tuple) else str(key)


IdArray: TypeAlias = NDArray[np.int64]  # global ids, or positions
LocalArray: TypeAlias = NDArray[np.int32]  # local ids, or positions in a batch
Relation: TypeAlias = tuple[str, str, str]  # source type, name, destination type

NO_TIME: Final = -(2**63)  # the time of a row without one: the least int64, which is earlier than every seed
NO_EDGE: Final = -1  # marks a missing edge, in place of its position or row

ANY_RELATION: Final = "*"  # stands for every relation without its own fan-outs

NODE: Final = "node"  # the node type of a graph of one type
EDGE: Final[Relation] = (NODE, "to", NODE)  # the relation of such a graph

# The node types of a knowledge graph, and the relation of its link tables. A row is a triple: it leads from its head to
# its tail, both entities, and its label is the id of a node of the second type.
ENTITY: Final = "entity"
RELATION: Final = "relation"
TRIPLE: Final[Relation] = (ENTITY, "related", ENTITY)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BatchId:
    """The address of a mini-batch. All of the batch's random draws depend on it."""

    epoch: int
    index: int  # number of the step in the epoch


@dataclass(frozen=True, slots=True)
class RelationFanouts:
    """Fan-outs that differ by relation. ``len()`` is the number of hops.

    A fan-out is the number of neighbours that a hop samples per node, one number for each hop. The first number is for
    the hop next to the seeds.
    """

    # The fan-outs of each relation, one per hop; `ANY_RELATION` stands for all other relations.
    by_relation: tuple[tuple[Relation | str, tuple[int, ...]], ...]

    def __len__(self) -> int:
        """Return L."""
        return len(self.by_relation[0][1])

    def __str__(self) -> str:
        """Return the command line's form, such as "author:writes:paper=25,20;*=10,5"."""
        names = (name if isinstance(name, str) else ":".join(name) for name, _ in self.by_relation)
        hops = (",".join(map(str, fanouts)) for _, fanouts in self.by_relation)
        return ";".join(f"{name}={hop}" for name, hop in zip(names, hops, strict=True))


@dataclass(frozen=True, slots=True)
class CollectiveFanouts:
    """Fan-outs over all relations together: in each hop, a node draws among its in-edges of every relation.

    OGB's scripts draw in this way, as they merge all types into one graph. ``len()`` is the number of hops.
    """

    fanouts: tuple[int, ...]  # the first hop is next to the seeds

    def __len__(self) -> int:
        """Return L."""
        return len(self.fanouts)

    def __str__(self) -> str:
        """Return the command line's form, such as "collective:25,20"."""
        return "collective:" + ",".join(map(str, self.fanouts))


# Neighbours per node and hop; the first hop is next to the seeds. A tuple applies to every relation.
Fanouts: TypeAlias = tuple[int, ...] | RelationFanouts | CollectiveFanouts


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LinkRows(ByShapes):
    """Rows of a link table: n edges of one relation, which the model predicts."""

    sources: IdArray  # (n,) ids within the source type
    destinations: IdArray  # (n,) ids within the destination type
    positions: IdArray  # (n,) each edge's position in its relation's ``indices``; `NO_EDGE` for edges not in the graph
    # (n,) position of each edge's opposite edge, in the ``indices`` of the reverse relation; `NO_EDGE` without one
    reverses: IdArray
    labels: NDArray[Any] | None = None  # (n,) int64 or float32; None if the table has no labels
    times: IdArray | None = None  # (n,) int64 seconds; None if the table has no times
    # (n, k) each row's negative destinations from the table; None if the table has none
    negatives: IdArray | None = None


class LinkReader(Protocol):
    """An open link table. Thread-safe."""

    @property
    def num_rows(self) -> int:
        """The table's number of edges."""
        ...

    @property
    def relation(self) -> Relation:
        """The edges' relation. The graph need not contain it."""
        ...

    @property
    def reverse_relation(self) -> Relation | None:
        """The relation with the edges in the opposite direction, or None."""
        ...

    def read(self, rows: IdArray, /) -> LinkRows:
        """Return the verified table rows ``rows`` (n,), which are in 0..num_rows-1, in any order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Links(ByShapes):
    """The P node pairs that a batch predicts: first the positives (links), then the negatives (drawn pairs)."""

    # (P, 2) source and destination of each pair, as indices into the batch's seeds of the source type and of the
    # destination type
    pairs: LocalArray
    # (P,) float32, 1 for positives and 0 for negatives; without negatives the table's labels
    labels: NDArray[Any]
    edge_ids: IdArray  # (P,) rows of the link table; `NO_EDGE` for negatives
    num_positives: int
    # (num_positives,) int64 seconds, the query time of a positive and its negatives; None allows edges of all times
    times: IdArray | None = None
    # (2, k) wrong sources and wrong destinations of every positive, as indices into the batch's seeds of their types;
    # None unless all positives share their negatives. Then all pairs are positives, with the table's labels.
    shared: LocalArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchSeeds(ByShapes):
    """A batch's seeds, with their excluded edges, query times and links.

    In link prediction, sampling must not take the edges that the model predicts: these are excluded.
    """

    # (B,) distinct, unless ``times`` is given. With several types there is one numbering of all nodes: node v has the
    # number v plus the number of nodes in all earlier types.
    nodes: IdArray
    # For each relation, the (X,) ascending positions of edges that sampling must not take; () without exclusion.
    excluded: tuple[IdArray, ...] = ()
    times: IdArray | None = None  # (B,) int64 seconds; None allows edges of all times
    links: Links | None = None  # the links to predict; None if the seeds' own labels are predicted


AnySeeds: TypeAlias = IdArray | BatchSeeds  # an array has neither exclusion, nor times, nor links


def seed_nodes(seeds: AnySeeds) -> IdArray:
    """Return the seed nodes (B,). Pure."""
    return seeds.nodes if isinstance(seeds, BatchSeeds) else seeds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Block(ByShapes):
    """One hop in a sampled batch: a bipartite CSC graph from source to destination nodes, in local ids.

    The sources are the first ``num_src`` nodes in ``SampledBatch.nodes``, and the destinations are the first
    ``num_dst``. In a `HeteroBatch` they are the first nodes of their types.
    """

    indptr: LocalArray  # (num_dst + 1,) the edges into destination d are indptr[d]..indptr[d + 1] - 1
    indices: LocalArray  # (num_edges,) sources, local ids < num_src
    edge_ids: IdArray  # (num_edges,) positions in the graph's ``indices``
    num_src: int
    num_dst: int
    # (num_edges,) number of full-graph edges that each sampled edge represents; None if all represent the same number
    edge_weight: NDArray[np.float32] | None = None

    @property
    def num_edges(self) -> int:
        """Number of sampled edges."""
        return int(self.indices.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SampledBatch(ByShapes):
    """The topology of one mini-batch of a graph of one type.

    ``blocks[0]`` belongs to the last hop and the model's first layer; ``blocks[-1]`` is next to the seeds.
    """

    id: BatchId
    # (U,) global ids, in first-seen order; nodes[:num_seeds] are the seeds. Ids are unique, except with query times:
    # then each seed has its own nodes.
    nodes: IdArray
    num_seeds: int
    blocks: tuple[Block, ...]  # L blocks; empty if the batch was sampled on the compute device
    on_device: SampledOnDevice | None = None  # the topology, if it was sampled on the compute device
    links: Links | None = None  # the links to predict, if any
    # (U,) int32, the index of each node's seed, if each seed has its own nodes (its tree); None if seeds share nodes
    trees: LocalArray | None = None
    # (U,) number of each node's in-edges that hops may take: not excluded, and before the seed's time. None means that
    # hops may take all in-edges.
    in_degrees: NDArray[np.float32] | None = None

    @property
    def node_arrays(self) -> tuple[IdArray, ...]:
        """The nodes per type; this batch has one type."""
        return (self.nodes,)

    @property
    def seed_counts(self) -> tuple[int, ...]:
        """The number of seeds per type; this batch has one type."""
        return (self.num_seeds,)

    @property
    def hops(self) -> tuple[tuple[Block, ...], ...]:
        """The blocks per hop and relation, in the order of ``blocks``; this batch has one relation."""
        return tuple((block,) for block in self.blocks)

    @property
    def tree_arrays(self) -> tuple[LocalArray, ...]:
        """The trees per node type; this batch has one type. () if seeds share nodes."""
        return () if self.trees is None else (self.trees,)

    @property
    def all_blocks(self) -> tuple[Block, ...]:
        """Every block."""
        return self.blocks

    def edges_of(self, relation: int) -> tuple[Block, ...]:  # noqa: ARG002 - the parameter of `HeteroBatch`
        """Return a relation's blocks; this batch has one relation."""
        return self.blocks

    @property
    def may_repeat(self) -> bool:
        """True if a node may occur more than once."""
        return self.trees is not None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HeteroBatch(ByShapes):
    """The topology of one mini-batch with several types. Every type and relation is present, perhaps empty.

    Types and relations keep the order in the dataset's record. ``blocks[-1]`` is next to the seeds. In a block,
    ``num_dst`` counts the destination type's nodes before the hop, and ``num_src`` the source type's nodes after the
    hop. So in one hop, all relations with the same destination type have an equal ``num_dst``, and all with the same
    source type have an equal ``num_src``.
    """

    id: BatchId
    nodes: Mapping[str, IdArray]  # (U_t,) ids within the type, unique, in first-seen order; seeds first
    num_seeds: Mapping[str, int]  # seeds per type
    blocks: tuple[Mapping[Relation, Block], ...]  # L hops, each with all relations
    links: Links | None = None  # see `SampledBatch`
    trees: Mapping[str, LocalArray] | None = None  # by type, see `SampledBatch`

    @property
    def node_arrays(self) -> tuple[IdArray, ...]:
        """The nodes per type."""
        return tuple(self.nodes.values())

    @property
    def seed_counts(self) -> tuple[int, ...]:
        """The number of seeds per type."""
        return tuple(self.num_seeds.values())

    @property
    def hops(self) -> tuple[tuple[Block, ...], ...]:
        """The blocks per hop and relation, in the order of ``blocks``."""
        return tuple(tuple(hop.values()) for hop in self.blocks)

    @property
    def tree_arrays(self) -> tuple[LocalArray, ...]:
        """The trees per node type; () if seeds share nodes."""
        return () if self.trees is None else tuple(self.trees.values())

    @property
    def in_degrees(self) -> None:
        """None: batches with several types carry no degrees."""
        return None

    @property
    def all_blocks(self) -> tuple[Block, ...]:
        """Every block: hops in the order of ``blocks``, and each hop's relations."""
        return tuple(chain.from_iterable(hop.values() for hop in self.blocks))

    def edges_of(self, relation: int) -> tuple[Block, ...]:
        """Return the blocks for the relation with this number, in the order of ``blocks``."""
        return tuple(next(islice(hop.values(), relation, None)) for hop in self.blocks)

    @property
    def may_repeat(self) -> bool:
        """True if a node may occur more than once."""
        return self.trees is not None

    @property
    def on_device(self) -> None:
        """None: batches with several types are sampled on the host."""
        return None


AnyBatch: TypeAlias = SampledBatch | HeteroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTypes:
    """The node types and relations in a loader's batches, in the dataset's order.

    A graph without types counts as one node type and one relation, which its batches do not name.
    """

    nodes: tuple[str, ...] = (NODE,)  # T
    relations: tuple[Relation, ...] = (EDGE,)  # K
    are_named: bool = False  # True if a batch is a `HeteroBatch`, which names its types

    def batch(
        self,
        *,
        batch_id: BatchId,
        nodes: Sequence[IdArray],
        num_seeds: Sequence[int],
        hops: Sequence[Sequence[Block]],
        links: Links | None,
        trees: Sequence[LocalArray],
    ) -> AnyBatch:
        """Return the batch with these parts.

        Parameters
        ----------
        batch_id : the batch's epoch and index
        nodes, num_seeds : (T,) nodes and number of seeds per type
        hops : (L, K) the blocks per hop and relation, in the order of ``SampledBatch.blocks``
        links : the links to predict, if any
        trees : (T,) the trees per node type; () if seeds share nodes
        """
        if not self.are_named:
            return SampledBatch(
                id=batch_id,
                nodes=nodes[0],
                num_seeds=num_seeds[0],
                blocks=tuple(hop[0] for hop in hops),
                links=links,
                trees=trees[0] if trees else None,
            )
        return HeteroBatch(
            id=batch_id,
            nodes=dict(zip(self.nodes, nodes, strict=True)),
            num_seeds=dict(zip(self.nodes, num_seeds, strict=True)),
            blocks=tuple(dict(zip(self.relations, hop, strict=True)) for hop in hops),
            links=links,
            trees=dict(zip(self.nodes, trees, strict=True)) if trees else None,
        )


class Sampler(Protocol):
    """Samples a batch's topology from its seeds. Pure and thread-safe: equal arguments give equal batches."""

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample the neighbourhood of ``seeds`` (B,); a sampler for node loaders may refuse `BatchSeeds`."""
        ...


class HeteroSampler(Protocol):
    """Samples a batch's topology with several types from its seeds. Pure and thread-safe."""

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> HeteroBatch:
        """Sample the neighbourhood of ``seeds`` (B,), which are in one numbering of all nodes, see `BatchSeeds`."""
        ...


AnySampler: TypeAlias = Sampler | HeteroSampler


class IdPortions(Protocol):
    """The positions that a sweep reads, in portions that fit in memory. For one thread.

    A sweep reads a long array, such as the edges on the SSD, once and in file order, for several owners. An owner is
    one hop of one batch, and needs the values at ascending positions. Memory cannot hold all positions, so the sampler
    lists them in portions. The sweep calls `fill` for further positions. Here, O is the number of owners, and W the
    maximum number of positions in an owner's portion.
    """

    def fill(self, ids: IdArray, taken: IdArray, ends: IdArray, has_more: NDArray[np.bool_]) -> None:
        """Move each owner's remaining positions to the front of its row, and append the next positions.

        Parameters
        ----------
        ids : (O, W) int64 with W >= 1; written. Owner o's unread positions are ``ids[o, taken[o] : ends[o]]``
        taken : (O,) int64, number of columns in each owner's row that the sweep has read; set to 0
        ends : (O,) int64, number of filled columns in each owner's row; written
        has_more : (O,) bool, True if the owner has positions that did not fit; written
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStats:
    """The cost of a `FeatureSource.read_into` call."""

    rows: int  # delivered rows
    requests: int  # read requests to the device
    bytes_read: int  # bytes of these requests, with unneeded bytes that alignment or a joint read adds

    def __add__(self, other: ReadStats) -> ReadStats:
        """Return both costs' sum. Pure."""
        return ReadStats(
            rows=self.rows + other.rows,
            requests=self.requests + other.requests,
            bytes_read=self.bytes_read + other.bytes_read,
        )


class FeatureSource(Protocol):
    """Feature rows as a matrix that can be read in any order."""

    @property
    def num_rows(self) -> int:
        """N."""
        ...

    @property
    def dim(self) -> int:
        """F."""
        ...

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The stored elements' dtype."""
        ...

    def read_into(
        self, rows: IdArray, out: NDArray[np.generic], /, *, at: IdArray | None = None
    ) -> ReadStats:
        """Read all ``rows`` into ``out``, or raise an error.

        Parameters
        ----------
        rows : (M,) ids in 0..N-1, in any order, repeats allowed
        out : (M, F), or any number of rows with ``at``; C-contiguous. Its dtype is the stored one, or float32
        at : (M,) index in ``out`` for each row; None means that ``rows[i]`` goes to ``out[i]``
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStep:
    """The host cache's work for one batch: copies out of slots, misses to read, rows to admit.

    Positions are indices into ``SampledBatch.nodes``. Every position is either a hit (its row is in a slot) or a miss
    (its row must be read).
    """

    hit_pos: IdArray  # (H,) positions of the hits
    hit_slot: IdArray  # (H,) slot of each hit
    miss_pos: IdArray  # (M,) positions of the misses
    miss_row: IdArray  # (M,) each miss's row in the feature table, which is its node's id
    admit_pos: IdArray  # (A,) positions of the missed rows that enter the cache after the hits were copied
    admit_slot: IdArray  # (A,) slots that these rows enter


class OnDemand:
    """A dataclass field that holds a tensor, or a function that makes the tensor at the first read (a descriptor)."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type) -> torch.Tensor:
        if instance is None:
            raise AttributeError(self._name)  # so that a dataclass finds no default for the field
        held = instance.__dict__
        tensor = held[self._name]
        if callable(tensor):
            tensor = held[self._name] = tensor()
        return tensor

    def __set__(self, instance: object, value: torch.Tensor | Callable[[], torch.Tensor]) -> None:
        instance.__dict__[self._name] = value


@dataclass(frozen=True, kw_only=True, repr=False)
class DeviceBlock(ByShapes):
    """A `Block` as tensors on the compute device, with degrees and edge features for message passing."""

    indptr: torch.Tensor  # (num_dst + 1,) int32
    indices: torch.Tensor  # (num_edges,) int32, sources
    # (num_edges,) int64, positions in the graph's ``indices``. They stay on the host until the first read copies them.
    # Few models use them, and they would double the bytes that each batch's topology sends to the device.
    edge_ids: OnDemand = OnDemand()
    # (num_src,) float32, each source's in-degree in the full graph, without the edges that no hop may take, see
    # `SampledBatch.in_degrees`; (0,) in batches with several types, which carry no degrees
    src_degree: torch.Tensor
    num_src: int
    num_dst: int
    # (num_edges,) float32, full-graph edges that each sampled edge represents; None if all represent the same number
    edge_weight: torch.Tensor | None = None
    edge_x: torch.Tensor | None = None  # (num_edges, F_e) float32; None without edge features

    @property
    def edge_index(self) -> torch.Tensor:
        """Each edge's source and destination, (2, num_edges) int64, as PyG's layers expect."""
        num_edges = self.indices.shape[0]
        # All tensors are derived from the block's own tensors, so that they are on the same device.
        indptr = self.indptr.long()
        dst = indptr.new_ones(self.num_dst).cumsum(0) - 1
        pair = indptr.new_empty((2, num_edges))
        pair[0] = self.indices
        pair[1] = dst.repeat_interleave(indptr.diff(), output_size=num_edges)
        return pair


class Made(Protocol):
    """A point in a device's asynchronous work, such as the moment when tensors are complete.

    `gloader.device.seam.Mark` is a protocol with more methods.
    """

    def wait(self) -> None:
        """Wait until the device has reached this point."""
        ...

    def precede(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let this thread's later device work begin after this point. It may then use ``tensors``.

        The memory of ``tensors`` is not reused before this work is done.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledOnDevice:
    """A batch's topology that was sampled on the compute device and stays there."""

    nodes: torch.Tensor  # (U,) int64
    src_degree: torch.Tensor  # (U,) float32, full-graph in-degree
    blocks: tuple[DeviceBlock, ...]  # L blocks
    made: Made  # the point in the device's work at which the topology is complete

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return all topology tensors."""
        arrays = ((block.indptr, block.indices, block.edge_ids) for block in self.blocks)
        return (self.nodes, self.src_degree, *chain.from_iterable(arrays))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReadyBatch(ByShapes):
    """A mini-batch on the compute device, ready for computation.

    ``x`` lies in one of the loader's buffers. The buffer is not reused while ``x`` or a view of ``x`` is alive. If the
    memory budget has room for only one buffer, the request for the next batch empties ``x``.
    """

    id: BatchId
    x: torch.Tensor  # (U, F) float32
    y: torch.Tensor  # the seeds' labels: (B,) int64 classes, or (B, k) float32 values
    blocks: tuple[DeviceBlock, ...]  # L blocks, in the order of `SampledBatch`
    nodes: IdArray  # (U,) global ids; the first ``num_seeds`` are the seeds
    num_seeds: int
    trees: LocalArray | None = None  # (U,) see `SampledBatch`
    # The rest is for rows of a task table, see `HeteroReadyBatch`.
    row_ids: IdArray | None = None
    weights: torch.Tensor | None = None
    row_seeds: torch.Tensor | None = None
    row_age: torch.Tensor | None = None  # (U,)
    embedded: Mapping[str, torch.Tensor] | None = None  # see `HeteroReadyBatch`

    @property
    def typed(self) -> HeteroReadyBatch:
        """The same batch with one named type and one named relation; shares its tensors."""
        return HeteroReadyBatch(
            id=self.id,
            x={NODE: self.x},
            y=self.y,
            blocks=tuple({EDGE: block} for block in self.blocks),
            nodes={NODE: self.nodes},
            num_seeds={NODE: self.num_seeds},
            trees=None if self.trees is None else {NODE: self.trees},
            row_ids=self.row_ids,
            weights=self.weights,
            row_seeds=self.row_seeds,
            row_age=None if self.row_age is None else {NODE: self.row_age},
            embedded=self.embedded,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HeteroReadyBatch(ByShapes):
    """A mini-batch with several types, ready for computation. Every type and relation is present, perhaps empty.

    The tensors in ``x`` lie in one of the loader's buffers. The buffer is not reused while one of them is alive.
    """

    id: BatchId
    x: Mapping[str, torch.Tensor]  # by type t, (U_t, F_t) float32; (U_t, 0) for a type without features
    y: (
        torch.Tensor
    )  # labels of the labelled type's seeds, in seed order: (B,) int64 classes, or (B, k) float32 values
    blocks: tuple[Mapping[Relation, DeviceBlock], ...]
    nodes: Mapping[str, IdArray]  # (U_t,) ids within the type
    num_seeds: Mapping[str, int]
    trees: Mapping[str, LocalArray] | None = None  # (U_t,) see `HeteroBatch`
    # The rest is None, unless the batch has rows of a task table. Then ``y`` has their labels, -1 without labels.
    row_ids: IdArray | None = None  # (B,) rows of the table
    weights: torch.Tensor | None = None  # (B,) float32 weights of the rows; None without weights
    # (B,) int64, the seed of each row as an index among the seeds of its type, for rows without times, whose nodes may
    # repeat while seeds do not. None means that row i is seed i.
    row_seeds: torch.Tensor | None = None
    # By type whose nodes have times: (U_t,) float32 seconds, the seed's time less the node's, NaN where a node has no
    # time. None if the rows have no times, or no type has.
    row_age: Mapping[str, torch.Tensor] | None = None
    # By type with an embedding: (U_t, D) float32, its trained rows, a leaf with gradients unless the embedding is
    # frozen. They are the last columns of the type's ``x``. None without embeddings.
    embedded: Mapping[str, torch.Tensor] | None = None

    @property
    def typed(self) -> HeteroReadyBatch:
        """The batch itself."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LinkBatch(ByShapes):
    """A mini-batch with links, ready for computation; its seeds are the links' nodes."""

    batch: ReadyBatch | HeteroReadyBatch  # the seeds' features and blocks; its ``y`` is ``labels``
    # (P, 2) int64 source and destination: row numbers in the model's output for the seeds of their types
    pairs: torch.Tensor
    # (P,) float32, 1 for positives and 0 for negatives; without negatives the table's labels, int64 or float32
    labels: torch.Tensor
    edge_ids: IdArray  # (P,) rows of the link table; `NO_EDGE` for negatives
    num_positives: int  # the first pairs are positives
    times: IdArray | None = None  # (num_positives,) see `Links`
    # (2, k) int64 wrong sources and wrong destinations of every positive, as row numbers like ``pairs``; None unless
    # all positives share their negatives
    shared: torch.Tensor | None = None

    @property
    def id(self) -> BatchId:
        """The batch's epoch and index."""
        return self.batch.id

    @property
    def typed(self) -> HeteroReadyBatch:
        """The nodes, features and edges by type and relation."""
        return self.batch.typed

    @property
    def embedded(self) -> Mapping[str, torch.Tensor] | None:
        """The trained rows by type, see `HeteroReadyBatch`."""
        return self.batch.embedded


AnyReadyBatch: TypeAlias = ReadyBatch | HeteroReadyBatch  # input of a network
Delivered: TypeAlias = AnyReadyBatch | LinkBatch  # output of a loader
