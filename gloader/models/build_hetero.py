"""The choice of a network over several types by its name, in the form of OGB's and PyG's examples."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from torch import nn
from torch.nn import functional

from gloader.config import HETERO_MODELS
from gloader.core.near_names import near_keywords
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
