"""Models: GraphSAGE, GCN, GAT, GINE and an MLP for one node type; R-SAGE, R-GCN, R-GAT for several; links; triples.

Training scripts and `gloader.training` build them with `build_model`, `build_hetero_model` and `build_decoder`.
"""

from gloader.config import HETERO_MODELS
from gloader.models.build import build_hetero_model, build_model, takes_edge_features
from gloader.models.knowledge import KnowledgeNetwork
from gloader.models.link_network import (
    DECODERS,
    Decoder,
    DotDecoder,
    LinkNetwork,
    MlpDecoder,
    build_decoder,
    encoder_of,
)
from gloader.models.network import GraphNetwork, HeteroNetwork
from gloader.models.schema import CodeColumn, Schema, code_dim

__all__ = [
    "DECODERS",
    "HETERO_MODELS",
    "CodeColumn",
    "Decoder",
    "DotDecoder",
    "GraphNetwork",
    "HeteroNetwork",
    "KnowledgeNetwork",
    "LinkNetwork",
    "MlpDecoder",
    "Schema",
    "build_decoder",
    "build_hetero_model",
    "build_model",
    "code_dim",
    "encoder_of",
    "takes_edge_features",
]
