"""Typed mini-batches of each system in our form, for one model: what a loop waits for, and what conversion took."""

from __future__ import annotations

import time
import warnings
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import torch
from hetero_samplers import LABELLED, dgl_graph, pyg_graph

from gloader import HeteroLoader
from gloader.convert.sources.dgl import quiet_dgl
from gloader.types import BatchId, DeviceBlock, HeteroReadyBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hetero_graphs import TypedGraph

    from gloader import Dataset
    from gloader.types import Relation

_NOTHING = torch.empty(0)


class Stream(Protocol):
    """The batches of one system."""

    converting_s: float  # of the last epoch, for the peers' batches to be in our form: no part of their time

    def epoch(self) -> Iterator[HeteroReadyBatch]:
        """Yield the batches of the next epoch."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class GloaderStream:
    """Ours, as it comes. Its stages stop with the epoch: they would work for the next while another is measured."""

    converting_s = 0.0

    def __init__(
        self, dataset: Dataset, seeds: Any, fanouts: Sequence[int], batch_size: int, settings: Any
    ) -> None:
        self.loader = HeteroLoader(
            dataset,
            seeds={LABELLED: seeds},
            fanouts=tuple(fanouts),
            batch_size=batch_size,
            epochs=1,
            **settings,
        )

    def epoch(self) -> Iterator[HeteroReadyBatch]:
        """Yield the batches of the next epoch."""
        yield from self.loader

    def close(self) -> None:
        """Stop the stages."""
        self.loader.close()


class DglStream:
    """DGL's data loader, which brings the rows of papers."""

    def __init__(
        self, graph: TypedGraph, seeds: Any, fanouts: Sequence[int], batch_size: int, workers: int
    ) -> None:
        self.converting_s = 0.0
        with quiet_dgl("the comparison needs") as dgl:
            self._dgl = dgl
            typed = dgl_graph(dgl, graph)
            typed.nodes[LABELLED].data["feat"] = torch.from_numpy(graph.features[LABELLED])
            typed.nodes[LABELLED].data["label"] = torch.from_numpy(graph.labels)
            sampler = dgl.dataloading.NeighborSampler(
                list(reversed(fanouts)),
                prefetch_node_feats={LABELLED: ["feat"]},
                prefetch_labels={LABELLED: ["label"]},
            )
            self._loader = dgl.dataloading.DataLoader(
                typed,
                {LABELLED: torch.from_numpy(seeds)},
                sampler,
                batch_size=batch_size,
                shuffle=True,
                num_workers=workers,
            )

    def epoch(self) -> Iterator[HeteroReadyBatch]:
        """Yield the batches of the next epoch."""
        self.converting_s = 0.0
        for nodes, _, blocks in self._loader:
            rows = blocks[0].srcnodes[LABELLED].data["feat"]
            labels = blocks[-1].dstnodes[LABELLED].data["label"]
            started = time.perf_counter()
            batch = HeteroReadyBatch(
                id=BatchId(epoch=0, index=0),
                x={
                    name: rows if name == LABELLED else torch.empty(len(ids), 0)
                    for name, ids in nodes.items()
                },
                y=labels,
                blocks=tuple(self._hop(block) for block in blocks),
                nodes={name: ids.numpy() for name, ids in nodes.items()},
                num_seeds={name: blocks[-1].num_dst_nodes(name) for name in nodes},
            )
            self.converting_s += time.perf_counter() - started
            yield batch

    def _hop(self, block: Any) -> Mapping[Relation, DeviceBlock]:
        found = {}
        for relation in block.canonical_etypes:
            indptr, indices, edge_ids = block.adj_tensors("csc", etype=relation)
            found[relation] = DeviceBlock(
                indptr=indptr.int(),
                indices=indices.int(),
                edge_ids=edge_ids,
                src_degree=_NOTHING,
                num_src=block.num_src_nodes(relation[0]),
                num_dst=block.num_dst_nodes(relation[2]),
            )
        return found

    def close(self) -> None:
        """Do nothing: the process ends."""


class PygStream:
    """PyG's ``NeighborLoader``, which brings the rows of papers."""

    def __init__(
        self, graph: TypedGraph, seeds: Any, fanouts: Sequence[int], batch_size: int, workers: int
    ) -> None:
        from torch_geometric.loader import NeighborLoader

        self.converting_s = 0.0
        self._num_layers = len(fanouts)
        data = pyg_graph(graph)
        data[LABELLED].x = torch.from_numpy(graph.features[LABELLED])
        data[LABELLED].y = torch.from_numpy(graph.labels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._loader = NeighborLoader(
                data,
                num_neighbors=list(fanouts),
                input_nodes=(LABELLED, torch.from_numpy(seeds)),
                batch_size=batch_size,
                shuffle=True,
                is_sorted=True,
                num_workers=workers,
                persistent_workers=workers > 0,
            )

    def epoch(self) -> Iterator[HeteroReadyBatch]:
        """Yield the batches of the next epoch."""
        self.converting_s = 0.0
        for batch in self._loader:
            started = time.perf_counter()
            found = self._convert(batch)
            self.converting_s += time.perf_counter() - started
            yield found

    def _convert(self, data: Any) -> HeteroReadyBatch:
        known = {name: self._known(data[name]) for name in data.node_types}
        nodes = {name: data[name].n_id.numpy() for name in data.node_types}
        num_seeds = {name: counts[0] for name, counts in known.items()}
        return HeteroReadyBatch(
            id=BatchId(epoch=0, index=0),
            x={
                name: data[name].x if name == LABELLED else torch.empty(len(ids), 0)
                for name, ids in nodes.items()
            },
            y=data[LABELLED].y[: num_seeds[LABELLED]],
            blocks=tuple(
                {relation: _pyg_block(data, relation, known, hop) for relation in data.edge_types}
                for hop in reversed(range(self._num_layers))
            ),
            nodes=nodes,
            num_seeds=num_seeds,
        )

    def _known(self, store: Any) -> list[int]:
        """Return the nodes known before each hop and after all; all of them where the sampler does not say."""
        seeds = store.batch_size if "batch_size" in store else 0
        if (sampled := store.get("num_sampled_nodes")) is None:
            return [seeds, *[len(store.n_id)] * self._num_layers]
        return list(accumulate(int(count) for count in sampled))

    def close(self) -> None:
        """Do nothing: the process ends."""


def _pyg_block(data: Any, relation: Relation, known: Mapping[str, list[int]], hop: int) -> DeviceBlock:
    sources, ends = data[relation].edge_index
    num_dst, num_src = known[relation[2]][hop], known[relation[0]][hop + 1]
    keep = ends < num_dst
    sources, ends = sources[keep], ends[keep]
    order = torch.argsort(ends, stable=True)
    offsets = torch.zeros(num_dst + 1, dtype=torch.int32)
    offsets[1:] = torch.bincount(ends, minlength=num_dst).cumsum(0)
    return DeviceBlock(
        indptr=offsets,
        indices=sources[order].int(),
        edge_ids=order,
        src_degree=_NOTHING,
        num_src=num_src,
        num_dst=num_dst,
    )
