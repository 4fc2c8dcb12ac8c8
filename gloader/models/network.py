"""Networks: stacks of layers over a graph's types and relations.

`gloader.models.build` makes the networks. Training calls a network with a batch. Inference over a whole graph
(`gloader.training.inference`) computes one layer after the other, with the methods below.

Layer 0 is next to the features. A layer adds up the results of its convolutions; these are its sums. `finish` passes
the sums through the layer's head (further layers for each row), if it has one. `enter` applies the norm, activation and
dropout before the next layer. `leave` applies the network's own head, which computes the logits.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError
from gloader.models.code_rows import CodeRows
from gloader.models.conv import normalised
from gloader.models.schema import key_of
from gloader.types import EDGE, NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.models.conv import Layer
    from gloader.models.schema import Schema
    from gloader.types import AnyReadyBatch, DeviceBlock, HeteroReadyBatch, Relation

    Hops = Sequence[Mapping[Relation, DeviceBlock]]  # each relation's block, by layer from the features on


@near_keywords
class GraphNetwork(nn.Module):
    """Layers with an activation, dropout and optional batch norm between them.

    A graph of one type has the type `gloader.types.NODE` and the relation `gloader.types.EDGE`. Types without features
    have learned rows. The targets are the types of the output rows. Layers and norms share their parameters with
    ``parts``, whose names become the names in checkpoints: those in PyG's and OGB's examples.

    Parameters
    ----------
    schema : types, widths, relations, and feature columns with codes
    layers : the L layers, from the input features on
    parts : modules with the parameters, by name
    activation : function between layers
    dropout : dropout probability at the input of every layer but the first
    norms : a batch norm for each computed type, for each layer from the first on; later layers have none
    head : maps the only target's rows from the last layer to the output, and ends with a Linear. If None, these rows
        are the output
    learned : (N_t, width) rows for each type without features
    """

    def __init__(
        self,
        schema: Schema,
        layers: Sequence[Layer],
        parts: Mapping[str, nn.Module],
        *,
        activation: Callable[[torch.Tensor], torch.Tensor] = functional.relu,
        dropout: float,
        norms: Sequence[Mapping[str, nn.BatchNorm1d]] = (),
        head: nn.Sequential | None = None,
        learned: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        super().__init__()
        self.schema = schema
        self.layers = tuple(layers)
        self.dropout = dropout
        self._activation = activation
        self._norms = tuple(norms)
        for name, part in parts.items():
            self.add_module(name, part)
        self.mlp = head
        # A list of pairs keeps the order of the types. torch would sort the names of a dict.
        self.embs = nn.ParameterDict([[key_of(name), rows] for name, rows in (learned or {}).items()])
        # Types that do not reach the output have no parameters.
        coded = {name: codes for name, codes in schema.codes.items() if name in layers[0].in_dims}
        self.codes = nn.ModuleDict({key_of(name): CodeRows(codes) for name, codes in coded.items()})

    @property
    def targets(self) -> tuple[str, ...]:
        """The output rows' types."""
        return self.schema.targets

    @property
    def learned(self) -> dict[str, torch.Tensor]:
        """Learned rows (N_t, width) of each type that has no features and reaches the output."""
        return {name: self.embs[key] for name in self.layers[0].in_dims if (key := key_of(name)) in self.embs}

    @property
    def out_dim(self) -> int:
        """The output rows' width."""
        return self.layers[-1].out_dim if self.mlp is None else int(self.mlp[-1].out_features)  # type: ignore[arg-type]

    def below(self, num_layers: int) -> GraphNetwork:
        """Return a network of the lowest ``num_layers``, at least 1. It shares the modules, not the training flag."""
        network = copy.copy(self)
        network._modules = {name: part for name, part in self._modules.items() if name != "mlp"}  # noqa: SLF001 - a copy
        network.layers, network.mlp = self.layers[:num_layers], None
        return network

    def forward(
        self, batch: AnyReadyBatch | torch.Tensor, blocks: Sequence[DeviceBlock] | None = None
    ) -> torch.Tensor:
        """Return the output for the seeds of the only target, (B, out_dim).

        Parameters
        ----------
        batch : a batch of any loader, or the rows ``x`` (U, F) of a one-type batch
        blocks : the L blocks of a one-type batch

        Raises
        ------
        ConfigError
            There are several targets, or `embed` raises ConfigError.
        """
        if len(self.targets) > 1:
            raise ConfigError(
                f"the model gives rows of {len(self.targets)} types, {', '.join(self.targets)}: call "
                f"embed(batch) instead"
            )
        if isinstance(batch, torch.Tensor):
            outputs = self._rows({NODE: batch}, [{EDGE: block} for block in blocks or ()], {})
        else:
            outputs = self.embed(batch)
        return outputs[self.targets[0]]

    def embed(self, batch: AnyReadyBatch) -> dict[str, torch.Tensor]:
        """Return the output for each target's seeds, (num_seeds_t, out_dim), in target order.

        The two ends of a link may have two types. A decoder takes both ends' rows.

        Raises
        ------
        ConfigError
            The batch's number of hops is not the number of layers.
        """
        typed = batch.typed
        x = {name: self._inputs(name, typed) for name in self.layers[0].in_dims}
        return self._rows(x, typed.blocks, typed.num_seeds)

    def _rows(
        self, x: dict[str, torch.Tensor], hops: Hops, num_seeds: Mapping[str, int]
    ) -> dict[str, torch.Tensor]:
        """Return each target's output from each type's input rows ``x`` (U_t, width)."""
        if len(hops) != len(self.layers):
            raise ConfigError(
                f"the batch has {len(hops)} hops and the model {len(self.layers)} layers; "
                f"give the loader one fan-out per layer"
            )
        for depth, (layer, hop, num_rows) in enumerate(
            zip(self.layers, hops, self._num_rows(hops, num_seeds), strict=True)
        ):
            entered = {name: self.enter(depth, name, x[name]) for name in layer.in_dims}
            x = layer.forward(entered, hop, num_rows)
        return {name: self.leave(x[name]) for name in self.targets}

    def enter(self, depth: int, node_type: str, x: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Return layer ``depth``'s input rows from the output below, or from the features.

        Parameters
        ----------
        depth : 0 for the first layer, L for the head
        node_type : the rows' type
        x : (n, width) output rows from the layer below; for layer 0 the features
        first : number of the first row, for messages

        Raises
        ------
        ConfigError
            A code of a category is out of range, see `CodeRows`.
        """
        if depth == 0:
            key = key_of(node_type)
            return self.codes[key](x, first) if key in self.codes else x
        # These steps belong to the next layer, not to the layer below: layer-wise inference keeps plain outputs between
        # layers, on disk if needed, and passes them through this method as it reads them.
        if len(self._norms) >= depth:
            x = normalised(self._norms[depth - 1][node_type], x)
        return functional.dropout(self._activation(x), self.dropout, training=self.training)

    def enter_sums(self, depth: int, node_type: str, sums: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Return layer ``depth``'s input rows from the sums below.

        Parameters
        ----------
        depth, node_type, first : see `enter`
        sums : (n, sum_dim) sums; for layer 0 the features
        """
        return self.enter(depth, node_type, self.finish(depth - 1, sums) if depth else sums, first)

    def finish(self, depth: int, sums: torch.Tensor) -> torch.Tensor:
        """Return layer ``depth``'s output for its sums (n, sum_dim)."""
        head = self.layers[depth].head
        rows: torch.Tensor = sums if head is None else head(sums)
        return rows

    def tail(self, num_layers: int, *, is_output: bool) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Return the function from a layer's sums (n, sum_dim) to its rows, or None if the sums are the rows.

        Parameters
        ----------
        num_layers : layer number, 1 to L
        is_output : whether the network's output is requested instead of the layer's
        """
        if not is_output or self.mlp is None:
            return self.layers[num_layers - 1].head
        return lambda sums: self.leave(self.finish(num_layers - 1, sums))

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output (n, out_dim) for a target's rows ``x`` (n, width) from the last layer."""
        if self.mlp is None:
            return x
        (target,) = self.targets  # a network with a head has one
        x = self.enter(len(self.layers), target, x)
        for part in self.mlp:
            x = normalised(part, x) if isinstance(part, nn.BatchNorm1d) else part(x)
        return x

    def _inputs(self, node_type: str, batch: HeteroReadyBatch) -> torch.Tensor:
        """Return a type's features, or its learned rows for the batch's nodes."""
        key = key_of(node_type)
        if key not in self.embs:
            return batch.x[node_type]
        table = self.embs[key]
        ids = torch.from_numpy(batch.nodes[node_type]).to(table.device)
        # A step reads few rows, and a sparse gradient holds only these rows.
        return functional.embedding(ids, table, sparse=True)

    def _num_rows(self, hops: Hops, num_seeds: Mapping[str, int]) -> list[dict[str, int]]:
        """Return each type's row count after each layer, counted from the output downwards."""
        counts: list[dict[str, int]] = []
        above = {name: num_seeds.get(name, 0) for name in self.targets}
        # For a type that is no destination in this hop, no block has a row count. The hop above reads these rows, and
        # counts them as its sources.
        for layer, hop in zip(reversed(self.layers), reversed(hops), strict=True):
            ends = {relation[2]: hop[relation].num_dst for relation in layer.relations}
            counts.append({name: ends.get(name, above.get(name, 0)) for name in layer.types})
            starts = {relation[0]: hop[relation].num_src for relation in layer.relations}
            above = counts[-1] | starts
        return counts[::-1]


# The public name for networks over several types: `HeteroLoader` gives their batches.
HeteroNetwork = GraphNetwork
