"""What a user may say about a source besides its name, and about the conversion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - flags are made of these classes at run time
from typing import Literal, TypeAlias

OrderName: TypeAlias = Literal["none", "degree", "community"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the opener of a source needs besides the source itself; each source reads what concerns it."""

    features: Path | None = None  # edges: a file of feature rows
    labels: Path | None = None  # edges: a file of labels
    splits: Path | None = None  # edges: a file of splits
    root: Path | None = None  # ogb: the folder that holds, or will hold, the downloaded data
    seed: int = 0  # of random splits, and of synthetic graphs whose specification names none
    memory_budget_bytes: int | None = None  # None: half of what is free


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRules:
    """What happens to the edges of a source on their way into a dataset; by default nothing."""

    symmetrize: bool = False  # both directions of every edge, each once; implies deduplicate
    self_loops: bool = False  # exactly one self loop per node, of weight 1; given ones are dropped
    deduplicate: bool = False  # parallel edges become one; their weights add up

    @property
    def merges(self) -> bool:
        """Whether parallel edges become one."""
        return self.deduplicate or self.symmetrize


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """How a source becomes a dataset; see `EdgeRules` for the first three."""

    symmetrize: bool = False
    self_loops: bool = False
    deduplicate: bool = False
    dtype: str = "float32"  # of the stored features: float32, float16, bfloat16 or int8
    order: OrderName = "none"  # of the nodes: as in the source, by falling out-degree, or by community
    memory_budget_bytes: int | None = None  # None: half of what is free
    overwrite: bool = False

    @property
    def rules(self) -> EdgeRules:
        """What happens to the edges."""
        return EdgeRules(symmetrize=self.symmetrize, self_loops=self.self_loops, deduplicate=self.deduplicate)
