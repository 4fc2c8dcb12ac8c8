"""What libraries keep of each node type and relation, by name, as a typed source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gloader.convert.hetero_source import HeteroSource, NodeSource, RelationSource, only_labelled
from gloader.convert.readers.arrays import ArrayFeatures
from gloader.convert.readers.node_arrays import count_classes, random_splits
from gloader.dataset.schema import relation_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gloader.convert.readers.attributes import Attributes
    from gloader.convert.readers.edge_names import EdgeNames
    from gloader.convert.source import EdgeStream, FeatureStream
    from gloader.types import Relation


class StoreNames(NamedTuple):
    """What a library calls features and labels, and the names that count where the first is not there."""

    features: tuple[str, ...]
    labels: tuple[str, ...]


PYG_NAMES: Final = StoreNames(("x", "feat", "features"), ("y", "label", "labels"))
DGL_NAMES: Final = StoreNames(("feat", "features", "x"), ("label", "labels", "y"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStore:
    """The arrays of one node type."""

    num_nodes: int
    arrays: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeStore:
    """The edges of one relation."""

    relation: Relation
    edges: EdgeStream
    features: FeatureStream | None = None  # in their order
    arrays: Attributes | None = None  # that they came from


def require_columns(
    edges: Sequence[EdgeStore], names: EdgeNames, *, there: Collection[str], where: Path | str
) -> None:
    """Refuse names of times or features that no relation has, with a ConfigError; ``there`` are those of any."""
    names.require(
        has_times=any(store.edges.has_times for store in edges),
        has_features=any(store.features is not None for store in edges),
        there=there,
        where=str(where),
    )


def stored_source(
    nodes: Mapping[str, NodeStore],
    edges: Sequence[EdgeStore],
    *,
    name: str,
    origin: str,
    where: Path | str,
    seed: int,
    names: StoreNames = PYG_NAMES,
    needs_labels: bool = True,
) -> HeteroSource:
    """Return the source over the stores of a library.

    Parameters
    ----------
    nodes : of each type, in order; the one with labels may have masks or ids of splits
    edges : of each relation, in order
    name, origin : of the source
    where : what holds them, for messages; a path: the file that they came from
    seed : of the random split where there are no masks
    names : of features and labels
    needs_labels : False: without labels on any type, those of the first one that has nodes are -1

    Raises
    ------
    SourceError
        Labels are on no type, or on several; some splits are there and some are not.
    ShapeError
        An array has the wrong shape or dtype.
    """
    labelled = only_labelled(
        [node_type for node_type, store in nodes.items() if store.arrays.find(*names.labels)],
        otherwise=None
        if needs_labels
        else next((name for name, store in nodes.items() if store.num_nodes), None),
        where=str(where),
    )
    store = nodes[labelled]
    labels = store.arrays.labels(*names.labels, num_nodes=store.num_nodes, needs_labels=needs_labels)
    splits = store.arrays.splits(store.num_nodes) or random_splits(labels, seed=seed)
    features = {
        name: ArrayFeatures(rows=each.arrays.features(*names.features))
        for name, each in nodes.items()
        if each.arrays.find(*names.features)
    }
    used = [each.arrays for each in nodes.values()]
    used += [each.arrays for each in edges if each.arrays is not None]
    return HeteroSource(
        name=name,
        origin=origin,
        nodes=tuple(
            NodeSource(
                name=node_type,
                num_nodes=each.num_nodes,
                features=features.get(node_type),
            )
            for node_type, each in nodes.items()
        ),
        relations=tuple(
            RelationSource(
                relation=store.relation,
                edges=store.edges,
                edge_features=store.features,
                edge_file=where if isinstance(where, Path) else None,
            )
            for store in edges
        ),
        labelled=labelled,
        num_classes=count_classes(labels),
        labels=labels,
        splits=splits,
        said=tuple(line for each in used for line in each.said()),
        unused=(
            *(
                f"{left} of {node_type}"
                for node_type, each in nodes.items()
                for left in each.arrays.unused(num_nodes=each.num_nodes)
            ),
            *(
                f"{left} of {relation_text(each.relation)}"
                for each in edges
                if each.arrays is not None
                for left in each.arrays.unused(num_edges=each.edges.num_edges)
            ),
        ),
    )
