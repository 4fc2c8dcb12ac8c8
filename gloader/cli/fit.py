"""`gloader fit`: a check whether a graph fits this machine's memory and disk, without training on it.

The command takes either a dataset with the flags of `gloader train`, or only the size of a graph. It shows the least
memory budget, and a table of larger budgets with the seconds of loading. `gloader.lab.analyze` computes them: a
question (`DatasetQuestion`, `FitQuestion`) is a run to plan, and a `Fit` is the plan for one budget.
"""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter, Token
from rich.table import Table

from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, cell, numbers
from gloader.cli.train import open_or_prepare
from gloader.config import (
    Features,
    LinkConfig,
    LoaderSettings,
    ModelConfig,
    ModelName,
    OptimConfig,
    TaskName,
    TopologyHome,
    TrainSettings,
)
from gloader.core.dtypes import FeatureDtype
from gloader.core.flag_values import AnyFanout, Count, Size, SizeOrShare, require_choice
from gloader.core.units import format_bytes, format_count, format_seconds
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gloader.lab.analyze.dataset_fit import DatasetQuestion
    from gloader.lab.analyze.fit import Fit, FitQuestion
    from gloader.training.propagation.propagation_plan import PropagationPlan
    from gloader.training.run_budget import RunBudget

# Suffixes of a number, with their powers of ten; b is for billion.
_EXPONENTS = {"k": 3, "m": 6, "g": 9, "b": 9}
_SIZED_MODELS: Final = ("graphsage", "gcn", "gat")  # models that are planned from the size of a graph alone
_WHOLE = "it must be a whole number, such as 111059956, 111e6 or 111M"


def _whole(_type: Any, tokens: Sequence[Token]) -> int:
    """Convert a flag's text, such as 111e6 or 111M, to a whole number; cyclopts calls it."""
    number = _number(tokens[0].value)
    if number is None:
        raise ConfigError(_WHOLE)
    return number


def _number(text: str) -> int | None:
    """Return the whole number in ``text``, or None for other text."""
    exponent = _EXPONENTS.get(text[-1:].lower())
    try:
        number = float(text if exponent is None else f"{text[:-1]}e{exponent}")
        return int(number) if number == int(number) >= 0 else None
    except (ValueError, OverflowError):
        return None


Whole = Annotated[int, Parameter(converter=_whole, n_tokens=1, metavar="NUMBER")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class FitFlags:
    """A dataset, or the size of a graph, and the settings of the run on it."""

    dataset: str | None = None
    """A dataset, as in `gloader train`. Without one, --nodes, --edges and --features give the size."""
    nodes: Whole | None = None
    """Nodes of the graph."""
    edges: Annotated[str | None, Parameter(metavar="NUMBER|TABLE")] = None
    """Stored edges; --symmetrize doubles those of the source. With --dataset and --task link: the link table to train
    on."""
    features: Annotated[str | None, Parameter(metavar="NUMBER|HOME")] = None
    """Numbers in a feature row. With --dataset: place of the features, as in `gloader train` (ram, ssd, auto)."""
    dtype: FeatureDtype | None = None
    """Stored dtype of the features. Default: float32, or the dataset's dtype."""
    train_nodes: Whole | None = None
    """Training nodes. Default: a hundredth of all nodes, or the dataset's training nodes."""
    task: TaskName = "node"
    """Task of a run on the dataset, as in `gloader train`."""
    table: str | None = None
    """Task table whose rows a run on the dataset learns, as in `gloader train`."""
    model: ModelName = "graphsage"
    """The network; networks for several types need --dataset."""
    hidden: Count = 256
    """Width of the hidden layers."""
    heads: Count = 4
    """Attention heads of gat and rgat."""
    fanout: AnyFanout = (15, 10, 5)
    """Neighbours sampled per node, as in `gloader train`: first the hop next to the seeds; -1 takes all."""
    batch_size: Count = 1024
    """Training nodes, or edges, per batch."""
    sampler: str = "neighbor"
    """The sampler, as in `gloader train`."""
    topology: TopologyHome = "auto"
    """Place of the edges, as in `gloader train`."""
    cache: SizeOrShare = None
    """Host cache, as in `gloader train`."""
    epochs: Count = 10
    """Epochs of the run on the dataset."""
    memory_budget: Size = None
    """Memory of the run. Default: the least sufficient memory, and multiples of it."""

    @property
    def model_config(self) -> ModelConfig:
        """The network's settings."""
        return ModelConfig(name=self.model, hidden=self.hidden, heads=self.heads)

    def loader(self, features: Features = "auto") -> LoaderSettings:
        """Return the loader's settings."""
        return LoaderSettings.of(
            fanouts=self.fanout,
            batch_size=self.batch_size,
            sampler=self.sampler,
            features=features,
            topology=self.topology,
            cache=self.cache,
        )

    def run(self) -> TrainSettings:
        """Return the settings of a run on the dataset; ConfigError if flags describe a graph without a dataset."""
        for flag, value in (("nodes", self.nodes), ("dtype", self.dtype), ("train-nodes", self.train_nodes)):
            if value is not None:
                raise ConfigError(
                    f"--{flag} describes a graph without a dataset; leave it out, or leave out --dataset"
                )
        features: Any = self.features or "auto"
        require_choice("--features", features, ("ram", "ssd", "auto"))
        links = LinkConfig() if self.edges is None else LinkConfig(edges=self.edges)
        return TrainSettings(
            model=self.model_config,
            optim=OptimConfig(epochs=self.epochs),
            loader=self.loader(features),
            task=self.task,
            links=links,
            table=self.table,
        )

    def size(self) -> tuple[int, int, int]:
        """Return nodes, edges and feature width; ConfigError if one is missing or not a number."""
        sizes = {"--nodes": self.nodes, "--edges": self.edges, "--features": self.features}
        if missing := [flag for flag, value in sizes.items() if value is None]:
            raise ConfigError(
                f"gloader fit needs --dataset, or the size of a graph: {' and '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing, as in --nodes 2.4e6 --edges 124e6 --features 100"
            )
        numbers_given = []
        for flag, value in sizes.items():
            number = _number(str(value))
            if number is None:
                raise ConfigError(f"{flag} is {value}; {_WHOLE}")
            numbers_given.append(number)
        if self.model not in _SIZED_MODELS or self.task != "node" or self.table is not None:
            raise ConfigError(
                f"by its size alone a graph is planned for {', '.join(_SIZED_MODELS)} and --task node; for others give "
                "--dataset"
            )
        return numbers_given[0], numbers_given[1], numbers_given[2]


_NOTHING: Final = FitFlags()  # no flag is given


def fit(*, flags: FitFlags = _NOTHING, output: OutputFlags = DEFAULT_OUTPUT) -> None:
    """Check whether a graph fits this memory and disk, from a dataset or from the size of a graph.

    With --dataset, the least memory budget is the least that `gloader train` accepts with the same flags. The command
    reads edges and a few batches, and trains nothing.

    From the size alone, nothing is read, written or measured. The plan assumes random edges. In a graph with hubs a
    batch has fewer rows and needs less memory.

    The seconds are the time of loading, from the dataset's disk or from a plain NVMe SSD. The plans are for training on
    a CPU. From the size alone, a second table has the cost of `gloader propagate --nodes labelled` on two cores.
    """
    screen = Screen.open(is_json=output.json)
    if flags.dataset is None:
        _fit_size(flags, screen)
        return
    from gloader.lab.analyze.dataset_fit import ladder

    with _opened(flags.dataset, flags.run(), screen) as question:
        least = question.least_share()
        fits = ladder(question) if flags.memory_budget is None else (question.train(flags.memory_budget),)
        _show(screen, _dataset_facts(question, least), fits)
        screen.result(
            {
                "least_to_train": least.total_bytes,
                "parts": _parts(least),
                "learned_rows_bytes": int(question.learned_share * least.model_bytes),
                "rows_per_batch": question.batch_rows,
                "budgets": [each.to_json() for each in fits],
            }
        )


@contextmanager
def _opened(spec: str, settings: TrainSettings, screen: Screen) -> "Iterator[DatasetQuestion]":
    """Open the dataset, and yield the question whether a run on it fits."""
    from gloader.observe.peak_memory import bare_bytes

    bare_bytes()  # This imports torch, so that later measurements leave out torch's memory, as in a run.
    from gloader.lab.analyze.dataset_fit import DatasetQuestion

    with open_or_prepare(spec, screen, memory_budget=None) as dataset:
        yield DatasetQuestion(dataset, settings)


def _fit_size(flags: FitFlags, screen: Screen) -> None:
    """Plan from a graph's size alone, and show the least memory, the disk space, and the budgets."""
    num_nodes, num_edges, feature_dim = flags.size()
    from gloader.lab.analyze.dataset_fit import ladder
    from gloader.lab.analyze.fit import FitQuestion, SizedGraph
    from gloader.lab.analyze.propagation_fit import cost_json, least_to_propagate, sized_plans

    graph = SizedGraph(
        num_nodes=num_nodes,
        num_edges=num_edges,
        feature_dim=feature_dim,
        dtype=flags.dtype or "float32",
        num_train=flags.train_nodes,
    )
    question = FitQuestion(graph, flags.loader(), flags.model_config)
    least_to_prepare = question.least_to_prepare()
    if flags.memory_budget is None:
        fits = ladder(question)
        least = fits[0].budget.total_bytes
    else:
        fits = (question.train(flags.memory_budget),)
        least = question.least_to_train()
    disk = question.prepare(max(least, least_to_prepare))
    least_propagating = least_to_propagate(graph)
    propagations = sized_plans(graph, [each.budget.total_bytes for each in fits])
    facts = _facts(question, least, least_to_prepare, disk.dataset_bytes, disk.scratch_bytes)
    _show(screen, [*facts, ("to propagate", f"{format_bytes(least_propagating)} of memory or more")], fits)
    if not screen.is_json:
        _show_propagations(screen, propagations)
    screen.result(
        {
            "least_to_train": least,
            "least_to_prepare": least_to_prepare,
            "least_to_propagate": least_propagating,
            "dataset_bytes": disk.dataset_bytes,
            "scratch_bytes": disk.scratch_bytes,
            "rows_per_batch": question.batch_rows,
            "budgets": [each.to_json() for each in fits],
            "propagations": [cost_json(budget, plan) for budget, plan in propagations.items()],
        }
    )


def _show(screen: Screen, facts: Sequence[tuple[str, str]], fits: "Sequence[Fit]") -> None:
    """Show the facts that are independent of the budget, and a row for each budget."""
    if screen.is_json:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for name, value in facts:
        table.add_row(name, cell(value))
    screen.console.print(table)
    screen.say("")
    screen.console.print(_table(fits))


def _facts(
    question: "FitQuestion", least: int, least_to_prepare: int, dataset: int, scratch: int
) -> list[tuple[str, str]]:
    """Return the facts that are independent of the budget.

    ``least`` and ``least_to_prepare`` are the least memory budgets with which training and preparing fit; ``dataset``
    and ``scratch`` are bytes on the disk.
    """
    data = question.dataset
    return [
        ("features", format_bytes(data.feature_bytes)),
        ("edges", format_bytes(data.topology_bytes)),
        ("disk", f"{format_bytes(dataset)}, and {format_bytes(scratch)} more while it is prepared"),
        ("to prepare it", f"{format_bytes(least_to_prepare)} of memory or more"),
        ("to train", f"{format_bytes(least)} of memory or more"),
        ("training nodes", _seeds(question)),
        *_batches(question),
    ]


def _dataset_facts(question: "DatasetQuestion", least: "RunBudget") -> list[tuple[str, str]]:
    """Return the facts that are independent of the budget, and the least budget's division."""
    data, parts = question.dataset, _parts(least)
    # A share of the weights, and so of the model's bytes, are learned rows.
    learned = int(question.learned_share * least.model_bytes)
    rows = ""
    if learned:
        rows = (
            f", {format_bytes(learned)} of it learned rows of nodes without features (gloader train --embed DIM keeps "
            "such rows on the SSD)"
        )
    purposes = {
        "model": f"weights, the best so far and the optimiser's two moments{rows}",
        "step": f"a training step (activations and gradients, {format_bytes(least.step_bytes)}) or an evaluation",
        "code": "modules and compiled kernels",
        "reserve": "what freed memory leaves between what is in use",
        "loader": "edges, batches, and features or their cache",
    }
    return [
        ("features", format_bytes(data.feature_bytes)),
        ("edges", format_bytes(data.topology_bytes)),
        ("to train", f"--memory-budget {format_bytes(least.total_bytes).replace(' ', '')} or more; of these"),
        *((f"  {name}", f"{format_bytes(parts[name])}: {purpose}") for name, purpose in purposes.items()),
        ("trained on", f"{format_count(question.num_seeds)} an epoch"),
        *_batches(question),
    ]


def _parts(budget: "RunBudget") -> dict[str, int]:
    """Return the bytes of a budget's parts, by their names on the screen."""
    return {
        "model": budget.model_bytes,
        "step": budget.phase_bytes,
        "code": budget.process_bytes,
        "reserve": budget.slack_bytes,
        "loader": budget.loader_bytes,
    }


def _batches(question: "FitQuestion | DatasetQuestion") -> list[tuple[str, str]]:
    """Return the facts about batches: their number in an epoch, and the rows in one."""
    return [
        ("batches an epoch", f"{question.num_batches:,}"),
        ("a batch", f"{format_count(question.batch_rows)} rows"),
    ]


def _seeds(question: "FitQuestion") -> str:
    """Return the number of training nodes in an epoch, with its origin."""
    count = format_count(question.num_seeds)
    return count if question.knows_seeds else f"{count} (assumed: a hundredth of all; --train-nodes says it)"


def _table(fits: "Sequence[Fit]") -> Table:
    """Return a row for each budget."""
    table = numbers("memory budget", "features", "edges", "rows missed", "loading a batch", "an epoch")
    for each in fits:
        table.add_row(
            cell(format_bytes(each.budget.total_bytes)),
            each.words("features"),
            each.words("edges"),
            f"{each.plan.step.miss_rate:.0%}",
            cell(format_seconds(each.plan.step.seconds)),
            cell(format_seconds(each.loading_s)),
        )
    return table


def _show_propagations(screen: Screen, plans: "Mapping[int, PropagationPlan]") -> None:
    """Show the cost of a propagation with each budget that is enough for one."""
    if not plans:
        return
    hops = next(iter(plans.values())).trees.spec.hops
    screen.say("")
    screen.say(f"gloader propagate --hops {hops} --nodes labelled, on two cores:")
    table = numbers("memory budget", "slabs", "read", "written", "a hop", f"{hops} hops")
    for budget, plan in plans.items():
        cost = plan.cost
        table.add_row(
            cell(format_bytes(budget)),
            str(plan.num_slabs),
            cell(format_bytes(cost.rows_read + cost.edges_read)),
            cell(format_bytes(cost.rows_written)),
            cell(format_seconds(cost.seconds / hops)),
            cell(format_seconds(cost.seconds)),
        )
    screen.console.print(table)
