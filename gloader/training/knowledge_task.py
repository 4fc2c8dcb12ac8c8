"""The task of a knowledge graph: a network scores triples, and learns those of a link table.

The loader's batches are triples without hops, and entities that all triples of a batch share as negatives. Validation
and test rank each triple among all entities, on both sides, see `gloader.training.knowledge_ranks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.negatives import parse_negatives
from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.loader import LinkLoader
from gloader.pipeline.link_task import LinkTask
from gloader.pipeline.seeds import plan_training_seeds
from gloader.training.dataset_checks import MARGIN_MODELS, RANK_METRIC, require_triples
from gloader.training.knowledge_ranks import TripleRanker, plan_ranks, rank_figures, read_triples
from gloader.training.link_prediction import evaluated_tables
from gloader.training.model_spec import KnowledgeSpec
from gloader.training.objectives import TrueTriples
from gloader.training.task import Evaluation
from gloader.types import ENTITY, RELATION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gloader.config import LinkConfig, LoaderSettings, SamplingSettings, TrainSettings
    from gloader.core.negatives import Negatives
    from gloader.dataset import Dataset
    from gloader.dataset.link_table import LinkTable
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.seeds import SeedPlan
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.training.objectives import Objective
    from gloader.training.task import AnyLoader, Split

_RANK_BYTES = 32  # of a triple: its ranks on both sides, and a copy for their means


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeTask:
    """Learns the triples of a link table, and ranks those of others.

    Parameters
    ----------
    dataset : the knowledge graph
    spec : specification of the network
    config : the tables of the task
    negatives : the negatives that all triples of a batch share
    objective : the loss
    evaluated : the table of each split that has one
    """

    dataset: Dataset
    spec: KnowledgeSpec
    config: LinkConfig
    negatives: Negatives | None
    objective: Objective
    evaluated: Mapping[str, LinkTable]

    @classmethod
    def of(cls, settings: TrainSettings, dataset: Dataset) -> KnowledgeTask:
        """Return the task for a run with ``settings``. Raises ConfigError as `require_triples`."""
        require_triples(settings, dataset)
        config, name, tables = settings.links, settings.model.name, dataset.node_tables
        return cls(
            dataset=dataset,
            spec=KnowledgeSpec(
                name=name,
                dim=settings.knowledge.dim,
                norm=settings.knowledge.norm,
                num_entities=tables[ENTITY].num_nodes,
                num_relations=tables[RELATION].num_nodes,
            ),
            config=config,
            negatives=parse_negatives(config.negatives_of("kg")),
            objective=TrueTriples(settings.knowledge.margin if name in MARGIN_MODELS else None),
            evaluated=evaluated_tables(dataset, config, dataset.link_table(config.edges)),
        )

    @property
    def name(self) -> str:
        """The task's name."""
        return "kg"

    @property
    def metric(self) -> str:
        """Name of the metric: the filtered mean reciprocal rank of both sides."""
        return RANK_METRIC

    @property
    def is_error(self) -> bool:
        """False: a larger figure is better."""
        return False

    def warn(self) -> None:
        """Do nothing: no message passes over edges, and a source's receipt has the entities without training."""

    def open_loader(
        self, dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None, **given: Any
    ) -> LinkLoader:
        """Return a loader over the training triples."""
        return LinkLoader.from_settings(
            dataset,
            settings,
            edges=self.config.edges,
            negatives=self.negatives,
            exclude="none",
            exclude_duplicates=False,
            typed=True,
            device_dry_run=device_dry_run,
            **given,
        )

    def drawn(self, batch: Any, loader: AnyLoader) -> tuple[Any, None]:  # noqa: ARG002 - every triple comes once
        """Return ``batch`` and None: every triple comes once."""
        return batch, None

    def seeds(self, sampling: SamplingSettings) -> SeedPlan:
        """Return the plan of the run's seeds: the rows of the training table."""
        links = LinkTask.of(
            self.dataset, self.config.edges, negatives=self.negatives, exclude="none", duplicates=False
        )
        return plan_training_seeds(self.dataset, sampling, are_named=True, links=links)

    def require_memory(self, model: Any, inference: HeteroInference) -> None:
        """Raise BudgetError if the ranks of the larger split do not fit beside a ranking."""
        self._ranking_bytes(inference.memory_budget_bytes, model.dim)

    def score(
        self, split: Split, model: Any, inference: HeteroInference, on_progress: Callable[[float], None]
    ) -> Evaluation:
        """Return the filtered mean reciprocal rank of the split's triples, over their heads and their tails."""
        table = self.evaluated.get(split)
        if table is None:
            return Evaluation(score=None)
        budget = self._ranking_bytes(inference.memory_budget_bytes, model.dim)
        ranker = TripleRanker(
            network=model,
            entities=inference.embeddings[ENTITY],
            known=tuple(self.dataset.link_tables.values()),
            budget_bytes=budget,
        )
        plan = plan_ranks(dim=model.dim, name=model.name, budget_bytes=budget)
        sides = {side: np.empty(table.num_rows) for side in ("heads", "tails")}
        done = 0
        for side, ranks in sides.items():
            start = 0
            for triples in read_triples(table, max_rows=plan.num_queries):
                stop = start + len(triples)
                ranks[start:stop] = ranker.ranks(triples, asks_heads=side == "heads")
                done += len(triples)
                start = stop
                on_progress(done / (2 * table.num_rows))
        both = rank_figures(np.concatenate(list(sides.values())))

        def summary() -> Mapping[str, Any]:
            """Return the figures of each side."""
            figures = {side: rank_figures(ranks) for side, ranks in sides.items()}
            return {"version": 1, "kind": "triples", "num": table.num_rows, "metrics": both, "sides": figures}

        return Evaluation(score=both[RANK_METRIC], summary=summary)

    def _ranking_bytes(self, budget_bytes: int, dim: int) -> int:
        """Return the memory for a ranking beside the ranks of the larger split. Raises BudgetError."""
        held = _RANK_BYTES * max((table.num_rows for table in self.evaluated.values()), default=0)
        if held >= budget_bytes:
            raise BudgetError(
                f"the ranks of the evaluated triples take {format_bytes(held)} of {format_bytes(budget_bytes)} for an "
                "evaluation",
                short_bytes=held - budget_bytes + 1,
            )
        plan_ranks(dim=dim, name=self.spec.name, budget_bytes=budget_bytes - held)
        return budget_bytes - held
