"""`gloader fit`: whether a graph fits, by its size alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token
from rich.table import Table

from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.views.screen import Screen, cell
from gloader.config import LoaderSettings, ModelConfig
from gloader.core.flag_values import Count, Fanout, Size
from gloader.core.units import format_bytes, format_count, format_seconds
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.analyze.fit import Fit, FitQuestion

_EXPONENTS = {"k": 3, "m": 6, "g": 9, "b": 9}  # of ten


def _whole(_type: Any, tokens: Sequence[Token]) -> int:
    """Return a whole number that may be written 111e6 or 111M."""
    text = tokens[0].value
    exponent = _EXPONENTS.get(text[-1:].lower())
    try:
        number = float(text if exponent is None else f"{text[:-1]}e{exponent}")
        if number == int(number) >= 0:
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise ConfigError("it must be a whole number, such as 111059956, 111e6 or 111M")


Whole = Annotated[int, Parameter(converter=_whole, n_tokens=1, metavar="NUMBER")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class FitFlags:
    """The size of a graph, and what is done with it."""

    nodes: Whole
    """Nodes of the graph."""
    edges: Whole
    """Edges as they are stored: with --symmetrize twice those of the source."""
    features: Count
    """Numbers in a feature row."""
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    """How the features are stored."""
    train_nodes: Whole | None = None
    """Nodes that are trained on. Default: a hundredth of all."""
    model: Literal["graphsage", "gcn", "gat"] = "graphsage"
    """Which network."""
    hidden: Count = 256
    """Width of the hidden layers."""
    fanout: Fanout = (15, 10, 5)
    """Neighbours sampled per node, one number per layer, the hop next to the seeds first; -1 takes all."""
    batch_size: Count = 1024
    """Training nodes per batch."""
    memory_budget: Size = None
    """Memory of the run. Default: the least that is enough, and doublings of it."""


def fit(*, flags: FitFlags, output: OutputFlags = DEFAULT_OUTPUT) -> None:
    """Say whether a graph fits this memory and disk, by its size alone; nothing is read, written or measured.

    The plans are those of `gloader prepare` and `gloader train` on a CPU. Edges are taken to be drawn at random: in a
    graph with hubs a batch has fewer rows, and fits sooner. Seconds are those of loading, from a plain NVMe SSD.
    """
    from gloader.analyze.fit import FitQuestion
    from gloader.analyze.sized_graph import SizedGraph

    graph = SizedGraph(
        num_nodes=flags.nodes,
        num_edges=flags.edges,
        feature_dim=flags.features,
        dtype=flags.dtype,
        num_train=flags.train_nodes,
    )
    settings = LoaderSettings.of(fanouts=flags.fanout, batch_size=flags.batch_size)
    question = FitQuestion(graph, settings, ModelConfig(name=flags.model, hidden=flags.hidden))
    screen = Screen.open(is_json=output.json)
    least_to_prepare = question.least_to_prepare()
    if flags.memory_budget is None:
        found = question.ladder()
        least = found[0].budget.total_bytes
    else:
        found = (question.train(flags.memory_budget),)
        least = question.least_to_train()
    disk = question.prepare(max(least, least_to_prepare))
    if not screen.is_json:
        screen.console.print(
            _facts(question, least, least_to_prepare, disk.dataset_bytes, disk.scratch_bytes)
        )
        screen.say("")
        screen.console.print(_table(found))
    screen.result(
        {
            "least_to_train": least,
            "least_to_prepare": least_to_prepare,
            "dataset_bytes": disk.dataset_bytes,
            "scratch_bytes": disk.scratch_bytes,
            "rows_per_batch": question.batch_rows,
            "budgets": [one.to_json() for one in found],
        }
    )


def _facts(question: "FitQuestion", least: int, least_to_prepare: int, dataset: int, scratch: int) -> Table:
    """Return what does not depend on the budget."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    data = question.dataset
    for name, value in (
        ("features", format_bytes(data.feature_bytes)),
        ("edges", format_bytes(data.topology_bytes)),
        ("disk", f"{format_bytes(dataset)}, and {format_bytes(scratch)} more while it is prepared"),
        ("to prepare it", f"{format_bytes(least_to_prepare)} of memory or more"),
        ("to train", f"{format_bytes(least)} of memory or more"),
        ("training nodes", _seeds(question)),
        ("batches an epoch", f"{question.num_batches:,}"),
        ("a batch", f"{format_count(question.batch_rows)} rows"),
    ):
        table.add_row(name, cell(value))
    return table


def _seeds(question: "FitQuestion") -> str:
    """Return how many nodes an epoch trains on, and who said so."""
    count = format_count(question.num_seeds)
    return count if question.knows_seeds else f"{count} (assumed: a hundredth of all; --train-nodes says it)"


def _table(found: "Sequence[Fit]") -> Table:
    """Return a row for each budget."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("memory budget", "features", "edges", "rows missed", "loading a batch", "an epoch"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in found:
        table.add_row(
            cell(format_bytes(one.budget.total_bytes)),
            one.words("features"),
            one.words("edges"),
            f"{one.plan.step.miss_rate:.0%}",
            cell(format_seconds(one.plan.step.seconds)),
            cell(format_seconds(one.loading_s)),
        )
    return table
