"""Names that DGL gives to the data of nodes and edges, and to the only type and relation of a graph."""

from typing import Final

from gloader.types import Relation

NID: Final = "_ID"
EID: Final = "_ID"
NTYPE: Final = "_TYPE"
ETYPE: Final = "_TYPE"

NODE: Final = "_N"
RELATION: Final[Relation] = (NODE, "_E", NODE)

FEATURE: Final = "feat"
LABEL: Final = "label"
WEIGHT: Final = "weight"
