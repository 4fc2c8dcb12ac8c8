"""The tables of the pages "Does my graph fit?" and "Recipes", by the code of `gloader fit`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

from gloader.config import LoaderSettings, ModelConfig
from gloader.core.units import format_bytes, format_count, format_seconds
from gloader.errors import BudgetError
from gloader.lab.analyze.fit import Fit, FitQuestion, SizedGraph
from gloader.lab.analyze.propagation_fit import plan_sized

# Edges as experiments/ogb stores them: both directions of OGB's, a self loop on each node of IGB. The sizes are those
# that OGB, OGB-LSC and IGB publish; 227,130,858 papers of the largest have a label, of which 60% are trained on.
GRAPHS = {
    "ogbn-products": SizedGraph(
        num_nodes=2_449_029, num_edges=123_718_280, feature_dim=100, num_train=196_615, num_classes=47
    ),
    "ogbn-papers100M": SizedGraph(
        num_nodes=111_059_956, num_edges=3_231_371_744, feature_dim=128, num_train=1_207_179, num_classes=172
    ),
    "papers of MAG240M": SizedGraph(
        num_nodes=121_751_666,
        num_edges=2_595_497_852,
        feature_dim=768,
        dtype="float16",
        num_train=1_112_392,
        num_classes=153,
    ),
    "IGB-medium": SizedGraph(
        num_nodes=10_000_000, num_edges=130_077_694, feature_dim=1024, num_train=6_000_000, num_classes=19
    ),
    "IGB-large": SizedGraph(
        num_nodes=100_000_000, num_edges=1_323_571_364, feature_dim=1024, num_train=60_000_000, num_classes=19
    ),
    "IGB260M": SizedGraph(
        num_nodes=269_346_174,
        num_edges=4_265_123_207,
        feature_dim=1024,
        num_train=136_278_514,
        num_classes=19,
    ),
}
NO_BREAK = "\N{NO-BREAK SPACE}"
BUDGETS = tuple(size * 10**9 for size in (4, 8, 16, 64, 256))
PROPAGATION_BUDGETS = tuple(size * 10**9 for size in (4, 16, 64))
RECIPE_BUDGETS = tuple(size * 10**9 for size in (8, 16, 32, 64, 256))


@cache
def _questions() -> dict[str, FitQuestion]:
    settings = LoaderSettings.of(fanouts=(15, 10, 5), batch_size=1024)
    return {name: FitQuestion(graph, settings, ModelConfig()) for name, graph in GRAPHS.items()}


@cache
def _recipes() -> dict[str, FitQuestion]:
    """Return what the commands of docs/recipes.md ask for; features are stored as float16."""
    papers = LoaderSettings.of(fanouts=(15, 10, 5), batch_size=1024)
    mag240m = LoaderSettings.of(fanouts=(25, 15), batch_size=1024)
    igb = LoaderSettings.of(fanouts=(10, 5), batch_size=4096)
    asked = {
        "ogbn-papers100M": (papers, ModelConfig()),
        "papers of MAG240M": (mag240m, ModelConfig(hidden=1024)),
        "IGB-medium": (igb, ModelConfig()),
        "IGB-large": (igb, ModelConfig()),
        "IGB260M": (igb, ModelConfig()),
    }
    return {
        name: FitQuestion(replace(GRAPHS[name], dtype="float16"), settings, model)
        for name, (settings, model) in asked.items()
    }


def sizes() -> str:
    """Return what each graph takes, as a Markdown table."""
    return _sizes(_questions())


def recipe_sizes() -> str:
    """Return what each recipe takes, as a Markdown table."""
    return _sizes(_recipes())


def _sizes(questions: Mapping[str, FitQuestion]) -> str:
    rows = [
        "| graph | features | edges | disk | more to prepare it | memory to prepare | memory to train | rows a batch |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, question in questions.items():
        least, data = question.least_to_prepare(), question.dataset
        disk = question.prepare(max(least, BUDGETS[0]))
        cells = (
            format_bytes(data.feature_bytes),
            format_bytes(data.topology_bytes),
            format_bytes(disk.dataset_bytes),
            format_bytes(disk.scratch_bytes),
            format_bytes(least),
            format_bytes(question.least_to_train()),
            format_count(question.batch_rows),
        )
        rows.append(_row(name, cells))
    return "\n".join(rows) + "\n"


def budgets() -> str:
    """Return what each budget makes of a batch, as a Markdown table."""
    rows = [
        f"| graph | {' | '.join(format_bytes(budget) for budget in BUDGETS)} |",
        "|---" * (1 + len(BUDGETS)) + "|",
    ]
    for name, question in _questions().items():
        rows.append(_row(name, (_cell(question, budget) for budget in BUDGETS)))
    return "\n".join(rows) + "\n"


def propagations() -> str:
    """Return what a propagation of each graph takes within each budget, as a Markdown table."""
    rows = [
        f"| graph | {' | '.join(format_bytes(budget) for budget in PROPAGATION_BUDGETS)} |",
        "|---" * (1 + len(PROPAGATION_BUDGETS)) + "|",
    ]
    for name, graph in GRAPHS.items():
        rows.append(_row(name, (_propagation_cell(graph, budget) for budget in PROPAGATION_BUDGETS)))
    return "\n".join(rows) + "\n"


def recipe_epochs() -> str:
    """Return what each budget makes of an epoch of each recipe, as a Markdown table."""
    rows = [
        f"| graph | batches | {' | '.join(format_bytes(budget) for budget in RECIPE_BUDGETS)} |",
        "|---" * (2 + len(RECIPE_BUDGETS)) + "|",
    ]
    for name, question in _recipes().items():
        cells = (_epoch_cell(question, budget) for budget in RECIPE_BUDGETS)
        rows.append(_row(name, (f"{question.num_batches:,}", *cells)))
    return "\n".join(rows) + "\n"


def _row(name: str, cells: Iterable[str]) -> str:
    """Return a row of a table, whose numbers stay with their units."""
    return f"| {name} | {' | '.join(re.sub(r'(?<=[0-9]) ', NO_BREAK, text) for text in cells)} |"


def _cell(question: FitQuestion, budget: int) -> str:
    try:
        found = question.train(budget)
    except BudgetError:
        return "too little"
    return f"{format_seconds(found.plan.step.seconds)}: {_homes(found)}"


def _propagation_cell(graph: SizedGraph, budget: int) -> str:
    try:
        plan = plan_sized(graph, budget)
    except BudgetError:
        return "too little"
    cost = plan.cost
    slabs = "1 slab" if plan.num_slabs == 1 else f"{plan.num_slabs} slabs"
    read, written = format_bytes(cost.rows_read + cost.edges_read), format_bytes(cost.rows_written)
    return f"{format_seconds(cost.seconds)}: {slabs}, {read} read, {written} written"


def _epoch_cell(question: FitQuestion, budget: int) -> str:
    try:
        found = question.train(budget)
    except BudgetError:
        return "too little"
    return f"{_hours(found.loading_s)}: {_homes(found)}"


def _hours(seconds: float) -> str:
    hours, minutes = divmod(max(1, round(seconds / 60)), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def _homes(found: Fit) -> str:
    features = (
        "all in memory" if found.plan.features == "ram" else f"{found.plan.step.miss_rate:.0%} from the SSD"
    )
    return features if found.topology.home == "ram" else f"{features}, edges {found.words('edges')}"
