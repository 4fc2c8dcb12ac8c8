"""DGL's data loader over gloader's pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed

from gloader.bridges.dgl_api.batches import to_link_batch, to_node_batch
from gloader.bridges.dgl_api.dataset_graph import DGLGraph
from gloader.bridges.dgl_api.missing import missing
from gloader.bridges.dgl_api.relations import only
from gloader.bridges.dgl_api.samplers import EdgePredictionSampler, NeighborSampler
from gloader.bridges.dgl_api.seeding import current_seed
from gloader.bridges.loader_view import LoaderView, at_most
from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.loader import HeteroLoader, LinkLoader, Loader
from gloader.pipeline.link_task import require_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.types import IdArray


# What DGL's loader and torch's have for workers, pinned memory and streams, all of which the pipeline does by itself.
_NEEDLESS: Final = (
    "ddp_seed",
    "use_prefetch_thread",
    "use_alternate_streams",
    "pin_prefetcher",
    "use_uva",
    "gpu_cache",
    "num_workers",
    "persistent_workers",
    "prefetch_factor",
    "pin_memory",
    "worker_init_fn",
)


class DataLoader(LoaderView[Any]):
    """Yields ``(input_nodes, output_nodes, blocks)``, sampled and read ahead by the stages of `gloader.Loader`.

    Over `as_edge_prediction_sampler` it yields ``(input_nodes, pair_graph, neg_pair_graph, blocks)``, without negatives
    three of these. ``blocks[0].srcdata["feat"]`` holds the features and ``blocks[-1].dstdata["label"]`` the labels. Ids
    are those of the dataset.

    Parameters
    ----------
    graph : a `DGLGraph` or a `gloader.Dataset`
    indices : (n,) ids of the seeds; by type, where there are several; of edges to predict the name of a link table
    graph_sampler : of `gloader.compat.dgl.dataloading`
    device : where batches are computed on; defaults to that of the graph
    use_ddp : ranks of a process group share the seeds; False: this one has all that it is given. In a group of several
        ranks one of them has to be said
    batch_size, drop_last, shuffle : as of DGL
    keywords : any setting of `gloader.Loader`, such as ``memory_budget="8GB"``; those of DGL that are about workers,
        pinned memory and streams are taken and not looked at

    Raises
    ------
    DglFeatureError
        The graph, the sampler or the edges are of another kind.
    ConfigError, SeedError, BudgetError
        As `gloader.Loader`.
    """

    _refused = (*_NEEDLESS, "batch_sampler")
    _renamed = ("fanouts", "seeds", "edges", "negatives", "exclude")

    def __init__(
        self,
        graph: DGLGraph | Dataset,
        indices: Any,
        graph_sampler: NeighborSampler | EdgePredictionSampler,
        device: Any = None,
        use_ddp: bool | None = None,
        batch_size: int = 1,
        drop_last: bool = False,
        shuffle: bool = False,
        **keywords: Any,
    ) -> None:
        if not isinstance(graph, (DGLGraph, Dataset)):
            raise missing(f"dgl.dataloading.DataLoader({type(graph).__name__})")
        if given := sorted({"sampler", "batch_sampler"} & keywords.keys()):
            raise ConfigError(
                f"{given[0]}= of torch: DGL's indices are taken each once, with shuffle=; "
                "gloader.adapters.pyg.NeighborLoader takes torch's samplers, and seeds that repeat"
            )
        graph = DGLGraph(graph) if isinstance(graph, Dataset) else graph
        settings = {name: value for name, value in keywords.items() if name not in _NEEDLESS}
        settings |= {
            "batch_size": batch_size,
            "drop_last": drop_last,
            "shuffle": shuffle,
            "device": torch.empty(0, device=graph.device if device is None else device).device,
        }
        ranks = {} if "rank" in settings else _ranks(use_ddp=use_ddp)
        settings = ranks | {"seed": current_seed()} | settings
        native = _native(graph.dataset, indices, graph_sampler, settings)
        convert: Callable[[Any], Any] = partial(to_node_batch, graph=graph)
        if isinstance(native, LinkLoader):
            has_negatives = native.negatives is not None
            convert = partial(
                to_link_batch, graph=graph, relation=native.table.relation, has_negatives=has_negatives
            )
        super().__init__(native, convert=convert, is_owner=True)

    @contextmanager
    def enable_cpu_affinity(self, *_args: Any, **_keywords: Any) -> Iterator[None]:
        """Do nothing: there are no worker processes to be kept on cores of their own."""
        yield


def _native(
    dataset: Dataset, indices: Any, sampler: NeighborSampler | EdgePredictionSampler, settings: dict[str, Any]
) -> Loader | HeteroLoader | LinkLoader:
    hops = sampler.sampler if isinstance(sampler, EdgePredictionSampler) else sampler
    if not isinstance(hops, NeighborSampler):
        raise missing(f"dgl.dataloading.{type(hops).__name__}")
    settings |= {"fanouts": hops.fanouts_for(dataset.relations), "sampler": hops.kind}
    if isinstance(sampler, EdgePredictionSampler):
        edges = _link_table(indices)
        table = dataset.link_table(edges)
        require_labels(
            table,
            sampler.negatives,
            instead="negative_sampler=negative_sampler.Uniform(1) to as_edge_prediction_sampler",
        )
        _shorten(settings, table.num_rows)
        return LinkLoader(
            dataset, edges=edges, negatives=sampler.negatives, exclude=sampler.exclude, **settings
        )
    if dataset.kind == "hetero" and isinstance(indices, Mapping):
        by_type = {name: _ids(ids) for name, ids in indices.items()}
        _shorten(settings, sum(map(len, by_type.values())))
        return HeteroLoader(dataset, seeds=by_type, **settings)
    seeds = _ids(only(indices.values()) if isinstance(indices, Mapping) else indices)
    _shorten(settings, len(seeds))
    make = HeteroLoader if dataset.kind == "hetero" else Loader
    return make(dataset, seeds=seeds, **settings)


def _shorten(settings: dict[str, Any], num_seeds: int) -> None:
    """Have batches no larger than the seeds of a rank: DGL gives a smaller one then, where gloader would refuse."""
    if not settings["drop_last"]:
        settings["batch_size"] = at_most(settings["batch_size"], num_seeds // settings.get("world_size", 1))


def _ids(indices: Any) -> IdArray:
    return torch.as_tensor(indices).cpu().numpy()


def _link_table(indices: Any) -> str:
    """Return the name of the link table that ``indices`` are, perhaps by relation."""
    name = only(indices.values()) if isinstance(indices, Mapping) else indices
    if not isinstance(name, str):
        raise missing(
            "dgl.dataloading.DataLoader over ids of edges",
            "edges to predict are a link table of the dataset, which `gloader prepare --edge-split 80/10/10` makes: "
            "give its name, such as 'train'",
        )
    return name


def _ranks(*, use_ddp: bool | None) -> dict[str, int]:
    """Return the rank and the world size of a loader; none where the process is alone so far."""
    group = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
    if use_ddp is None:
        if group[1] > 1:
            raise ConfigError(
                f"rank {group[0]} of {group[1]} builds a DataLoader without use_ddp=: use_ddp=True takes this rank's "
                "part of the seeds, use_ddp=False takes all of them (seeds that you split by hand, or an evaluation on "
                "one rank)"
            )
        return {}
    if not use_ddp:
        # Also among other ranks: DGL's has all seeds then, and the others need not build one.
        return {"rank": 0, "world_size": 1}
    if not distributed.is_initialized():
        raise ConfigError(
            "use_ddp=True needs the process group: torch.distributed.init_process_group comes first"
        )
    return {"rank": group[0], "world_size": group[1]}
