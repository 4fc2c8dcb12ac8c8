"""Networks for links: an encoder computes a row (embedding) per node, and a decoder scores pairs of rows.

Training scripts and `gloader.training` build a decoder by name, and pass it with a `GraphNetwork` to `LinkNetwork`.
Shapes: P pairs of nodes, D columns of an embedding, C outputs per pair.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.models.network import GraphNetwork
    from gloader.types import LinkBatch


DECODERS: Final = ("dot", "mlp")  # names for `build_decoder`
_LAYERS: Final = 3  # Linear layers of a decoder, as in OGB's examples


class DotDecoder(nn.Module):
    """The dot product of both ends. Has no parameters."""

    def forward(self, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
        """Return the logits (P,) for the pairs' ends ``source`` and ``destination``, both (P, D)."""
        return (source * destination).sum(dim=1)


@near_keywords
class MlpDecoder(nn.Module):
    """An MLP over the product of both ends: ``LinkPredictor`` of OGB's examples, without its sigmoid.

    Parameters
    ----------
    dim : D, width per end
    hidden : width between the layers
    layers : number of Linear layers, at least 1
    dropout : dropout probability between the layers
    num_outputs : C, outputs per pair
    """

    def __init__(
        self, dim: int, hidden: int, *, layers: int = _LAYERS, dropout: float, num_outputs: int = 1
    ) -> None:
        super().__init__()
        widths = [dim, *[hidden] * (layers - 1), num_outputs]
        self.lins = nn.ModuleList(nn.Linear(before, after) for before, after in itertools.pairwise(widths))
        self.dropout = dropout

    def forward(self, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
        """Return the logits, (P,) or (P, C), for the pairs' ends ``source`` and ``destination``, both (P, D)."""
        x = source * destination
        *hidden, last = self.lins
        for lin in hidden:
            x = functional.dropout(functional.relu(lin(x)), self.dropout, training=self.training)
        result: torch.Tensor = last(x)
        return result.squeeze(1) if result.shape[1] == 1 else result


Decoder: TypeAlias = DotDecoder | MlpDecoder  # scores pairs of embeddings


@near_keywords
def build_decoder(
    name: str, *, dim: int, hidden: int, dropout: float, layers: int = _LAYERS, num_outputs: int = 1
) -> Decoder:
    """Return the decoder ``name``, initialised from torch's global generator.

    Parameters
    ----------
    name : "dot" or "mlp"
    dim : D, width per end
    hidden, dropout, layers : parameters of `MlpDecoder`
    num_outputs : C, outputs per pair; 1 for a score

    Raises
    ------
    ConfigError
        There is no such decoder, or several outputs are requested from "dot", which gives one.
    """
    match name:
        case "dot" if num_outputs > 1:
            raise ConfigError(
                f"decoder 'dot' gives one score per pair, and the links have {num_outputs} classes; use 'mlp'"
            )
        case "dot":
            return DotDecoder()
        case "mlp":
            return MlpDecoder(dim, hidden, layers=layers, dropout=dropout, num_outputs=num_outputs)
        case _:
            raise ConfigError(f"decoder {name!r} is not known; allowed: {', '.join(DECODERS)}")


@near_keywords
class LinkNetwork(nn.Module):
    """Scores node pairs from the embeddings of both ends.

    Parameters
    ----------
    encoder : maps features and edges to embeddings
    decoder : maps pair embeddings to scores
    ends : source type and destination type of the pairs
    """

    def __init__(self, encoder: GraphNetwork, decoder: Decoder, *, ends: tuple[str, str]) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self._ends = ends

    def forward(self, batch: LinkBatch) -> torch.Tensor:
        """Return the scores of ``batch.pairs``, (P,), or (P, C) from a decoder with C outputs."""
        rows = self.encoder.embed(batch.batch)
        # `embedding` adds gradients in a fixed order. Indexing would add them from several threads in a random order.
        ends = (functional.embedding(batch.pairs[:, i], rows[end]) for i, end in enumerate(self._ends))
        scores: torch.Tensor = self.decoder(*ends)
        return scores


@near_keywords
def encoder_of(network: Any) -> Any:
    """Return the part of ``network`` that computes node rows: a `LinkNetwork`'s encoder, or the network itself."""
    return network.encoder if isinstance(network, LinkNetwork) else network
