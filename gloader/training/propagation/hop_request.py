"""The request of a propagation: its settings, checked against the dataset, and the names of the columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np

from gloader.config import HOPS_ENTRY
from gloader.core.dtypes import FEATURE_DTYPES
from gloader.core.flag_values import require_choice
from gloader.errors import ConfigError
from gloader.training.propagation.chains import PropagateSpec, default_norm, grow_chains, parse_norm
from gloader.training.propagation.hop_rows import SPLITS, TABLE_DTYPES, HopGroup, spans
from gloader.training.propagation.label_rows import NUM_FOLDS, label_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.dataset import Dataset
    from gloader.training.propagation.chains import Direction, HopTrees, Statistic
    from gloader.types import IdArray

KeptNodes: TypeAlias = Literal["all", "labelled"]
KEPT_NODES: Final[tuple[KeptNodes, ...]] = get_args(KeptNodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HopSettings:
    """The columns that a propagation makes; the flags of `gloader propagate`."""

    hops: int = 3
    norm: str | None = None  # "gcn", "mean" or "ppr:0.15". None: gcn for one node type, mean for several
    directions: tuple[Direction, ...] = ("in",)
    stats: tuple[Statistic, ...] = ("mean",)
    nodes: KeptNodes = "all"
    dtype: str = "float32"  # the stored dtype
    labels: bool = False  # whether the labels of training nodes are propagated too


@dataclass(frozen=True, slots=True, kw_only=True)
class HopRequest:
    """The columns of a dataset's propagation."""

    settings: HopSettings
    norm: str  # the norm as text, also if none was given
    features: HopTrees
    labels: HopTrees | None  # of the labels of all folds; None without propagated labels
    groups: tuple[HopGroup, ...]  # the result's columns: of features, then of labels
    unused: tuple[str, ...]  # parts of the dataset that have no part in the columns

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(len(group.columns) for group in self.groups)

    def recorded(self, dataset: Dataset) -> dict[str, Any]:
        """Return the entry of the commit record. Pure."""
        settings = self.settings
        return {
            HOPS_ENTRY: {
                "norm": self.norm,
                "hops": settings.hops,
                "directions": list(settings.directions),
                "stats": list(settings.stats),
                "nodes": settings.nodes,
                "source": dataset.fingerprint,
                "columns": spans(self.groups),
            }
        }


def checked_request(dataset: Dataset, settings: HopSettings, *, is_table: bool) -> HopRequest:
    """Return the columns that ``settings`` make of ``dataset``. Reads nothing.

    Parameters
    ----------
    dataset : the dataset
    settings : the settings
    is_table : True if the result is a table

    Raises
    ------
    ConfigError
        A setting is unknown, or does not fit the dataset.
    """
    require_choice("nodes", settings.nodes, KEPT_NODES)
    require_choice("dtype", settings.dtype, TABLE_DTYPES if is_table else FEATURE_DTYPES)
    _require_dataset(dataset, settings)
    relations = dataset.relations
    norm = settings.norm or default_norm(relations)
    name, alpha = parse_norm(norm)
    spec = PropagateSpec(
        hops=settings.hops, norm=name, alpha=alpha, directions=settings.directions, stats=settings.stats
    )
    target = dataset.labelled.name
    widths = {each.name: each.feature_dim for each in dataset.node_tables.values() if each.has_features}
    trees = grow_chains(spec, widths=widths, relations=relations, target=target)
    _require_no_codes(dataset, trees)
    sources = {
        state.group: name
        for name, root in trees.roots.items()
        for state in root.walk()
        if state.group is not None
    }
    groups = [
        HopGroup(name=each.name, columns=_columns(dataset, sources[each.name])) for each in trees.groups
    ]
    labels = None
    if settings.labels:
        # A minimum of labels is that of one-hot columns, and tells nothing.
        labels = _without_input(
            grow_chains(
                replace(spec, stats=("mean",)),
                widths={target: NUM_FOLDS * len(label_columns(dataset))},
                relations=relations,
                target=target,
            )
        )
        groups += [
            HopGroup(name=f"label.{each.name.removesuffix('.mean')}", columns=label_columns(dataset))
            for each in labels.groups
        ]
    return HopRequest(
        settings=settings,
        norm=norm,
        features=trees,
        labels=labels,
        groups=tuple(groups),
        unused=tuple(_unused(dataset, trees)),
    )


def kept_nodes(dataset: Dataset, settings: HopSettings) -> IdArray | range:
    """Return the ascending ids of the nodes whose rows are kept; a range means all nodes."""
    table = dataset.labelled
    if settings.nodes == "all":
        return range(table.num_nodes)
    return np.unique(np.concatenate([getattr(table, name) for name in SPLITS]))


def split_bytes(dataset: Dataset) -> int:
    """Return the bytes of memory that splits and `kept_nodes` take, and the labels of these nodes. Pure."""
    # The ids of a split, those of all splits together, sorted, and once each; then labels, new ids, and keys.
    return sum(dataset.labelled.split_sizes.values()) * (8 * 6 + 8 * dataset.label_width)


def _require_dataset(dataset: Dataset, settings: HopSettings) -> None:
    """Raise ConfigError if columns of the dataset, or these columns, cannot be made."""
    if dataset.ranges is not None:
        part = dataset.ranges
        raise ConfigError(
            f"{dataset.location} has part {part.part} of {part.of} of the feature rows, and hop columns need all rows; "
            "prepare the dataset again without --ranges"
        )
    sizes, rows = dataset.labelled.split_sizes, ""
    if dataset.task_tables:
        rows = f" (the rows of its task tables {', '.join(dataset.task_tables)} are in no split)"
    if settings.nodes == "labelled" and not any(sizes.values()):
        raise ConfigError(
            f"no node of {dataset.location} is in a split, so there is none to keep{rows}; give --nodes all"
        )
    if settings.labels and not sizes["train"]:
        raise ConfigError(f"{dataset.location} has no training nodes with labels{rows}; leave out --labels")


def _require_no_codes(dataset: Dataset, trees: HopTrees) -> None:
    """Raise ConfigError if the columns would sum up codes of categories."""
    for name in trees.roots:
        encoders = dataset.encoders(name)
        if encoders is not None and encoders.indexes:
            column = next(iter(encoders.indexes.values())).column
            raise ConfigError(
                f"nodes of type {name!r} have the column {column!r} as: index, whose numbers are names of categories; "
                "sums of them mean nothing. Prepare it with as: category"
            )


def _columns(dataset: Dataset, node_type: str) -> tuple[str, ...]:
    """Return the names of a type's features, or their numbers if they come from no columns of a table. Pure."""
    encoders = dataset.encoders(node_type)
    return (
        encoders.names
        if encoders is not None
        else tuple(map(str, range(dataset.node_tables[node_type].feature_dim)))
    )


def _without_input(trees: HopTrees) -> HopTrees:
    """Return the trees of labels without the group of the input, each node's own label. Pure.

    Raises
    ------
    ConfigError
        No walk leads from the labelled nodes to labelled nodes.
    """
    root = trees.roots[trees.target]
    groups = tuple(
        replace(
            each, start=each.start - trees.widths[trees.target], stop=each.stop - trees.widths[trees.target]
        )
        for each in trees.groups
        if each.name != root.group
    )
    if not groups:
        raise ConfigError(
            f"no walk of at most {trees.spec.hops} hops leads from {trees.target!r} to {trees.target!r}, so no node "
            "sees a label; leave out --labels, or give --directions in,out"
        )
    return replace(trees, roots={**trees.roots, trees.target: replace(root, group=None)}, groups=groups)


def _unused(dataset: Dataset, trees: HopTrees) -> Iterator[str]:
    """Yield the parts of the dataset that have no part in the columns. Pure."""
    tables = dataset.edge_tables.values()
    if any(table.has_times for table in tables):
        yield "edge times: hop columns see every edge, also the later ones"
    if any(table.has_row_times for table in dataset.node_tables.values()):
        yield "row times: hop columns see every row, also the later ones"
    if any(table.has_edge_features for table in tables):
        yield "edge features"
    if dataset.link_tables:
        yield f"link tables {', '.join(dataset.link_tables)}"
    if dataset.task_tables:
        yield f"task tables {', '.join(dataset.task_tables)}"
    others = [name for name in dataset.node_types if name not in trees.roots]
    if others:
        yield f"nodes of type {', '.join(others)}, which have no features or no walk to {trees.target}"
