"""DGL's layers over several edge types, without DGL: RGCN, and one layer for each relation.

`RelGraphConv` takes a `DGLBlock` with one relation, and a tensor with the type number of each edge. `HeteroGraphConv`
takes a block with several node types and relations, and applies one layer to each relation. Shapes: U sources, D
destinations and E edges of a block.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from gloader.bridges.dgl_api.layers import expand_as_pair
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gloader.bridges.dgl_api.block import DGLBlock
    from gloader.types import Relation


_REGULARIZERS: Final = (None, "basis", "bdd")


@near_keywords
class RelGraphConv(nn.Module):
    """``sum(W_type x_neighbours) + b + W_loop x`` (Schlichtkrull et al., 2018), with DGL's parameters.

    Parameters
    ----------
    in_feat, out_feat : widths of input rows and of the result
    num_rels : number of edge types
    regularizer : form of each type's weight. "basis" means a sum of matrices that all types share (bases), each times a
        factor of the type; "bdd" means a block-diagonal matrix, and None any matrix
    num_bases : number of bases or blocks; None means ``num_rels``
    bias, self_loop, layer_norm : whether the layer has a bias, the term ``W_loop x`` and a layer norm
    activation : function that is applied to the result
    dropout : share of the result that dropout zeroes

    Raises
    ------
    ConfigError
        The regularizer is unknown, or blocks do not divide the widths.
    """

    h_bias: nn.Parameter | None
    loop_weight: nn.Parameter | None
    layer_norm_weight: nn.Module | None

    def __init__(  # noqa: PLR0913 - DGL's signature
        self,
        in_feat: int,
        out_feat: int,
        num_rels: int,
        regularizer: str | None = None,
        num_bases: int | None = None,
        bias: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        self_loop: bool = True,
        dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        # The modules are made in DGL's order, so that DGL and gloader draw the same weights from one torch seed.
        self.linear_r = TypedLinear(in_feat, out_feat, num_rels, regularizer, num_bases or num_rels)
        self.activation = activation
        self.register_parameter("h_bias", nn.Parameter(torch.zeros(out_feat)) if bias else None)
        self.register_module("layer_norm_weight", nn.LayerNorm(out_feat) if layer_norm else None)
        self.register_parameter(
            "loop_weight", nn.Parameter(torch.empty(in_feat, out_feat)) if self_loop else None
        )
        if self.loop_weight is not None:
            nn.init.xavier_uniform_(self.loop_weight, gain=nn.init.calculate_gain("relu"))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        g: DGLBlock,
        feat: torch.Tensor,
        etypes: torch.Tensor,
        norm: torch.Tensor | None = None,
        *,
        presorted: bool = False,  # noqa: ARG002 - edges are always sorted here
    ) -> torch.Tensor:
        """Return (D, out_feat).

        Parameters
        ----------
        g : a block with one relation
        feat : (U, in_feat)
        etypes : (E,) int64 edge types
        norm : (E, 1) factor for each message; None means 1
        presorted : accepted and ignored
        """
        edges = g.edge_list()
        messages = self.linear_r(feat.index_select(0, edges.src), etypes)
        total = edges.reduce(messages if norm is None else messages * norm.view(-1, 1), "sum")
        if self.layer_norm_weight is not None:
            total = self.layer_norm_weight(total)
        if self.h_bias is not None:
            total = total + self.h_bias
        if self.loop_weight is not None:
            total = total + feat[: g.num_dst_nodes()] @ self.loop_weight
        if self.activation is not None:
            total = self.activation(total)
        result: torch.Tensor = self.dropout(total)
        return result


class TypedLinear(nn.Module):
    """The product ``W_type x`` for each row x, with the weight of the row's type.

    Parameters
    ----------
    in_size, out_size : widths of input and output rows
    num_types : number of types
    regularizer, num_bases : as in `RelGraphConv`
    """

    coeff: nn.Parameter | None

    def __init__(
        self, in_size: int, out_size: int, num_types: int, regularizer: str | None, num_bases: int
    ) -> None:
        super().__init__()
        if regularizer not in _REGULARIZERS:
            raise ConfigError(
                f"regularizer={regularizer!r}: choose one of {', '.join(map(repr, _REGULARIZERS))}"
            )
        if regularizer == "bdd" and (in_size % num_bases or out_size % num_bases):
            raise ConfigError(f"{num_bases} blocks do not divide the widths {in_size} and {out_size}")
        self._is_blocks = regularizer == "bdd"
        self._num_types = num_types
        width_in, width_out = (
            (in_size // num_bases, out_size // num_bases) if self._is_blocks else (in_size, out_size)
        )
        self._shape = (width_in, width_out)
        bound = 1 / math.sqrt(width_in)
        if self._is_blocks:
            self.W = nn.Parameter(torch.empty(num_types, num_bases * width_in * width_out))
        else:
            self.W = nn.Parameter(
                torch.empty(num_bases if regularizer == "basis" else num_types, in_size, out_size)
            )
        self.register_parameter(
            "coeff", nn.Parameter(torch.empty(num_types, num_bases)) if regularizer == "basis" else None
        )
        nn.init.uniform_(self.W, -bound, bound)
        if self.coeff is not None:
            nn.init.xavier_uniform_(self.coeff, gain=nn.init.calculate_gain("relu"))

    def forward(self, x: torch.Tensor, x_type: torch.Tensor) -> torch.Tensor:
        """Return (n, out_size) for the rows ``x`` (n, in_size) with types ``x_type`` (n,)."""
        # The rows are sorted by type, so that each type takes one matrix product. A batched product would copy the
        # weight for each row.
        order = torch.argsort(x_type, stable=True)
        counts = torch.bincount(x_type, minlength=self._num_types).tolist()
        parts = torch.split(x.index_select(0, order), counts)
        weights = self.W if self.coeff is None else (self.coeff @ self.W.flatten(1)).view(-1, *self._shape)
        results = [self._product(part, weight) for part, weight in zip(parts, weights, strict=True)]
        return torch.cat(results).index_select(0, torch.argsort(order))

    def _product(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the product of one type's ``rows`` with its ``weight``, which may be block-diagonal."""
        if not self._is_blocks:
            return rows @ weight
        blocks = weight.view(-1, *self._shape)
        products = torch.einsum("nbi,bio->nbo", rows.view(len(rows), len(blocks), self._shape[0]), blocks)
        return products.flatten(1)


# The functions combine a type's stacked results (results, nodes, F).
_AGGREGATES: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "sum": lambda found: found.sum(dim=0),
    "mean": lambda found: found.mean(dim=0),
    "max": lambda found: found.amax(dim=0),
    "min": lambda found: found.amin(dim=0),
    "stack": lambda found: found.transpose(0, 1),
}


@near_keywords
class HeteroGraphConv(nn.Module):
    """A layer for each relation; a type's results from several layers are summed, or combined by ``aggregate``.

    Parameters
    ----------
    mods : layers by relation, given as a triple or as the name between the two types
    aggregate : "sum", "mean", "max", "min" or "stack"; or a function that takes a list of results and their node type

    Raises
    ------
    ConfigError
        ``aggregate`` is unknown.
    """

    def __init__(
        self, mods: Mapping[Any, nn.Module], aggregate: str | Callable[[list[Any], str], Any] = "sum"
    ) -> None:
        super().__init__()
        self.mods = nn.ModuleDict({str(name): layer for name, layer in mods.items()})
        for layer in self.mods.values():
            allow = getattr(layer, "set_allow_zero_in_degree", None)
            if callable(allow):
                allow(True)  # other relations may reach a node that this relation does not
        if isinstance(aggregate, str) and aggregate not in _AGGREGATES:
            raise ConfigError(f"aggregate={aggregate!r}: choose one of {', '.join(_AGGREGATES)}")
        self.agg_fn = aggregate

    def forward(
        self,
        g: DGLBlock,
        inputs: Mapping[str, Any] | tuple[Mapping[str, Any], Mapping[str, Any]],
        mod_args: Mapping[str, tuple[Any, ...]] | None = None,
        mod_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Return the results by destination type; types without a relation from ``inputs`` are missing.

        Parameters
        ----------
        g : a typed block
        inputs : rows (U_t, F_t) by type, or a pair of such mappings for sources and destinations
        mod_args, mod_kwargs : further arguments for layers, by relation name

        Raises
        ------
        ConfigError
            A relation has no layer.
        """
        sources, destinations = expand_as_pair(inputs, g)
        results_by_type: dict[str, list[Any]] = {}
        for relation in g.canonical_etypes:
            source, name, destination = relation
            if source not in sources or destination not in destinations:
                continue
            result = self._layer(relation)(
                g[relation],
                (sources[source], destinations[destination]),
                *(mod_args or {}).get(name, ()),
                **(mod_kwargs or {}).get(name, {}),
            )
            results_by_type.setdefault(destination, []).append(result)
        return {name: self._aggregate(results, name) for name, results in results_by_type.items()}

    def _layer(self, relation: Relation) -> nn.Module:
        """Return the layer for ``relation``, which was given under the triple or under the name in the triple."""
        for name in (str(relation), relation[1]):
            if name in self.mods:
                return self.mods[name]
        raise ConfigError(f"{relation} has no layer; there are some for {', '.join(self.mods)}")

    def _aggregate(self, results: list[Any], ntype: str) -> Any:
        """Combine the results that several relations have for the nodes of type ``ntype``."""
        if not isinstance(self.agg_fn, str):
            return self.agg_fn(results, ntype)
        return _AGGREGATES[self.agg_fn](torch.stack(results))
