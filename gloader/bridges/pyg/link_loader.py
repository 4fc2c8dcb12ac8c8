"""Loaders for link prediction, with the batches of PyG's ``LinkNeighborLoader``.

A link table is a dataset's list of edges to predict. A batch has some of its rows (the positives) and random other
pairs (the negatives). With triplets, a batch has sources, each with a right destination and wrong ones. `LinkLoader`
converts the batches of a `gloader.LinkLoader`, and `LinkNeighborLoader` also takes PyG's arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from torch.utils.data import Sampler

from gloader.bridges.loader_view import LoaderView, at_most, to_link_loader
from gloader.bridges.pyg.data import to_link_data
from gloader.bridges.pyg.graph_data import GraphData, HeteroGraphData
from gloader.bridges.pyg.node_loader import OF_WORKERS, refuse_workers
from gloader.core.malformed import shown
from gloader.core.negatives import Binary, Negatives, Table, Uniform, checked_negatives
from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.pipeline.link_task import require_labels
from gloader.samplers import preferred_layout

if TYPE_CHECKING:
    from gloader.core.fanouts import FanoutsLike
    from gloader.loader import LinkLoader as NativeLoader


# PyG's `NegativeSampling`, its text and mapping forms, or gloader's negatives.
NegativeSampling: TypeAlias = "Negatives | str | Mapping[str, Any] | Any | None"

# PyG's arguments that are refused, and their counterparts in gloader.
_ELSEWHERE: Final = {
    "edge_label": "labels come from the link table; batches without negatives have them",
    "edge_label_time": "times come from the link table; time_strategy= samples by them",
    "time_attr": "times come from the dataset; time_strategy= samples by them",
    "temporal_strategy": "use time_strategy=, which is 'uniform' or 'last'",
    "disjoint": "batches are disjoint if time_strategy= samples by the edges' times, and not otherwise",
    "neighbor_sampler": "gloader samples itself",
    "weight_attr": "sampler='weighted' is for nodes",
    "batch_sampler": "batch_size=, shuffle= and drop_last= determine a batch's rows of the link table",
}


class LinkLoader(LoaderView[Any]):
    """Yields batches as PyG's ``LinkNeighborLoader``, without pyg-lib or torch-sparse; see `to_link_data`.

    A batch is a ``Data``, or a ``HeteroData`` for a dataset with several types. ``input_id`` holds link table rows.

    Parameters
    ----------
    loader : a `gloader.LinkLoader`, or a `gloader.Dataset` from which to build a loader
    triplets : True gives ``src_index``, ``dst_pos_index`` and ``dst_neg_index`` instead of ``edge_label_index``
        and ``edge_label``. Every edge then needs the same number of negatives with its source, as `gloader.Uniform`
        draws them
    settings : settings for the new loader: ``edges``, ``negatives``, ``exclude``, ``fanouts``, ``batch_size``, ...; see
        `gloader.LinkLoader`. ``layout`` defaults to "merged" if the sampler supports it

    Raises
    ------
    ConfigError
        Triplets are requested, and edges have different numbers of negatives. For other causes see `to_link_loader`.
    """

    def __init__(self, loader: NativeLoader | Dataset, *, triplets: bool = False, **settings: Any) -> None:
        is_owner = isinstance(loader, Dataset)
        if is_owner:
            settings.setdefault("layout", preferred_layout(settings.get("sampler", "neighbor")))
        native = to_link_loader(loader, settings)
        if triplets and not _has_triplets(native):
            drawn = native.negatives
            if is_owner:
                native.close()
            raise ConfigError(
                f"triplets need equally many negatives for each edge, with its source; the negatives are "
                f"{drawn or 'none'}: pass gloader.Uniform(k), or Table(name) with the name of the link table"
            )
        relation = native.table.relation
        super().__init__(
            native,
            convert=lambda batch: to_link_data(batch, relation=relation, triplets=triplets),
            is_owner=is_owner,
        )

    @property
    def dataset(self) -> range:
        """The link table's rows, as in PyG: ``len(loader.dataset)`` is the number of edges in an epoch."""
        return range(cast("NativeLoader", self.loader).table.num_rows)


class LinkNeighborLoader(LinkLoader):
    """`LinkLoader` with the names and defaults of ``torch_geometric.loader.LinkNeighborLoader``.

    Parameters
    ----------
    data : a `GraphData` or `HeteroGraphData`, or the `gloader.Dataset` itself, which ``loader.data`` then wraps
    num_neighbors : neighbours per node and hop, the hop next to the seeds first; see `NeighborLoader`
    edge_label_index : name of a link table in the dataset, which has its relation, labels and times
    neg_sampling : PyG's value: "binary", "triplet", ``dict(mode="binary", amount=2)`` or a ``NegativeSampling``; or
        gloader's negatives, such as ``gloader.Uniform(5, strict=True)``, which come with labels. None means no
        negatives, and the table's own labels
    neg_sampling_ratio : binary negatives per edge, PyG's older form
    batch_size : edges per batch; at most all edges, as in PyG
    shuffle : order the edges anew in every epoch
    settings : other keywords of `gloader.LinkLoader`: ``exclude``, ``memory_budget``, ``features``, ``device``, ...

    Raises
    ------
    ConfigError
        A setting has another place in gloader; ``edge_label_index`` names no link table; negatives are drawn by
        weights. For other causes see `gloader.LinkLoader`.
    """

    _refused = (*OF_WORKERS, *_ELSEWHERE)
    _renamed = ("fanouts", "edges", "negatives")

    def __init__(
        self,
        data: GraphData | HeteroGraphData | Dataset,
        num_neighbors: FanoutsLike,
        edge_label_index: str = "train",
        *,
        neg_sampling: NegativeSampling = None,
        neg_sampling_ratio: float | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        **settings: Any,
    ) -> None:
        refuse_workers(settings)
        if elsewhere := [name for name in _ELSEWHERE if name in settings]:
            raise ConfigError(f"{elsewhere[0]}: {_ELSEWHERE[elsewhere[0]]}")
        if isinstance(settings.get("sampler"), Sampler):
            raise ConfigError(
                f"sampler={type(settings['sampler']).__name__}: an epoch takes each row of the link table once; to "
                "draw other rows, or some rows twice, make a table of them with `gloader prepare --edge-table`"
            )
        if isinstance(data, Dataset):
            data = HeteroGraphData(data) if data.kind == "hetero" else GraphData(data)
        self.data = data
        negatives, triplets = _negatives_of(neg_sampling, neg_sampling_ratio)
        table = data.dataset.link_table(_name_of(edge_label_index, data.dataset))
        require_labels(table, negatives, instead='neg_sampling="binary"')
        super().__init__(
            data.dataset,
            triplets=triplets,
            edges=edge_label_index,
            negatives=negatives,
            fanouts=num_neighbors,
            batch_size=at_most(batch_size, table.num_rows),
            shuffle=shuffle,
            **settings,
        )


def _has_triplets(loader: NativeLoader) -> bool:
    """Return True if every edge has the same number of negatives, all with the edge's own source."""
    drawn = loader.negatives
    return isinstance(drawn, Uniform) or (isinstance(drawn, Table) and drawn.name == loader.table.name)


def _name_of(edges: object, dataset: Dataset) -> str:
    """Return the name of a link table. Raise ConfigError if pairs are given instead of a name."""
    if isinstance(edges, str):
        return edges
    allowed = ", ".join(map(repr, dataset.link_tables)) or "none"
    raise ConfigError(
        f"edge_label_index={shown(edges)}: name a link table of the dataset ({allowed}); `gloader prepare "
        "--edge-table` makes one of pairs"
    )


def _negatives_of(given: NegativeSampling, ratio: float | None) -> tuple[Negatives | None, bool]:
    """Return negatives in gloader's form, and True if they come as triplets."""
    if given is None and ratio:
        given = {"mode": "binary", "amount": ratio}
    if given is None or isinstance(given, Negatives):
        return given, False
    if isinstance(given, str) and given not in ("binary", "triplet"):
        return checked_negatives(given), False
    names = ("mode", "amount", "src_weight", "dst_weight")
    fields: Mapping[str, Any] = (
        {"mode": given}
        if isinstance(given, str)
        else given
        if isinstance(given, Mapping)
        else {name: getattr(given, name, None) for name in names}
    )
    mode, amount = fields.get("mode"), fields.get("amount", 1)
    mode = getattr(mode, "value", mode)  # PyG's mode may be an enumeration
    if any(fields.get(name) is not None for name in ("src_weight", "dst_weight")):
        raise ConfigError("neg_sampling: negatives are drawn alike, without src_weight and dst_weight")
    if mode == "triplet":
        # PyG accepts whole numbers as floats, too.
        return Uniform(int(amount) if float(amount).is_integer() else amount), True
    if mode == "binary":
        return Binary(amount), False
    raise ConfigError(f"neg_sampling: mode {shown(mode)} is neither 'binary' nor 'triplet'")
