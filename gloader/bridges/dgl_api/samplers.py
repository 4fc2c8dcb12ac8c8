"""Samplers as DGL's users write them: what they say is handed to gloader's loaders, which sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from gloader.bridges.dgl_api.missing import missing
from gloader.bridges.dgl_api.names import WEIGHT
from gloader.bridges.dgl_api.relations import relation_of
from gloader.core.near_names import near_keywords
from gloader.core.negatives import Uniform
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.config import Exclude
    from gloader.core.fanouts import FanoutsLike
    from gloader.types import Relation


_NAME: Final = "dgl.dataloading.NeighborSampler"


@near_keywords
class NeighborSampler:
    """Neighbours of each node, drawn without replacement, in as many hops as there are fan-outs.

    Parameters
    ----------
    fanouts : neighbours of each node and relation, **the hop next to the seeds last**, as DGL has them; a number, or a
        mapping from relations to numbers; -1 takes all
    edge_dir : "in"
    prob : name of the weights by which neighbours are drawn: "weight", which the dataset then has
    mask, replace : None and False
    prefetch_node_feats, prefetch_labels, prefetch_edge_feats, output_device, fused : taken and not looked at: features
        and labels come with every batch, on the loader's device

    Raises
    ------
    DglFeatureError
        One of the arguments has a value that is not named here.
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
        raise missing(f"{_NAME}.{name}", "a DataLoader asks for the blocks of its seeds")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fanouts})"

    @property
    def kind(self) -> str:
        """The name of gloader's sampler."""
        return "neighbor" if self.prob is None else "weighted"

    def fanouts_for(self, relations: Sequence[Relation]) -> FanoutsLike:
        """Return the fan-outs as gloader has them: the hop next to the seeds first.

        Parameters
        ----------
        relations : of the dataset

        Raises
        ------
        ConfigError
            A fan-out names a relation that is not there, or leaves one out.
        """
        hops = self.fanouts[::-1]
        if not any(isinstance(hop, Mapping) for hop in hops):
            return cast("list[int]", hops)
        each = [_by_relation(hop, relations) for hop in hops]
        return {relation: [hop[relation] for hop in each] for relation in relations}


def _by_relation(hop: int | Mapping[Any, int], relations: Sequence[Relation]) -> dict[Relation, int]:
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
    keywords : of `NeighborSampler`
    """

    def __init__(self, num_layers: int, **keywords: Any) -> None:
        super().__init__([-1] * num_layers, **keywords)


_EXCLUDED: Final[dict[str | None, Exclude]] = {
    None: "none",
    "self": "self",
    "reverse_id": "reverse",
    "reverse_types": "reverse",
}


class EdgePredictionSampler:
    """What `as_edge_prediction_sampler` returns; parameters as there."""

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
    """Return the sampler of a loader whose seeds are the ends of edges.

    Parameters
    ----------
    sampler : of the neighbourhoods of these
    exclude : the edges that no hop takes: None, "self" the predicted ones, or "reverse_id" or "reverse_types" their
        reverses, too
    reverse_eids, reverse_etypes, prefetch_labels : taken and not looked at: a dataset knows which edges lead back
    negative_sampler : `negative_sampler.Uniform`; None: the edges' own labels are predicted

    Raises
    ------
    DglFeatureError
        ``exclude`` or ``negative_sampler`` is another.
    """
    name = "dgl.dataloading.as_edge_prediction_sampler"
    if not (exclude is None or isinstance(exclude, str)) or exclude not in _EXCLUDED:
        raise missing(f"{name}(exclude=...)", "exclude is None, 'self', 'reverse_id' or 'reverse_types'")
    if not (negative_sampler is None or isinstance(negative_sampler, Uniform)):
        raise missing("dgl.dataloading.negative_sampler")
    return EdgePredictionSampler(sampler, exclude, negative_sampler)
