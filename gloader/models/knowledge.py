"""Models of knowledge graphs: ComplEx, DistMult, TransE and RotatE score triples of a head, a relation and a tail.

A triple says that its relation leads from its head to its tail, which are entities. The rows of entities come with the
batches, from a `gloader.NodeEmbedding`. A network has the rows of relations alone. A *query* is a triple without its
tail, or without its head. Each model turns a query into a vector, which it compares with the rows of all candidates: by
the dot product (ComplEx, DistMult), or by a distance (TransE, RotatE). So many candidates cost one matrix product.

Shapes: n queries, m candidates, D columns of an entity's row, R relations, P triples of a batch, k shared negatives.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch
from torch import nn
from torch.nn import functional

from gloader.config import KNOWLEDGE_MODELS
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError
from gloader.types import ENTITY

if TYPE_CHECKING:
    from gloader.types import LinkBatch

COMPLEX_MODELS: Final = (
    "complex",
    "rotate",
)  # the first half of a row is the real part, the second the imaginary part
# The score of a negative that is the triple's own end: its exponential is 0, and it is finite, so that all negatives of
# a triple may have it.
_NEVER: Final = -1e9
_TINY: Final = 1e-20  # under a root: far below the square of any difference that counts in float32


@near_keywords
class KnowledgeNetwork(nn.Module):
    """Scores triples, and has a row for each relation. A larger score is a more likely triple.

    - "complex": Re<h, r, conj(t)> (Trouillon et al., "Complex embeddings for simple link prediction", ICML 2016,
      section 3)
    - "distmult": <h, r, t> (Yang et al., "Embedding entities and relations for learning and inference in knowledge
      bases", ICLR 2015, section 3.1)
    - "transe": -||h + r - t|| in the L1 or L2 norm (Bordes et al., "Translating embeddings for modeling
      multi-relational data", NIPS 2013, section 2)
    - "rotate": -||h * r - t||, where each complex number of r has length 1 (Sun et al., "RotatE", ICLR 2019,
      section 2.2)

    Parameters
    ----------
    name : one of `gloader.config.KNOWLEDGE_MODELS`
    dim : D
    num_relations : R
    norm : 1 or 2, the norm of "transe"

    Raises
    ------
    ConfigError
        The name is unknown, or ``dim`` is odd and the model has complex numbers.
    """

    def __init__(self, name: str, *, dim: int, num_relations: int, norm: int = 1) -> None:
        super().__init__()
        if name not in KNOWLEDGE_MODELS:
            raise ConfigError(
                f"model {name!r} does not score triples; allowed: {', '.join(KNOWLEDGE_MODELS)}"
            )
        if name in COMPLEX_MODELS and dim % 2:
            raise ConfigError(
                f"dim is {dim}, and model {name!r} has complex numbers, which take two columns each; give an even one"
            )
        self.name, self.dim, self._norm = name, dim, norm
        # RotatE has an angle for each complex number.
        self.relations = nn.Parameter(torch.empty(num_relations, dim // 2 if name == "rotate" else dim))
        # The scale of the entities' first rows is that of TransE's relations, so that sums have parts of equal size. A
        # product keeps the size of a row if the relation's numbers are about 1.
        scale = {"transe": 1 / math.sqrt(dim), "rotate": math.pi}.get(name, 1.0)
        nn.init.uniform_(self.relations, -scale, scale)
        self.embs = (
            nn.ParameterDict()
        )  # learned rows of other networks: here, all rows of entities are embeddings
        self.layers: tuple[nn.Module, ...] = ()  # no layer reads neighbours

    @property
    def targets(self) -> tuple[str, ...]:
        """The type of the output rows of a network's layers, of which there are none."""
        return ()

    def forward(self, batch: LinkBatch) -> torch.Tensor:
        """Return the scores (P, 1 + 2k): of each triple, of its wrong tails, and of its wrong heads.

        Raises
        ------
        ConfigError
            The batch has no shared negatives.
        """
        if batch.shared is None:
            raise ConfigError(
                "the batch has no negatives that its triples share; give the loader negatives='uniform:256,shared'"
            )
        x, relations = batch.typed.x[ENTITY], self.relation_rows(batch.labels)
        heads, tails = (functional.embedding(ends, x) for ends in batch.pairs.T)
        tail_queries = self.queries(heads, relations, asks_heads=False)
        parts = [self.between(tail_queries, tails).unsqueeze(1)]
        for queries, wrong, own in (
            (tail_queries, batch.shared[1], batch.pairs[:, 1]),
            (self.queries(tails, relations, asks_heads=True), batch.shared[0], batch.pairs[:, 0]),
        ):
            scores = self.against(queries, functional.embedding(wrong, x))
            parts.append(scores.masked_fill(wrong == own.unsqueeze(1), _NEVER))
        return torch.cat(parts, dim=1)

    def relation_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows (n, D) of the relations ``ids`` (n,)."""
        rows = functional.embedding(ids, self.relations)
        return torch.cat([rows.cos(), rows.sin()], dim=1) if self.name == "rotate" else rows

    def queries(self, rows: torch.Tensor, relations: torch.Tensor, *, asks_heads: bool) -> torch.Tensor:
        """Return the vectors (n, D) of queries.

        Parameters
        ----------
        rows : (n, D) rows of the heads, or with ``asks_heads`` of the tails
        relations : (n, D) result of `relation_rows`
        asks_heads : whether heads are asked for, in place of tails
        """
        if self.name == "distmult":
            return rows * relations
        if self.name == "transe":
            return rows - relations if asks_heads else rows + relations
        (a, b), (c, d) = rows.chunk(2, dim=1), relations.chunk(2, dim=1)
        d = -d if asks_heads else d  # the way back is the product with the conjugate
        return torch.cat([a * c - b * d, a * d + b * c], dim=1)

    def against(self, queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the scores (n, m) of ``queries`` (n, D) with all candidates ``rows`` (m, D)."""
        if self.name == "transe":
            # The fast way for L2 subtracts large numbers, and loses digits of small distances.
            mode = "donot_use_mm_for_euclid_dist"
            return -torch.cdist(queries, rows, p=float(self._norm), compute_mode=mode)
        if self.name == "rotate":
            return -_lengths(queries.unsqueeze(1) - rows.unsqueeze(0))
        return queries @ rows.T

    def between(self, queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the scores (n,) of ``queries`` (n, D), each with its own candidate of ``rows`` (n, D)."""
        if self.name == "transe":
            return -torch.linalg.vector_norm(queries - rows, ord=self._norm, dim=-1)
        if self.name == "rotate":
            return -_lengths(queries - rows)
        return (queries * rows).sum(dim=-1)


def _lengths(differences: torch.Tensor) -> torch.Tensor:
    """Return the sum over the last dimension of the lengths of complex numbers."""
    real, imaginary = differences.chunk(2, dim=-1)
    # torch.hypot, and a norm over two numbers, take several times as long. A plain root has no gradient at 0.
    return (real * real + imaginary * imaginary + _TINY).sqrt().sum(dim=-1)
