"""The search of `gloader autotune` from bad starts, beside a grid of which every run was made."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from replay_cases import FAST_DISK, NARROW_MODEL, SMALL_GRAPH, Case

from gloader.core.units import format_exact_seconds, parse_bytes
from gloader.errors import GloaderError
from gloader.lab.analyze.autotune import keywords_of, tune
from gloader.lab.analyze.predict import open_run

if TYPE_CHECKING:
    from replay_runs import Run, Workshop

# Too little for all features, so that every setting of the grid has its price.
_LOADER: Final = {
    "fanouts": [10, 10],
    "batch_size": 256,
    "memory_budget": parse_bytes("170MB"),
    "features": "ssd",
}
# A control group lets through what was not used in a tenth of a second before: of a disk that is often idle it makes
# bursts, which are no disk's. Of this one every way to run has less than it could use.
_DISK: Final = FAST_DISK.scaled(reads=0.5, writes=0.5)
_GRID: Final = {
    "threads": (1, 2),
    "superbatch": (8, 32, 128),
    "cache": (0.1, 0.2, 0.4),
    "io_strategy": ("direct", "staged", "packed"),
}
# Each is bad in a way of its own.
_STARTS: Final[dict[str, dict[str, Any]]] = {
    "short superbatches": {"superbatch": 2, "io_strategy": "staged", "cache": 0.1},
    "hardly a cache": {"cache": 0.01, "io_strategy": "direct", "threads": 1},
    "packs that are not worth it": {"superbatch": 8, "io_strategy": "packed", "cache": 0.05},
    "long superbatches, one buffer": {"superbatch": 128, "buffers": 1, "threads": 1},
    "every miss read alone": {"superbatch": 4, "io_strategy": "direct", "cache": 0.2, "threads": 1},
}


def grid_cases() -> tuple[Case, ...]:
    """Return a run for each combination. Pure."""
    found = []
    for values in product(*_GRID.values()):
        settings = dict(zip(_GRID, values, strict=True))
        found.append(_case("grid " + " ".join(map(str, values)), settings))
    return tuple(found)


def bad_starts() -> tuple[Case, ...]:
    """Return runs whose settings nobody would keep. Pure."""
    return tuple(_case(name, settings) for name, settings in _STARTS.items())


def _case(name: str, settings: dict[str, Any]) -> Case:
    return Case(name=name, graph=SMALL_GRAPH, loader=_LOADER | settings, model=NARROW_MODEL, disk=_DISK)


def search(shop: Workshop, *, only: str = "") -> dict[str, Any]:
    """Search from each bad start, follow what is found, and hold it against the best run of the grid."""
    grid = shop.run_all(grid_cases())
    took = {name: _seconds(runs) for name, runs in grid.items()}
    possible = {name: seconds for name, seconds in took.items() if seconds is not None}
    best = min(possible, key=possible.__getitem__)
    found = []
    for case in (case for case in bad_starts() if only in case.name):
        found.append({"name": case.name, "case": case.to_json()} | _found(shop, case, possible[best]))
        print(f"    {case.name}: {said_of_search(found[-1])}", flush=True)
    return {
        "grid_s": took,
        "grid_others": [run["others_share"] for runs in grid.values() for run in runs if "failed" not in run],
        "best": best,
        "best_s": possible[best],
        "found": found,
    }


def _seconds(runs: list[Run]) -> float | None:
    """Return the seconds of an epoch, the median of the rounds; None: there is no such run. Pure."""
    known = [_epoch_s(run) for run in runs if "failed" not in run]
    return median(known) if known else None


def _epoch_s(run: Run) -> float:
    with open_run(Path(run["trace"])) as predictor:
        return predictor.measured.seconds


def _found(shop: Workshop, case: Case, best_s: float) -> dict[str, Any]:
    """Return what a start took, what the search makes of it, and what that takes: medians of the rounds."""
    started = [shop.run(case, number) for number in range(shop.rounds)]
    start_s = _seconds(started)
    if start_s is None:
        return {"failed": started[0]["failed"]}
    try:
        with open_run(Path(started[0]["trace"])) as predictor:
            searched = tune(predictor).searched
    except GloaderError as error:
        return {"failed": str(error)}
    change = searched.best.changes
    tuned = case.changed(f"{case.name}, tuned", loader=keywords_of(change))
    after = [shop.run(tuned, number) for number in range(shop.rounds)]
    tuned_s = _seconds(after)
    if tuned_s is None:
        return {"failed": after[0]["failed"]}
    return {
        "start_s": start_s,
        "change": change.text,
        "predicted_s": searched.best.seconds,
        "tuned_s": tuned_s,
        "ratio": tuned_s / best_s,
        "others_shares": [run["others_share"] for run in (*started, *after)],
    }


def said_of_search(found: dict[str, Any]) -> str:
    """Return what came of a start in a line. Pure."""
    if "failed" in found:
        return f"failed: {found['failed']}"
    return (
        f"{format_exact_seconds(found['start_s'])}, then {format_exact_seconds(found['tuned_s'])} with "
        f"{found['change'] or 'the same'} (predicted {format_exact_seconds(found['predicted_s'])}), "
        f"{found['ratio']:.2f} of the best of the grid"
    )
