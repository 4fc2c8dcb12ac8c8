"""The bottleneck of an epoch in a sentence: what the loop waited for, and what would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from gloader.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from gloader.cache import MissCurve
    from gloader.observe.epoch_stats import EpochStats

BottleneckKind: TypeAlias = Literal[
    "idle",
    "compile",
    "compute",
    "transfer",
    "cpu",
    "sweep",
    "sample",
    "inspect",
    "stage",
    "read",
    "gather",
    "startup",
]

# The share of a step that the consumer may wait before the loader is worth a look: below it, a loader that took no
# time at all would make the epoch less than a tenth shorter.
_HIDDEN: Final = 0.10
# The share of the cores' time from which on another thread would find no core free.
_SATURATED: Final = 0.90
# The share of its threads' time from which on a stage is what the others wait for. A stage that sets the pace does not
# reach 1: it starts late, and waits for a hand-over with every batch.
_BUSY: Final = 0.60
_ON_THE_CPU: Final = ("sweep", "sample", "inspect", "stage", "gather", "compute")
_ON_THE_DISK: Final[tuple[BottleneckKind, ...]] = ("read", "stage", "sweep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What held an epoch up."""

    kind: BottleneckKind
    share: float  # of the step: what the consumer waited; of "compute" and "transfer", what those took
    sentence: str  # for the epoch's line: the finding, and after a semicolon the advice where there is one
    advice: str  # the second half of the sentence, or empty


def find_bottleneck(
    stats: EpochStats,
    *,
    cores: int,
    sampler_threads: int = 1,
    curve: MissCurve | None = None,
    row_bytes: int = 0,
    cache_bytes: int = 0,
) -> Bottleneck:
    """Find the slowest resource of an epoch: the model, the CPU, the SSD, or a stage. Pure.

    A consumer that hardly waits means the model. If kernels were compiled for most of the wait, as in the first run on
    a machine, it is that. Otherwise it is the CPU if all cores are busy, else the stage whose threads are. If none are,
    the stages wait for each other, as at the start of a short epoch.

    Parameters
    ----------
    stats : the sums of the whole epoch, its ``stage_seconds`` in thread-seconds
    cores : what the process may use
    sampler_threads : threads of that stage; every other has one
    curve : misses of the host cache's policy by capacity, of this epoch's accesses or a part of them; None: unknown
    row_bytes : of a cached row; with the curve it gives the size of the cache that would hide the SSD
    cache_bytes : the host cache as it is
    """
    if stats.seconds <= 0 or not stats.batches:
        return Bottleneck(kind="idle", share=0.0, sentence="no batch was computed", advice="")
    exposed = stats.stage_seconds["wait"] / stats.seconds
    if exposed < _HIDDEN:
        return _hidden_loading(stats, exposed)
    if stats.compile_seconds > stats.stage_seconds["wait"] / 2:
        return _compiling(stats)
    # The order of the questions matters. A stage that is busy while all cores are is slow because of the cores; and
    # reading, staging and sweeping share one disk, so that together they can fill it though none does.
    busy = _stage_shares(stats, sampler_threads=sampler_threads)
    slowest = max(busy, key=lambda kind: busy[kind])
    if busy[slowest] < _BUSY <= sum(busy[kind] for kind in _ON_THE_DISK):
        slowest = max(_ON_THE_DISK, key=lambda kind: busy[kind])
    elif busy[slowest] < _BUSY:
        return _start_up(exposed, slowest, busy[slowest])
    if stats.cpu_seconds >= _SATURATED * cores * stats.seconds:
        return _starved_cpu(stats, exposed, cores)
    if slowest in ("read", "stage"):
        return _slow_disk(slowest, stats, exposed, curve, row_bytes, cache_bytes)
    return _slow_stage(slowest, stats, exposed, row_bytes)


def _slow_disk(
    slowest: BottleneckKind,
    stats: EpochStats,
    exposed: float,
    curve: MissCurve | None,
    row_bytes: int,
    cache_bytes: int,
) -> Bottleneck:
    who = "gather" if slowest == "read" else "the sweep"
    advice = _cache_advice(stats, curve, row_bytes, cache_bytes)
    return _waiting(slowest, exposed, f"{who} waits for the SSD", _moved(stats), advice)


def _slow_stage(slowest: BottleneckKind, stats: EpochStats, exposed: float, row_bytes: int) -> Bottleneck:
    if slowest == "gather":
        advice = "a smaller fan-out or rows stored as float16 would help"
        return _waiting("gather", exposed, "the loop waits for gather", _copied(stats, row_bytes), advice)
    if slowest == "sweep":
        advice = "a larger spill_budget or memory_budget, for passes that serve more batches, would help"
        return _waiting("sweep", exposed, "the samplers wait for passes over the edges", "", advice)
    if slowest == "sample":
        advice = "more sampler threads or a smaller fan-out would help"
        return _waiting("sample", exposed, "the loop waits for the samplers", "", advice)
    advice = "a larger batch or a policy that plans less (static) would help"
    return _waiting("inspect", exposed, "the loop waits for the cache plan", "", advice)


def cache_that_hides(stats: EpochStats, curve: MissCurve, *, row_bytes: int) -> int | None:
    """Return the bytes of the smallest cache whose misses take no longer than the computation; None if none does.

    A miss is taken to cost what it did in this epoch, however many there are. Pure.

    Parameters
    ----------
    stats : the sums of the whole epoch
    curve : misses of the host cache's policy by capacity
    row_bytes : of a cached row
    """
    ssd_seconds = stats.retrieval_s + stats.stage_seconds["stage"]
    if not stats.rows_read or ssd_seconds <= 0 or not curve.num_accesses:
        return 0
    # The disk may work for as long as the loop is busy with something else.
    hidden_s = stats.stage_seconds["compute"] + stats.stage_seconds["transfer"]
    misses = stats.rows_read * min(hidden_s / ssd_seconds, 1.0)
    allowed = int(misses / max(stats.rows_gathered, 1) * curve.num_accesses)
    if int(curve.misses[-1]) > allowed:
        return None
    low, high = 0, int(curve.capacities[-1])
    while low < high:  # misses fall with the capacity
        middle = (low + high) // 2
        if int(curve.misses_at(np.array([middle]))[0]) <= allowed:
            high = middle
        else:
            low = middle + 1
    return low * row_bytes


def _stage_shares(stats: EpochStats, *, sampler_threads: int) -> dict[BottleneckKind, float]:
    """Return how much of the epoch the threads of each stage were at work. Pure."""
    spent = stats.stage_seconds
    seconds: dict[BottleneckKind, float] = {
        "read": stats.retrieval_s,
        "stage": spent["stage"],
        "sweep": spent["sweep"],
        "sample": spent["sample"] / max(sampler_threads, 1),
        "inspect": spent["inspect"],
        "gather": _copy_seconds(stats),
    }
    return {kind: part / stats.seconds for kind, part in seconds.items()}


def _copy_seconds(stats: EpochStats) -> float:
    return max(stats.stage_seconds["gather"] - stats.retrieval_s, 0.0)


def _hidden_loading(stats: EpochStats, exposed: float) -> Bottleneck:
    hidden = f"loading is hidden ({_percent(exposed)} exposed)"
    transfer, compute = (stats.stage_seconds[name] / stats.seconds for name in ("transfer", "compute"))
    if transfer > compute:
        finding = f"the transfer to the device takes {_percent(transfer)} of the step: {hidden}"
        return Bottleneck(kind="transfer", share=transfer, sentence=finding, advice="")
    return Bottleneck(kind="compute", share=compute, sentence=f"the model computes: {hidden}", advice="")


def _compiling(stats: EpochStats) -> Bottleneck:
    share = stats.compile_seconds / stats.seconds
    seconds = format_seconds(stats.compile_seconds)
    finding = f"kernels are compiled: {_percent(share)} of the step ({seconds}); later runs load them"
    return Bottleneck(kind="compile", share=share, sentence=finding, advice="")


def _start_up(exposed: float, busiest: BottleneckKind, share: float) -> Bottleneck:
    advice = "a longer epoch or a larger memory budget would help"
    detail = f"the busiest, {busiest}, works {_percent(share)} of the time"
    return _waiting("startup", exposed, "the loop waits for stages that wait for each other", detail, advice)


def _starved_cpu(stats: EpochStats, exposed: float, cores: int) -> Bottleneck:
    share = stats.cpu_seconds / (cores * stats.seconds)
    users = {name: stats.stage_seconds[name] for name in _ON_THE_CPU}
    first, second = sorted(users, key=lambda name: users[name], reverse=True)[:2]
    detail = f"{cores} busy {_percent(share)} of the time, most with {first} and {second}"
    advice = "more cores, a smaller fan-out or a smaller model would help"
    return _waiting("cpu", exposed, "the loop waits for the CPU cores", detail, advice)


def _cache_advice(stats: EpochStats, curve: MissCurve | None, row_bytes: int, cache_bytes: int) -> str:
    if curve is None or not row_bytes:
        return "a larger memory budget or rows stored as float16 would help"
    enough = cache_that_hides(stats, curve, row_bytes=row_bytes)
    if enough is None:
        return (
            "no cache would hide it, too many rows are needed once; a faster disk or float16 rows would help"
        )
    if enough <= cache_bytes:
        return "the cache is large enough to hide it once it is filled"
    return f"a cache of {format_bytes(enough)} would hide it"


def _moved(stats: EpochStats) -> str:
    """Return what a sweep moved; nothing where rows were read one by one. Pure."""
    if not stats.bytes_written:
        return ""
    return f"sweeps write {format_bytes(stats.bytes_written)} of {format_bytes(stats.bytes_read)} read"


def _copied(stats: EpochStats, row_bytes: int) -> str:
    seconds = _copy_seconds(stats)
    return f"{format_bytes(stats.rows_gathered * row_bytes / seconds)}/s" if row_bytes and seconds else ""


def _waiting(kind: BottleneckKind, exposed: float, finding: str, detail: str, advice: str) -> Bottleneck:
    detail = f" ({detail})" if detail else ""
    sentence = f"{finding}: {_percent(exposed)} of the step{detail}; {advice}"
    return Bottleneck(kind=kind, share=exposed, sentence=sentence, advice=advice)


def _percent(share: float) -> str:
    return f"{100 * min(share, 1.0):.0f}%"
