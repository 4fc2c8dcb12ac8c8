"""A stack of convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.models.conv import Conv
    from gloader.types import DeviceBlock


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
