"""gloader under GraphBolt's pipelines: features from the SSD, and our sampler. For DGL 2.1 and later.

Importing this module imports DGL's GraphBolt, whose binaries exist for certain versions of torch only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from gloader.adapters.hop_sizes import nodes_by_hop
from gloader.adapters.numbered import number_through
from gloader.adapters.rows import CachedRows
from gloader.convert.sources.dgl import quiet_dgl
from gloader.errors import ConfigError, MissingDependencyError
from gloader.samplers import HeteroGraph, NeighborSampler, make_hetero_sampler
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gloader.cache import OnlineName
    from gloader.core.fanouts import FanoutsLike
    from gloader.samplers import CscGraph
    from gloader.types import Block, FeatureSource, HeteroBatch, Relation

with quiet_dgl("gloader.adapters.graphbolt needs") as dgl:
    try:
        import dgl.graphbolt as gb
    except ImportError as error:
        raise MissingDependencyError(
            f"gloader.adapters.graphbolt needs GraphBolt, which DGL {dgl.__version__} with torch {torch.__version__} "
            f"does not have ({error}); in an environment of its own: pip install dgl==2.1.0 torch==2.2.1 "
            "torchdata==0.7.1 'numpy<2'"
        ) from error


class StoreFeature(gb.Feature):
    """A GraphBolt feature whose rows are in a store on the SSD. Read-only; thread-safe.

    GraphBolt drives: what it will sample is unknown, so the cache decides batch by batch. Where GraphBolt reads
    ahead (`read_async`, DGL 2.4 and later), one thread of this feature does it, until `close`.

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
        """Return the rows of ``ids`` (M,), or all, on the device of ``ids``."""
        if ids is None:
            return torch.from_numpy(self.rows.gather(np.arange(self.count())))
        return torch.from_numpy(self.rows.gather(ids.cpu().numpy())).to(ids.device)

    def read_async(self, ids: torch.Tensor) -> Iterator[_Pending]:
        """Yield, once, what waits for the rows of ``ids`` (M,); ForkError in a forked child."""
        self.rows.require_own_process()  # its thread would not be there
        # Made in the process that reads, after DGL forked its workers.
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "gloader-graphbolt")
        yield _Pending(self._pool.submit(self.read, ids))

    def read_async_num_stages(self, ids_device: torch.device) -> int:  # noqa: ARG002 - one on every device
        """Return how often `read_async` yields."""
        return 1

    def size(self) -> torch.Size:
        """Return the shape of one row."""
        return torch.Size([self.rows.source.dim])

    def count(self) -> int:
        """Return N."""
        return self.rows.source.num_rows

    def metadata(self) -> dict[str, Any]:
        """Say what this is."""
        return {"backend": "gloader"}

    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:  # noqa: ARG002 - refused
        """Refuse: a store is not written to after its creation.

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
    """What GraphBolt waits on."""

    def __init__(self, future: Future[torch.Tensor]) -> None:
        self._future = future

    def wait(self) -> torch.Tensor:
        """Return the rows, or raise what reading them raised."""
        return self._future.result()


class BlockSampler(gb.SubgraphSampler):
    """Our neighbour sampling as a step of a GraphBolt pipeline: ``BlockSampler(datapipe, graph, [15, 10, 5])``.

    GraphBolt does not say which batch it asks for, so a batch's random key is a digest of its seeds and of ``epoch``:
    equal for any number of workers.

    Parameters
    ----------
    datapipe : of minibatches with seeds; of a graph of several types with seeds by type
    graph : the topology, of one type or of several
    fanouts : neighbours per node and hop, the hop next to the seeds first; -1 takes all. Of a graph of several types
        also by relation, or of all together, see `gloader.HeteroLoader`
    seed : any integer
    epoch : any integer; draw others in another epoch
    """

    def __init__(
        self,
        datapipe: Any,
        graph: CscGraph | HeteroGraph,
        fanouts: FanoutsLike,
        *,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        # Before the base class, whose constructor builds the stages.
        self._types = graph if isinstance(graph, HeteroGraph) else None
        self._sampler = (
            make_hetero_sampler("neighbor", graph, fanouts, seed)
            if isinstance(graph, HeteroGraph)
            else NeighborSampler(graph, cast("Sequence[int]", fanouts), seed=seed)
        )
        self._epoch = epoch
        super().__init__(datapipe)

    def sample_subgraphs(self, seeds: Any, *_: Any, **__: Any) -> tuple[Any, list[gb.SampledSubgraphImpl]]:
        """Sample the blocks of ``seeds`` (B,), or of those by type; returns the input nodes and a subgraph per hop.

        Of a graph of several types every type and relation is there, perhaps empty; a relation is called
        "source:name:destination", as GraphBolt has it.

        Raises
        ------
        SeedError
            The seeds repeat, or are no nodes of the graph.
        ConfigError
            The graph has several types, and the seeds come without; or the reverse.
        """
        if isinstance(seeds, Mapping) is (self._types is None):
            raise ConfigError(
                "the graph has several types of nodes: give seeds by type, as gb.ItemSetDict has them"
                if self._types is not None
                else "seeds come by type, and the graph has nodes of one type: give a tensor of ids"
            )
        ids = (
            seeds.cpu().numpy()
            if self._types is None
            else number_through(self._types, {name: some.cpu().numpy() for name, some in seeds.items()})
        )
        # Seven bytes, so that the index fits an int64 whatever the digest.
        digest = hashlib.blake2b(np.ascontiguousarray(ids, np.int64).tobytes(), digest_size=7).digest()
        batch_id = BatchId(epoch=self._epoch, index=int.from_bytes(digest, "little"))
        if not isinstance(self._sampler, NeighborSampler):
            return _to_typed_subgraphs(self._sampler.sample(batch_id, ids))
        batch = self._sampler.sample(batch_id, ids)
        nodes = torch.from_numpy(batch.nodes)
        return nodes, [_to_subgraph(block, nodes) for block in batch.blocks]


def _to_subgraph(block: Block, nodes: torch.Tensor) -> gb.SampledSubgraphImpl:
    return gb.SampledSubgraphImpl(
        sampled_csc=_to_csc(block),
        original_column_node_ids=nodes[: block.num_dst],
        original_row_node_ids=nodes[: block.num_src],
        original_edge_ids=torch.from_numpy(block.edge_ids),
    )


def _to_typed_subgraphs(batch: HeteroBatch) -> tuple[Any, list[gb.SampledSubgraphImpl]]:
    nodes = {name: torch.from_numpy(ids) for name, ids in batch.nodes.items()}
    known = nodes_by_hop(batch.num_seeds, batch.blocks)
    subgraphs = []
    for depth, hop in enumerate(batch.blocks):
        # The first is next to the features, and holds the nodes that are known after the last hop.
        after = len(batch.blocks) - depth
        subgraphs.append(
            gb.SampledSubgraphImpl(
                sampled_csc={_text(relation): _to_csc(block) for relation, block in hop.items()},
                original_column_node_ids={name: ids[: known[name][after - 1]] for name, ids in nodes.items()},
                original_row_node_ids={name: ids[: known[name][after]] for name, ids in nodes.items()},
                original_edge_ids={
                    _text(relation): torch.from_numpy(block.edge_ids) for relation, block in hop.items()
                },
            )
        )
    return nodes, subgraphs


def _to_csc(block: Block) -> gb.CSCFormatBase:
    return gb.CSCFormatBase(
        indptr=torch.from_numpy(block.indptr.astype(np.int64)),
        indices=torch.from_numpy(block.indices.astype(np.int64)),
    )


def _text(relation: Relation) -> str:
    return ":".join(relation)
