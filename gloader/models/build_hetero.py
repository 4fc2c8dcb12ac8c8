"""The choice of a network over several types by its name, in the form of OGB's and PyG's examples."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from torch import nn
from torch.nn import functional

from gloader.errors import ConfigError
from gloader.models.build import check_model
from gloader.models.hetero_conv import HeteroLayer
from gloader.models.hetero_network import HeteroNetwork
from gloader.models.module_names import key_of
from gloader.models.relation_attention import RelationAttention
from gloader.models.relation_mean import RelationMean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gloader.config import ModelConfig
    from gloader.models.hetero_conv import RelationConv
    from gloader.models.schema import Schema

HETERO_MODELS: Final = ("rsage", "rgcn", "rgat")


def build_hetero_model(
    config: ModelConfig, schema: Schema, *, num_classes: int, num_layers: int
) -> HeteroNetwork:
    """Return the network over several types that ``config`` describes, initialised from torch's global generator.

    "rgcn" is that of OGB's ogbn-mag examples, whose last layer gives the logits. "rsage" and "rgat" are the baselines
    of MAG240M with parameters for each type, as PyG's `to_hetero` makes them: every layer is hidden, and an MLP gives
    the logits. Relations and types that do not reach the logits have no parameters. A graph of one type and relation
    is one of several.

    Parameters
    ----------
    config : name, width and regularisation
    schema : types, widths and relations
    num_classes : width of the logits
    num_layers : L, one per fan-out

    Raises
    ------
    ConfigError
        A value of ``config`` is not allowed.
    """
    check_model(config, HETERO_MODELS, {"layers": num_layers, "classes": num_classes})
    if config.name == "rgat" and config.hidden % config.heads:
        raise ConfigError(
            f"hidden is {config.hidden}, which {config.heads} heads do not divide; "
            f"choose a multiple of the number of heads"
        )
    learned_dim = schema.learned_dim or config.hidden
    reaching = schema.reaching(num_layers)
    is_rgcn = config.name == "rgcn"
    built = []
    in_dims = {name: schema.feature_dims[name] or learned_dim for name in reaching[0]}
    for depth, types in enumerate(reaching[1:]):
        out_dim = num_classes if is_rgcn and depth == num_layers - 1 else config.hidden
        built.append(_build_layer(config, schema, types, in_dims, out_dim))
        in_dims = dict.fromkeys(types, out_dim)
    layers = [part.layer for part in built]
    hidden = layers[:-1] if is_rgcn else layers
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
        if is_rgcn
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
        head=None if is_rgcn else _build_head(config, num_classes),
    )


class _Built(NamedTuple):
    """A layer and the modules that hold its parameters, by name."""

    layer: HeteroLayer
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
    layer = HeteroLayer(roots=roots, relations=convs, in_dims=in_dims, out_dim=out_dim)
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


def _build_head(config: ModelConfig, num_classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(config.hidden, config.hidden),
        nn.BatchNorm1d(config.hidden) if config.batch_norm else nn.Identity(),
        nn.ReLU(),
        nn.Dropout(config.dropout),
        nn.Linear(config.hidden, num_classes),
    )
