"""GraphSAGE, GCN, GAT, GINE and an MLP on sampled blocks; R-SAGE, R-GCN, R-GAT on those of several types; decoders."""

from gloader.config import HETERO_MODELS
from gloader.models.build import build_model, takes_edge_features
from gloader.models.build_hetero import build_hetero_model
from gloader.models.decoders import DECODERS, Decoder, DotDecoder, MlpDecoder, build_decoder
from gloader.models.hetero_network import HeteroNetwork
from gloader.models.link_network import LinkNetwork, encoder_of
from gloader.models.network import GraphNetwork
from gloader.models.schema import Schema

__all__ = [
    "DECODERS",
    "HETERO_MODELS",
    "Decoder",
    "DotDecoder",
    "GraphNetwork",
    "HeteroNetwork",
    "LinkNetwork",
    "MlpDecoder",
    "Schema",
    "build_decoder",
    "build_hetero_model",
    "build_model",
    "encoder_of",
    "takes_edge_features",
]
