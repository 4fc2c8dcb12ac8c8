"""`gloader bench`: measurements that a user can repeat."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cyclopts import App, Parameter

from gloader.cli.flags import DEFAULT_OUTPUT, Fanout, OutputFlags
from gloader.cli.views.screen import Screen, facts
from gloader.core.units import format_bytes, format_count


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerWorkload:
    """What is sampled from."""

    graph: Literal["rmat", "powerlaw"] = "rmat"
    """Kind of synthetic graph."""
    num_nodes: int = 2_000_000
    """Its nodes."""
    num_edges: int = 60_000_000
    """Its edges."""
    fanout: Fanout = (10, 10, 10)
    """Neighbours sampled per node, one number per hop."""
    batch_size: int = 1000
    """Seeds per batch."""
    batches: int = 16
    """Batches per repeat."""
    repeats: int = 7
    """Repeats, of which the median counts."""
    threads: int = 2
    """Sampling threads, of gloader and of DGL."""
    seed: int = 0
    """Key of the graph and of the sampling."""
    dgl: bool = True
    """Run DGL's sampler as well, where dgl is installed."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class InspectorWorkload:
    """What is sampled and planned."""

    graph: Literal["rmat", "powerlaw"] = "rmat"
    """Kind of synthetic graph."""
    num_nodes: int = 2_000_000
    """Its nodes."""
    num_edges: int = 40_000_000
    """Its edges."""
    fanout: Fanout = (10, 10, 10)
    """Neighbours sampled per node, one number per hop."""
    batch_size: int = 1000
    """Seeds per batch."""
    superbatch: int = 64
    """Batches planned together; three superbatches are sampled."""
    cache_share: float = 0.1
    """Rows in the cache, as a share of the nodes."""
    repeats: int = 7
    """Repeats, of which the median counts."""
    threads: int = 2
    """Threads that sample, and that copy."""
    seed: int = 0
    """Key of the graph and of the sampling."""
    policies: bool = True
    """Evaluate the other policies as well."""


_WORKLOAD = SamplerWorkload()
_INSPECTOR_WORKLOAD = InspectorWorkload()


def build_app() -> App:
    """Return the benchmarks as an app of their own."""
    app = App(name="bench", help="Measure a part of gloader on this machine.")
    app.command(sampler)
    app.command(inspector)
    return app


def sampler(
    *,
    workload: SamplerWorkload = _WORKLOAD,
    out: Path | None = None,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Measure sampled edges per second, beside DGL's sampler in the same run where dgl is installed.

    Parameters
    ----------
    out
        Also write the JSON document to this file.
    """
    from gloader.bench.sampler import bench_sampler

    screen = Screen.open(is_json=output.json)
    with screen.console.status("sampling"):
        report = bench_sampler(
            graph=workload.graph,
            num_nodes=workload.num_nodes,
            num_edges=workload.num_edges,
            fanouts=workload.fanout,
            batch_size=workload.batch_size,
            batches=workload.batches,
            repeats=workload.repeats,
            threads=workload.threads,
            seed=workload.seed,
            with_dgl=workload.dgl,
        )
    if not output.json:
        screen.console.print(facts(_rates(report)))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
    screen.result(report)


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
    from gloader.bench.inspector import bench_inspector

    screen = Screen.open(is_json=output.json)
    with screen.console.status("planning"):
        report = bench_inspector(
            graph=workload.graph,
            num_nodes=workload.num_nodes,
            num_edges=workload.num_edges,
            fanouts=workload.fanout,
            batch_size=workload.batch_size,
            superbatch=workload.superbatch,
            cache_share=workload.cache_share,
            repeats=workload.repeats,
            threads=workload.threads,
            seed=workload.seed,
            policies=workload.policies,
        )
    if not output.json:
        screen.console.print(facts(_plan_rates(report)))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
    screen.result(report)


def _plan_rates(report: dict[str, Any]) -> dict[str, str]:
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


def _rates(report: dict[str, Any]) -> dict[str, str]:
    rows = {
        f"gloader, {report['threads']} threads": f"{format_count(report['edges_per_second'])} edges/s",
        "gloader, 1 thread": f"{format_count(report['edges_per_second_one_thread'])} edges/s",
    }
    if report["ratio_to_dgl"] is None:
        return rows | {"dgl": "not measured"}
    rows[str(report["dgl_setting"])] = f"{format_count(report['dgl_edges_per_second'])} edges/s"
    return rows | {"ratio to the best setting of dgl": f"{report['ratio_to_dgl']:.2f}"}
