"""Networks by name, as in the papers and in OGB's and PyG's examples.

`build_model` makes networks for one node type, `build_hetero_model` for several. Both check the settings, and build the
layers for the types that reach the output. They name the modules as PyG or OGB do, so that checkpoints fit. A relation
is an edge type. A new model is a convolution and one entry in `_CONVS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from gloader.config import HETERO_MODELS, HOP_MODELS
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError
from gloader.models.conv import Layer
from gloader.models.gat import GatConv, RelationAttention
from gloader.models.gcn import GcnConv
from gloader.models.gine import GineConv
from gloader.models.hop_columns import HopConv, SgcRows, SignRows, last_hop
from gloader.models.mlp import DenseConv
from gloader.models.network import GraphNetwork
from gloader.models.residual import ResidualConv
from gloader.models.sage import SageConv
from gloader.models.schema import Schema, key_of
from gloader.types import NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.config import ModelConfig
    from gloader.models.conv import Conv
    from gloader.models.hop_columns import ColumnGroup
    from gloader.models.schema import CodeColumn
    from gloader.types import Relation


class _Shape(NamedTuple):
    """The widths of a convolution and its position in the network."""

    in_dim: int  # width of a source row
    own_dim: int  # width of a destination row
    out_dim: int  # width of an output row
    is_last: bool  # whether it is in the last layer
    edge_dim: int  # width of the edge features; 0 without edge features
    add_self_loops: bool  # whether a node also reads its own row
    groups: tuple[ColumnGroup, ...]  # the groups of hop columns that a model of `HOP_MODELS` reads


# The convolution of each model, by model name. In a model of `HETERO_MODELS`, `_build_layers` adds a Linear for a
# node's own row, so the convolution has none.
_CONVS: Final[Mapping[str, Callable[[ModelConfig, _Shape], Conv]]] = {
    "graphsage": lambda _, shape: SageConv(shape.in_dim, shape.out_dim),
    "gcn": lambda _, shape: GcnConv(shape.in_dim, shape.out_dim, add_self_loops=shape.add_self_loops),
    # Concatenated heads form a hidden row. The last layer averages its heads, as in the paper.
    "gat": lambda config, shape: GatConv(
        shape.in_dim,
        shape.out_dim,
        heads=config.heads,
        concat=not shape.is_last,
        add_self_loops=shape.add_self_loops,
        edge_dim=shape.edge_dim,
    ),
    "gine": lambda config, shape: GineConv(
        shape.in_dim,
        shape.out_dim,
        edge_dim=shape.edge_dim,
        hidden=config.hidden,
        batch_norm=config.batch_norm,
    ),
    "mlp": lambda _, shape: DenseConv(shape.in_dim, shape.out_dim),
    "sign": lambda config, shape: HopConv(
        SignRows(
            shape.groups,
            hidden=config.hidden,
            out_dim=shape.out_dim,
            dropout=config.dropout,
            batch_norm=config.batch_norm,
        ),
        shape.in_dim,
        shape.out_dim,
    ),
    "sgc": lambda _, shape: HopConv(
        SgcRows(last_hop(shape.groups), shape.out_dim), shape.in_dim, shape.out_dim
    ),
    "rsage": lambda _, shape: SageConv(shape.in_dim, shape.out_dim, has_root=False),
    "rgcn": lambda _, shape: SageConv(shape.in_dim, shape.out_dim, has_root=False, bias=False),
    "rgat": lambda config, shape: RelationAttention(
        shape.in_dim, shape.own_dim, shape.out_dim, heads=config.heads
    ),
}
_NAMES: Final = tuple(name for name in _CONVS if name not in HETERO_MODELS)  # models for one node type
_RESIDUAL: Final = tuple(name for name in _NAMES if name not in HOP_MODELS)  # models that take --residual
_WITH_EDGES: Final = frozenset({"gat", "gine"})  # models that read edge features


@near_keywords
def build_model(
    config: ModelConfig,
    *,
    in_dim: int,
    out_dim: int,
    num_layers: int,
    add_self_loops: bool = True,
    edge_dim: int = 0,
    codes: tuple[CodeColumn, ...] = (),
    groups: tuple[ColumnGroup, ...] = (),
) -> GraphNetwork:
    """Return the network for one node type from ``config``, initialised from torch's global generator.

    Parameters
    ----------
    config : name, width and regularisation; with ``residual``, the network of Platonov et al. (2023), whose output is
        a Linear of the last layer's normalised rows
    in_dim : F, width of the features
    out_dim : output width, for logits or embeddings
    num_layers : L, one layer per fan-out
    add_self_loops : False if the dataset was prepared with ``--self-loops``
    edge_dim : F_e, edge feature width; 0 without edge features or to ignore them. Only models with
        `takes_edge_features` read them
    codes : the feature columns in place of which the network reads learned numbers, from left to right
    groups : the groups of hop columns that "sign" reads; "sgc" reads the last hop. Other models ignore them

    Raises
    ------
    ConfigError
        A value of ``config`` is not allowed, "gine" is requested without edge features, or "sign" or "sgc" without
        groups or with several layers.
    """
    check_model(config, _NAMES, {"layers": num_layers, "out_dim": out_dim, "features": in_dim})
    if config.name == "gat" and (num_layers > 1 or config.residual):
        _require_heads(config, {"hidden": config.hidden})
    if config.name == "gine" and edge_dim < 1:
        raise ConfigError(
            "model 'gine' needs edge features, and there are none; use a dataset with edge features, or another model"
        )
    if config.name in HOP_MODELS and (not groups or num_layers != 1):
        raise ConfigError(
            f"model {config.name!r} has one layer over groups of hop columns; it got {num_layers} layers and "
            f"{len(groups)} groups"
        )
    schema = Schema.of_one_type(in_dim, codes)
    layers = _build_layers(
        config,
        schema,
        [config.hidden] * (num_layers - 1) + [config.hidden if config.residual else out_dim],
        edge_dim=edge_dim,
        add_self_loops=add_self_loops,
        groups=groups,
    )
    norms = [nn.BatchNorm1d(layer.out_dim) for layer in layers[:-1]] if config.batch_norm else []
    convs = [conv for layer in layers for conv in layer.relations.values()]  # one relation, so one per layer
    parts = {"convs": nn.ModuleList(convs), "norms": nn.ModuleList(norms)}  # type: ignore[arg-type]  # convolutions are modules
    if config.residual:
        # The layers have activations and dropout of their own, so nothing stands between them.
        head = nn.Sequential(nn.LayerNorm(config.hidden), nn.Linear(config.hidden, out_dim))
        return GraphNetwork(schema, layers, parts, activation=nn.Identity(), dropout=0.0, head=head)
    return GraphNetwork(schema, layers, parts, dropout=config.dropout, norms=[{NODE: norm} for norm in norms])


@near_keywords
def takes_edge_features(name: str) -> bool:
    """Return whether the model ``name`` reads edge features. Pure."""
    return name in _WITH_EDGES


def check_model(config: ModelConfig, names: Sequence[str], counts: Mapping[str, int]) -> None:
    """Raise ConfigError naming the first invalid value of ``config``. Pure.

    Parameters
    ----------
    config : the network's settings
    names : the allowed names
    counts : further numbers by name, which must be at least 1
    """
    if config.name not in names:
        raise ConfigError(f"model {config.name!r} is not known; allowed: {', '.join(names)}")
    for name, count in {**counts, "hidden": config.hidden, "heads": config.heads}.items():
        if count < 1:
            raise ConfigError(f"{name} is {count}; a model needs at least 1")
    if not 0.0 <= config.dropout < 1.0:
        raise ConfigError(f"dropout is {config.dropout}; allowed: 0 up to, but not including, 1")
    if config.residual and config.name in HETERO_MODELS:
        raise ConfigError(
            f"--residual is for models of one node type ({', '.join(_RESIDUAL)}), and {config.name!r} is for several; "
            "leave it out"
        )
    if config.residual and config.name in HOP_MODELS:
        raise ConfigError(f"--residual is for layers over edges, and {config.name!r} has none; leave it out")
    if config.residual and config.batch_norm:
        raise ConfigError("--residual normalises every layer's input; leave --batch-norm out, or --residual")


def _require_heads(config: ModelConfig, widths: Mapping[str, int]) -> None:
    """Raise ConfigError naming the first of ``widths`` that the number of heads does not divide."""
    for name, width in widths.items():
        if width % config.heads:
            raise ConfigError(
                f"{name} is {width}, which {config.heads} heads do not divide; "
                f"choose a multiple of the number of heads"
            )


@near_keywords
def build_hetero_model(
    config: ModelConfig, schema: Schema, *, out_dim: int, num_layers: int, has_head: bool = True
) -> GraphNetwork:
    """Return the network over several types from ``config``, initialised from torch's global generator.

    "rgcn" is the model of OGB's ogbn-mag examples, whose last layer gives the logits. "rsage" and "rgat" are the
    MAG240M baselines with parameters for each type, as in PyG's `to_hetero`: every layer is hidden, and an MLP (the
    head) gives the logits. Relations and types that do not reach the output have no parameters. The graph may have one
    type and one relation.

    Link embeddings have no head: in all three models, the last layer gives every target's rows.

    Parameters
    ----------
    config : name, width and regularisation
    schema : types, widths and relations
    out_dim : output width, for logits or embeddings
    num_layers : L, one layer per fan-out
    has_head : False if the last layer gives the output; "rgcn" never has a head

    Raises
    ------
    ConfigError
        A value of ``config`` is not allowed, or a head is requested with several targets.
    """
    check_model(config, HETERO_MODELS, {"layers": num_layers, "out_dim": out_dim})
    has_head = has_head and config.name != "rgcn"
    if config.name == "rgat":
        _require_heads(config, {"hidden": config.hidden} | ({} if has_head else {"out_dim": out_dim}))
    if has_head and len(schema.targets) > 1:
        raise ConfigError(
            f"a head is for one target type, and model {config.name!r} has {len(schema.targets)}: "
            f"{', '.join(schema.targets)}; build it with has_head=False"
        )
    last = config.hidden if has_head else out_dim  # width of the last layer
    layers = _build_layers(config, schema, [config.hidden] * (num_layers - 1) + [last])
    normed = layers if has_head else layers[:-1]  # the output itself has no norm
    norms = [
        {name: nn.BatchNorm1d(layer.out_dim) for name in layer.types}
        for layer in (normed if config.batch_norm else ())
    ]
    head = _build_head(config, out_dim) if has_head else None
    width = schema.learned_dim or config.hidden  # of learned rows, for types without features
    return GraphNetwork(
        schema,
        layers,
        _typed_parts(config.name, layers) | {"norms": nn.ModuleList(map(_by_key, norms))},
        activation=functional.elu if config.name == "rgat" else functional.relu,
        dropout=config.dropout,
        norms=norms,
        head=head,
        learned={
            name: nn.Parameter(nn.init.xavier_uniform_(torch.empty(count, width)))
            for name, count in schema.num_nodes.items()
            if name in layers[0].in_dims and not schema.feature_dims[name]
        },
    )


def _build_layers(
    config: ModelConfig,
    schema: Schema,
    widths: Sequence[int],
    *,
    edge_dim: int = 0,
    add_self_loops: bool = True,
    groups: tuple[ColumnGroup, ...] = (),
) -> list[Layer]:
    """Return the layers over the types and relations that reach the output.

    Parameters
    ----------
    config : model name, heads and hidden width
    schema : types, widths and relations
    widths : (L,) width of the rows that leave each layer
    edge_dim, add_self_loops, groups : see `build_model`
    """
    inputs, *reaching = schema.reaching(len(widths))  # the types in the input, then after each layer
    read_dims = {name: schema.feature_dims[name] or schema.learned_dim or config.hidden for name in inputs}
    in_dims = {name: dim + schema.added_dim(name) for name, dim in read_dims.items()}
    layers = []
    for depth, (types, width) in enumerate(zip(reaching, widths, strict=True)):
        convs: dict[Relation, Conv] = {}
        for relation in schema.relations:
            if relation[2] in types:  # a relation is (source type, name, destination type)
                # A residual layer has its convolution between hidden rows, and no layer of logits above it.
                shape = _Shape(
                    in_dim=width if config.residual else in_dims[relation[0]],
                    own_dim=width if config.residual else in_dims[relation[2]],
                    out_dim=width,
                    is_last=depth == len(widths) - 1 and not config.residual,
                    edge_dim=edge_dim,
                    add_self_loops=add_self_loops,
                    groups=groups,
                )
                conv = _CONVS[config.name](config, shape)
                if config.residual:
                    in_dim = None if depth else in_dims[relation[0]]
                    conv = ResidualConv(conv, in_dim=in_dim, dropout=config.dropout)
                convs[relation] = conv
        rooted = types if config.name in HETERO_MODELS else ()
        roots = {name: nn.Linear(in_dims[name], width) for name in rooted}
        layers.append(
            Layer(roots=roots, relations=convs, read_dims=read_dims, in_dims=in_dims, out_dim=width)
        )
        read_dims, in_dims = dict.fromkeys(types, layers[-1].sum_dim), dict.fromkeys(types, width)
    return layers


def _typed_parts(name: str, layers: Sequence[Layer]) -> dict[str, nn.Module]:
    """Return a `HETERO_MODELS` model's modules, by their names in OGB's example or PyG's `to_hetero`."""
    roots = [_by_key(layer.roots) for layer in layers]
    convs = []
    for layer in layers:
        # In OGB's example a relation is a Linear; in PyG it is a module with a Linear.
        relations: Mapping[Relation, Any] = layer.relations
        convs.append(
            _by_key({key: conv.lin_l if name == "rgcn" else conv for key, conv in relations.items()})
        )
    if name == "rgcn":
        pairs = zip(convs, roots, strict=True)
        return {"convs": nn.ModuleList(nn.ModuleDict({"rel_lins": c, "root_lins": r}) for c, r in pairs)}
    return {"convs": nn.ModuleList(convs), "skips": nn.ModuleList(roots)}


def _by_key(modules: Mapping[Any, Any]) -> nn.ModuleDict:
    """Return modules by the keys of their types or relations, see `key_of`."""
    return nn.ModuleDict({key_of(name): module for name, module in modules.items()})


def _build_head(config: ModelConfig, out_dim: int) -> nn.Sequential:
    """Return the MLP from the last layer's rows to the logits, as in the MAG240M baselines."""
    return nn.Sequential(
        nn.Linear(config.hidden, config.hidden),
        nn.BatchNorm1d(config.hidden) if config.batch_norm else nn.Identity(),
        nn.ReLU(),
        nn.Dropout(config.dropout),
        nn.Linear(config.hidden, out_dim),
    )
