"""The parts of the benchmark of the replay: what is run, what is predicted of it, and how far apart they are."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from replay_bottlenecks import bottlenecks as bottleneck_cases
from replay_bottlenecks import menu_of
from replay_cases import PLAIN, default_cases, make_graph, unchanged_cases
from replay_grid import pairs_of, points_of

from gloader import Dataset
from gloader.core.units import format_bytes, format_exact_seconds
from gloader.errors import GloaderError
from gloader.lab.analyze.autotune import keywords_of, tune
from gloader.lab.analyze.predict import open_run
from gloader.replay.changes import Ratio, parse_changes
from gloader.replay.floor import find_floor
from gloader.replay.stalls import mean_parts
from gloader.ssd_store.cost.device_rates import rates_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay_bottlenecks import Bottleneck
    from replay_cases import Case
    from replay_grid import Pair, Point
    from replay_runs import Run, Workshop

    from gloader.lab.analyze.predict import Prediction, Predictor
    from gloader.replay.changes import Changes

# Of an epoch: a what-if that is no further behind the best one is as good, and the one that asks for less is advised.
_AS_GOOD = 0.05


def unchanged(shop: Workshop, *, only: str = "") -> dict[str, Any]:
    """Replay runs as they were."""
    cases = [case for case in unchanged_cases() if only in case.name]
    disk = _disk_rates(shop, cases)
    runs = shop.run_all(cases)
    return {
        "disk": disk,
        "runs": {
            case.name: {
                "case": case.to_json(),
                "rounds": [run | _replayed(run) for run in runs[case.name]],
            }
            for case in cases
        },
    }


def _replayed(run: Run) -> dict[str, Any]:
    """Return by how much the replay of a run is off; the reason where there is none."""
    if "failed" in run:
        return {}
    try:
        with open_run(Path(run["trace"])) as predictor:
            measured, base = predictor.measured, predictor.base
            return {
                "measured_s": measured.seconds,
                "replayed_s": base.replayed_s,
                "error": base.replayed_s / measured.seconds - 1,
                "unexplained": predictor.unexplained,
                "parts": mean_parts(base.replayed, measured.counted),
            }
    except GloaderError as error:
        return {"failed": f"not replayed: {error}"}


def _disk_rates(shop: Workshop, cases: Sequence[Case]) -> dict[str, float] | None:
    """Measure the disk as it is; the runs take what was measured here. None where all of them are kept."""
    if shop.is_quick or all(shop.is_kept(case) for case in cases):
        return None
    dataset = Dataset.open(make_graph(shop.workdir, PLAIN))
    rates = rates_of(dataset.features_path, shop.workdir, refresh=True)
    print(
        f"  disk: {rates.random_reads_per_s:,.0f} reads/s of 4 KiB, {format_bytes(rates.read_bytes_per_s)}/s in order, "
        f"{format_bytes(rates.write_bytes_per_s)}/s written; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return {
        "random_reads_per_s": rates.random_reads_per_s,
        "read_bytes_per_s": rates.read_bytes_per_s,
        "write_bytes_per_s": rates.write_bytes_per_s,
    }


def cross(shop: Workshop, bases: tuple[Point, ...], *, only: str = "") -> dict[str, Any]:
    """Predict runs from the recordings of others that differ along one axis."""
    pairs = tuple(pair for pair in pairs_of(bases) if only in pair.name)
    points = points_of(pairs)
    runs = shop.run_all([point.case for point in points])
    measured: dict[str, list[float]] = {}
    said: dict[Pair, list[float]] = {pair: [] for pair in pairs}
    refused: dict[Pair, list[str]] = {pair: [] for pair in pairs}
    for point in points:
        for run in runs[point.name]:
            if "failed" in run:
                for pair in (pair for pair in pairs if point in {pair.known, pair.asked}):
                    refused[pair].append(run["failed"])
                continue
            with open_run(Path(run["trace"])) as predictor:
                measured.setdefault(point.name, []).append(predictor.measured.seconds)
                for pair in (pair for pair in pairs if pair.known == point):
                    _ask(predictor, pair, said[pair], refused[pair])
    return {
        "runs": {point.name: {"case": point.case.to_json(), "rounds": runs[point.name]} for point in points},
        "measured_s": measured,
        "pairs": [_pair_json(pair, measured, said[pair], refused[pair]) for pair in pairs],
    }


def _ask(predictor: Predictor, pair: Pair, said: list[float], refused: list[str]) -> None:
    try:
        said.append(predictor.predict(parse_changes(pair.change)).replayed_s)
    except GloaderError as error:
        refused.append(str(error))


def _pair_json(
    pair: Pair, measured: dict[str, list[float]], said: Sequence[float], refused: Sequence[str]
) -> dict[str, Any]:
    """Return what was predicted of a pair beside what it took: medians of the rounds in which it was. Pure."""
    found: dict[str, Any] = {
        "axis": pair.axis,
        "known": pair.known.name,
        "asked": pair.asked.name,
        "change": pair.change,
    }
    if not said or not measured.get(pair.asked.name):
        return found | {"refused": refused[0] if refused else "nothing was predicted"}
    known, asked, predicted = (
        median(values) for values in (measured[pair.known.name], measured[pair.asked.name], said)
    )
    return found | {
        "known_s": known,
        "measured_s": asked,
        "predicted_s": predicted,
        "error": predicted / asked - 1,
        # Of a prediction that nothing changes: what there was to be known.
        "distance": known / asked - 1,
        "rounds_refused": refused,
    }


def bottlenecks(shop: Workshop, *, only: str = "") -> dict[str, Any]:
    """Hold up runs on purpose, see whether the analysis names what does, and follow its advice."""
    found = []
    for one in bottleneck_cases():
        if only in one.case.name:
            found += [_held_up(shop, one, number) for number in range(shop.rounds)]
            print(f"    {_said(found[-1])}", flush=True)
    return {"found": found}


def _held_up(shop: Workshop, one: Bottleneck, number: int) -> dict[str, Any]:
    """Return what is said of a run that is held up, and what came of the advice."""
    found: dict[str, Any] = {
        "name": one.case.name,
        "why": one.why,
        "expected_parts": one.parts,
        "expected_remedies": one.remedies,
        "case": one.case.to_json(),
    }
    run = shop.run(one.case, number)
    if "failed" in run:
        return found | {"failed": run["failed"]}
    found["others_shares"] = [run["others_share"]]
    try:
        with open_run(Path(run["trace"])) as predictor:
            told, best = _diagnosed(predictor)
            found |= told
    except GloaderError as error:
        return found | {"failed": str(error)}
    found["is_named"] = _is_named(one, found)
    if best is None:
        return found
    followed = follow(one.case, parse_changes(best.change), best.settings, cores=len(os.sched_getaffinity(0)))
    if followed is None:
        return found | {"not_followed": f"{best.change} cannot be done on this machine"}
    after = shop.run(followed, number)
    if "failed" in after:
        return found | {"failed": after["failed"]}
    found["others_shares"].append(after["others_share"])
    with open_run(Path(after["trace"])) as predictor:
        seconds = predictor.measured.seconds
    return found | {
        "followed": followed.to_json(),
        "predicted_after_s": best.replayed_s,
        "measured_after_s": seconds,
        "error": best.replayed_s / seconds - 1,
        "gain_said": 1 - best.replayed_s / found["replayed_s"],
        "gain_had": 1 - seconds / found["measured_s"],
    }


def _diagnosed(predictor: Predictor) -> tuple[dict[str, Any], Prediction | None]:
    """Return what an analysis says of a run, and the what-if that it advises; None: nothing can be advised."""
    base, header = predictor.base, predictor.recording.header
    predictor.require_trust()
    parts = mean_parts(base.replayed, predictor.measured.counted)
    floor = find_floor(base.work, base.machine, base.shape)
    tried: dict[str, Prediction] = {}
    cannot = {}
    menu = menu_of(threads=header.shape.sampler_threads, superbatch=header.superbatch, cores=header.cores)
    for text in menu:
        try:
            tried[text] = predictor.predict(parse_changes(text))
        except GloaderError as error:
            cannot[text] = str(error)
    what_if = {text: one.replayed_s for text, one in tried.items()}
    best = advised(what_if, epoch_s=base.replayed_s)
    return {
        "measured_s": predictor.measured.seconds,
        "replayed_s": base.replayed_s,
        "unexplained": predictor.unexplained,
        "parts": parts,
        "floor_of": floor.resource,
        "what_if": what_if,
        "cannot": cannot,
        "advised": best,
    }, tried.get(best)


def advised(what_if: Mapping[str, float], *, epoch_s: float) -> str:
    """Return the first what-if that is about as good as the best one; empty where nothing helps. Pure.

    Parameters
    ----------
    what_if : seconds of an epoch by change, those first that ask for the least
    epoch_s : of the run as it was
    """
    least = min(what_if.values(), default=epoch_s)
    if least > (1 - _AS_GOOD) * epoch_s:
        return ""
    return next(change for change, seconds in what_if.items() if seconds <= least + _AS_GOOD * epoch_s)


def _is_named(one: Bottleneck, found: dict[str, Any]) -> dict[str, bool]:
    """Return whether most of an epoch goes where it has to, and whether the remedy is the right one. Pure."""
    parts, remedy = found["parts"], found["advised"].partition("=")[0]
    return {"part": max(parts, key=parts.__getitem__) in one.parts, "remedy": remedy in one.remedies}


def follow(case: Case, changes: Changes, settings: Mapping[str, Any], *, cores: int) -> Case | None:
    """Return ``case`` as somebody runs it who follows a what-if; None where this machine has no such thing. Pure.

    Parameters
    ----------
    case : that was recorded
    changes : the what-if
    settings : keywords of `gloader.Loader` that make it, as its prediction says
    cores : that there are
    """
    values = changes.values
    followed = case.changed(f"{case.name}, {changes.text}", loader=dict(settings))
    for name, value in values.items():
        match name, value:
            case (("disk" | "disk.random" | "disk.write"), Ratio(factor=factor)):
                if followed.disk is None:
                    return None
                both = {"reads": factor, "writes": factor}
                scaled = {"disk.random": {"random": factor}, "disk.write": {"writes": factor}}.get(name, both)
                followed = replace(followed, disk=followed.disk.scaled(**scaled))
            case "compute", Ratio(factor=factor):
                times = case.compute * factor
                if times < 1 or times != int(times):
                    return None
                followed = replace(followed, compute=int(times))
            case "cores", int():
                if value > cores:
                    return None
                followed = replace(followed, cores=value)
            case "threads", int():
                followed = followed.changed(followed.name, loader={"threads": value})
            case "dtype", str():
                followed = replace(followed, graph=replace(followed.graph, dtype=value))
            case (("gpu" | "network" | "ranks" | "order"), _):
                return None
    return followed


def _said(found: dict[str, Any]) -> str:
    """Return what came of a bottleneck in a line. Pure."""
    if "failed" in found:
        return f"{found['name']} failed: {found['failed']}"
    part = max(found["parts"], key=found["parts"].__getitem__)
    named = " and ".join(
        f"{what} {'right' if is_right else 'WRONG'}" for what, is_right in found["is_named"].items()
    )
    line = f"{found['name']}: mostly {part}, advised {found['advised'] or 'nothing'} ({named})"
    if "error" not in found:
        return f"{line}; {found.get('not_followed', 'nothing to follow')}"
    return (
        f"{line}; said {format_exact_seconds(found['predicted_after_s'])}, took "
        f"{format_exact_seconds(found['measured_after_s'])} ({found['error']:+.1%}) instead of "
        f"{format_exact_seconds(found['measured_s'])}; less by {found['gain_had']:.1%}, "
        f"where {found['gain_said']:.1%} was said"
    )


def defaults(shop: Workshop, *, only: str = "") -> dict[str, Any]:
    """Compare runs without a flag with what the search on their replay makes of them."""
    found = []
    for case in (case for case in default_cases() if only in case.name):
        for number in range(shop.rounds):
            found.append({"name": case.name, "case": case.to_json()} | _tuned(shop, case, number))
            print(f"    {case.name}: {_of_tuned(found[-1])}", flush=True)
    return {"found": found}


def _tuned(shop: Workshop, case: Case, number: int) -> dict[str, Any]:
    """Return what a run takes as it comes, and with what suits it best."""
    run = shop.run(case, number)
    if "failed" in run:
        return {"failed": run["failed"]}
    try:
        with open_run(Path(run["trace"])) as predictor:
            default_s = predictor.measured.seconds
            searched = tune(predictor).searched
    except GloaderError as error:
        return {"failed": str(error)}
    found = {
        "default_s": default_s,
        "change": searched.best.changes.text,
        "predicted_s": searched.best.seconds,
    }
    if searched.best is searched.start:
        return found | {"tuned_s": default_s, "ratio": 1.0}
    tuned = case.changed(f"{case.name}, tuned", loader=keywords_of(searched.best.changes))
    after = shop.run(tuned, number)
    if "failed" in after:
        return found | {"failed": after["failed"]}
    with open_run(Path(after["trace"])) as predictor:
        tuned_s = predictor.measured.seconds
    return found | {"tuned_s": tuned_s, "ratio": default_s / tuned_s}


def _of_tuned(found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"failed: {found['failed']}"
    return (
        f"{format_exact_seconds(found['default_s'])} as it comes, {format_exact_seconds(found['tuned_s'])} with "
        f"{found['change'] or 'the same'} (predicted {format_exact_seconds(found['predicted_s'])})"
    )
