"""`gloader propagate`: hop columns of a dataset, as a new dataset or as a table.

A hop column is a column of features, summed up over a node's neighbours, over their neighbours, and so on. `propagate`
checks the flags and shows what `gloader.training.propagation.propagate_dataset` is about to do, and then what it did.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from gloader.cli.conversion_view import convert_view
from gloader.cli.infer import beside_code
from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, facts
from gloader.cli.train import open_or_prepare
from gloader.config import ObjectSettings
from gloader.core.dtypes import FeatureDtype
from gloader.core.flag_values import SWITCH, Count, Names, Size
from gloader.core.paths import is_url, require_no_url
from gloader.core.units import format_bytes, format_seconds
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.training.propagation.hop_plan import HopPlan
    from gloader.training.propagation.propagate_dataset import HopReport
    from gloader.training.propagation.propagation_plan import HopCost

_OBJECTS = ObjectSettings()
_EXPECTED_FROM_S = 1.0  # opening and closing files takes parts of a second, which are not predicted
_TOLD_FROM_S = 0.5  # the compilation of kernels is mentioned if it took more seconds than this
_MOST_GROUPS = 12  # groups of columns on the screen; --json has all


def propagate(  # noqa: PLR0913 - each a flag
    dataset: str,
    folder: str | None = None,
    /,
    *,
    out: Path | None = None,
    hops: Count = 3,
    norm: str | None = None,
    directions: Names = ("in",),
    stats: Names = ("mean",),
    nodes: Literal["all", "labelled"] = "all",
    dtype: FeatureDtype = "float32",
    labels: Annotated[bool, SWITCH] = False,
    memory_budget: Size = None,
    overwrite: Annotated[bool, SWITCH] = False,
    resume: Annotated[bool, Parameter(negative="--fresh")] = True,
    objects: ObjectSettings = _OBJECTS,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Sum up each node's features over its neighbours, hop by hop, within a memory budget.

    The columns become the features of a new dataset, for models without a sampler (`gloader train --model sign`), or a
    table for boosted trees. An interrupted command goes on where it was.

    Parameters
    ----------
    dataset
        A prepared folder, its URL (s3://...), or any source of `gloader prepare`.
    folder
        The dataset to make: the nodes with labels, with hop columns as features.
    out
        Write a table instead, .parquet or .csv: key or id, split, label and hop columns of each node.
    hops
        Number of hops.
    norm
        Weights of the sums: gcn, mean, or ppr:0.15 (personalised PageRank). Default: gcn for one node type, mean for
        several.
    directions
        in, out, or in,out: along the edges, or against them.
    stats
        Statistics over the neighbours: mean, min, max, std.
    nodes
        Keep all nodes, or only those of the splits (labelled).
    dtype
        Stored dtype of the columns. They are computed in float32.
    labels
        Propagate the labels of the training nodes too. No node sees its own label.
    memory_budget
        Memory for the propagation, such as 8GB or 512MiB. Default: half of the free memory.
    overwrite
        Replace the dataset or the file, in one step, when the new one is complete.
    resume
        Go on with what an interrupted command left beside the output (default), or begin again.
    objects
        Settings for the mirror of a dataset at a URL.
    """
    screen = Screen.open(is_json=output.json)
    target = _target(folder, out)
    with open_or_prepare(dataset, screen, memory_budget=memory_budget, objects=objects) as opened:
        # These imports are late: only a propagation loads numba and torch. Libraries come before `bare_bytes`, which
        # imports torch, so that later measurements leave out their memory.
        from gloader.dataset.table_file import import_writers
        from gloader.observe.peak_memory import bare_bytes
        from gloader.plan.available import default_budget_bytes
        from gloader.training.first_run import compile_first
        from gloader.training.propagation.hop_request import HopSettings, checked_request

        settings = HopSettings(
            hops=hops,
            norm=norm,
            directions=directions,  # type: ignore[arg-type] # checked with the settings
            stats=stats,  # type: ignore[arg-type] # checked with the settings
            nodes=nodes,
            dtype=dtype,
            labels=labels,
        )
        # Wrong settings are refused before kernels are compiled, in other processes: the compiler's memory would stay
        # in this one.
        checked_request(opened, settings, is_table=out is not None)
        kinds = {"directions": directions, "stats": stats}
        compile_first(opened, None, says=screen.say, memory_budget=memory_budget, hops=kinds)
        if out is not None:
            import_writers()
        bare_bytes()
        from gloader.training.propagation.propagate_dataset import make_hops

        budget = default_budget_bytes() if memory_budget is None else memory_budget
        with convert_view(screen) as progress, beside_code(budget) as left:
            report = make_hops(
                opened,
                target,
                settings,
                memory_budget_bytes=left,
                overwrite=overwrite,
                resume=resume,
                on_plan=lambda plan: screen.console.print(
                    facts(_planned(plan, budget, is_typed=opened.kind == "hetero"), title="what it will take")
                ),
                progress=progress,
            )
    screen.console.print(facts(_done(report), title="what it took"))
    if out is None:
        screen.say(f"train on it: gloader train --dataset {shlex.quote(str(target))} --model sign")
    screen.result(report.to_json())


def _target(folder: str | None, out: Path | None) -> Path:
    """Return the folder or the file to make. Raises ConfigError unless exactly one is given."""
    # This import is late, because the datasets load numba.
    from gloader.dataset.table_file import is_table_file

    if (folder is None) == (out is None):
        raise ConfigError(
            "give one output: a folder for a dataset, as in gloader propagate DATASET FOLDER, or --out FILE for a table"
        )
    if out is not None:
        if not is_table_file(out):
            raise ConfigError(
                f"--out {out} is no .csv and no .parquet file; a dataset's folder is given without --out"
            )
        return out
    require_no_url(str(folder))
    if is_url(str(folder)):
        raise ConfigError(
            "gloader propagate writes a folder; `gloader prepare FOLDER URL` uploads it afterwards"
        )
    if is_table_file(Path(str(folder))):
        raise ConfigError(f"{folder} has the name of a table; write it with --out {folder}")
    return Path(str(folder))


# The next functions return lines of a table, as names and texts, or the text of one line.


def _planned(plan: "HopPlan", budget: int, *, is_typed: bool) -> dict[str, str]:
    """Return the lines on what a run is about to do. ``budget`` includes the code of the run."""
    request, parts, cost = plan.request, plan.parts, plan.cost
    groups = [f"{group.name} {len(group.columns):,}" for group in request.groups]
    more = ", ..." if len(groups) > _MOST_GROUPS else ""
    num_slabs = sum(part.num_slabs for part in parts)
    is_held = {
        "rows": all(part.is_held for part in parts),
        "edges": all(part.topology_bytes for part in parts),
    }
    places = [f"{name} in memory" if held else f"{name} on the SSD" for name, held in is_held.items()]
    of_type = f" of type {request.features.target}" if is_typed else ""
    kept = "; finished columns are kept" if plan.is_kept else "; nothing is kept: it takes seconds"
    return {
        "columns": f"{request.width:,}, norm {request.norm}: {', '.join(groups[:_MOST_GROUPS])}{more}",
        "rows": f"{plan.num_rows:,} of {plan.num_nodes:,} nodes{of_type}",
        **({"not used": "; ".join(request.unused)} if request.unused else {}),
        "slabs": f"{num_slabs:,}, {', '.join(places)}{kept}",
        **({"goes on": "with the columns that an interrupted run has left"} if plan.is_continued else {}),
        "memory": f"{format_bytes(plan.held_bytes)} and {format_bytes(budget - plan.budget_bytes)} for code, of "
        f"{format_bytes(budget)}",
        "disk": f"{format_bytes(plan.disk_bytes)} at most, {format_bytes(plan.output_bytes)} in the end",
        "reads and writes": _traffic(cost),
        "time": f"{_expected(cost.seconds)} for the columns, {_expected(plan.write_s)} for the result, "
        f"at {'measured' if plan.has_measured_rates else 'usual'} rates of this disk",
    }


def _expected(seconds: float) -> str:
    """Return predicted seconds."""
    return "under a second" if seconds < _EXPECTED_FROM_S else f"about {format_seconds(seconds)}"


def _traffic(cost: "HopCost") -> str:
    """Return the bytes of a cost."""
    read, written = format_bytes(cost.rows_read), format_bytes(cost.rows_written)
    return f"{read} of rows and {format_bytes(cost.edges_read)} of edges read, {written} written"


def _done(report: "HopReport") -> dict[str, str]:
    """Return the lines on what a run did, beside the prediction."""
    predicted, cost = report.plan.cost, report.cost
    times = [f"{format_seconds(cost.seconds)} for the columns"]
    if report.compile_s > _TOLD_FROM_S:
        times.append(f"{format_seconds(report.compile_s)} for compiling kernels, once on a machine")
    times.append(f"{format_seconds(report.write_s)} for the result")
    # A continued run does only what was left.
    of_all = " for the whole run" if report.plan.is_continued else ""
    expected = f"predicted {_expected(predicted.seconds)} and {_expected(report.plan.write_s)}{of_all}"
    return {
        "output": f"{report.path}, {format_bytes(report.output_bytes)}",
        "reads and writes": f"{_traffic(cost)}; predicted {_traffic(predicted)}{of_all}",
        "time": f"{', '.join(times)}; {expected}",
    }
