"""A layer for each relation, and what becomes of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from gloader.bridges.dgl_api.common import expand_as_pair
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gloader.bridges.dgl_api.block import Block
    from gloader.types import Relation


_AGGREGATES: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "sum": lambda found: found.sum(dim=0),
    "mean": lambda found: found.mean(dim=0),
    "max": lambda found: found.amax(dim=0),
    "min": lambda found: found.amin(dim=0),
    "stack": lambda found: found.transpose(0, 1),
}


@near_keywords
class HeteroGraphConv(nn.Module):
    """A layer for each relation; what several of them make of a type is added up, or as ``aggregate`` says.

    Parameters
    ----------
    mods : layers by relation, a triple or its name
    aggregate : "sum", "mean", "max", "min" or "stack"; or a function of a list of results and their type

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
                allow(True)  # a node that one relation does not reach is reached by others
        if isinstance(aggregate, str) and aggregate not in _AGGREGATES:
            raise ConfigError(f"aggregate={aggregate!r}: choose one of {', '.join(_AGGREGATES)}")
        self.agg_fn = aggregate

    def forward(
        self,
        g: Block,
        inputs: Mapping[str, Any] | tuple[Mapping[str, Any], Mapping[str, Any]],
        mod_args: Mapping[str, tuple[Any, ...]] | None = None,
        mod_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Return the results by destination type; none of a type that no relation leads to from ``inputs``.

        Parameters
        ----------
        g : a typed block
        inputs : rows (U_t, F_t) of each type, or these of sources and those of destinations
        mod_args, mod_kwargs : further arguments of layers, by the names of relations

        Raises
        ------
        ConfigError
            A relation has no layer.
        """
        sources, destinations = expand_as_pair(inputs, g)
        found: dict[str, list[Any]] = {}
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
            found.setdefault(destination, []).append(result)
        return {name: self._aggregate(results, name) for name, results in found.items()}

    def _layer(self, relation: Relation) -> nn.Module:
        for name in (str(relation), relation[1]):
            if name in self.mods:
                return self.mods[name]
        raise ConfigError(f"{relation} has no layer; there are some for {', '.join(self.mods)}")

    def _aggregate(self, results: list[Any], ntype: str) -> Any:
        if not isinstance(self.agg_fn, str):
            return self.agg_fn(results, ntype)
        return _AGGREGATES[self.agg_fn](torch.stack(results))
