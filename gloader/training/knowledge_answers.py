"""The best answers to queries of a knowledge graph, from a checkpoint.

A *query* is a triple without its tail, or without its head: an entity and a relation. Its answers are the entities that
complete it, by falling score. `gloader infer --queries` writes them as a table, and `answer_queries` is the form for
Python.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gloader.errors import CheckpointError, ConfigError, ShapeError
from gloader.plan.available import default_budget_bytes
from gloader.training.embeddings import open_saved
from gloader.training.knowledge_ranks import TripleRanker, Triples
from gloader.training.model_spec import KnowledgeSpec
from gloader.types import ENTITY, RELATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.models import KnowledgeNetwork
    from gloader.training.checkpoint.save import Checkpoint
    from gloader.types import IdArray


def answer_queries(  # noqa: PLR0913 - public settings, each a keyword
    dataset: Dataset,
    checkpoint: Checkpoint,
    *,
    relations: Any,
    heads: Any = None,
    tails: Any = None,
    k: int = 10,
    known: bool = False,
    memory_budget_bytes: int | None = None,
    device: str | torch.device = "cpu",
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return the keys of the best entities (n, k) for n queries, and their scores (n, k).

    Of fewer than k answers, the last ones have the score -inf, and the key of any entity.

    Parameters
    ----------
    dataset : the knowledge graph
    checkpoint : a model of it, with its best weights
    relations : (n,) keys of relations
    heads : (n,) keys of the heads, if tails are asked for
    tails : (n,) keys of the tails, if heads are asked for
    k : answers for each query
    known : whether answers may be known triples: rows of any of the dataset's link tables
    memory_budget_bytes : budget for all memory; defaults to half of the free memory
    device : the compute device

    Raises
    ------
    ConfigError
        Not exactly one of ``heads`` and ``tails`` is given, the checkpoint is no model of triples, or a key is unknown.
    CheckpointError
        The checkpoint is of another dataset.
    ShapeError
        There are other numbers of relations than of entities, or ``k`` is below 1.
    BudgetError
        The budget is too small.
    """
    if (heads is None) == (tails is None):
        raise ConfigError(
            "a query has an entity and a relation: pass heads= to ask for tails, or tails= for heads"
        )
    entities, of_relations = dataset.node_tables[ENTITY], dataset.node_tables[RELATION]
    given = entities.ids_of(tails if heads is None else heads)
    asked = of_relations.ids_of(relations)
    if len(given) != len(asked):
        raise ShapeError(
            f"there are {len(given)} entities and {len(asked)} relations; a query has one of each"
        )
    with open_ranker(dataset, checkpoint, memory_budget_bytes=memory_budget_bytes, device=device) as ranker:
        parts = list(
            ranker.answers(queries(given, asked), asks_heads=heads is None, k=k, is_filtered=not known)
        )
    ids = np.concatenate([np.empty((0, k), np.int64), *(ids for ids, _ in parts)])
    scores = np.concatenate([np.empty((0, k), np.float32), *(scores for _, scores in parts)])
    return entities.keys_of(np.maximum(ids, 0).reshape(-1)).reshape(ids.shape), scores


def queries(entities: IdArray, relations: IdArray) -> Triples:
    """Return queries (n,) as triples, whose asked ends are not used. Pure."""
    return Triples(heads=entities, relations=relations, tails=entities)


@contextmanager
def open_ranker(
    dataset: Dataset,
    checkpoint: Checkpoint,
    *,
    memory_budget_bytes: int | None = None,
    device: str | torch.device = "cpu",
) -> Iterator[TripleRanker]:
    """Open a checkpoint's network and its entities' rows, for ranks and answers.

    Parameters
    ----------
    dataset, checkpoint, memory_budget_bytes, device : see `answer_queries`

    Raises
    ------
    ConfigError, CheckpointError
        See `answer_queries`.
    """
    spec = checkpoint.spec
    if not isinstance(spec, KnowledgeSpec):
        raise ConfigError(
            f"the checkpoint is of the task {checkpoint.task}, which scores no triples; train with --task kg"
        )
    ours = {name: table.num_nodes for name, table in dataset.node_tables.items()}
    theirs = {ENTITY: spec.num_entities, RELATION: spec.num_relations}
    if ours != theirs or checkpoint.fingerprint != dataset.fingerprint:
        raise CheckpointError(
            f"the checkpoint is of another knowledge graph, with {theirs}, and {dataset.location} has {ours}"
            + ("" if ours != theirs else ", and other triples or keys")
        )
    budget = default_budget_bytes() if memory_budget_bytes is None else memory_budget_bytes
    with ExitStack() as stack:
        yield TripleRanker(
            network=cast("KnowledgeNetwork", checkpoint.model()).to(device),
            entities=open_saved(checkpoint, dataset, stack)[ENTITY],
            known=tuple(dataset.link_tables.values()),
            budget_bytes=budget,
        )
