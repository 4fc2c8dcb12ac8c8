"""Networks by their names, in the form of the papers and of OGB's and PyG's examples."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from torch import nn
from torch.nn import functional

from gloader.config import HETERO_MODELS
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError
from gloader.models.conv import Layer
from gloader.models.gat import GatConv, RelationAttention
from gloader.models.gcn import GcnConv
from gloader.models.gine import GineConv
from gloader.models.mlp import DenseConv
from gloader.models.network import GraphNetwork, HeteroNetwork
from gloader.models.sage import RelationMean, SageConv
from gloader.models.schema import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.config import ModelConfig
    from gloader.models.conv import Conv, RelationConv
    from gloader.models.schema import Schema


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


@near_keywords
def build_hetero_model(
    config: ModelConfig, schema: Schema, *, out_dim: int, num_layers: int, has_head: bool = True
) -> HeteroNetwork:
    """Return the network over several types that ``config`` describes, initialised from torch's global generator.

    "rgcn" is that of OGB's ogbn-mag examples, whose last layer gives the logits. "rsage" and "rgat" are the baselines
    of MAG240M with parameters for each type, as PyG's `to_hetero` makes them: every layer is hidden, and an MLP gives
    the logits. Relations and types that do not reach the output have no parameters. A graph of one type and relation
    is one of several.

    Embeddings of links have no head: those of every target leave the last layer, in all three.

    Parameters
    ----------
    config : name, width and regularisation
    schema : types, widths and relations
    out_dim : width of the output: of the logits, or of embeddings
    num_layers : L, one per fan-out
    has_head : False: the last layer gives the output; "rgcn" never has one

    Raises
    ------
    ConfigError
        A value of ``config`` is not allowed, or a head is asked for with several targets.
    """
    check_model(config, HETERO_MODELS, {"layers": num_layers, "out_dim": out_dim})
    has_head = has_head and config.name != "rgcn"
    if config.name == "rgat":
        _require_heads(config, {"hidden": config.hidden} | ({} if has_head else {"out_dim": out_dim}))
    if has_head and len(schema.targets) > 1:
        raise ConfigError(
            f"a head is for one type, and {len(schema.targets)} are wanted of model {config.name!r}: "
            f"{', '.join(schema.targets)}; build it with has_head=False"
        )
    learned_dim = schema.learned_dim or config.hidden
    reaching = schema.reaching(num_layers)
    built = []
    in_dims = {name: schema.feature_dims[name] or learned_dim for name in reaching[0]}
    for depth, types in enumerate(reaching[1:]):
        width = config.hidden if has_head or depth < num_layers - 1 else out_dim
        built.append(_build_layer(config, schema, types, in_dims, width))
        in_dims = dict.fromkeys(types, width)
    layers = [part.layer for part in built]
    hidden = layers if has_head else layers[:-1]
    norms = [
        {name: nn.BatchNorm1d(layer.out_dim) for name in layer.types}
        for layer in (hidden if config.batch_norm else ())
    ]
    parts: dict[str, nn.Module] = (
        {
            "convs": nn.ModuleList(
                nn.ModuleDict({"rel_lins": part.relations, "root_lins": part.roots}) for part in built
            )
        }
        if config.name == "rgcn"
        else {
            "convs": nn.ModuleList(part.relations for part in built),
            "skips": nn.ModuleList(part.roots for part in built),
        }
    )
    return HeteroNetwork(
        schema,
        layers,
        parts,
        learned_dim=learned_dim,
        activation=functional.elu if config.name == "rgat" else functional.relu,
        dropout=config.dropout,
        norms=norms,
        head=_build_head(config, out_dim) if has_head else None,
    )


class _Built(NamedTuple):
    """A layer and the modules that hold its parameters, by name."""

    layer: Layer
    relations: nn.ModuleDict
    roots: nn.ModuleDict


def _build_layer(
    config: ModelConfig, schema: Schema, types: tuple[str, ...], in_dims: Mapping[str, int], out_dim: int
) -> _Built:
    chosen = [relation for relation in schema.relations if relation[2] in types]
    build = _RELATION_CONVS[config.name]
    convs, modules = {}, {}
    for relation in chosen:
        source, _, destination = relation
        convs[relation], modules[key_of(relation)] = build(
            in_dims[source], in_dims[destination], out_dim, heads=config.heads
        )
    roots = {name: nn.Linear(in_dims[name], out_dim) for name in types}
    layer = Layer(roots=roots, relations=convs, in_dims=in_dims, out_dim=out_dim)
    return _Built(
        layer, nn.ModuleDict(modules), nn.ModuleDict({key_of(name): root for name, root in roots.items()})
    )


def _mean(in_dim: int, _: int, out_dim: int, *, heads: int, bias: bool) -> tuple[RelationConv, nn.Module]:  # noqa: ARG001 - a mean has no heads
    lin = nn.Linear(in_dim, out_dim, bias=bias)
    # PyG's SAGEConv names its Linear, OGB's example is a Linear.
    return RelationMean(lin), nn.ModuleDict({"lin_l": lin}) if bias else lin


def _attention(in_dim: int, own_dim: int, out_dim: int, *, heads: int) -> tuple[RelationConv, nn.Module]:
    conv = RelationAttention(in_dim, own_dim, out_dim, heads=heads)
    return conv, conv


_RELATION_CONVS: Final[Mapping[str, Callable[..., tuple[RelationConv, nn.Module]]]] = {
    "rsage": partial(_mean, bias=True),
    "rgcn": partial(_mean, bias=False),
    "rgat": _attention,
}


def _require_heads(config: ModelConfig, widths: Mapping[str, int]) -> None:
    """Raise ConfigError naming the first of ``widths`` that heads do not divide."""
    for name, width in widths.items():
        if width % config.heads:
            raise ConfigError(
                f"{name} is {width}, which {config.heads} heads do not divide; "
                f"choose a multiple of the number of heads"
            )


def _build_head(config: ModelConfig, out_dim: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(config.hidden, config.hidden),
        nn.BatchNorm1d(config.hidden) if config.batch_norm else nn.Identity(),
        nn.ReLU(),
        nn.Dropout(config.dropout),
        nn.Linear(config.hidden, out_dim),
    )
