"""DGL's data loader and samplers over gloader's pipeline, without DGL.

These samplers only hold settings. A `DataLoader` reads them and builds one of gloader's own ("native") loaders, which
draws the samples: a `Loader`, `HeteroLoader` or `LinkLoader`. The native batches are converted to DGL's form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import distributed

from gloader.bridges.dgl_api.block import to_link_batch, to_node_batch
from gloader.bridges.dgl_api.dataset_graph import DGLGraph
from gloader.bridges.dgl_api.names import WEIGHT, missing, only, relation_of
from gloader.bridges.loader_view import LoaderView, at_most
from gloader.core.near_names import near_keywords
from gloader.core.negatives import Uniform
from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.loader import HeteroLoader, LinkLoader, Loader
from gloader.pipeline.link_task import require_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.config import Exclude
    from gloader.core.fanouts import FanoutsLike
    from gloader.types import IdArray, Relation


_SEEDS = [0]  # one element, the last argument of `seed`; a list, so that a function can change it


@near_keywords
def seed(val: int) -> None:
    """Set the seed for loaders that are built later: it decides their order and their samples.

    Parameters
    ----------
    val : any integer
    """
    _SEEDS[0] = int(val)


def current_seed() -> int:
    """Return the last seed given to `seed`, or 0."""
    return _SEEDS[0]


_NAME: Final = "dgl.dataloading.NeighborSampler"  # the class's name in errors


@near_keywords
class NeighborSampler:
    """Draws neighbours of each node without replacement, in one hop per fan-out.

    Parameters
    ----------
    fanouts : for each hop, the neighbours per node and relation: a number, or a mapping from relations to numbers;
        -1 takes all. **The hop next to the seeds is the last**, as in DGL
    edge_dir : only "in"
    prob : None, or "weight" to draw neighbours by the dataset's edge weights
    mask : only None
    replace : only False
    prefetch_node_feats, prefetch_labels, prefetch_edge_feats, output_device, fused : accepted and ignored: features
        and labels come with every batch, on the loader's device

    Raises
    ------
    DglFeatureError
        An argument has a value that is not listed here.
    """

    def __init__(  # noqa: PLR0913 - as of DGL
        self,
        fanouts: Sequence[int | Mapping[Any, int]],
        edge_dir: str = "in",
        prob: str | None = None,
        mask: str | None = None,
        replace: bool = False,
        prefetch_node_feats: Any = None,  # noqa: ARG002
        prefetch_labels: Any = None,  # noqa: ARG002
        prefetch_edge_feats: Any = None,  # noqa: ARG002
        output_device: Any = None,  # noqa: ARG002
        fused: bool = True,  # noqa: ARG002
    ) -> None:
        if edge_dir != "in":
            raise missing(f"{_NAME}(edge_dir={edge_dir!r})", "reverse the edges before the export")
        if replace:
            raise missing(f"{_NAME}(replace=True)", "neighbours are drawn without replacement")
        if mask is not None:
            raise missing(f"{_NAME}(mask=...)", "leave the edges out before the export")
        if prob not in (None, WEIGHT):
            raise missing(
                f"{_NAME}(prob={prob!r})", f"the weights of edges are called {WEIGHT!r} in a dataset"
            )
        self.fanouts = list(fanouts)
        self.prob = prob

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise missing(f"{_NAME}.{name}", "a DataLoader samples the blocks of its seeds itself")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fanouts})"

    @property
    def kind(self) -> str:
        """The name of gloader's sampler."""
        return "neighbor" if self.prob is None else "weighted"

    def fanouts_for(self, relations: Sequence[Relation]) -> FanoutsLike:
        """Return the fan-outs in gloader's order: the hop next to the seeds first.

        Parameters
        ----------
        relations : the dataset's relations

        Raises
        ------
        ConfigError
            A fan-out names an unknown relation, or omits one.
        """
        hops = self.fanouts[::-1]
        if not any(isinstance(hop, Mapping) for hop in hops):
            return cast("list[int]", hops)
        each = [_by_relation(hop, relations) for hop in hops]
        return {relation: [hop[relation] for hop in each] for relation in relations}


def _by_relation(hop: int | Mapping[Any, int], relations: Sequence[Relation]) -> dict[Relation, int]:
    """Return one hop's fan-out for every relation. Raise ConfigError if a mapping omits one."""
    if not isinstance(hop, Mapping):
        return dict.fromkeys(relations, hop)
    found = {relation_of(relations, name): count for name, count in hop.items()}
    if absent := [relation for relation in relations if relation not in found]:
        raise ConfigError(
            f"the fan-outs {dict(hop)} leave out {', '.join(map(str, absent))}; 0 takes none of its edges"
        )
    return found


MultiLayerNeighborSampler = NeighborSampler


@near_keywords
class MultiLayerFullNeighborSampler(NeighborSampler):
    """All neighbours, in ``num_layers`` hops.

    Parameters
    ----------
    num_layers : hops
    keywords : the other arguments of `NeighborSampler`
    """

    def __init__(self, num_layers: int, **keywords: Any) -> None:
        super().__init__([-1] * num_layers, **keywords)


# gloader's setting for each value of DGL's ``exclude``.
_EXCLUDED: Final[dict[str | None, Exclude]] = {
    None: "none",
    "self": "self",
    "reverse_id": "reverse",
    "reverse_types": "reverse",
}


class EdgePredictionSampler:
    """The result of `as_edge_prediction_sampler`, with the same parameters."""

    def __init__(self, sampler: NeighborSampler, exclude: str | None, negatives: Uniform | None) -> None:
        self.sampler = sampler
        self.exclude: Exclude = _EXCLUDED[exclude]
        self.negatives = negatives

    def __repr__(self) -> str:
        drawn = "no negatives" if self.negatives is None else self.negatives
        return f"EdgePredictionSampler({self.sampler}, exclude={self.exclude!r}, {drawn})"


@near_keywords
def as_edge_prediction_sampler(
    sampler: NeighborSampler,
    exclude: Any = None,
    reverse_eids: Any = None,  # noqa: ARG001
    reverse_etypes: Any = None,  # noqa: ARG001
    negative_sampler: Any = None,
    prefetch_labels: Any = None,  # noqa: ARG001
) -> EdgePredictionSampler:
    """Return a sampler for loaders whose seeds are the ends of edges.

    Parameters
    ----------
    sampler : samples the neighbourhoods of the ends
    exclude : the edges that no hop uses: None, "self" for the predicted edges, or "reverse_id" or "reverse_types"
        for their reverse edges as well
    reverse_eids, reverse_etypes, prefetch_labels : accepted and ignored: a dataset knows its reverse edges
    negative_sampler : `negative_sampler.Uniform`; None means that the edges' own labels are predicted

    Raises
    ------
    DglFeatureError
        ``exclude`` or ``negative_sampler`` has another value.
    """
    name = "dgl.dataloading.as_edge_prediction_sampler"
    if not (exclude is None or isinstance(exclude, str)) or exclude not in _EXCLUDED:
        raise missing(f"{name}(exclude=...)", "exclude is None, 'self', 'reverse_id' or 'reverse_types'")
    if not (negative_sampler is None or isinstance(negative_sampler, Uniform)):
        raise missing("dgl.dataloading.negative_sampler")
    return EdgePredictionSampler(sampler, exclude, negative_sampler)


# Ignored arguments of DGL's and torch's loaders: the pipeline itself manages workers, pinned memory and streams.
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

    With `as_edge_prediction_sampler` it yields ``(input_nodes, pair_graph, neg_pair_graph, blocks)``; without negatives
    there is no ``neg_pair_graph``. ``blocks[0].srcdata["feat"]`` holds the features and ``blocks[-1].dstdata["label"]``
    the labels. All ids are the dataset's ids.

    Parameters
    ----------
    graph : a `DGLGraph` or a `gloader.Dataset`
    indices : (n,) seed ids; with several types, a mapping from types to seed ids; for edges to predict, the name of a
        link table
    graph_sampler : a sampler from `gloader.compat.dgl.dataloading`
    device : the device of the batches; defaults to the graph's device
    use_ddp : True divides the seeds among the ranks of a process group; False gives all seeds to this rank. Required
        in a group of several ranks
    batch_size, drop_last, shuffle : as in DGL
    keywords : any setting of `gloader.Loader`, such as ``memory_budget="8GB"``. DGL's settings for workers,
        pinned memory and streams are accepted and ignored

    Raises
    ------
    DglFeatureError
        The graph, the sampler or the indices have an unsupported type.
    ConfigError, SeedError, BudgetError
        As in `gloader.Loader`.
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
                f"{given[0]}= is an argument of torch's loader: here each of the indices is taken once, with shuffle=; "
                "gloader.adapters.pyg.NeighborLoader takes torch's samplers and repeated seeds"
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
        """Do nothing: there are no worker processes to bind to cores."""
        yield


def _native(
    dataset: Dataset, indices: Any, sampler: NeighborSampler | EdgePredictionSampler, settings: dict[str, Any]
) -> Loader | HeteroLoader | LinkLoader:
    """Return the native loader for DGL's arguments."""
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
    """Limit the batch size in ``settings`` to a rank's seeds.

    If there are fewer seeds, DGL makes one smaller batch, but gloader's loaders raise an error.
    """
    if not settings["drop_last"]:
        settings["batch_size"] = at_most(settings["batch_size"], num_seeds // settings.get("world_size", 1))


def _ids(indices: Any) -> IdArray:
    """Return seed ids as an array in host memory."""
    return torch.as_tensor(indices).cpu().numpy()


def _link_table(indices: Any) -> str:
    """Return the name of the link table; ``indices`` is this name, or a mapping from its relation to the name."""
    name = only(indices.values()) if isinstance(indices, Mapping) else indices
    if not isinstance(name, str):
        raise missing(
            "dgl.dataloading.DataLoader over ids of edges",
            "edges to predict are a link table of the dataset, which `gloader prepare --edge-split 80/10/10` makes: "
            "give its name, such as 'train'",
        )
    return name


def _ranks(*, use_ddp: bool | None) -> dict[str, int]:
    """Return the settings "rank" and "world_size" of a loader; empty for a single process.

    Raises ConfigError if there are several ranks and ``use_ddp`` is None, or if it is True without a process group.
    """
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
        # As in DGL, this rank then has all seeds, also in a group of ranks. Other ranks need not build a loader.
        return {"rank": 0, "world_size": 1}
    if not distributed.is_initialized():
        raise ConfigError(
            "use_ddp=True needs the process group: torch.distributed.init_process_group comes first"
        )
    return {"rank": group[0], "world_size": group[1]}
