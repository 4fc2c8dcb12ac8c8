"""`gloader bench`: measurements of single parts of gloader that a user can repeat.

There is one command per part: the sampler, the inspector (the planner of the cache), the gather of feature rows, and a
whole epoch of the loader. A workload holds a command's flags. `gloader.lab.bench` measures and returns a report, whose
figures the functions at the end of the file turn into lines.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, facts
from gloader.cli.train import open_or_prepare
from gloader.config import ObjectSettings
from gloader.core.flag_values import Fanout, Size
from gloader.core.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from gloader.lab.bench.graphs import GraphSpec


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerWorkload:
    """Graph and batches of the sampler's benchmark."""

    graph: Literal["rmat", "powerlaw"] = "rmat"
    """Kind of synthetic graph."""
    num_nodes: int = 2_000_000
    """Nodes of the graph."""
    num_edges: int = 60_000_000
    """Edges of the graph."""
    fanout: Fanout = (10, 10, 10)
    """Neighbours sampled per node, one number per hop."""
    batch_size: int = 1000
    """Seeds per batch."""
    batches: int = 16
    """Batches per repeat."""
    repeats: int = 7
    """Repeats; the median counts."""
    threads: int = 2
    """Sampling threads, of gloader and of DGL."""
    seed: int = 0
    """Key of the graph and of the sampling."""
    dgl: bool = True
    """Also run DGL's sampler, if dgl is installed."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class InspectorWorkload:
    """Graph, batches and cache of the planner's benchmark."""

    graph: Literal["rmat", "powerlaw"] = "rmat"
    """Kind of synthetic graph."""
    num_nodes: int = 2_000_000
    """Nodes of the graph."""
    num_edges: int = 40_000_000
    """Edges of the graph."""
    fanout: Fanout = (10, 10, 10)
    """Neighbours sampled per node, one number per hop."""
    batch_size: int = 1000
    """Seeds per batch."""
    superbatch: int = 64
    """Batches planned together; three superbatches are sampled."""
    cache_share: float = 0.1
    """Rows in the cache, as a share of the nodes."""
    repeats: int = 7
    """Repeats; the median counts."""
    threads: int = 2
    """Threads that sample and copy."""
    seed: int = 0
    """Key of the graph and of the sampling."""
    policies: bool = True
    """Also evaluate the other policies."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class GatherWorkload:
    """Rows of the gather's benchmark."""

    dims: Annotated[tuple[int, ...], Parameter(allow_repeating=True)] = (64, 100, 128, 512, 1632)
    """Numbers of float32 in a row, one measurement each."""
    rows: int = 100_000
    """Rows of a gather."""
    table: Size = 1 << 31
    """Size of the table of rows."""
    repeats: int = 7
    """Repeats; the median counts."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWorkload:
    """Batches and cache of the loader's benchmark."""

    fanout: Fanout = (10, 10, 10)
    """Neighbours sampled per node, one number per hop."""
    batch_size: int = 1000
    """Seeds per batch."""
    cache_share: float = 0.1
    """Rows in the host cache, as a share of the nodes."""
    epochs: int = 3
    """Counted epochs; the median counts."""
    threads: int | None = None
    """Sampling threads. Default: one for each core of this process."""
    seed: int = 0
    """Key of the order and the sampling."""


_SAMPLER_WORKLOAD = SamplerWorkload()
_INSPECTOR_WORKLOAD = InspectorWorkload()
_GATHER_WORKLOAD = GatherWorkload()
_EPOCH_WORKLOAD = EpochWorkload()
_OBJECTS = ObjectSettings()


def build_app() -> App:
    """Return the app with the benchmarks."""
    app = App(name="bench", help="Measure a part of gloader on this machine.")
    for command in (sampler, inspector, gather, epoch):
        app.command(command)
    return app


def sampler(
    *,
    workload: SamplerWorkload = _SAMPLER_WORKLOAD,
    out: Path | None = None,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Measure sampled edges per second, next to DGL's sampler in the same run if dgl is installed.

    Parameters
    ----------
    out
        Also write the JSON document to this file.
    """
    from gloader.lab.bench.sampler import bench_sampler

    screen = Screen.open(is_json=output.json)
    with screen.console.status("sampling"):
        report = bench_sampler(
            _graph_of(workload),
            fanouts=workload.fanout,
            batch_size=workload.batch_size,
            batches=workload.batches,
            repeats=workload.repeats,
            threads=workload.threads,
            with_dgl=workload.dgl,
        )
    _finish(screen, report, _sampler_rates(report), out)


def inspector(
    *,
    workload: InspectorWorkload = _INSPECTOR_WORKLOAD,
    out: Path | None = None,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Measure planned accesses per second on one thread, the misses of every policy, and the copying of hits.

    Parameters
    ----------
    out
        Also write the JSON document to this file.
    """
    from gloader.lab.bench.inspector import bench_inspector

    screen = Screen.open(is_json=output.json)
    with screen.console.status("planning"):
        report = bench_inspector(
            _graph_of(workload),
            fanouts=workload.fanout,
            batch_size=workload.batch_size,
            superbatch=workload.superbatch,
            cache_share=workload.cache_share,
            repeats=workload.repeats,
            threads=workload.threads,
            policies=workload.policies,
        )
    _finish(screen, report, _plan_rates(report), out)


def gather(
    *,
    workload: GatherWorkload = _GATHER_WORKLOAD,
    out: Path | None = None,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Measure rows gathered from memory per second, next to torch's index_select on one thread.

    Parameters
    ----------
    out
        Also write the JSON document to this file.
    """
    from gloader.lab.bench.features import bench_gather

    screen = Screen.open(is_json=output.json)
    with screen.console.status("gathering"):
        report = bench_gather(
            dims=workload.dims,
            rows=workload.rows,
            table_bytes=workload.table or 0,
            repeats=workload.repeats,
        )
    _finish(screen, report, _gather_rates(report), out)


def epoch(
    *,
    dataset: str = "synthetic:demo",
    workload: EpochWorkload = _EPOCH_WORKLOAD,
    objects: ObjectSettings = _OBJECTS,
    out: Path | None = None,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Measure the seconds of an epoch of batches from the SSD, next to the same epoch in memory. Nothing is trained.

    Parameters
    ----------
    dataset
        A prepared folder, its URL (s3://...), or any source of `gloader prepare`. A source is prepared once, under
        $GLOADER_HOME.
    objects
        Settings for the mirror of a dataset at a URL.
    out
        Also write the JSON document to this file.
    """
    from gloader.lab.bench.features import bench_epoch

    screen = Screen.open(is_json=output.json)
    with (
        open_or_prepare(dataset, screen, memory_budget=None, objects=objects) as opened,
        screen.console.status("running epochs"),
    ):
        report = bench_epoch(
            opened,
            fanouts=workload.fanout,
            batch_size=workload.batch_size,
            cache_share=workload.cache_share,
            epochs=workload.epochs,
            threads=workload.threads,
            seed=workload.seed,
        )
    _finish(screen, report, _epoch_rates(report), out)


def _finish(screen: Screen, report: dict[str, Any], rows: dict[str, str], out: Path | None) -> None:
    """Show ``rows`` and write ``report`` to the file ``out``, if it is given."""
    if not screen.is_json:
        screen.console.print(facts(rows))
    if out is not None:
        # These imports are late: --help needs no numpy.
        from gloader.ssd_store.write.atomic_file import make_output_folder, write_atomically

        make_output_folder(out.parent)
        write_atomically(out, (json.dumps(report, indent=1) + "\n").encode())
    screen.result(report)


def _gather_rates(report: dict[str, Any]) -> dict[str, str]:
    """Return the lines of `gather`, as names and texts."""
    return {
        f"rows of {result['row_bytes']:,} B": f"{format_count(result['rows_per_s']['gloader'])} rows/s, "
        f"{result['ratio']:.2f} of index_select"
        for result in report["results"]
    }


def _epoch_rates(report: dict[str, Any]) -> dict[str, str]:
    """Return the lines of `epoch`, as names and texts."""
    return {
        "epoch from the SSD": f"{format_seconds(report['seconds_per_epoch'])}, "
        f"{format_count(report['seeds_per_second'])} seeds/s, {format_count(report['rows_per_second'])} rows/s",
        "epoch in memory": format_seconds(report["ram_seconds_per_epoch"]),
        "ratio": f"{report['ratio_to_ram']:.2f}",
        "rows from memory": f"{100 * report['hit_rate']:.1f}%",
        "read in an epoch": format_bytes(report["bytes_read_per_epoch"]),
    }


def _graph_of(workload: SamplerWorkload | InspectorWorkload) -> "GraphSpec":
    """Return the synthetic graph that a workload describes."""
    from gloader.lab.bench.graphs import GraphSpec

    return GraphSpec(
        kind=workload.graph, num_nodes=workload.num_nodes, num_edges=workload.num_edges, seed=workload.seed
    )


def _plan_rates(report: dict[str, Any]) -> dict[str, str]:
    """Return the lines of `inspector`, as names and texts."""
    spread, copy = report["spread_over_more_nodes"], report["copy"]
    rows = {
        "planned, 1 thread": f"{format_count(report['accesses_per_second'])} accesses/s",
        f"planned, {format_count(spread['num_nodes'])} nodes": f"{format_count(spread['accesses_per_second'])} "
        "accesses/s",
        "memory of a plan": f"{report['plan_bytes_per_access']:.1f} B an access, "
        f"table {format_bytes(report['table_bytes'])}",
        "copied, 1 thread": f"{format_bytes(copy['one_thread_bytes_per_second'])}/s, "
        f"{copy['ratio_to_numpy_take']:.2f} of numpy.take",
        f"copied, {copy['threads']} threads": f"{format_bytes(copy['all_threads_bytes_per_second'])}/s",
    }
    for name, ratio in report.get("policies", {}).get("misses_per_access", {}).items():
        rows[f"misses, {name}"] = f"{100 * ratio:.1f}%"
    return rows


def _sampler_rates(report: dict[str, Any]) -> dict[str, str]:
    """Return the lines of `sampler`, as names and texts."""
    rows = {
        f"gloader, {report['threads']} threads": f"{format_count(report['edges_per_second'])} edges/s",
        "gloader, 1 thread": f"{format_count(report['edges_per_cpu_second_one_thread'])} edges/s of processor time",
    }
    # DGL is missing, or switched off with --no-dgl.
    if report["ratio_to_dgl"] is None:
        return rows | {"dgl": "not measured"}
    rows[str(report["dgl_setting"])] = f"{format_count(report['dgl_edges_per_second'])} edges/s"
    return rows | {"ratio to the best setting of dgl": f"{report['ratio_to_dgl']:.2f}"}
