"""The link prediction task: a network predicts whether a pair of nodes is an edge, or an edge's label.

The training edges are the rows of a link table, a list of edges in the dataset. With negatives, which are drawn pairs
that are no edges, the network learns to separate edges from negatives. Without negatives it learns the labels of the
edges: classes or values. Two more tables, "valid" and "test", are evaluated; the settings can name others.

`LinkPrediction` is the task that a training run uses: it opens the loader, gives the loss and evaluates. `pair_scorer`
also serves predictions from a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.negatives import Uniform, parse_negatives
from gloader.dataset.link_record import KNOWN_PAIRS, REPEATED_PAIRS
from gloader.errors import ConfigError
from gloader.loader import LinkLoader
from gloader.models import encoder_of
from gloader.pipeline.link_task import LinkTask
from gloader.pipeline.seeds import plan_training_seeds
from gloader.training.dataset_checks import require_link_tables, require_no_classes
from gloader.training.link_judge import LinkJudge, LinkMetric, PairScorer, auto_metric, parse_metric
from gloader.training.model_spec import LinkSpec, spec_of
from gloader.training.objectives import LINK_OBJECTIVES
from gloader.training.process import eager_release
from gloader.training.task import Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gloader.config import LinkConfig, LoaderSettings, SamplingSettings, TrainSettings
    from gloader.core.negatives import Negatives
    from gloader.dataset import Dataset
    from gloader.dataset.link_table import LinkTable
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.seeds import SeedPlan
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.training.model_spec import LinkTarget
    from gloader.training.objectives import Objective
    from gloader.training.task import AnyLoader, Split

logger = logging.getLogger("gloader")

_DEFAULT_EVAL: Final = ("valid", "test")  # the link tables for validation and test
# The part of an inference's budget for scoring pairs. An evaluation gives half of this part to the scorer and half to
# the judge. In addition, embeddings in memory may take up to a third of the budget.
SCORING_SHARE: Final = 3 / 8
_ROWS_READ: Final = 1 << 16  # rows read together to find the range of labels


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPrediction:
    """Learns to separate a link table's edges from drawn negatives, or learns their labels.

    Parameters
    ----------
    dataset : the dataset with the table
    spec : specification of the network
    config : the task's settings
    negatives : the negatives in ``config``
    measure : metric of validation and test
    judges : the evaluator for each split ("valid", "test") that has a link table
    """

    dataset: Dataset
    spec: LinkSpec
    config: LinkConfig
    negatives: Negatives | None
    measure: LinkMetric
    judges: Mapping[str, LinkJudge]

    @classmethod
    def of(cls, settings: TrainSettings, dataset: Dataset) -> LinkPrediction:
        """Return the task for a run with ``settings``.

        Raises
        ------
        ConfigError
            The dataset lacks a table, the tables do not fit each other or the settings, or the model does not fit the
            dataset.
        """
        config = settings.links
        require_link_tables(dataset)
        require_no_classes(settings)
        negatives, metric = parse_negatives(config.negatives_of("link")), parse_metric(config.metric)
        if isinstance(negatives, Uniform) and negatives.shared:
            raise ConfigError(
                f"--negatives {negatives} are for knowledge graphs (--task kg), and --task link scores pairs; give "
                f"--negatives uniform:{negatives.k}"
            )
        table = dataset.link_table(config.edges)  # the training edges
        evaluated = evaluated_tables(dataset, config, table)
        learns, num_outputs = _learned(table, negatives, evaluated.values())
        measure = _measure(dataset, metric, learns, evaluated)
        source, _, destination = table.relation
        encoder = spec_of(settings, dataset, targets=(source, destination))
        spec = LinkSpec(
            encoder=encoder,
            ends=(source, destination),
            decoder=config.decoder,
            decoder_layers=config.decoder_layers,
            learns=learns,
            num_outputs=num_outputs,
        )
        judges = {split: LinkJudge.of(dataset, other, measure) for split, other in evaluated.items()}
        return cls(
            dataset=dataset, spec=spec, config=config, negatives=negatives, measure=measure, judges=judges
        )

    @property
    def name(self) -> str:
        """The task's name."""
        return "link"

    @property
    def objective(self) -> Objective:
        """The training loss."""
        return LINK_OBJECTIVES[self.spec.learns]

    @property
    def metric(self) -> str:
        """Name of the metric, such as "hits@50"."""
        return str(self.measure)

    @property
    def is_error(self) -> bool:
        """True if the metric is an error of values."""
        return self.measure.is_error

    def open_loader(
        self, dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None, **given: Any
    ) -> LinkLoader:
        """Return a loader over the table's edges."""
        return LinkLoader.from_settings(
            dataset,
            settings,
            edges=self.config.edges,
            negatives=self.negatives,
            exclude=self.config.exclude,
            exclude_duplicates=self.config.exclude_duplicates,
            typed=self.spec.has_types,
            device_dry_run=device_dry_run,
            **given,
        )

    def drawn(self, batch: Any, loader: AnyLoader) -> tuple[Any, None]:  # noqa: ARG002 - links are not drawn
        """Return ``batch`` and None: every edge comes once."""
        return batch, None

    def seeds(self, sampling: SamplingSettings) -> SeedPlan:
        """Return the plan of the run's seeds: the rows of the training table."""
        links = LinkTask.of(
            self.dataset,
            self.config.edges,
            negatives=self.negatives,
            exclude=self.config.exclude,
            duplicates=self.config.exclude_duplicates,
        )
        return plan_training_seeds(self.dataset, sampling, are_named=self.spec.has_types, links=links)

    def warn(self) -> None:
        """Log a warning if the graph contains evaluated edges: messages along them reveal the answer to the network.

        After a split by time, the same pair may have an earlier edge, so the advice differs.
        """
        options = self.dataset.metadata.get("options")
        is_split_by_time = isinstance(options, Mapping) and options.get("edge_split_by") == "time"
        leaks = {
            table.name: f"{table.in_graph:,} of the {table.num_rows:,} edges of links {table.name!r}"
            for judge in self.judges.values()
            if (table := judge.table).in_graph
        }
        if leaks:
            logger.warning(
                "%s are in the graph that messages are passed over: figures of them will be too good; %s",
                " and ".join(leaks.values()),
                REPEATED_PAIRS if is_split_by_time and leaks.keys() <= set(_DEFAULT_EVAL) else KNOWN_PAIRS,
            )

    def require_memory(self, model: Any, inference: HeteroInference) -> None:
        """Raise BudgetError if the embeddings of all nodes would not fit."""
        inference.require_memory(encoder_of(model), num_outputs=None)

    def score(
        self, split: Split, model: Any, inference: HeteroInference, on_progress: Callable[[float], None]
    ) -> Evaluation:
        """Return the metric on the split's table."""
        judge = self.judges.get(split)
        if judge is None:
            return Evaluation(score=None)
        budget = int(SCORING_SHARE * inference.memory_budget_bytes)
        with pair_scorer(
            model, inference, self.spec, budget_bytes=budget // 2, on_progress=on_progress
        ) as scorer:
            return Evaluation(score=judge.judge(scorer, budget_bytes=budget // 2))


@contextmanager
def pair_scorer(
    model: Any,
    inference: HeteroInference,
    spec: LinkSpec,
    *,
    budget_bytes: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Iterator[PairScorer]:
    """Compute all nodes' embeddings and open a scorer of pairs.

    Parameters
    ----------
    model : a `LinkNetwork`; in evaluation mode until the scorer is closed
    inference : graph, features and memory
    spec : the model's specification
    budget_bytes : memory for the scorer, without the embeddings
    on_progress : called with the finished share, 0 to 1
    """
    was_training = model.training
    model.eval()
    try:
        # The arrays of an inference are large and of many sizes: the heap would keep the freed ones.
        with eager_release(), inference.embedded(model.encoder, on_progress=on_progress) as rows:
            sources, destinations = (rows[name] for name in spec.ends)
            yield PairScorer(
                model.decoder,
                sources,
                destinations,
                budget_bytes=budget_bytes,
                place=next(model.parameters()).device,
            )
    finally:
        model.train(was_training)


def evaluated_tables(dataset: Dataset, config: LinkConfig, table: LinkTable) -> dict[str, LinkTable]:
    """Return the link table of each split, "valid" and "test". A table is optional unless the settings name it."""
    names = config.eval_edges
    if names is not None and len(names) != len(_DEFAULT_EVAL):
        raise ConfigError(
            f"eval_edges names {len(names)} link tables: {', '.join(names)}; write two, first the table for validation "
            "and then the table for the test, such as valid,test"
        )
    evaluated = {}
    for split, name in zip(_DEFAULT_EVAL, names or _DEFAULT_EVAL, strict=True):
        if names is None and name not in dataset.link_tables:
            continue
        other = evaluated[split] = dataset.link_table(name)
        if other.relation[::2] != table.relation[::2]:
            raise ConfigError(
                f"links {name!r} of {dataset.name} are of {':'.join(other.relation)}, and a network that learns "
                f"{':'.join(table.relation)} knows no such pairs; name others with --eval-edges"
            )
    return evaluated


def _learned(table: LinkTable, negatives: Negatives | None, evaluated: Any) -> tuple[LinkTarget, int]:
    """Return the learned target ("pairs", "classes" or "values") and the network's number of outputs.

    Raises ConfigError if labels are learned and the tables lack labels, or their labels do not fit each other.
    """
    if negatives is not None:
        return "pairs", 1
    tables = [table, *evaluated]
    lacking = [each.name for each in tables if not each.has_labels]
    if lacking:
        raise ConfigError(
            f"--negatives none learns the labels of edges, and links {lacking[0]!r} have none; draw negatives, such as "
            "uniform:1"
        )
    if any(each.label_dtype != table.label_dtype for each in tables):
        raise ConfigError(
            f"labels are {', '.join(f'{each.label_dtype} of links {each.name!r}' for each in tables)}: classes (int64) "
            "or values (float32), and one of both in all tables"
        )
    if table.label_dtype != "int64":
        return "values", 1
    lowest, highest = _label_range(tables)
    if lowest < 0:
        raise ConfigError(f"a label of the links is {lowest}; classes are 0 and above")
    return "classes", max(2, highest + 1)


def _label_range(tables: Sequence[LinkTable]) -> tuple[int, int]:
    """Return the lowest and the highest class of all edges, and of 0."""
    lowest, highest = 0, 0
    for table in tables:
        with table.open(max_bytes=0) as rows:
            for start in range(0, table.num_rows, _ROWS_READ):
                labels = rows.read(np.arange(start, min(start + _ROWS_READ, table.num_rows))).labels
                assert labels is not None  # noqa: S101 - the table has them
                lowest, highest = min(lowest, int(labels.min())), max(highest, int(labels.max()))
    return lowest, highest


def _measure(
    dataset: Dataset, metric: LinkMetric | None, learns: LinkTarget, evaluated: Mapping[str, LinkTable]
) -> LinkMetric:
    """Return the metric of the run: ``metric`` from the settings, or for None the metric that fits the tables."""
    if learns != "pairs":
        of_labels = LinkMetric("acc" if learns == "classes" else "rmse")
        if metric not in (None, of_labels):
            raise ConfigError(
                f"metric {metric} is not for the {learns} of links, which --negatives none learns: leave it out, and "
                f"{of_labels} is measured"
            )
        return of_labels
    if metric is not None and metric.kind in ("acc", "rmse"):
        raise ConfigError(
            f"metric {metric} is for labels of links, which --negatives none learns; edges are told from negatives by "
            "hits@K, mrr or auc"
        )
    if metric is not None:
        return metric
    first = next(iter(evaluated.values()), None)
    return LinkMetric("auc") if first is None else auto_metric(dataset, first)
