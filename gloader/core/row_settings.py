"""Settings of the trained rows of nodes: embeddings beside a network, and the entities of a knowledge graph.

`gloader.config` has them among the settings of a training run, and explains how fields become flags.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from gloader.core.flag_parameter import Group, Parameter
from gloader.core.flag_values import Count, EmbedDims, SizeOrShare  # noqa: TC001 - cyclopts reads annotations

EmbedOptimizer = Literal["rowwise-adagrad", "adagrad", "sparse-adam"]


@Parameter(name="*", group=Group("Knowledge graphs", sort_key=11))
@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeConfig:
    """The task of a knowledge graph (--task kg); other tasks refuse these settings."""

    dim: Count = 200
    """Width of an entity's trained row, and of a relation's. complex and rotate take half of it for the real parts."""
    norm: Literal[1, 2] = 1
    """Norm of transe: 1 sums the absolute differences, 2 is the Euclidean distance."""
    margin: float = 9.0
    """Distance at which transe and rotate tell right triples from wrong ones (gamma in the paper of RotatE)."""


@Parameter(name="*", group=Group("Embeddings", sort_key=12))
@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedConfig:
    """Trained rows of node types, which are kept in files and need not fit in memory."""

    dims: Annotated[EmbedDims, Parameter(name="embed")] = field(default_factory=dict)
    """Give each node a trained row of this width, beside its features if it has some: 64 for all types without features
    (or for the only type), author=64 for one type. May be repeated. The rows lie on the SSD, in the folder of the
    run."""
    optimizer: Annotated[EmbedOptimizer, Parameter(name="embed-optimizer")] = "rowwise-adagrad"
    """Update rule of these rows. rowwise-adagrad keeps one number for each row, adagrad one and sparse-adam two for
    each weight."""
    lr: Annotated[float | None, Parameter(name="embed-lr")] = None
    """Learning rate of these rows; --lr-schedule does not change it. Default: 0.01, and 0.001 for sparse-adam."""
    cache: Annotated[SizeOrShare, Parameter(name="embed-cache")] = None
    """Memory for these rows, a part of the memory budget: a size for all types together, or a share of all rows such as
    10%. The rows of a batch have to fit. It never changes a result. Default: all rows, or a quarter of the loader's
    memory."""

    @property
    def learning_rate(self) -> float:
        """``lr``, or the default of the optimizer."""
        if self.lr is not None:
            return self.lr
        return 0.001 if self.optimizer == "sparse-adam" else 0.01

    def recorded(self) -> dict[str, Any]:
        """Return the section ``embeddings`` of ``config.yaml``, as plain values; a share is text."""
        cache = f"{100 * self.cache:.12g}%" if isinstance(self.cache, float) else self.cache
        return {"dims": dict(self.dims), "optimizer": self.optimizer, "lr": self.lr, "cache": cache}
