"""Small knowledge graphs for tests: random triples as files and as a dataset, and plain oracles of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from gloader.convert.options import PARTS, PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.models.knowledge import KnowledgeNetwork

    Triple = tuple[str, str, str]


def random_parts(
    *, num_entities: int = 23, num_relations: int = 4, sizes: Sequence[int] = (90, 20, 25), seed: int = 0
) -> dict[str, list[Triple]]:
    """Return distinct triples for each part; every entity and relation is in the first one."""
    rng = np.random.default_rng(seed)
    every = [(f"e{i}", f"r{i % num_relations}", f"e{(i + 1) % num_entities}") for i in range(num_entities)]
    pool = [
        (f"e{h}", f"r{r}", f"e{t}")
        for h in range(num_entities)
        for r in range(num_relations)
        for t in range(num_entities)
    ]
    others = [pool[i] for i in rng.permutation(len(pool)) if pool[i] not in set(every)]
    triples = [*every, *others]
    ends = np.cumsum([0, *sizes])
    return {part: triples[a:b] for part, a, b in zip(PARTS, ends, ends[1:], strict=False)}


def write_parts(folder: Path, parts: Mapping[str, Sequence[Triple]]) -> Path:
    """Write a file without a header for each part."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, triples in parts.items():
        (folder / f"{part}.txt").write_text("".join("\t".join(triple) + "\n" for triple in triples))
    return folder


def prepare_parts(tmp_path: Path, parts: Mapping[str, Sequence[Triple]]) -> Dataset:
    """Return the dataset of triples."""
    source = open_source(f"triples:{write_parts(tmp_path / 'kg', parts)}", SourceOptions())
    prepare(source, tmp_path / "data", PrepareOptions(memory_budget_bytes=64 << 20))
    return Dataset.open(tmp_path / "data")


class HeldEntities:
    """Rows of entities in memory, as an embedding has them. Counts the rows that were read."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.table = rows.detach()
        self.num_rows, self.dim = rows.shape
        self.most = 0  # rows of the largest piece

    def rows(self, ids: NDArray[np.int64]) -> torch.Tensor:
        return self.table[torch.as_tensor(ids)]

    def pieces(self, max_rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        for first in range(0, self.num_rows, max_rows):
            piece = self.table[first : first + max_rows].numpy()
            self.most = max(self.most, len(piece))
            yield first, piece


def triple_score(network: KnowledgeNetwork, rows: torch.Tensor, h: int, r: int, t: int) -> float:
    """Return a triple's score by the formula of its model, in complex or real numbers."""
    relation, head, tail = (x.detach().double() for x in (network.relations[r], rows[h], rows[t]))
    if network.name in ("complex", "rotate"):
        (a, b), (c, d) = head.chunk(2), tail.chunk(2)
        head, tail = torch.complex(a, b), torch.complex(c, d)
        if network.name == "rotate":
            unit = torch.polar(torch.ones_like(relation), relation)
            return -float((head * unit - tail).abs().sum())
        c, d = relation.chunk(2)
        return float((head * torch.complex(c, d) * tail.conj()).sum().real)
    if network.name == "distmult":
        return float((head * relation * tail).sum())
    return -float((head + relation - tail).norm(p=network._norm))


def plain_rank(
    network: KnowledgeNetwork,
    rows: torch.Tensor,
    triple: tuple[int, int, int],
    known: set,
    *,
    asks_heads: bool,
) -> float:
    """Return a filtered rank by comparing the triple with every other one."""
    h, r, t = triple
    own = np.float32(triple_score(network, rows, h, r, t))
    larger = equal = 0
    for entity in range(len(rows)):
        other = (entity, r, t) if asks_heads else (h, r, entity)
        if other in known:
            continue
        score = np.float32(triple_score(network, rows, *other))
        larger += score > own
        equal += score == own
    return 1 + larger + equal / 2
