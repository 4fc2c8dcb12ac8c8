"""Exact ranks of triples among all entities of a knowledge graph, and the best answers to queries, out of core.

A *query* is a triple without its tail, or without its head. Its *answers* are the entities that complete it, by falling
score. The *rank* of a triple is that of its own end among all entities, without those that complete the query to
another known triple: these are right answers too (Bordes et al., "Translating embeddings for modeling multi-relational
data", NIPS 2013, section 4.2: "filtered"). Entities with equal scores share a rank, the mean of their places
(Berrendorf et al., "On the ambiguity of rank-based evaluation", 2020, section 3: "realistic").

Queries are taken in blocks. For each block, the link tables are read once, for its known triples, and the entity table
once, in pieces. Scores are computed in float64 and rounded to float32, so that a score depends on neither the block nor
the piece, and equal rows have equal scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import torch

from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError, DivergedError
from gloader.plan.too_small import advice, rounded_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.dataset.link_table import LinkTable
    from gloader.models.knowledge import KnowledgeNetwork
    from gloader.types import IdArray

HITS: Final = (1, 3, 10)  # the k of hits@k
_READ_ROWS: Final = 1 << 18  # rows of a link table that are read together
_TRIPLE_BYTES: Final = 96  # of a row while it is read and compared: four columns, a label, and its query
# Bytes of a score while a tile is ranked: in float64 with its temporary copies, in float32, and two comparisons.
_SCORE_BYTES: Final = 24
_ROTATE_COPIES: Final = 4  # copies of all differences that RotatE has in place of a matrix product
_MOST_PIECE_ROWS: Final = 1 << 16  # rows of the entity table per piece
_LEAST_ROWS: Final = 256  # of a piece, with any budget
_MOST_QUERIES: Final = (
    1 << 20
)  # queries of a block; with more, a block's known triples take longer to sort than read


class EntityRows(Protocol):
    """The rows of all entities, as `gloader.NodeEmbedding` has them."""

    @property
    def num_rows(self) -> int:
        """N."""
        ...

    @property
    def dim(self) -> int:
        """D."""
        ...

    def rows(self, ids: IdArray, /) -> torch.Tensor:
        """Return the rows (M, D) of ``ids`` (M,), in any order."""
        ...

    def pieces(self, max_rows: int, /) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield all rows in order, as the first id of a piece and the piece (n, D)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Triples:
    """Triples by the ids of their parts."""

    heads: IdArray  # (n,)
    relations: IdArray  # (n,)
    tails: IdArray  # (n,)

    def __len__(self) -> int:
        """Return n."""
        return len(self.heads)

    def part(self, start: int, stop: int) -> Triples:
        """Return the triples ``start`` ... ``stop - 1``."""
        return Triples(
            heads=self.heads[start:stop], relations=self.relations[start:stop], tails=self.tails[start:stop]
        )


def read_triples(table: LinkTable, *, max_rows: int = _READ_ROWS) -> Iterator[Triples]:
    """Yield the rows of a link table in order. Raises as `OpenLinks.read`."""
    with table.open(max_bytes=0) as rows:
        for start in range(0, table.num_rows, max_rows):
            found = rows.read(np.arange(start, min(start + max_rows, table.num_rows), dtype=np.int64))
            if found.labels is None:
                raise ConfigError(
                    f"the link table {table.name!r} has no labels, which are the relations of triples"
                )
            yield Triples(heads=found.sources, relations=found.labels, tails=found.destinations)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """The sizes of a ranking within its memory."""

    num_queries: int  # queries of a block
    piece_rows: int  # rows of the entity table per piece
    tile_queries: int  # queries whose scores with a piece are computed together


def plan_ranks(*, dim: int, name: str, budget_bytes: int) -> RankPlan:
    """Divide the memory of a ranking. Pure.

    An eighth holds a piece of the entity table. A quarter each is for the scores of a tile, the queries of a block, and
    their known answers.

    Parameters
    ----------
    dim : D
    name : the model's name
    budget_bytes : the memory

    Raises
    ------
    BudgetError
        The smallest sizes do not fit. The message has their bytes.
    """
    # A piece in float32 and in float64, and a query in float64 with the two rows and the relation that it comes from.
    row_bytes, query_bytes = 12 * dim, 40 * dim + 64
    score_bytes = _SCORE_BYTES + (8 * _ROTATE_COPIES * dim if name == "rotate" else 0)
    needed = max(8 * _LEAST_ROWS * row_bytes, 4 * _LEAST_ROWS * score_bytes, 4 * query_bytes)
    if needed > budget_bytes:
        raise BudgetError(
            f"ranking triples among entities of {dim} columns takes at least {format_bytes(needed)}; the memory "
            f"budget leaves {format_bytes(budget_bytes)} for it",
            short_bytes=needed - budget_bytes,
            advice=advice(rounded_up(needed)),
        )
    num_queries = min(_MOST_QUERIES, budget_bytes // 4 // query_bytes)
    num_scores = budget_bytes // 4 // score_bytes  # of a tile
    piece_rows = min(_MOST_PIECE_ROWS, budget_bytes // 8 // row_bytes, num_scores)
    return RankPlan(
        num_queries=num_queries,
        piece_rows=piece_rows,
        tile_queries=min(num_queries, num_scores // piece_rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TripleRanker:
    """Ranks triples of a knowledge graph. Not thread-safe; the network must be on the CPU or a GPU as a whole.

    Parameters
    ----------
    network : the trained network
    entities : the rows of all entities
    known : the link tables with all known triples, which are left out of ranks
    budget_bytes : memory beside the network and the entities' own
    """

    network: KnowledgeNetwork
    entities: EntityRows
    known: Sequence[LinkTable]
    budget_bytes: int

    def ranks(self, triples: Triples, *, asks_heads: bool) -> NDArray[np.float64]:
        """Return the filtered rank (n,) of each triple's tail, or with ``asks_heads`` of its head, from 1.

        Raises
        ------
        BudgetError
            The memory does not suffice.
        StoreError
            A table cannot be read, or is damaged.
        """
        plan = self._plan()
        ranks = np.empty(len(triples))
        for start, block in self._blocks(triples, plan.num_queries, asks_heads=asks_heads):
            stop = start + len(block.numbers)
            ranks[start:stop] = self._ranked(block, plan)
        return ranks

    def answers(
        self, triples: Triples, *, asks_heads: bool, k: int, is_filtered: bool
    ) -> Iterator[tuple[IdArray, NDArray[np.float32]]]:
        """Yield the entities (n, k) with the largest scores (n, k) for queries in order, block by block.

        Equal scores are in order of ids. Of fewer entities, the last ones are -1 with the score -inf.

        Parameters
        ----------
        triples : the queries; their tails, or with ``asks_heads`` their heads, are not used
        asks_heads : whether heads are asked for
        k : answers per query
        is_filtered : whether answers that are known triples are left out
        """
        plan = self._plan()
        # Ids, scores and their sorted copies, of each query and each triple.
        most = max(1, min(plan.num_queries, self.budget_bytes // 8 // (64 * k)))
        for _, block in self._blocks(triples, most, asks_heads=asks_heads, is_filtered=is_filtered):
            yield self._best(block, plan, k)

    def _blocks(
        self, triples: Triples, most: int, *, asks_heads: bool, is_filtered: bool = True
    ) -> Iterator[tuple[int, _Block]]:
        """Yield the first triple of a block, and the block, which has at most ``most`` triples."""
        start = 0
        while start < len(triples):
            stop = min(start + most, len(triples))
            block = self._block(triples.part(start, stop), asks_heads=asks_heads, is_filtered=is_filtered)
            while block is None:  # the queries have many known answers
                stop = start + (stop - start) // 2
                block = self._block(triples.part(start, stop), asks_heads=asks_heads, is_filtered=is_filtered)
            yield start, block
            start = stop

    def _plan(self) -> RankPlan:
        """Return the sizes of blocks, pieces and tiles."""
        return plan_ranks(dim=self.network.dim, name=self.network.name, budget_bytes=self.budget_bytes)

    def _block(self, triples: Triples, *, asks_heads: bool, is_filtered: bool = True) -> _Block | None:
        """Return the queries of ``triples`` with their known answers, or None if these do not fit."""
        given, own = (triples.tails, triples.heads) if asks_heads else (triples.heads, triples.tails)
        keys, numbers = np.unique(self._keys(given, triples.relations), return_inverse=True)
        answers: IdArray | None = np.empty((0, 2), np.int64)
        if is_filtered:
            answers = self._answers(keys, asks_heads=asks_heads)
        if answers is None:
            if len(keys) > 1:
                return None
            raise BudgetError(
                f"the known answers of one query do not fit a quarter of {format_bytes(self.budget_bytes)}, the memory "
                "of this evaluation",
                short_bytes=self.budget_bytes,
            )
        device = self.network.relations.device
        entities, relations = np.divmod(keys, self._num_relations)
        with torch.no_grad():
            rows = self.entities.rows(entities).to(device).double()
            of_relations = self.network.relation_rows(torch.from_numpy(relations).to(device)).double()
            queries = self.network.queries(rows, of_relations, asks_heads=asks_heads)
        return _Block(queries=queries, numbers=numbers.reshape(-1), own=own, answers=answers)

    def _answers(self, keys: IdArray, *, asks_heads: bool) -> IdArray | None:
        """Return the known answers (a, 2) of queries, query and entity, sorted by entity, or None if they do not fit.

        ``keys`` (q,) are the distinct queries, ascending.
        """
        limit = self.budget_bytes // 4
        parts, num_bytes = [np.empty((0, 2), np.int64)], 0
        for table in self.known:
            for read in read_triples(table, max_rows=max(1, min(_READ_ROWS, limit // _TRIPLE_BYTES))):
                given, other = (read.tails, read.heads) if asks_heads else (read.heads, read.tails)
                theirs = self._keys(given, read.relations)
                places = np.searchsorted(keys, theirs)
                is_wanted = keys[np.minimum(places, len(keys) - 1)] == theirs
                parts.append(np.column_stack([places[is_wanted], other[is_wanted]]))
                num_bytes += 3 * parts[-1].nbytes  # the pairs, their copy, and the sort
                if num_bytes > limit:
                    return None
        answers = np.concatenate(parts)
        return answers[np.argsort(answers[:, 1], kind="stable")]

    def _ranked(self, block: _Block, plan: RankPlan) -> NDArray[np.float64]:
        """Return the rank (n,) of each triple of a block."""
        device, count, step = block.queries.device, len(block.numbers), plan.tile_queries
        numbers = torch.from_numpy(block.numbers).to(device)
        own = torch.empty(count, device=device)
        for start in range(0, count, step):
            rows = self.entities.rows(block.own[start : start + step]).to(device).double()
            with torch.no_grad():
                scores = self.network.between(block.queries[numbers[start : start + step]], rows)
            own[start : start + step] = scores.float()
        larger, equal = (torch.zeros(count, dtype=torch.int64, device=device) for _ in range(2))
        # The triples in the order of their queries, so that those of a tile are neighbours.
        order = numbers.argsort(stable=True)
        ordered = numbers[order]
        for _, first, tile in self._tiles(block, plan):
            bounds = torch.tensor([first, first + len(tile)], device=device)
            left, right = torch.searchsorted(ordered, bounds).tolist()
            for start in range(left, right, step):
                places = order[start : min(start + step, right)]
                scores, mine = tile[numbers[places] - first], own[places].unsqueeze(1)
                # The triple's own end is a known answer, so that it is not counted.
                larger[places] += (scores > mine).sum(dim=1)
                equal[places] += (scores == mine).sum(dim=1)
        ranks: NDArray[np.float64] = (1 + larger + equal.double() / 2).cpu().numpy()
        return ranks

    def _best(self, block: _Block, plan: RankPlan, k: int) -> tuple[IdArray, NDArray[np.float32]]:
        """Return the best entities (n, k) of each triple's query, and their scores."""
        device, shape = block.queries.device, (len(block.queries), k)
        scores = torch.full(shape, -torch.inf, device=device)
        ids = torch.full(shape, -1, device=device)
        for entity, first, tile in self._tiles(block, plan):
            which = slice(first, first + len(tile))
            candidates = torch.arange(entity, entity + tile.shape[1], device=device).expand(tile.shape)
            # Earlier answers come first, so that a stable sort keeps equal scores in order of ids.
            joined = torch.cat([scores[which], tile], dim=1)
            order = joined.sort(dim=1, descending=True, stable=True).indices[:, :k]
            ids[which] = torch.cat([ids[which], candidates], dim=1).gather(1, order)
            scores[which] = joined.gather(1, order)
        ids[scores == -torch.inf] = -1
        return ids.cpu().numpy()[block.numbers], scores.cpu().numpy()[block.numbers]

    def _tiles(self, block: _Block, plan: RankPlan) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield tiles: the first entity of a piece, the first of some queries, and their scores (queries, entities).

        The scores of known answers are -inf.
        """
        device = block.queries.device
        for entity, piece in self.entities.pieces(plan.piece_rows):
            rows = torch.from_numpy(piece).to(device).double()
            answers = block.answers[
                slice(*np.searchsorted(block.answers[:, 1], [entity, entity + len(piece)]))
            ]
            answers = answers[np.argsort(answers[:, 0], kind="stable")]
            for first in range(0, len(block.queries), plan.tile_queries):
                with torch.no_grad():
                    scores = self.network.against(block.queries[first : first + plan.tile_queries], rows)
                scores = scores.float()
                if scores.isnan().any():
                    raise DivergedError("scores of triples are NaN; train with a lower learning rate")
                left, right = np.searchsorted(answers[:, 0], [first, first + len(scores)])
                known = torch.from_numpy(answers[left:right] - [first, entity]).to(device)
                scores[known[:, 0], known[:, 1]] = -torch.inf
                yield entity, first, scores

    def _keys(self, entities: IdArray, relations: IdArray) -> IdArray:
        """Return queries as numbers (n,), one for each entity and relation."""
        return entities * self._num_relations + relations

    @property
    def _num_relations(self) -> int:
        """R."""
        return len(self.network.relations)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """The distinct queries of a block of triples."""

    queries: torch.Tensor  # (q, D) float64
    numbers: IdArray  # (n,) the query of each triple
    own: IdArray  # (n,) the entity that each triple has in place of the asked one
    answers: IdArray  # (a, 2) the known answers, see `TripleRanker._answers`


def rank_figures(ranks: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean reciprocal rank, hits@k and the mean rank of ``ranks`` (n,). Pure."""
    hits = {f"hits@{k}": float(np.mean(ranks <= k)) for k in HITS}
    return {"mrr": float(np.mean(1 / ranks)), **hits, "mean_rank": float(np.mean(ranks))}
