"""Mini-batches of each system in one form, with the seconds that each part of making them took."""

from __future__ import annotations

import mmap
import time
import warnings
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from gloader import Loader
from gloader.errors import MissingDependencyError
from gloader.types import DeviceBlock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader import Dataset
    from gloader.types import IdArray

Blocks = tuple[DeviceBlock, ...]
Batch = tuple[torch.Tensor, torch.Tensor, Blocks]  # x (U, F), y (B,), blocks
_NOTHING = torch.empty(0)


class Stream(Protocol):
    """The batches of one system."""

    def epoch(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch."""
        ...

    def parts(self) -> dict[str, float]:
        """Return what the epoch that just ended took and moved, by name."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class Clock:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Count the block."""
        started = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - started

    def take(self) -> dict[str, float]:
        """Return the seconds so far, and start again from nothing."""
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        return taken


class GloaderStream:
    """gloader's own batches. Its stages work ahead over the last epoch too: no epoch is spared what others paid for."""

    def __init__(self, dataset: Dataset, seeds: IdArray, job: dict[str, Any]) -> None:
        self._loader = Loader(
            dataset,
            seeds=seeds,
            fanouts=job["fanouts"],
            batch_size=job["batch_size"],
            seed=job["seed"],
            **job["settings"],
        )

    def epoch(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch."""
        for batch in self._loader:
            yield batch.x, batch.y, batch.blocks

    def parts(self) -> dict[str, float]:
        """Return thread-seconds of the stages, which overlap the computation, and what they moved."""
        stats = self._loader.stats
        behind = stats.stage_seconds
        return {
            "sample_s": behind["sample"],
            "inspect_s": behind["inspect"],
            "stage_s": behind["stage"],
            "gather_s": behind["gather"],
            "retrieval_s": stats.retrieval_s + behind["stage"],
            "rows": stats.rows_gathered,
            "hit_rate": stats.hit_rate,
        }

    def explain(self) -> dict[str, str]:
        """Return what the loader says of itself."""
        return {"explanation": self._loader.explain(), "bottleneck": self._loader.bottleneck()}

    def close(self) -> None:
        """Stop the stages."""
        self._loader.close()


class PeerStream:
    """Batches of a system that samples ids; the rows are taken by `torch.index_select`, faster than ``x[ids]``.

    With workers the sampling is hidden, and what is left of it is waiting.
    """

    def __init__(self, dataset: Dataset, seeds: IdArray, job: dict[str, Any]) -> None:
        self._clock = Clock()
        self._rows = 0
        self._is_hidden = job["settings"]["workers"] > 0
        open_batches = {"dgl": _open_dgl, "pyg": _open_pyg}[job["system"]]
        self._batches = open_batches(dataset, seeds, job)
        self._seeds = torch.from_numpy(np.sort(seeds))
        self._labels = torch.from_numpy(dataset.labels_of(self._seeds.numpy()))
        self._features = _open_features(dataset, job["home"], job["settings"].get("advice"))

    def epoch(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch."""
        self._rows = 0
        samples = iter(self._batches())
        while True:
            with self._clock.measure("hidden_s" if self._is_hidden else "sample_s"):
                sample = next(samples, None)
            if sample is None:
                return
            nodes, outputs, blocks = sample
            with self._clock.measure("gather_s"):
                x = torch.index_select(self._features, 0, nodes)
                y = self._labels[torch.searchsorted(self._seeds, outputs)]
            self._rows += len(nodes)
            with self._clock.measure("convert_s"):
                converted = blocks()
            yield x, y, converted

    def parts(self) -> dict[str, float]:
        """Return the seconds of sampling, gathering, and bringing blocks into our form."""
        taken = self._clock.take()
        taken.pop("hidden_s", None)  # counted as waiting by whoever iterates
        return {**taken, "rows": self._rows}

    def close(self) -> None:
        """Do nothing: the process ends."""


def open_stream(dataset: Dataset, seeds: IdArray, job: dict[str, Any]) -> Stream:
    """Return the stream that ``job`` describes.

    Raises
    ------
    MissingDependencyError
        The system is not installed, or lacks what its sampler needs.
    """
    return (
        GloaderStream(dataset, seeds, job) if job["system"] == "gloader" else PeerStream(dataset, seeds, job)
    )


def _open_features(dataset: Dataset, home: str, advice: str | None) -> torch.Tensor:
    rows = np.load(dataset.features_path, mmap_mode="r")
    if home == "memory":
        whole = torch.empty(rows.shape)
        whole.numpy()[:] = rows
        return whole
    if advice == "random":
        rows._mmap.madvise(mmap.MADV_RANDOM)  # noqa: SLF001 - numpy has no public way
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the rows cannot be written
        return torch.from_numpy(rows)


def _open_dgl(dataset: Dataset, seeds: IdArray, job: dict[str, Any]) -> Any:
    from gloader.adapters.dgl import to_dgl
    from gloader.convert.sources.dgl import quiet_dgl

    settings = job["settings"]
    keeps = settings.get("narrow_ids", False)
    graph = to_dgl(dataset.load_graph(), keep_ids=keeps)
    ids = torch.from_numpy(seeds.astype(np.int32 if keeps else np.int64))
    with quiet_dgl("the comparison needs") as dgl:
        loader = dgl.dataloading.DataLoader(
            graph,
            ids,
            dgl.dataloading.NeighborSampler(list(reversed(job["fanouts"])), fused=not keeps),
            batch_size=job["batch_size"],
            shuffle=True,
            num_workers=settings["workers"],
        )

    def batches() -> Iterator[Any]:
        for nodes, outputs, blocks in loader:
            yield nodes, outputs.long(), lambda blocks=blocks: tuple(map(dgl_block, blocks))

    return batches


def dgl_block(block: Any) -> DeviceBlock:
    """Return a DGL block as ours; shares what has the right width."""
    indptr, indices, edge_ids = block.adj_tensors("csc")
    return DeviceBlock(
        indptr=indptr.int(),
        indices=indices.int(),
        edge_ids=edge_ids,
        src_degree=_NOTHING,  # the mean aggregator asks for it where edges have weights
        num_src=block.num_src_nodes(),
        num_dst=block.num_dst_nodes(),
    )


def _open_pyg(dataset: Dataset, seeds: IdArray, job: dict[str, Any]) -> Any:
    from torch_geometric import typing as support
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    if not (support.WITH_PYG_LIB or support.WITH_TORCH_SPARSE):
        raise MissingDependencyError(
            "PyG's NeighborLoader needs pyg-lib or torch-sparse; install one that fits this torch"
        )
    graph = dataset.load_graph()
    offsets = torch.from_numpy(np.asarray(graph.indptr))
    sources = torch.from_numpy(graph.indices.astype(np.int64))
    data = Data(num_nodes=dataset.num_nodes)
    if support.WITH_TORCH_SPARSE:
        size = (dataset.num_nodes, dataset.num_nodes)
        data.adj_t = support.SparseTensor(
            rowptr=offsets, col=sources, sparse_sizes=size, is_sorted=True, trust_data=True
        )
    else:
        ends = torch.arange(dataset.num_nodes).repeat_interleave(offsets.diff())
        data.edge_index = torch.stack([sources, ends])
    loader = NeighborLoader(
        data,
        num_neighbors=list(job["fanouts"]),
        input_nodes=torch.from_numpy(seeds),
        batch_size=job["batch_size"],
        shuffle=True,
        is_sorted=True,
        num_workers=job["settings"]["workers"],
        persistent_workers=job["settings"]["workers"] > 0,
    )

    def batches() -> Iterator[Any]:
        for batch in loader:
            seeds_of = batch.n_id[: batch.batch_size]
            yield batch.n_id, seeds_of, lambda batch=batch: pyg_blocks(batch, len(job["fanouts"]))

    return batches


def pyg_blocks(batch: Any, num_layers: int) -> Blocks:
    """Return the hops of PyG's merged subgraph as our blocks, each trimmed to the nodes that still matter.

    Where the sampler does not say how many nodes each hop brought (torch-sparse), every layer computes all nodes.
    """
    if hasattr(batch, "adj_t"):
        ends, sources, _ = batch.adj_t.coo()
    else:
        sources, ends = batch.edge_index
    nodes = getattr(batch, "num_sampled_nodes", None)
    edges = getattr(batch, "num_sampled_edges", None)
    if nodes is None or edges is None:
        block = _pyg_block(sources, ends, len(batch.n_id), len(batch.n_id))
        last = _pyg_block(sources, ends, len(batch.n_id), batch.batch_size)
        return (*[block] * (num_layers - 1), last)
    num_nodes = np.cumsum(nodes).tolist()
    num_edges = np.cumsum(edges).tolist()
    return tuple(
        _pyg_block(sources[: num_edges[hop]], ends[: num_edges[hop]], num_nodes[hop + 1], num_nodes[hop])
        for hop in reversed(range(num_layers))
    )


def _pyg_block(sources: torch.Tensor, ends: torch.Tensor, num_src: int, num_dst: int) -> DeviceBlock:
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
