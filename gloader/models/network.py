"""Stacks of layers, over one node type or over the types and relations of a graph."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError
from gloader.models.conv import Layer
from gloader.models.schema import key_of
from gloader.types import NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.models.conv import Conv
    from gloader.models.schema import Schema
    from gloader.types import DeviceBlock, HeteroReadyBatch


@near_keywords
class GraphNetwork(nn.Module):
    """Convolutions with optional batch norm, ReLU and dropout between them.

    Parameters
    ----------
    convs : the L layers, the one next to the input features first
    dropout : probability, applied to the input of every layer but the first
    batch_norm : normalise the output of every layer but the last
    """

    def __init__(self, convs: Sequence[Conv], *, dropout: float, batch_norm: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)  # type: ignore[arg-type]
        norms = [nn.BatchNorm1d(conv.out_dim) for conv in convs[:-1]] if batch_norm else []
        self.norms = nn.ModuleList(norms)
        self.dropout = dropout

    @property
    def layers(self) -> tuple[Conv, ...]:
        """The convolutions, the one next to the input features first."""
        return tuple(self.convs)  # type: ignore[arg-type]

    def below(self, num_layers: int) -> GraphNetwork:
        """Return the network of the lowest ``num_layers``, at least 1; shares its parts, and has modes of its own."""
        found = GraphNetwork(self.layers[:num_layers], dropout=self.dropout, batch_norm=False)
        found.norms = self.norms[: num_layers - 1]
        return found.train(self.training)

    @property
    def relation_layers(self) -> tuple[Layer, ...]:
        """The layers over the types and relations of a graph with one type and one relation."""
        return tuple(map(Layer.of_conv, self.layers))

    @property
    def targets(self) -> tuple[str, ...]:
        """The types whose rows are the output."""
        return (NODE,)

    @property
    def learned(self) -> dict[str, torch.Tensor]:
        """The learned rows of each type that has no features: there are none."""
        return {}

    @property
    def out_dim(self) -> int:
        """Width of the output."""
        return self.layers[-1].out_dim

    def forward(self, x: torch.Tensor, blocks: Sequence[DeviceBlock]) -> torch.Tensor:
        """Return the output (B, out_dim) for the seeds, of ``x`` (U, F) and the L blocks of their batch.

        Raises
        ------
        ConfigError
            The number of blocks is not the number of layers.
        """
        if len(blocks) != len(self.convs):
            raise ConfigError(
                f"the batch has {len(blocks)} blocks and the model {len(self.convs)} layers; "
                f"give the loader one fan-out per layer"
            )
        for depth, (conv, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = conv(self.enter(depth, x), block)
        return x

    def tail(
        self,
        num_layers: int,
        *,
        is_output: bool,  # noqa: ARG002 - as of `HeteroNetwork`
    ) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Return the function from the sums of a layer, (n, width), to its rows; None: the sums are the rows.

        Parameters
        ----------
        num_layers : number of the layer, 1 to L
        is_output : whether the output of the network is wanted, or that of the layer alone
        """
        is_finished = self.layers[num_layers - 1].head is None
        return None if is_finished else partial(self.finish, num_layers - 1)

    def enter_sums(self, depth: int, node_type: str, sums: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - there is one type
        """Return the rows that enter layer ``depth``.

        Parameters
        ----------
        depth : 0 for the layer next to the features
        node_type : of the rows
        sums : (n, width) of the layer below; of layer 0 the features
        """
        return self.enter(depth, self.finish(depth - 1, sums) if depth else sums)

    def finish(self, depth: int, made: torch.Tensor) -> torch.Tensor:
        """Return the output of layer ``depth`` for rows (n, width) that its `Conv.propagate` made."""
        head = self.layers[depth].head
        found: torch.Tensor = made if head is None else head(made)
        return found

    def enter(self, depth: int, x: torch.Tensor) -> torch.Tensor:
        """Return what layer ``depth`` sees of the output ``x`` (n, width) of the layer below it."""
        if depth == 0:
            return x
        # On the way into a layer, not out of the one below: layer-wise inference keeps plain outputs between layers, on
        # disk if it must, and passes them through here as it reads them.
        if self.norms:
            x = self.norms[depth - 1](x)
        return functional.dropout(functional.relu(x), self.dropout, training=self.training)


@near_keywords
class HeteroNetwork(nn.Module):
    """Layers with an activation, dropout and optional batch norm between them.

    Types without features have learned rows. The modules that hold the parameters come by name, as PyG's examples name
    them; a layer shares them.

    Parameters
    ----------
    schema : types, widths and relations
    layers : L, the one next to the input features first
    parts : modules by the names under which their parameters are saved
    learned_dim : width of learned rows
    activation : between layers
    dropout : probability, applied to the input of every layer but the first
    norms : for each layer a batch norm of each type that it computes; layers behind its end have none
    head : from the rows of the only target that leave the last layer to the logits: Linear, norm or identity, ReLU,
        dropout, Linear; None: they are the output
    """

    def __init__(
        self,
        schema: Schema,
        layers: Sequence[Layer],
        parts: Mapping[str, nn.Module],
        *,
        learned_dim: int,
        activation: Callable[[torch.Tensor], torch.Tensor],
        dropout: float,
        norms: Sequence[Mapping[str, nn.BatchNorm1d]],
        head: nn.Sequential | None,
    ) -> None:
        super().__init__()
        self.schema = schema
        self.layers = self.relation_layers = tuple(layers)
        self.dropout = dropout
        self._activation = activation
        for name, part in parts.items():
            self.add_module(name, part)
        self.norms = nn.ModuleList(
            nn.ModuleDict({key_of(name): norm for name, norm in of_layer.items()}) for of_layer in norms
        )
        self.mlp = head
        # By pairs: of a dict torch sorts the names.
        self.embs = nn.ParameterDict(
            [
                [key_of(name), nn.Parameter(nn.init.xavier_uniform_(torch.empty(count, learned_dim)))]
                for name, count in schema.num_nodes.items()
                if name in layers[0].in_dims and not schema.feature_dims[name]
            ]
        )

    @property
    def targets(self) -> tuple[str, ...]:
        """The types whose rows are the output."""
        return self.schema.targets

    @property
    def learned(self) -> dict[str, torch.Tensor]:
        """The learned rows (N_t, width) of each type that has no features and reaches the output."""
        names = self.layers[0].in_dims
        return {name: self.embs[key_of(name)] for name in names if not self.schema.feature_dims[name]}

    @property
    def out_dim(self) -> int:
        """Width of the output."""
        return self.layers[-1].out_dim if self.mlp is None else int(self.mlp[-1].out_features)  # type: ignore[arg-type]

    def forward(self, batch: HeteroReadyBatch) -> torch.Tensor:
        """Return the output for the seeds of the only target, (B, out_dim): logits, where they are classified.

        Raises
        ------
        ConfigError
            There are several targets; or as of `embed`.
        """
        if len(self.schema.targets) > 1:
            raise ConfigError(
                f"the model gives rows of {len(self.schema.targets)} types, {', '.join(self.schema.targets)}: ask "
                f"embed(batch) for them"
            )
        (found,) = self.embed(batch).values()
        return found

    def embed(self, batch: HeteroReadyBatch) -> dict[str, torch.Tensor]:
        """Return the output for the seeds of each target, (num_seeds_t, out_dim), in the order of the targets.

        What `forward` is for links, whose two ends may be of two types: a decoder takes the rows of both.

        Raises
        ------
        ConfigError
            The number of hops is not the number of layers.
        """
        blocks = batch.blocks
        if len(blocks) != len(self.layers):
            raise ConfigError(
                f"the batch has {len(blocks)} hops and the model {len(self.layers)} layers; "
                f"give the loader one fan-out per layer"
            )
        counts = self._num_rows(batch)
        x = {name: self._inputs(name, batch) for name in self.layers[0].in_dims}
        for depth, layer in enumerate(self.layers):
            entered = {name: self.enter(depth, name, x[name]) for name in layer.in_dims}
            x = layer.forward(entered, blocks[depth], counts[depth])
        return {name: self.leave(x[name]) for name in self.schema.targets}

    def enter(self, depth: int, node_type: str, x: torch.Tensor) -> torch.Tensor:
        """Return what layer ``depth`` sees of the output of the layer below it.

        Parameters
        ----------
        depth : 0 for the layer next to the features, L for what follows the last one
        node_type : of the rows
        x : (n, width)
        """
        if depth == 0:
            return x
        # On the way into a layer, for the reason that `GraphNetwork.enter` has.
        if len(self.norms) >= depth:
            norms: nn.ModuleDict = self.norms[depth - 1]  # type: ignore[assignment]
            x = _normalised(norms[key_of(node_type)], x)
        return functional.dropout(self._activation(x), self.dropout, training=self.training)

    def enter_sums(self, depth: int, node_type: str, sums: torch.Tensor) -> torch.Tensor:
        """Return the rows that enter layer ``depth``: `enter`, as no layer has a head.

        Parameters
        ----------
        depth, node_type, sums : as of `GraphNetwork.enter_sums`
        """
        return self.enter(depth, node_type, sums)

    def tail(
        self,
        num_layers: int,  # noqa: ARG002 - as of `GraphNetwork`
        *,
        is_output: bool,
    ) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Return the function from the sums of a layer, (n, width), to its rows; None: the sums are the rows.

        Parameters
        ----------
        num_layers, is_output : as of `GraphNetwork.tail`
        """
        return self.leave if is_output and self.mlp is not None else None

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output (n, out_dim) for rows of a target that leave the last layer.

        Parameters
        ----------
        x : (n, width)
        """
        if self.mlp is None:
            return x
        (target,) = self.schema.targets  # who has a head has one
        x = self.enter(len(self.layers), target, x)
        for part in self.mlp:
            x = _normalised(part, x) if isinstance(part, nn.BatchNorm1d) else part(x)
        return x

    def _inputs(self, node_type: str, batch: HeteroReadyBatch) -> torch.Tensor:
        if self.schema.feature_dims[node_type]:
            return batch.x[node_type]
        table = self.embs[key_of(node_type)]
        ids = torch.from_numpy(batch.nodes[node_type]).to(table.device)
        # A step looks at few of the rows: their gradient is of these alone.
        return functional.embedding(ids, table, sparse=True)

    def _num_rows(self, batch: HeteroReadyBatch) -> list[dict[str, int]]:
        """Return how many rows of each type leave each layer."""
        counts: list[dict[str, int]] = []
        above = {name: batch.num_seeds[name] for name in self.schema.targets}
        # A type that is the destination of no relation has no block that says how many: those that the hop above
        # takes in, which it knows as a source.
        for layer, hop in zip(reversed(self.layers), reversed(batch.blocks), strict=True):
            ends = {relation[2]: hop[relation].num_dst for relation in layer.relations}
            counts.append({name: ends.get(name, above.get(name, 0)) for name in layer.types})
            starts = {relation[0]: hop[relation].num_src for relation in layer.relations}
            above = counts[-1] | starts
        return counts[::-1]


def _normalised(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` (n, width) through a batch norm; by what it has seen so far where n is too small for a variance."""
    if len(x) > 1 or not isinstance(norm, nn.BatchNorm1d) or not norm.training:
        found: torch.Tensor = norm(x)
        return found
    # A type may have one node in a batch or none. The parameters still get their gradients.
    return functional.batch_norm(
        x, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=False, eps=norm.eps
    )
