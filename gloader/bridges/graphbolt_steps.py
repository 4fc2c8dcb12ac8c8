"""gloader in pipelines of GraphBolt, DGL's newer data loading. For DGL 2.1 and later.

A GraphBolt pipeline passes minibatches through steps. `NegativeSampler` is a step that adds negative pairs, and
`BlockSampler` one that samples neighbours. `StoreFeature` is a feature on the SSD, which GraphBolt's fetching step
reads. Importing this module imports GraphBolt, whose binaries exist only for certain versions of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
import torch

from gloader.bridges.cached_rows import CachedRows
from gloader.bridges.given_seeds import GivenPairs, digest_of, draw_beside, edges_of_pairs, number_through
from gloader.bridges.loader_view import nodes_by_hop
from gloader.config import Exclude
from gloader.convert.sources.dgl import quiet_dgl
from gloader.core.flag_values import require_choice
from gloader.core.near_names import near_keywords
from gloader.core.negatives import Table, checked_negatives
from gloader.errors import ConfigError, MissingDependencyError
from gloader.samplers import HeteroGraph, make_hetero_sampler
from gloader.types import BatchId, BatchSeeds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.cache import OnlineName
    from gloader.core.fanouts import FanoutsLike
    from gloader.core.negatives import Negatives
    from gloader.samplers import CscGraph
    from gloader.types import Block, FeatureSource, IdArray, Relation


with quiet_dgl("gloader.adapters.graphbolt needs") as dgl:
    try:
        import dgl.graphbolt as gb
    except ImportError as error:
        raise MissingDependencyError(
            f"gloader.adapters.graphbolt needs GraphBolt, which DGL {dgl.__version__} with torch {torch.__version__} "
            f"does not have ({error}); in an environment of its own: pip install dgl==2.1.0 torch==2.2.1 "
            "torchdata==0.7.1 'numpy<2'"
        ) from error


@near_keywords
class StoreFeature(gb.Feature):
    """A GraphBolt feature with rows in a store on the SSD. Read-only; thread-safe.

    GraphBolt chooses the batches: future samples are unknown, so the cache decides batch by batch. If GraphBolt reads
    ahead (`read_async`, DGL 2.4 and later), one thread reads for this feature, until `close`.

    Parameters
    ----------
    source : all N rows, such as ``dataset.open_features()``; the caller closes it
    cache : bytes of host memory for rows ("2GB" or a number)
    policy : "sieve", "s3fifo", "lru", "clock" or "fifo"

    Raises
    ------
    ConfigError
        The policy is unknown.
    """

    def __init__(self, source: FeatureSource, *, cache: str | int = 0, policy: OnlineName = "sieve") -> None:
        super().__init__()
        self.rows = CachedRows(source, cache=cache, policy=policy)
        self._pool: ThreadPoolExecutor | None = None

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rows for ``ids`` (M,), or all rows, on the ids' device."""
        if ids is None:
            return torch.from_numpy(self.rows.gather(np.arange(self.count())))
        return torch.from_numpy(self.rows.gather(ids.cpu().numpy())).to(ids.device)

    def read_async(self, ids: torch.Tensor) -> Iterator[_Pending]:
        """Yield one pending read of the rows for ``ids`` (M,); ForkError in a forked child."""
        self.rows.require_own_process()  # a forked child does not have the reading thread
        # The pool is made at the first read, because DGL forks its workers before, and a fork would lose the thread.
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "gloader-graphbolt")
        yield _Pending(self._pool.submit(self.read, ids))

    def read_async_num_stages(self, ids_device: torch.device) -> int:  # noqa: ARG002 - the same on every device
        """Return how often `read_async` yields. GraphBolt requests this number."""
        return 1

    def size(self) -> torch.Size:
        """Return the shape of one row."""
        return torch.Size([self.rows.source.dim])

    def count(self) -> int:
        """Return the number of rows."""
        return self.rows.source.num_rows

    def metadata(self) -> dict[str, Any]:
        """Return a description of the feature."""
        return {"backend": "gloader"}

    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:  # noqa: ARG002 - refused
        """Refuse: a store is never written after its creation.

        Raises
        ------
        ConfigError
            Always.
        """
        raise ConfigError("a gloader store is read-only; write a new one with FeatureStore.create")

    def close(self) -> None:
        """Join the reading thread. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class _Pending:
    """A pending read for GraphBolt."""

    def __init__(self, future: Future[torch.Tensor]) -> None:
        self._future = future

    def wait(self) -> torch.Tensor:
        """Return the rows, or raise the read's error."""
        return self._future.result()


@near_keywords
class BlockSampler(gb.SubgraphSampler):
    """gloader's neighbour sampling as a step in a GraphBolt pipeline: ``BlockSampler(datapipe, graph, [15, 10, 5])``.

    gloader draws a batch's neighbours with a random key that contains the batch's number. GraphBolt does not give this
    number, so a digest of the batch's seeds replaces it. The draw is the same for any number of workers.

    Parameters
    ----------
    datapipe : minibatches with seeds; for a graph with several types, with seeds by type
    graph : the topology, with one type or several
    fanouts : neighbours per node and hop, the hop next to the seeds first; -1 takes all. A graph with several types
        also accepts fan-outs by relation, or over all relations together, see `gloader.HeteroLoader`
    seed : any integer
    epoch : any integer; another epoch gives other draws
    exclude : for minibatches of pairs, the edges that no hop may take: "none"; "self", edges between the ends of a
        positive pair; "reverse", also their reverse edges. A node draws only from its other edges, so that it still
        gets the full fan-out. As in GraphBolt, all edges with the same ends are excluded
    reverse : for a graph with several types, each relation's reverse, as "a:rates:b" or a tuple

    Raises
    ------
    ConfigError
        See `gloader.samplers.make_hetero_sampler`. Another cause: ``exclude`` has an unknown value.
    """

    def __init__(
        self,
        datapipe: Any,
        graph: CscGraph | HeteroGraph,
        fanouts: FanoutsLike,
        *,
        seed: int = 0,
        epoch: int = 0,
        exclude: Exclude = "none",
        reverse: Mapping[str | Relation, str | Relation] | None = None,
    ) -> None:
        require_choice("exclude", exclude, get_args(Exclude))
        self._graph = graph
        self._exclude = exclude
        self._reverse = {_relation(one): _relation(other) for one, other in (reverse or {}).items()}
        # These fields are set before the base class's constructor, which builds the stages.
        self._types = HeteroGraph.of(graph)
        self._has_types = graph is self._types
        self._sampler = make_hetero_sampler("neighbor", self._types, fanouts, seed)
        self._epoch = epoch
        super().__init__(datapipe)

    def sample_subgraphs(self, seeds: Any, *_: Any, **__: Any) -> tuple[Any, list[gb.SampledSubgraphImpl]]:
        """Sample blocks for ``seeds`` (B,), or for seeds by type; return the input nodes and a subgraph per hop.

        For a graph with several types every type and relation is present, perhaps empty; relations have GraphBolt's
        names, "source:name:destination".

        Raises
        ------
        SeedError
            The seeds repeat, or are not graph nodes.
        ConfigError
            The graph has several types, and the seeds have no types; or the other way round.
        """
        if isinstance(seeds, Mapping) is not self._has_types:
            raise ConfigError(
                "the graph has several types of nodes: give seeds by type, as gb.ItemSetDict has them"
                if self._has_types
                else "the graph has nodes of one type, and the seeds are given by type: give a tensor of ids"
            )
        return self._sampled(seeds, excluded=())

    def _sample(self, minibatch: Any) -> Any:
        """Sample for a minibatch without the excluded edges. Overrides GraphBolt's method for one minibatch."""
        if self._exclude == "none" or minibatch.seeds is None:
            return super()._sample(minibatch)
        pairs = positives_of(minibatch)
        excluded = edges_of_pairs(self._graph, pairs, exclude=self._exclude, reverse=self._reverse)
        sampled = self._sampled(minibatch._seed_nodes, excluded=excluded)  # noqa: SLF001 - GraphBolt has them there
        minibatch.input_nodes, minibatch.sampled_subgraphs = sampled
        return minibatch

    def _sampled(
        self, seeds: Any, *, excluded: tuple[IdArray, ...]
    ) -> tuple[Any, list[gb.SampledSubgraphImpl]]:
        """Return the input nodes, and a subgraph per hop, for ``seeds`` without the edges ``excluded``."""
        ids = (
            number_through(self._types, {name: some.cpu().numpy() for name, some in seeds.items()})
            if self._has_types
            else seeds.cpu().numpy()
        )
        batch_id = BatchId(epoch=self._epoch, index=digest_of(ids))
        requested = BatchSeeds(nodes=ids, excluded=excluded) if excluded else ids
        batch = self._sampler.sample(batch_id, requested)
        nodes = {name: torch.from_numpy(found) for name, found in batch.nodes.items()}
        subgraphs = []
        for depth, hop in enumerate(batch.blocks):
            # Node counts by type, from the seeds to this block. The last count is its sources, the one before it its
            # destinations. In GraphBolt, rows are sources and columns are destinations.
            known = nodes_by_hop(batch.num_seeds, batch.blocks[depth:])
            fields: dict[str, dict[str, Any]] = {
                "sampled_csc": {_text(relation): _to_csc(block) for relation, block in hop.items()},
                "original_column_node_ids": {name: found[: known[name][-2]] for name, found in nodes.items()},
                "original_row_node_ids": {name: found[: known[name][-1]] for name, found in nodes.items()},
                "original_edge_ids": {
                    _text(relation): torch.from_numpy(block.edge_ids) for relation, block in hop.items()
                },
            }
            subgraphs.append(gb.SampledSubgraphImpl(**{key: self._plain(of) for key, of in fields.items()}))
        return self._plain(nodes), subgraphs

    def _plain(self, by_type: Mapping[str, Any]) -> Any:
        """Return ``by_type``, or for a graph with one type its only value."""
        return by_type if self._has_types else next(iter(by_type.values()))


@near_keywords
class NegativeSampler(gb.MiniBatchTransformer):
    """gloader's negatives as a step in a GraphBolt pipeline: ``NegativeSampler(datapipe, graph, gloader.Uniform(5))``.

    It takes minibatches of pairs, from item sets with ``names="seeds"`` and shape (N, 2), and transforms them like
    GraphBolt's ``sample_uniform_negative``: ``seeds`` (P, 2) has the positives first, ``labels`` (P,) bool is True for
    positives, and ``indexes`` (P,) is the index of each pair's positive. A batch's random key contains a digest of its
    pairs and ``epoch``.

    Parameters
    ----------
    datapipe : minibatches with pairs; for a graph with several types, with pairs by relation
    graph : the topology, with one type or several
    negatives : `gloader.Uniform`, `gloader.Binary` or `gloader.InBatch`, or their text
    seed : any integer
    epoch : any integer; changes the draw

    Raises
    ------
    ConfigError
        The negatives have another kind.
    """

    def __init__(
        self,
        datapipe: Any,
        graph: CscGraph | HeteroGraph,
        negatives: Negatives | str,
        *,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        self._graph, self._seed, self._epoch = graph, seed, epoch
        drawn = checked_negatives(negatives)
        if drawn is None or isinstance(drawn, Table):
            raise ConfigError(
                f"negatives={negatives}: GraphBolt gives pairs and has no link table; pass Uniform(k), "
                "Binary(ratio) or InBatch()"
            )
        self._negatives = drawn
        super().__init__(datapipe, self.add_negatives)

    def add_negatives(self, minibatch: Any) -> Any:
        """Return ``minibatch`` with negatives after its pairs, and with labels and indexes.

        Raises
        ------
        ConfigError
            The minibatch has no pairs.
        SeedError
            An end is not a graph node, or the graph has no such relation.
        """
        given = positives_of(minibatch)
        drawn = {
            relation: draw_beside(
                self._graph, pairs, relation, negatives=self._negatives, seed=self._seed, epoch=self._epoch
            )
            for relation, pairs in given.items()
        }
        parts = {
            relation: (
                torch.from_numpy(pairs),
                torch.from_numpy(owners),
                torch.arange(len(pairs)) < len(given[relation]),
            )
            for relation, (pairs, owners) in drawn.items()
        }
        # GraphBolt's minibatch has a plain tensor for a graph with one type (key None), or tensors by relation.
        for number, name in enumerate(("seeds", "indexes", "labels")):
            found = {relation: tensors[number] for relation, tensors in parts.items()}
            setattr(
                minibatch,
                name,
                found[None]
                if None in found
                else {_text(cast("Relation", key)): one for key, one in found.items()},
            )
        return minibatch


def positives_of(minibatch: Any) -> GivenPairs:
    """Return a minibatch's positive pairs (B, 2), by relation; the key is None in a one-type graph.

    Raises
    ------
    ConfigError
        The minibatch has no pairs.
    """
    seeds, labels = minibatch.seeds, minibatch.labels
    typed = isinstance(seeds, Mapping)
    positives = {}
    for key, pairs in seeds.items() if typed else [(None, seeds)]:
        if pairs is None or pairs.ndim != 2 or pairs.shape[1] != 2:
            raise ConfigError('a minibatch has no pairs: give items of shape (N, 2) with names="seeds"')
        # A minibatch with indexes already has negatives.
        is_positive = ... if minibatch.indexes is None else (labels[key] if typed else labels) > 0
        positives[None if key is None else _relation(key)] = pairs[is_positive].cpu().numpy()
    return positives


def _relation(relation: str | Relation) -> Relation:
    """Return "source:name:destination" as a triple."""
    return cast("Relation", tuple(relation.split(":"))) if isinstance(relation, str) else relation


def _to_csc(block: Block) -> gb.CSCFormatBase:
    """Return a block's edges in GraphBolt's form, with int64 ids."""
    return gb.CSCFormatBase(
        indptr=torch.from_numpy(block.indptr.astype(np.int64)),
        indices=torch.from_numpy(block.indices.astype(np.int64)),
    )


def _text(relation: Relation) -> str:
    """Return a relation in GraphBolt's form, "source:name:destination"."""
    return ":".join(relation)
