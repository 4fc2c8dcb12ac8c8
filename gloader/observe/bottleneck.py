"""An epoch's bottleneck in one sentence: the resource that delayed the training loop most.

A loader's method `bottleneck` calls `find_bottleneck` with an epoch's `EpochStats`; training prints the sentence after
the epoch. A stage is a step in the preparation of batches, with threads of its own. A step of the loop is its work for
one batch, with the wait for this batch. All steps together fill the epoch, so a share of the step is a share of the
epoch's wall time. The exposed share is the part in which the loop waited for the loader. A table holds the feature rows
of one node type or relation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gloader.core.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from gloader.observe.epoch_stats import EpochStats

# "idle": no batch was computed. "compile": kernels were compiled. "compute": the model. "transfer": the copy to the
# device. "cpu": all cores are busy. "store": the store behind a dataset's URL. "startup": no single cause. Any other
# kind is the busy stage of this name: "sweep" passes over the edges on the SSD, "sample" draws neighbours, "inspect"
# plans the cache, "stage" reads missing rows of many batches ahead, "read" those of one batch, "gather" copies rows.
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

# From this exposed share on, the loader is a concern. Below it, a loader that took no time would shorten the epoch by
# less than a tenth.
_HIDDEN: Final = 0.10
_LEAST_SHOWN: Final = 0.005  # a smaller share would show as 0%
# From this share of the cores' time on, no core is free for another thread.
_SATURATED: Final = 0.90
# From this share of its threads' time on, a stage delays the other stages. Even the slowest stage does not reach 1,
# because it starts late and waits for a hand-over with each batch.
_BUSY: Final = 0.60
# From this number of threads per core on, a machine is crowded. A loader and its model alone make one or two per core.
_CROWDED: Final = 2.0
# Stages that use cores, and stages that use the disk. "sweep" and "stage" use both.
_ON_THE_CPU: Final = ("sweep", "sample", "inspect", "stage", "gather", "compute")
_ON_THE_DISK: Final[tuple[BottleneckKind, ...]] = ("read", "stage", "sweep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The resource that delayed an epoch most."""

    kind: BottleneckKind  # the resource, or the stage that uses it
    share: float  # share of the step: the loop's wait, or the time of "compute", "transfer" or "compile"
    sentence: str  # sentence for the epoch's line


def find_bottleneck(
    stats: EpochStats,
    *,
    cores: int,
    sampler_threads: int = 1,
    store_s: float = 0.0,
) -> Bottleneck:
    """Find an epoch's slowest resource: the model, the CPU, the SSD, the store behind a URL, or a stage. Pure.

    If the loop hardly waits, the bottleneck is the model, or the transfer if the transfer takes longer. Otherwise, if
    kernels were compiled for more than half of the wait, as in the first run on a machine, compilation is the
    bottleneck. The store is the bottleneck if a reader waited for it during most of the epoch. Otherwise the bottleneck
    is the CPU if all cores are busy, else the busy stage. If no stage is busy, as at the start of a short epoch, there
    is no single cause.

    Parameters
    ----------
    stats : the whole epoch's sums, with ``stage_seconds`` in thread-seconds
    cores : cores that the process may use
    sampler_threads : the sample stage's threads; every other stage has one
    store_s : seconds in which a reader waited for bytes from the dataset's URL
    """
    if stats.seconds <= 0 or not stats.batches:
        return Bottleneck(kind="idle", share=0.0, sentence="no batch was computed")
    exposed = stats.stage_seconds["wait"] / stats.seconds
    if not is_exposed(stats):
        return _hidden_loading(stats, exposed)
    if stats.compile_seconds > stats.stage_seconds["wait"] / 2:
        return _compiling(stats)
    if store_s > _BUSY * stats.seconds:
        return _slow_store(exposed, store_s / stats.seconds)
    # The order of the tests matters. A stage that is busy while all cores are busy is slow because of the cores.
    # Reading, staging and sweeping share one disk, so together they can fill it although no single one does.
    busy = _stage_shares(stats, sampler_threads=sampler_threads)
    slowest = max(busy, key=lambda kind: busy[kind])
    if busy[slowest] < _BUSY <= sum(busy[kind] for kind in _ON_THE_DISK):
        slowest = max(_ON_THE_DISK, key=lambda kind: busy[kind])
    elif busy[slowest] < _BUSY:
        return _waiting(
            "startup", exposed, "loading is slower than the model", "no single stage is the cause"
        )
    if stats.cpu_seconds >= _SATURATED * cores * stats.seconds:
        return _starved_cpu(stats, exposed, cores)
    if slowest in ("read", "stage"):
        return _slow_disk(slowest, stats, exposed)
    return _slow_stage(slowest, stats, exposed)


def is_exposed(stats: EpochStats) -> bool:
    """Return True if the loop waited for loading long enough to be a concern. Pure."""
    return stats.stage_seconds["wait"] >= _HIDDEN * stats.seconds


def spinning_advice(kind: BottleneckKind, *, load: float, cores: int, wait_policy: str | None) -> str:
    """Return advice against spinning threads on a crowded machine, or "" without advice. Pure.

    OpenMP's threads spin while they wait for each other. Without a core for each thread, every small step in a typed
    model takes as long as the scheduler runs another program.

    Parameters
    ----------
    kind : the bottleneck's kind
    load : threads on the machine, from all programs, that run or wait for a core
    cores : the machine's cores
    wait_policy : this process's variable ``OMP_WAIT_POLICY``
    """
    if kind != "compute" or load <= _CROWDED * cores or (wait_policy or "").upper() == "PASSIVE":
        return ""
    return (
        f"{load:.0f} threads want {cores} cores: set OMP_WAIT_POLICY=PASSIVE before Python starts, so that torch's "
        "threads do not spin while they wait"
    )


# The next functions, up to `_slow_stage`, return the bottleneck of an epoch whose loop waited, for one cause each.
# ``exposed`` is the exposed share.


def _slow_disk(slowest: BottleneckKind, stats: EpochStats, exposed: float) -> Bottleneck:
    detail = ", ".join(filter(None, [_read_most(stats), _moved(stats)]))
    return _waiting(slowest, exposed, "reading features waits for the SSD", detail)


def _slow_store(exposed: float, share: float) -> Bottleneck:
    detail = f"readers wait {_percent(share)} of the time; what came is read from the mirror from now on"
    return _waiting("store", exposed, "the loop waits for the object store", detail)


def _slow_stage(slowest: BottleneckKind, stats: EpochStats, exposed: float) -> Bottleneck:
    """Return the bottleneck if ``slowest`` is neither "read" nor "stage", which `_slow_disk` describes."""
    finding = {
        "gather": "the loop waits for gather",
        "sweep": "the samplers wait for passes over the edges",
        "sample": "the loop waits for the samplers",
    }.get(slowest, "the loop waits for the cache plan")  # the only other stage is "inspect"
    return _waiting(slowest, exposed, finding, _copied(stats) if slowest == "gather" else "")


def _stage_shares(stats: EpochStats, *, sampler_threads: int) -> dict[BottleneckKind, float]:
    """Return the share of the epoch in which each stage worked, as a mean over its threads. Pure."""
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
    """Return the seconds of the gather stage without its reads from the SSD."""
    return max(stats.stage_seconds["gather"] - stats.retrieval_s, 0.0)


def _hidden_loading(stats: EpochStats, exposed: float) -> Bottleneck:
    """Return the bottleneck of an epoch whose loop hardly waited: the model or the transfer."""
    cost = f"{_percent(exposed)} of the step" if exposed >= _LEAST_SHOWN else "nothing"
    transfer, compute = (stats.stage_seconds[name] / stats.seconds for name in ("transfer", "compute"))
    if transfer > compute:
        finding = f"the transfer to the device takes {_percent(transfer)} of the step: loading costs {cost}"
        return Bottleneck(kind="transfer", share=transfer, sentence=finding)
    return Bottleneck(kind="compute", share=compute, sentence=f"limited by the model: loading costs {cost}")


def _compiling(stats: EpochStats) -> Bottleneck:
    """Return the bottleneck of an epoch in which kernels were compiled."""
    share = stats.compile_seconds / stats.seconds
    seconds = format_seconds(stats.compile_seconds)
    finding = f"kernels are compiled: {_percent(share)} of the step ({seconds}); later runs load them"
    return Bottleneck(kind="compile", share=share, sentence=finding)


def _starved_cpu(stats: EpochStats, exposed: float, cores: int) -> Bottleneck:
    """Return the bottleneck of an epoch with busy cores, with the two stages that used them most."""
    share = stats.cpu_seconds / (cores * stats.seconds)
    users = {name: stats.stage_seconds[name] for name in _ON_THE_CPU}
    first, second = sorted(users, key=lambda name: users[name], reverse=True)[:2]
    detail = f"{cores} busy {_percent(share)} of the time, most with {first} and {second}"
    return _waiting("cpu", exposed, "the loop waits for the CPU cores", detail)


def _read_most(stats: EpochStats) -> str:
    """Return the table with most of the read bytes, and its share, or "" with a single table. Pure."""
    read = {name: counts["bytes_read"] for name, counts in stats.tables.items()}
    if not stats.bytes_read or not read:
        return ""
    most = max(read, key=lambda name: read[name])
    return f"{_percent(read[most] / stats.bytes_read)} of the bytes for {most}"


def _moved(stats: EpochStats) -> str:
    """Return a text on the bytes that sweeps wrote and read, or "" without sweeps. Pure."""
    if not stats.bytes_written:
        return ""
    return f"sweeps write {format_bytes(stats.bytes_written)} of {format_bytes(stats.bytes_read)} read"


def _copied(stats: EpochStats) -> str:
    """Return the copied rows per second as text."""
    seconds = _copy_seconds(stats)
    return f"{format_count(stats.rows_gathered / seconds)} rows/s" if stats.rows_gathered and seconds else ""


def _waiting(kind: BottleneckKind, exposed: float, finding: str, detail: str = "") -> Bottleneck:
    """Return the bottleneck of an epoch whose loop waited: its sentence is ``finding``, the share, and ``detail``."""
    detail = f" ({detail})" if detail else ""
    return Bottleneck(
        kind=kind, share=exposed, sentence=f"{finding}: {_percent(exposed)} of the step{detail}"
    )


def _percent(share: float) -> str:
    return f"{100 * min(share, 1.0):.0f}%"
