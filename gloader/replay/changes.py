"""Changes of a run for a what-if: ``disk=2x``, ``cache=20%``, ``cores=8``, alone or combined. Pure.

A what-if asks for a recorded run's time if one or more knobs had other values. A knob is a property of the machine or
a setting of the loader. `parse_changes` reads the text of the command line. The ``changed_`` functions apply changes of
rates, cores, threads and computation, which need no new cache plan. `gloader.lab.analyze.replan` applies the changes in
`REPLANNED`, which need one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gloader.core.dtypes import FEATURE_DTYPES
from gloader.core.fanouts import MAX_COUNT, checked_fanouts
from gloader.core.flag_values import parse_share
from gloader.core.malformed import shown
from gloader.core.units import parse_bytes
from gloader.errors import ConfigError
from gloader.replay.work import SAMPLED_AHEAD
from gloader.ssd_store.cost.io_rates import MEDIUM_BYTES, SMALL_BYTES, WIDE_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gloader.replay.work import Demands, Machine, PipelineShape, RunWork
    from gloader.ssd_store.cost.io_rates import IoRates


# The knobs, with their meanings for error messages.
_FORMS: Final[Mapping[str, str]] = {
    "disk": "a factor such as 2x, of all reads and writes",
    "disk.random": "a factor such as 2x, of reads at random",
    "disk.write": "a factor such as 2x",
    "gpu": "a factor such as 4x, of the speed at which the model is computed",
    "compute": "a factor such as 2x, of what the model has to compute",
    "network": "a factor such as 2x, or a rate such as 25Gb/s",
    "cores": "a number",
    "threads": "a number, of sampling threads",
    "buffers": "a number, of feature buffers, or auto",
    "ranks": "a number",
    "memory": "a size such as 8GB, or a factor such as 2x, of the budget",
    "cache": "a size such as 2GB, a share of the features such as 20%, a factor such as 2x, or auto",
    "superbatch": "a number of batches, a factor such as 2x, or auto",
    "policy": "belady, static, lru, fifo, clock, sieve, s3fifo or none",
    "strategy": "auto, direct, staged or packed",
    "dtype": f"{', '.join(FEATURE_DTYPES[:-1])} or {FEATURE_DTYPES[-1]}",
    "order": "none, degree or community",
    "fanout": "neighbours by hop, such as 10/10/5",
    "batch-size": "a number",
}
KNOBS: Final = tuple(_FORMS)
_ALL: Final = ", ".join(f"{knob}=" for knob in KNOBS)
# Knobs that change the accesses or the plan. Their batches are sampled and planned again. The other knobs change only
# rates or threads.
REPLANNED: Final = frozenset(
    {
        "memory",
        "cache",
        "superbatch",
        "policy",
        "strategy",
        "dtype",
        "order",
        "fanout",
        "batch-size",
        "buffers",
    }
)
# Knobs that take only a factor.
_RATIOS: Final = frozenset({"disk", "disk.random", "disk.write", "gpu", "compute"})
_COUNTS: Final = frozenset({"cores", "threads", "buffers", "ranks"})  # knobs that take only a number
# Keywords of `gloader.Loader`, for knobs that are loader settings.
KEYWORDS: Final[Mapping[str, str]] = {
    "policy": "policy",
    "strategy": "io_strategy",
    "fanout": "fanouts",
    "batch-size": "batch_size",
    "threads": "threads",
    "buffers": "buffers",
    "cache": "cache",
    "superbatch": "superbatch",
}
AUTO: Final = "auto"
# The knobs that the memory plan chooses if they are AUTO. `gloader.Loader` calls this value None.
_PLANNED: Final = frozenset({"buffers", "cache", "superbatch"})
# Knobs that take one of the words in `_FORMS`.
_CHOICES: Final = frozenset({"policy", "strategy", "dtype", "order"})
_LIMIT: Final = 1000.0  # largest factor, and its inverse the smallest; any other is a typing error
_MOST: Final = 10_000  # largest value for `_COUNTS`; a larger one is a typing error
# Other accepted names of knobs.
_ALIASES: Final[Mapping[str, str]] = {"S": "superbatch", "batch_size": "batch-size", "fanouts": "fanout"}
# A rate in bits per second, such as 25Gb/s or 25Gbps, and the factors for its prefixes.
_BITS: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])b(?:/s|ps)?")
_SCALES: Final[Mapping[str, float]] = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A new value in relation to the recorded value, such as 2x."""

    factor: float


# A knob's new value. None means that the memory plan chooses it.
Value: TypeAlias = "Ratio | int | float | str | tuple[int, ...] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The new values by knob, with the what-if's text."""

    values: Mapping[str, Value]
    text: str

    @property
    def needs_plan(self) -> bool:
        """True if batches must be planned again."""
        return any(name in REPLANNED for name in self.values)

    def ratio(self, name: str) -> float:
        """Return the factor for the knob ``name``, or 1 if it is unchanged."""
        value = self.values.get(name)
        return value.factor if isinstance(value, Ratio) else 1.0


NO_CHANGES: Final = Changes(values={}, text="")


def parse_changes(text: str) -> Changes:
    """Return the changes from text such as ``cache=2x,superbatch=128``.

    Raises
    ------
    ConfigError
        There is no such knob, or the value is not allowed; the error names the allowed values.
    """
    values: dict[str, Value] = {}
    parts = ["".join(part.split()) for part in text.split(",")]
    for part in filter(None, parts):
        name, value = _named(part)
        if name not in _FORMS:
            raise ConfigError(f"a what-if of {shown(part)} is not understood; use one of {_ALL}")
        if name in values:
            raise ConfigError(f"the what-if {shown(text)} names {name} twice")
        values[name] = _value(name, value)
    if not values:
        raise ConfigError(f"the what-if {shown(text)} changes nothing; use one of {_ALL}")
    return Changes(values=values, text=",".join(filter(None, parts)))


def _named(part: str) -> tuple[str, str]:
    """Return the knob and value in ``part``, such as "S=128". The knob is "" without a "="."""
    name, equals, value = part.partition("=")
    return (_ALIASES.get(name, name), value) if equals else ("", part)


def _value(name: str, text: str) -> Value:
    """Return a knob's value from its text. Raises ConfigError with the knob's form if it is not understood."""
    try:
        return _read(name, text)
    except ValueError:  # includes ConfigError, a subclass
        raise ConfigError(f"{name}={shown(text)} is not understood; it takes {_FORMS[name]}") from None


def _read(name: str, text: str) -> Any:  # noqa: PLR0911 - a line for each form
    """Return a knob's value from its text. Raises ValueError if the text is not understood."""
    if name in _PLANNED and text == AUTO:
        return None
    if name in _COUNTS:
        return _count(text, most=_MOST)
    if name == "batch-size":
        return _count(text, most=MAX_COUNT)
    if name in _RATIOS:
        return _ratio(text)
    if name == "fanout":
        return checked_fanouts(text.replace("/", ","))
    if name in _CHOICES:
        return _choice(text, _FORMS[name].replace(" or ", ", ").split(", "))
    if text.endswith("x"):
        return _ratio(text)
    if name == "superbatch":
        return _count(text, most=MAX_COUNT)
    if name == "network":
        return _bits_per_s(text)
    return parse_share(text) if name == "cache" else parse_bytes(text)


def _count(text: str, *, most: int) -> int:
    count = int(text)
    if not 1 <= count <= most:
        raise ValueError(text)
    return count


def _choice(text: str, allowed: Collection[str]) -> str:
    if text not in allowed:
        raise ValueError(text)
    return text


def _ratio(text: str) -> Ratio:
    factor = float(text.removesuffix("x"))
    if not 1 / _LIMIT <= factor <= _LIMIT:
        raise ValueError(text)
    return Ratio(factor=factor)


def _bits_per_s(text: str) -> float:
    """Return the bytes per second for text such as 25Gb/s."""
    match = _BITS.fullmatch(text)
    rate = 0.0 if match is None else float(match[1]) * _SCALES[match[2]] / 8
    if not 0 < rate < math.inf:
        raise ValueError(text)
    return rate


def changed_rates(rates: IoRates, changes: Changes) -> IoRates:
    """Return a disk's rates with ``changes``.

    The latency improves by the same factor as random reads. Distributing a sweep's rows to its batches is processor
    work, so its rate stays the same.
    """
    both = changes.ratio("disk")
    random, write = both * changes.ratio("disk.random"), both * changes.ratio("disk.write")
    in_order = rates.read_bytes_per_s * both

    def reads(per_s: float, size: int) -> float:
        """Return the new rate of random reads with ``size`` bytes, from the old rate ``per_s``."""
        # No random read is faster than a read in file order. Rates that were measured faster stay unchanged.
        return min(per_s * random, max(in_order / size, per_s * both))

    return replace(
        rates,
        random_reads_per_s=reads(rates.random_reads_per_s, SMALL_BYTES),
        medium_reads_per_s=reads(rates.medium_reads_per_s, MEDIUM_BYTES),
        wide_reads_per_s=reads(rates.wide_reads_per_s, WIDE_BYTES),
        read_bytes_per_s=in_order,
        pack_read_bytes_per_s=rates.pack_read_bytes_per_s * both,
        write_bytes_per_s=rates.write_bytes_per_s * write,
        latency_s=rates.latency_s / random,
    )


def changed_machine(machine: Machine, changes: Changes) -> Machine:
    """Return a machine with ``changes`` of its cores and network. `changed_rates` applies the changes of the disk."""
    speed = {**machine.speed, "network": machine.speed_of("network") * changes.ratio("network")}
    return replace(machine, cores=float(count_of(changes, "cores", int(machine.cores))), speed=speed)


def changed_shape(shape: PipelineShape, changes: Changes) -> PipelineShape:
    """Return a pipeline shape with ``changes`` of ranks, threads and buffers.

    Raises ConfigError if no pipeline can have this shape.
    """
    ranks = count_of(changes, "ranks", shape.num_ranks)
    threads = count_of(changes, "threads", shape.sampler_threads)
    buffers = count_of(changes, "buffers", shape.num_buffers)
    if ranks > 1 and buffers < 2:
        raise ConfigError("ranks that share a loader need two feature buffers each; ask for buffers=2")
    # Each sampler thread holds one batch, and each rank may have `SAMPLED_AHEAD` batches waiting.
    more = threads - shape.sampler_threads + SAMPLED_AHEAD * (ranks - shape.num_ranks)
    return replace(
        shape,
        num_ranks=ranks,
        sampler_threads=threads,
        num_buffers=buffers,
        ahead=max(shape.ahead + more, 1),
    )


def changed_compute(work: RunWork, changes: Changes) -> RunWork:
    """Return ``work`` with computations that ``changes`` of "compute" and "gpu" make longer or shorter."""
    factor = changes.ratio("compute") / changes.ratio("gpu")
    if factor == 1.0:
        return work

    def scaled(demands: Demands) -> Demands:
        return demands._replace(
            cpu_s=demands.cpu_s * factor, device_s=demands.device_s * factor, lag_s=demands.lag_s * factor
        )

    return replace(work, batches=tuple(replace(one, compute=scaled(one.compute)) for one in work.batches))


def count_of(changes: Changes, name: str, before: int) -> int:
    """Return the new number for the knob ``name``, or ``before`` if it is unchanged or not a number."""
    value = changes.values.get(name, before)
    return value if isinstance(value, int) else before
