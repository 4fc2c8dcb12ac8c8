"""An encoder of nodes and a decoder of pairs, as one network."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from torch import nn
from torch.nn import functional

from gloader.core.near_names import near_keywords
from gloader.types import ReadyBatch

if TYPE_CHECKING:
    import torch

    from gloader.models.decoders import Decoder
    from gloader.models.hetero_network import HeteroNetwork
    from gloader.models.network import GraphNetwork
    from gloader.types import LinkBatch

    Encoder: TypeAlias = GraphNetwork | HeteroNetwork


@near_keywords
class LinkNetwork(nn.Module):
    """Scores pairs of nodes by the embeddings of both.

    Parameters
    ----------
    encoder : from features and edges to embeddings
    decoder : from the embeddings of pairs to their scores
    ends : types of the sources and of the destinations
    """

    def __init__(self, encoder: Encoder, decoder: Decoder, *, ends: tuple[str, str]) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self._ends = ends

    def forward(self, batch: LinkBatch) -> torch.Tensor:
        """Return the scores of the batch's pairs, (P,), or (P, C) of a decoder that makes C numbers."""
        inner = batch.batch
        if isinstance(inner, ReadyBatch):
            sources = destinations = self.encoder(inner.x, inner.blocks)
        else:
            found = self.encoder.embed(inner)  # type: ignore[operator]  # of several types by its batch
            sources, destinations = (found[name] for name in self._ends)
        # Not by an index, whose gradients several threads add up in the order in which they come.
        ends = (
            functional.embedding(batch.pairs[:, end], rows)
            for end, rows in enumerate((sources, destinations))
        )
        scores: torch.Tensor = self.decoder(*ends)
        return scores


@near_keywords
def encoder_of(network: Encoder | LinkNetwork) -> Encoder:
    """Return the part of ``network`` that makes rows of nodes: all of it, where it makes nothing else."""
    return network.encoder if isinstance(network, LinkNetwork) else network
