"""The figures of the edge benchmark: medians, ratios of the rounds, and the aims beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pipeline_runs import column, is_void, ratio, spread

from gloader.core.units import format_bytes, format_seconds

Run = dict[str, Any]
Runs = Mapping[str, Sequence[Run]]
MAPPED_AIM, DIRECT_AIM, FILE_AIM, WRITTEN_AIM, EPOCH_AIM, CPU_AIM, FIRST_AIM = (
    10.0, 20.0, 1.05, 4.2e6, 1.25, 0.050, 1.5,
)  # fmt: skip
_FIGURES = ("batch_s", "first_batch_s", "bytes_read", "bytes_written", "cpu_s", "sampler_cpu_s")
_PEAKS = ("group_peak_anonymous_bytes", "group_peak_mapped_bytes", "group_peak_bytes", "peak_disk_bytes")
_SAMPLER = ("gloader-sample", "gloader-sweep", "bench-sample")


def summarize(part: str, runs: Runs) -> dict[str, Any]:
    """Return the medians of every way, and the ratios of the rounds. Pure."""
    rows = {way: _row(each) for way, each in runs.items() if any(not is_void(one) for one in each)}
    summary: dict[str, Any] = {"rows": rows}
    if "sweep" not in rows:
        return summary
    for way, each in runs.items():
        if way in rows and way != "sweep":
            above, below = (each, runs["sweep"]) if part == "sampling" else (runs["sweep"], each)
            name = f"{way}_over_sweep" if part == "sampling" else f"sweep_over_{way}"
            summary[name] = _ratio(above, below, "batch_s")
            summary[f"first_batch_sweep_over_{way}"] = _ratio(runs["sweep"], each, "first_batch_s")
    return summary


def sampler_seconds(run: Run) -> float:
    """Return the processor seconds that the threads that sample and sweep used for a batch. Pure."""
    return sum(float(seconds) for name, seconds in run["thread_cpu_s"].items() if name.startswith(_SAMPLER))


def full_passes(run: Run) -> list[dict[str, Any]]:
    """Return the passes that served as many batches as any: those of the full wavefront. Pure."""
    done = [one for one in run.get("passes", []) if "way" in one]  # the last one was cancelled
    most = max((one.get("batches", 1) for one in done), default=0)
    return [one for one in done if one.get("batches", 1) == most]


def _row(runs: Sequence[Run]) -> dict[str, Any]:
    good = [one | {"sampler_cpu_s": sampler_seconds(one)} for one in runs if not is_void(one)]
    row: dict[str, Any] = {name: spread(column(good, name)) for name in _FIGURES}
    row["is_full"] = all(one["is_full"] for one in good)
    row["topology_superbatch"] = good[-1].get("topology_superbatch")
    row["mapped_files"] = sorted({name for one in good for name in one["mapped_files"]})
    row |= {name: max(column(good, name)) for name in _PEAKS if all(name in one for one in good)}
    passes = [each for one in good for each in full_passes(one)]
    if passes:
        row["full_passes"] = {
            "count": len(passes),
            "ways": sorted({str(one.get("way")) for one in passes}),
            **{
                name: median(one[name] for one in passes)
                for name in ("seconds", "bytes_read", "bytes_written")
            },
        }
    return row


def _ratio(above: Sequence[Run], below: Sequence[Run], name: str) -> dict[str, float]:
    pairs = [(a, b) for a, b in zip(above, below, strict=False) if not is_void(a) and not is_void(b)]
    return ratio([a[name] for a, _ in pairs], [b[name] for _, b in pairs])


def aims(result: Mapping[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Return each aim that there are figures for: what, the aim, what was measured, whether it is met. Pure."""
    found: list[tuple[str, str, str, bool]] = []

    def add(what: str, aim: str, value: float, shown: str, *, met: bool) -> None:
        found.append((what, aim, shown if value == value else "-", met))  # noqa: PLR0124 - NaN

    sampling, epoch = (result.get("summary", {}).get(part, {}) for part in ("sampling", "epoch"))
    for way, least in (("mapped", MAPPED_AIM), ("memmap", MAPPED_AIM), ("direct", DIRECT_AIM)):
        if f"{way}_over_sweep" in sampling:
            times = sampling[f"{way}_over_sweep"]["median"]
            add(f"{way} / sweep, a batch", f"at least {least:g}", times, f"{times:.1f}", met=times >= least)
    if "first_batch_sweep_over_direct" in sampling:
        times = sampling["first_batch_sweep_over_direct"]["median"]
        add(
            "first batch, sweep / direct",
            f"at most {FIRST_AIM:g}",
            times,
            f"{times:.2f}",
            met=times <= FIRST_AIM,
        )
    row = sampling.get("rows", {}).get("sweep")
    if row is not None:
        _of_sampling(row, result["graph"]["edge_bytes"], add)
    if "sweep_over_ram" in epoch:
        times = epoch["sweep_over_ram"]["median"]
        add(
            "epoch with features, sweep / ram",
            f"at most {EPOCH_AIM:g}",
            times,
            f"{times:.2f}",
            met=times <= EPOCH_AIM,
        )
    return found


def _of_sampling(row: Mapping[str, Any], edge_bytes: int, add: Any) -> None:
    if "full_passes" in row:
        share = row["full_passes"]["bytes_read"] / edge_bytes
        add("read by a pass / file", f"at most {FILE_AIM:g}", share, f"{share:.3f}", met=share <= FILE_AIM)
    written = row["bytes_written"]["median"]
    add(
        "written, a batch",
        f"at most {format_bytes(round(WRITTEN_AIM))}",
        written,
        format_bytes(round(written)),
        met=written <= WRITTEN_AIM,
    )
    cpu = row["sampler_cpu_s"]["median"]
    add(
        "processors of sampling, a batch",
        f"at most {format_seconds(CPU_AIM)}",
        cpu,
        format_seconds(cpu),
        met=cpu <= CPU_AIM,
    )


def markdown(result: Mapping[str, Any]) -> str:
    """Return the results as a page. Pure."""
    graph, options = result["graph"], result["options"]
    lines = [
        f"`{result['command']}`, commit {result['commit']}",
        "",
        f"{graph['num_nodes']:,} nodes, {graph['num_edges']:,} edges of {format_bytes(graph['edge_bytes'])}.",
        f"Batches of {options['batch_size']}, fan-out {options['fanouts']}.",
        f"A budget of {format_bytes(int(options['memory_budget']))}.",
        f"{format_bytes(int(options['allowance']))} beside it.",
    ]
    for part, summary in result.get("summary", {}).items():
        lines += ["", f"## {part}", "", *_table(summary["rows"])]
    if found := aims(result):
        lines += ["", "| what | aim | measured | met |", "|---|---|---|---|"]
        lines += [
            f"| {what} | {aim} | {shown} | {'yes' if met else 'no'} |" for what, aim, shown, met in found
        ]
    return "\n".join(lines)


def _table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    head = [
        "way",
        "a batch",
        "first batch",
        "read a batch",
        "written a batch",
        "processors",
        "of them sampling",
    ]
    head += ["anonymous", "mapped", "S_t"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for way, row in rows.items():
        cells = [
            way if row["is_full"] else f"{way}, filling",
            format_seconds(row["batch_s"]["median"]),
            format_seconds(row["first_batch_s"]["median"]),
            format_bytes(round(row["bytes_read"]["median"])),
            format_bytes(round(row["bytes_written"]["median"])),
            format_seconds(row["cpu_s"]["median"]),
            format_seconds(row["sampler_cpu_s"]["median"]),
            *(format_bytes(row[name]) if name in row else "-" for name in _PEAKS[:2]),
            str(row["topology_superbatch"] or "-"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
