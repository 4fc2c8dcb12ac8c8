"""The page of the benchmark of the replay, and its picture: what was said beside what was. Pure, but for the picture.

python experiments/bench/replay_summary.py FILE.json      the page and the picture once more, from the figures
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pipeline_runs import is_void

from gloader.core.units import format_exact_seconds
from gloader.lab.report.svg import Series, draw_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Row = Mapping[str, Any]

UNCHANGED_AIM: Final = 0.03
MEDIAN_AIM: Final = 0.05
WORST_AIM: Final = 0.12
ADVICE_AIM: Final = 0.10
SEARCH_AIM: Final = 1.05
DEFAULT_AIM: Final = 1.10
_ALONE: Final = 0.1  # cores that others may use meanwhile, and a run was alone all the same
# Of M. Okabe and K. Ito, "Color Universal Design", 2008: apart for readers who do not tell red from green. Each axis
# has a mark of its own too.
_KINDS: Final = ("unchanged", "cache", "superbatch", "threads", "disk", "compute", "advice")
_SAME: Final = 7


def summarize_pairs(pairs: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return the errors of predictions along each axis, and of "all": median, worst, and what there was to know. Pure.

    Parameters
    ----------
    pairs : of part cross
    """
    by_axis: dict[str, list[Row]] = {"all": []}
    for pair in pairs:
        by_axis.setdefault(pair["axis"], []).append(pair)
        by_axis["all"].append(pair)
    return {axis: _errors(rows) for axis, rows in by_axis.items() if rows}


def _errors(rows: Sequence[Row]) -> dict[str, Any]:
    known = [row for row in rows if "error" in row]
    worst = max(known, key=lambda row: abs(row["error"]), default=None)
    return {
        "pairs": len(rows),
        "refused": len(rows) - len(known),
        "median": median(abs(row["error"]) for row in known) if known else None,
        "worst": None if worst is None else worst["error"],
        "worst_of": None if worst is None else f"{worst['known']}, {worst['change']}",
        "median_distance": median(abs(row["distance"]) for row in known) if known else None,
    }


def points(result: Row) -> list[tuple[str, float, float]]:
    """Return what the picture shows: of what kind, measured and predicted seconds. Pure."""
    parts = result["parts"]
    found = []
    for one in parts.get("unchanged", {}).get("runs", {}).values():
        found += [
            ("unchanged", run["measured_s"], run["replayed_s"]) for run in one["rounds"] if "error" in run
        ]
    for pair in parts.get("cross", {}).get("pairs", []):
        if "error" in pair:
            found.append((pair["axis"], pair["measured_s"], pair["predicted_s"]))
    for one in parts.get("bottlenecks", {}).get("found", []):
        if "error" in one:
            found.append(("advice", one["measured_after_s"], one["predicted_after_s"]))
    return found


def draw_scatter(result: Row, path: Path) -> bool:
    """Write an SVG of predicted against measured seconds; return whether there is one now."""
    shown = points(result)
    if not shown:
        return False
    values = [value for _, *both in shown for value in both]
    ends = (min(values) / 1.2, max(values) * 1.2)
    series = [
        Series(label="", style=_SAME, points=[(end, factor * end) for end in ends], is_dotted=True)
        for factor in (1 - WORST_AIM, 1.0, 1 + WORST_AIM)
    ]
    for style, kind in enumerate(_KINDS):
        of_kind = [(measured, predicted) for name, measured, predicted in shown if name == kind]
        series.append(Series(label=kind, style=style, points=of_kind, names=[""] * len(of_kind)))
    chart = draw_lines(
        path.stem,
        f"An epoch: seconds of the replay against measured seconds. Dotted: equal, and {WORST_AIM:.0%} off.",
        series,
        x=("measured seconds", "log"),
        y="log",
    )
    if chart is None:
        return False
    path.write_bytes(chart.as_file())
    return True


def markdown(result: Row) -> str:
    """Return the results as a page. Pure."""
    parts = result["parts"]
    lines = [f"`{result['command']}`, commit {result['commit']}"]
    for name, table in _TABLES.items():
        if name in parts:
            lines += ["", f"## {name}", "", *table(parts[name])]
    return "\n".join(lines)


def _unchanged(part: Row) -> list[str]:
    lines = [
        "| run | measured | replayed | error | unexplained | others |",
        "|---|---|---|---|---|---|",
    ]
    errors = []
    for name, one in part["runs"].items():
        for run in one["rounds"]:
            if is_void(run):
                lines.append(f"| {name} | {_short(run['failed'])} | | | | |")
                continue
            errors.append(abs(run["error"]))
            lines.append(
                f"| {name} | {_seconds(run['measured_s'])} | {_seconds(run['replayed_s'])} | {run['error']:+.1%} "
                f"| {_stages(run['unexplained'])} | {_others(run)} |"
            )
    if errors:
        within = sum(error <= UNCHANGED_AIM for error in errors)
        lines += [
            "",
            f"Within {UNCHANGED_AIM:.0%}: {within} of {len(errors)} runs.",
            f"Median {median(errors):.1%}, worst {max(errors):.1%}.",
            "Others: cores that other processes used meanwhile.",
        ]
    rounds = [run for one in part["runs"].values() for run in one["rounds"]]
    lines += _not_alone([run["others_share"] for run in rounds if not is_void(run)])
    return lines


def _cross(part: Row) -> list[str]:
    lines = [
        "| axis | predictions | refused | median error | worst | of | if nothing changed |",
        "|---|---|---|---|---|---|---|",
    ]
    summary = summarize_pairs(part["pairs"])
    for axis, row in summary.items():
        shown = (
            ["-"] * 4
            if row["median"] is None
            else [
                f"{row['median']:.1%}",
                f"{row['worst']:+.1%}",
                row["worst_of"],
                f"{row['median_distance']:.0%}",
            ]
        )
        lines.append(f"| {axis} | {row['pairs']} | {row['refused']} | {' | '.join(shown)} |")
    if summary.get("all", {}).get("median") is not None:
        row = summary["all"]
        lines += [
            "",
            f"Median at most {MEDIAN_AIM:.0%}: {_yes(row['median'] <= MEDIAN_AIM)}.",
            f"Worst at most {WORST_AIM:.0%}: {_yes(abs(row['worst']) <= WORST_AIM)}.",
            "The last column is the median error of saying that a change changes nothing.",
        ]
    lines += _not_alone(
        [run["others_share"] for one in part["runs"].values() for run in one["rounds"] if not is_void(run)]
    )
    lines += ["", "| recording | what-if | it took | said | took | error |", "|---|---|---|---|---|---|"]
    for pair in part["pairs"]:
        start = f"| {pair['known']} | {pair['change']} |"
        if "error" not in pair:
            lines.append(f"{start} | {_short(pair['refused'])} | | |")
            continue
        lines.append(
            f"{start} {_seconds(pair['known_s'])} | {_seconds(pair['predicted_s'])} | {_seconds(pair['measured_s'])} "
            f"| {pair['error']:+.1%} |"
        )
    return lines


def _bottlenecks(part: Row) -> list[str]:
    lines = [
        "| held up by | most of an epoch | advised | named | took | said | then | error | gain said | had | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in part["found"]:
        start = f"| {one['name']}: {one['why']} |"
        if "parts" not in one:
            lines.append(f"{start} {_short(one['failed'])} | | | | | | | | | |")
            continue
        top = max(one["parts"], key=one["parts"].__getitem__)
        share = one["parts"][top] / one["replayed_s"]
        cells = [
            f"{top} {share:.0%}",
            one["advised"] or "nothing",
            _yes(all(one["is_named"].values())),
            _seconds(one["measured_s"]),
        ]
        if "error" in one:
            cells += [
                _seconds(one["predicted_after_s"]),
                _seconds(one["measured_after_s"]),
                f"{one['error']:+.1%}",
                f"{one['gain_said']:.0%}",
                f"{one['gain_had']:.0%}",
                f"{_gain_error(one):+.1%}",
            ]
        else:
            cells += [_short(one.get("failed") or one.get("not_followed", "")), *[""] * 5]
        lines.append(f"{start} {' | '.join(cells)} |")
    named = [all(one["is_named"].values()) for one in part["found"] if "is_named" in one]
    known = [one for one in part["found"] if "error" in one]
    lines += ["", f"Named right: {sum(named)} of {len(part['found'])}."]
    of_gains, of_seconds = map(_gain_error, known), (one["error"] for one in known)
    for what, found in (("Gains", of_gains), ("Seconds", of_seconds)) if known else ():
        errors = [abs(error) for error in found]
        within = sum(error <= ADVICE_AIM for error in errors)
        lines[-1] += f" {what} within {ADVICE_AIM:.0%}: {within} of {len(errors)}; worst {max(errors):.1%}."
    lines += _not_alone([share for one in part["found"] for share in one.get("others_shares", ())])
    return lines


def _gain_error(one: Row) -> float:
    """Return by how much the gain of an advice differs from what was said. Pure."""
    return float(one["gain_had"] / one["gain_said"] - 1)


def _search(part: Row) -> list[str]:
    possible = [seconds for seconds in part["grid_s"].values() if seconds is not None]
    lines = [
        (
            f"The grid has {len(part['grid_s'])} runs, {len(possible)} of which the memory has room for: "
            f"{_seconds(min(possible))} ({part['best']}) to {_seconds(max(possible))}."
        ),
        "",
        "| start | took | found | predicted | took then | over the best of the grid | within 5% |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in part["found"]:
        if "ratio" not in one:
            lines.append(f"| {one['name']} | {_short(one['failed'])} | | | | | |")
            continue
        lines.append(
            f"| {one['name']} | {_seconds(one['start_s'])} | {one['change'] or 'the same'} "
            f"| {_seconds(one['predicted_s'])} | {_seconds(one['tuned_s'])} | {one['ratio']:.2f} "
            f"| {_yes(one['ratio'] <= SEARCH_AIM)} |"
        )
    shares = [share for one in part["found"] for share in one.get("others_shares", ())]
    return lines + _not_alone([*part["grid_others"], *shares])


def _defaults(part: Row) -> list[str]:
    lines = [
        "| workload | as it comes | tuned | predicted | as it comes / tuned | within 10% |",
        "|---|---|---|---|---|---|",
    ]
    for one in part["found"]:
        if "ratio" not in one:
            lines.append(f"| {one['name']} | {_short(one['failed'])} | | | | |")
            continue
        lines.append(
            f"| {one['name']} | {_seconds(one['default_s'])} | {_seconds(one['tuned_s'])} with "
            f"{one['change'] or 'the same'} | {_seconds(one['predicted_s'])} | {one['ratio']:.2f} "
            f"| {_yes(one['ratio'] <= DEFAULT_AIM)} |"
        )
    ratios = default_ratios(part)
    within = sum(ratio <= DEFAULT_AIM for ratio in ratios.values())
    of_medians = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return [
        *lines,
        "",
        f"As it comes over tuned, of medians: {of_medians}. Within 10%: {within} of {len(ratios)}.",
    ]


def default_ratios(part: Row) -> dict[str, float]:
    """Return by how much each workload as it comes takes longer than tuned, both medians of the rounds. Pure."""
    known = [one for one in part["found"] if "ratio" in one]
    return {
        name: median(one["default_s"] for one in known if one["name"] == name)
        / median(one["tuned_s"] for one in known if one["name"] == name)
        for name in dict.fromkeys(one["name"] for one in known)
    }


_TABLES: Final = {
    "unchanged": _unchanged,
    "cross": _cross,
    "bottlenecks": _bottlenecks,
    "search": _search,
    "defaults": _defaults,
}


def _not_alone(shares: Sequence[float]) -> list[str]:
    """Return a warning where other processes used the cores meanwhile; nothing where all runs were alone. Pure."""
    crowded = [share for share in shares if share > _ALONE]
    if not crowded:
        return []
    text = (
        f"**Not for the record**: during {len(crowded)} of {len(shares)} runs other processes used the cores too, "
        f"{max(crowded):.2f} of them at worst. What a model takes is then theirs as well, and no prediction knows it."
    )
    return ["", text]


def _stages(unexplained: Mapping[str, float]) -> str:
    """Return what is unexplained of the stages, the most first, without what is less than a hundredth."""
    found = sorted(unexplained.items(), key=lambda item: -abs(item[1]))
    return (
        ", ".join(f"{name} {share:+.0%}" for name, share in found if name != "epoch" and abs(share) >= 0.01)
        or "-"
    )


def _others(run: Row) -> str:
    share = f"{run['others_share']:.2f}"
    return share if run["others_share"] <= _ALONE else f"**{share}**"


def _seconds(seconds: float) -> str:
    return format_exact_seconds(seconds)


def _short(text: str) -> str:
    return text.replace("\n", " ").replace("|", "/")[-200:]


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def main() -> None:
    """Write the page and the picture of the file that the command line names."""
    path = Path(sys.argv[1])
    result = json.loads(path.read_text())
    path.with_suffix(".md").write_text(markdown(result) + "\n")
    draw_scatter(result, path.with_suffix(".svg"))


if __name__ == "__main__":
    main()
