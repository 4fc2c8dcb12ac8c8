"""The choice of the network by its name."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError
from gloader.models.gat import GatConv
from gloader.models.gcn import GcnConv
from gloader.models.gine import GineConv
from gloader.models.mlp import DenseConv
from gloader.models.network import GraphNetwork
from gloader.models.sage import SageConv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.config import ModelConfig
    from gloader.models.conv import Conv

_NAMES: Final = ("graphsage", "gcn", "gat", "gine", "mlp")
_WITH_EDGES: Final = frozenset({"gat", "gine"})


@near_keywords
def build_model(
    config: ModelConfig,
    *,
    in_dim: int,
    out_dim: int,
    num_layers: int,
    add_self_loops: bool = True,
    edge_dim: int = 0,
) -> GraphNetwork:
    """Return the network that ``config`` describes, initialised from torch's global generator.

    Parameters
    ----------
    config : name, width and regularisation
    in_dim : F
    out_dim : width of the output: of the logits, or of embeddings
    num_layers : L, one per fan-out
    add_self_loops : False if the dataset was prepared with ``--self-loops``
    edge_dim : F_e, width of the features of edges; 0: they have none, or the model is to ignore them. Models that
        `takes_edge_features` denies ignore them anyway

    Raises
    ------
    ConfigError
        A value of ``config`` is not allowed, or "gine" is asked for without features of edges.
    """
    _check(config, num_layers=num_layers, out_dim=out_dim, in_dim=in_dim)
    if config.name == "gine" and edge_dim < 1:
        raise ConfigError(
            "model 'gine' adds up what features of edges say, and there are none; take a dataset with edge features, "
            "or another model"
        )
    widths = [in_dim, *[config.hidden] * (num_layers - 1), out_dim]
    convs = [
        _build_conv(
            config,
            before,
            after,
            is_last=depth == num_layers - 1,
            add_self_loops=add_self_loops,
            edge_dim=edge_dim,
        )
        for depth, (before, after) in enumerate(itertools.pairwise(widths))
    ]
    return GraphNetwork(convs, dropout=config.dropout, batch_norm=config.batch_norm)


@near_keywords
def takes_edge_features(name: str) -> bool:
    """Return whether the model of that name looks at features of edges, where there are any. Pure."""
    return name in _WITH_EDGES


def _build_conv(
    config: ModelConfig, before: int, after: int, *, is_last: bool, add_self_loops: bool, edge_dim: int
) -> Conv:
    match config.name:
        case "graphsage":
            return SageConv(before, after)
        case "gcn":
            return GcnConv(before, after, add_self_loops=add_self_loops)
        case "gat":
            # Heads side by side make a hidden row; the logits of the last layer are their mean, as in the paper.
            return GatConv(
                before,
                after,
                heads=config.heads,
                concat=not is_last,
                add_self_loops=add_self_loops,
                edge_dim=edge_dim,
            )
        case "gine":
            return GineConv(
                before, after, edge_dim=edge_dim, hidden=config.hidden, batch_norm=config.batch_norm
            )
        case "mlp":
            return DenseConv(before, after)
        case _:
            raise AssertionError(f"{config.name} is no network of one type")


def _check(config: ModelConfig, *, num_layers: int, out_dim: int, in_dim: int) -> None:
    check_model(config, _NAMES, {"layers": num_layers, "out_dim": out_dim, "features": in_dim})
    if config.name == "gat" and num_layers > 1 and config.hidden % config.heads:
        raise ConfigError(
            f"hidden is {config.hidden}, which {config.heads} heads do not divide; "
            f"choose a multiple of the number of heads"
        )


def check_model(config: ModelConfig, names: Sequence[str], counts: Mapping[str, int]) -> None:
    """Raise ConfigError naming the first value of ``config`` that is not allowed. Pure.

    Parameters
    ----------
    config : of the network
    names : the allowed ones
    counts : what else the network needs at least one of
    """
    if config.name not in names:
        raise ConfigError(f"model {config.name!r} is not known; allowed: {', '.join(names)}")
    for noun, count in {**counts, "hidden": config.hidden, "heads": config.heads}.items():
        if count < 1:
            raise ConfigError(f"{noun} is {count}; a model needs at least 1")
    if not 0.0 <= config.dropout < 1.0:
        raise ConfigError(f"dropout is {config.dropout}; allowed: 0 up to, but not including, 1")
