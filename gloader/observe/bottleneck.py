"""The bottleneck of an epoch in a sentence: what the loop waited for, and what would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from gloader.core.units import format_bytes, format_seconds
from gloader.memory.divide_cache import CachedTable, divide_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

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
    "store",
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
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What held an epoch up."""

    kind: BottleneckKind
    share: float  # of the step: what the consumer waited; of "compute" and "transfer", what those took
    sentence: str  # for the epoch's line: the finding, and after a semicolon the advice where there is one
    advice: str  # the second half of the sentence, or empty


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """What is known of the feature rows of a node type, beside the sums of an epoch."""

    name: str
    row_bytes: int  # of a cached row; 0: unknown
    cache_rows: int = 0  # of the host cache as it is
    curve: MissCurve | None = None  # of the epoch's accesses or a part of them, by capacity; None: unknown


def find_bottleneck(
    stats: EpochStats,
    *,
    cores: int,
    sampler_threads: int = 1,
    store_s: float = 0.0,
    tables: Sequence[TableFigures] = (),
) -> Bottleneck:
    """Find the slowest resource of an epoch: the model, the CPU, the SSD, the store of a URL, or a stage. Pure.

    A consumer that hardly waits means the model. If kernels were compiled for most of the wait, as in the first run on
    a machine, it is that; if a reader waited for the store for most of the epoch, it is the store. Otherwise it is the
    CPU if all cores are busy, else the stage whose threads are. If none are, the stages wait for each other, as at the
    start of a short epoch.

    Parameters
    ----------
    stats : the sums of the whole epoch, its ``stage_seconds`` in thread-seconds
    cores : what the process may use
    sampler_threads : threads of that stage; every other has one
    store_s : seconds in which a reader waited for bytes from the URL of the dataset
    tables : of the features; with the curves of all of them there is a size of the cache that would hide the SSD
    """
    if stats.seconds <= 0 or not stats.batches:
        return Bottleneck(kind="idle", share=0.0, sentence="no batch was computed", advice="")
    exposed = stats.stage_seconds["wait"] / stats.seconds
    if exposed < _HIDDEN:
        return _hidden_loading(stats, exposed)
    if stats.compile_seconds > stats.stage_seconds["wait"] / 2:
        return _compiling(stats)
    if store_s > _BUSY * stats.seconds:
        return _slow_store(exposed, store_s / stats.seconds)
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
        return _slow_disk(slowest, stats, exposed, tables)
    return _slow_stage(slowest, stats, exposed, tables)


def _slow_disk(
    slowest: BottleneckKind, stats: EpochStats, exposed: float, tables: Sequence[TableFigures]
) -> Bottleneck:
    who = "gather" if slowest == "read" else "the sweep"
    detail = ", ".join(filter(None, [_read_most(stats), _moved(stats)]))
    return _waiting(slowest, exposed, f"{who} waits for the SSD", detail, _cache_advice(stats, tables))


def _slow_store(exposed: float, share: float) -> Bottleneck:
    advice = "what came is read from the mirror from now on, as far as it has room"
    detail = f"readers wait {_percent(share)} of the time"
    return _waiting("store", exposed, "the loop waits for the object store", detail, advice)


def _slow_stage(
    slowest: BottleneckKind, stats: EpochStats, exposed: float, tables: Sequence[TableFigures]
) -> Bottleneck:
    if slowest == "gather":
        advice = "a smaller fan-out or rows stored as float16 would help"
        return _waiting("gather", exposed, "the loop waits for gather", _copied(stats, tables), advice)
    if slowest == "sweep":
        advice = "a larger spill_budget or memory_budget, for passes that serve more batches, would help"
        return _waiting("sweep", exposed, "the samplers wait for passes over the edges", "", advice)
    if slowest == "sample":
        advice = "more sampler threads or a smaller fan-out would help"
        return _waiting("sample", exposed, "the loop waits for the samplers", "", advice)
    advice = "a larger batch or a policy that plans less (static) would help"
    return _waiting("inspect", exposed, "the loop waits for the cache plan", "", advice)


def cache_that_hides(stats: EpochStats, tables: Sequence[TableFigures]) -> int | None:
    """Return the bytes of the smallest cache whose misses take no longer than the computation; None if none does.

    A missing byte is taken to cost what it did in this epoch, however many there are; the cache is divided over the
    tables as a plan does. Pure.

    Parameters
    ----------
    stats : the sums of the whole epoch
    tables : of the features, with their curves
    """
    ssd_seconds = stats.retrieval_s + stats.stage_seconds["stage"]
    misses = [
        _EpochMisses(stats.of_table(table.name), table.row_bytes, table.curve)
        for table in tables
        if table.curve is not None and table.curve.num_accesses
    ]
    if not stats.rows_read or ssd_seconds <= 0 or not misses:
        return 0
    # The disk may work for as long as the loop is busy with something else.
    hidden_s = stats.stage_seconds["compute"] + stats.stage_seconds["transfer"]
    allowed = min(hidden_s / ssd_seconds, 1.0) * sum(one.bytes_now for one in misses) * (1 + _ROUNDING)
    if _missed_bytes(misses, [one.num_rows for one in misses]) > allowed:
        return None
    shelves = [CachedTable(one.num_rows, one.row_bytes, one.row_bytes) for one in misses]
    low, high = 0, sum(one.num_rows * one.row_bytes for one in misses)
    while low < high:  # misses fall with the bytes
        middle = (low + high) // 2
        if _missed_bytes(misses, divide_cache(middle, shelves, misses)) <= allowed:
            high = middle
        else:
            low = middle + 1
    return low


class _EpochMisses:
    """What a table misses in an epoch with a cache of any size: a `HitCurve`.

    Parameters
    ----------
    stats : the sums of the epoch, of this table
    row_bytes : of a row
    curve : of the epoch's accesses or a part of them
    """

    def __init__(self, stats: EpochStats, row_bytes: int, curve: MissCurve) -> None:
        self.row_bytes = row_bytes
        self.num_rows = int(curve.capacities[-1])
        self.bytes_now = stats.rows_read * row_bytes
        self._curve = curve
        self._scale = stats.rows_gathered / curve.num_accesses  # the curve may be of a part of the epoch

    @property
    def capacities(self) -> NDArray[np.float64]:
        """(K,) of slots."""
        return self._curve.capacities.astype(np.float64)

    @property
    def hits(self) -> NDArray[np.float64]:
        """(K,) of the whole epoch, at those."""
        return np.asarray((self._curve.num_accesses - self._curve.misses) * self._scale, dtype=np.float64)

    def bytes_at(self, rows: int) -> float:
        """Return the bytes that are missed with ``rows`` in the cache."""
        return float(self._curve.misses_at(np.array([rows]))[0]) * self._scale * self.row_bytes


def _missed_bytes(misses: Sequence[_EpochMisses], rows: Sequence[int]) -> float:
    return sum(one.bytes_at(count) for one, count in zip(misses, rows, strict=True))


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


def _cache_advice(stats: EpochStats, tables: Sequence[TableFigures]) -> str:
    if not tables or any(table.curve is None or not table.row_bytes for table in tables):
        return "a larger memory budget or rows stored as float16 would help"
    enough = cache_that_hides(stats, tables)
    if enough is None:
        return (
            "no cache would hide it, too many rows are needed once; a faster disk or float16 rows would help"
        )
    if enough <= sum(table.cache_rows * table.row_bytes for table in tables):
        return "the cache is large enough to hide it once it is filled"
    return f"a cache of {format_bytes(enough)} would hide it"


def _read_most(stats: EpochStats) -> str:
    """Return whose rows are most of what was read; nothing where there is one table. Pure."""
    read = {name: counts["bytes_read"] for name, counts in stats.tables.items()}
    if not stats.bytes_read or not read:
        return ""
    most = max(read, key=lambda name: read[name])
    return f"{_percent(read[most] / stats.bytes_read)} of the bytes for {most}"


def _moved(stats: EpochStats) -> str:
    """Return what a sweep moved; nothing where rows were read one by one. Pure."""
    if not stats.bytes_written:
        return ""
    return f"sweeps write {format_bytes(stats.bytes_written)} of {format_bytes(stats.bytes_read)} read"


def _copied(stats: EpochStats, tables: Sequence[TableFigures]) -> str:
    seconds = _copy_seconds(stats)
    if len(tables) > 1 and not stats.tables:
        return ""  # rows in memory are not counted by table
    num_bytes = sum(stats.of_table(table.name).rows_gathered * table.row_bytes for table in tables)
    return f"{format_bytes(num_bytes / seconds)}/s" if num_bytes and seconds else ""


def _waiting(kind: BottleneckKind, exposed: float, finding: str, detail: str, advice: str) -> Bottleneck:
    detail = f" ({detail})" if detail else ""
    sentence = f"{finding}: {_percent(exposed)} of the step{detail}; {advice}"
    return Bottleneck(kind=kind, share=exposed, sentence=sentence, advice=advice)


def _percent(share: float) -> str:
    return f"{100 * min(share, 1.0):.0f}%"
