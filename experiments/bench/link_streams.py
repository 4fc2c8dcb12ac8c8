"""Mini-batches of links of each system: for each batch what a loop gets, features included."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gloader import LinkLoader, Uniform
from gloader.convert.sources.dgl import quiet_dgl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from link_graphs import LinkGraph

    from gloader import Dataset
    from gloader.config import Exclude
    from gloader.types import LinkBatch


class Stream(Protocol):
    """The batches of one system."""

    def batches(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the nodes and the edges of each of ``count`` batches of an epoch."""
        ...


class GloaderStream:
    """Ours; its stages stop behind the batches that are taken."""

    def __init__(
        self, dataset: Dataset, fanouts: Sequence[int], batch_size: int, exclude: Exclude, **settings: Any
    ) -> None:
        self._loader = LinkLoader(
            dataset,
            fanouts=tuple(fanouts),
            batch_size=batch_size,
            negatives=Uniform(1),
            exclude=exclude,
            epochs=1,
            **settings,
        )

    def explain(self) -> str:
        """Return what the loader says of itself."""
        return self._loader.explain()

    def close(self) -> None:
        """Stop the stages."""
        self._loader.close()

    def ready(self, count: int) -> Iterator[LinkBatch]:
        """Yield ``count`` batches of an epoch as they come."""
        for number, batch in enumerate(self._loader, 1):
            yield batch
            if number == count:
                return

    def batches(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the nodes and the edges of each of ``count`` batches of an epoch."""
        for batch in self.ready(count):
            ready: Any = batch.batch
            yield ready.x.shape[0], sum(block.indices.shape[0] for block in ready.blocks)


class PygStream:
    """PyG's ``LinkNeighborLoader``, with one drawn destination for each edge."""

    def __init__(self, graph: LinkGraph, fanouts: Sequence[int], batch_size: int, workers: int) -> None:
        from torch_geometric.data import Data
        from torch_geometric.loader import LinkNeighborLoader
        from torch_geometric.sampler import NegativeSampling

        ends = torch.stack(
            [torch.from_numpy(graph.sources).long(), torch.from_numpy(graph.destinations).long()]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._loader = LinkNeighborLoader(
                Data(x=torch.from_numpy(graph.features), edge_index=ends, num_nodes=len(graph.features)),
                num_neighbors=list(fanouts),
                edge_label_index=ends,
                neg_sampling=NegativeSampling("triplet", amount=1),
                batch_size=batch_size,
                shuffle=True,
                is_sorted=True,
                num_workers=workers,
                persistent_workers=workers > 0,
            )

    def batches(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the nodes and the edges of each of ``count`` batches of an epoch."""
        for number, batch in enumerate(self._loader, 1):
            yield batch.x.shape[0], batch.edge_index.shape[1]
            if number == count:
                return


class DglStream:
    """DGL's ``as_edge_prediction_sampler``, with one drawn destination for each edge."""

    def __init__(
        self,
        graph: LinkGraph,
        fanouts: Sequence[int],
        batch_size: int,
        workers: int,
        exclude: str | None,
    ) -> None:
        with quiet_dgl("the comparison needs") as dgl:
            offsets, sources = torch.from_numpy(graph.indptr), torch.from_numpy(graph.sources).long()
            whole = dgl.graph(("csc", (offsets, sources, [])), num_nodes=len(graph.features))
            whole.ndata["feat"] = torch.from_numpy(graph.features)
            sampler = dgl.dataloading.as_edge_prediction_sampler(
                dgl.dataloading.NeighborSampler(list(reversed(fanouts)), prefetch_node_feats=["feat"]),
                exclude=exclude,
                negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
            )
            self._loader = dgl.dataloading.DataLoader(
                whole,
                torch.arange(whole.num_edges()),
                sampler,
                batch_size=batch_size,
                shuffle=True,
                num_workers=workers,
            )

    def batches(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the nodes and the edges of each of ``count`` batches of an epoch."""
        for number, (_, _, _, blocks) in enumerate(self._loader, 1):
            yield blocks[0].srcdata["feat"].shape[0], sum(block.num_edges() for block in blocks)
            if number == count:
                return
