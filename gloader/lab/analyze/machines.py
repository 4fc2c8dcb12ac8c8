"""Candidate machines for a run: types and prices from a file, and the predicted epoch on each machine.

This is `gloader plan RUN --machines FILE`. `read_machines` reads the machine types. `find_offers` predicts an epoch on
each type with several memory budgets, by the recorded run's `Predictor`. It writes a machine as changes to the recorded
machine, such as "cores=8,disk=2x". An offer is one type with one budget. An offer is dominated if another one is at
least as good in time, memory, disk and money, and better in one of them. Only undominated offers are shown.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.malformed import MALFORMED, read_yaml_mapping, shown
from gloader.core.units import format_bytes, parse_bytes
from gloader.errors import BudgetError, ConfigError, ReplayError
from gloader.replay.changes import NO_CHANGES, parse_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.lab.analyze.predict import Predictor
    from gloader.replay.changes import Changes
    from gloader.replay.recording import RunHeader
    from gloader.ssd_store.cost.io_rates import IoRates


def non_dominated(points: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return the numbers of the points that no other point dominates, in order. Pure.

    A point dominates another one if no value is larger and at least one is smaller. Equal points do not dominate
    each other.

    Parameters
    ----------
    points : (P, D) values to be minimised, such as seconds and dollars
    """
    if not points:
        return ()
    values = np.asarray(points, dtype=np.float64)
    return tuple(
        number
        for number, point in enumerate(values)
        if not np.any((values <= point).all(axis=1) & (values < point).any(axis=1))
    )


_REQUIRED: Final = ("name", "cores", "memory", "ssd", "dollars_per_hour")  # a machine's keys in the file
_ALLOWED: Final = (*_REQUIRED, "disk", "gpu", "network")
# The file's content and advice on writing it, for errors.
_EXAMPLE: Final = (
    "machines; write 'machines:' and below it lines such as '- {name: small, cores: 8, memory: 64GB}'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskType:
    """A disk's rates, as defined in `gloader.ssd_store.cost.io_rates.IoRates`."""

    random_reads_per_s: float
    read_bytes_per_s: float
    write_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A machine on offer, and its price."""

    name: str
    cores: int
    memory_bytes: int
    ssd_bytes: int
    dollars_per_hour: float
    disk: DiskType | str | None = None  # rates, or a factor such as "2x"; None means the recorded disk
    gpu: str | None = None  # a factor such as "4x"
    network: str | None = None  # a factor, or a rate such as "25Gb/s"

    def changes(self, header: RunHeader, *, loader_bytes: int | None) -> Changes:
        """Return the differences between this machine and the recorded machine. Pure.

        Parameters
        ----------
        header : the recording's header
        loader_bytes : memory for the loader; None means its recorded share
        """
        words = [f"cores={self.cores}"]
        # The default number of sampling threads is one for each core.
        if header.settings.get("threads") is None:
            words.append(f"threads={self.cores}")
        words += _disk_words(self.disk, header.rates)
        words += [f"gpu={self.gpu}"] if self.gpu is not None else []
        words += [f"network={self.network}"] if self.network is not None else []
        words += [f"memory={loader_bytes}"] if loader_bytes is not None else []
        return parse_changes(",".join(words))


def read_machines(path: Path) -> tuple[MachineType, ...]:
    """Return the machines in a YAML file.

    Raises
    ------
    ConfigError
        The file is missing or not YAML, or describes a machine wrongly; the error names the machine and the remedy.
    """
    content = read_yaml_mapping(path, what="the file of machines", holds=_EXAMPLE, error=ConfigError)
    listed = content.get("machines")
    if len(content) != 1 or not isinstance(listed, list) or not listed:
        raise ConfigError(f"{path} holds no list of {_EXAMPLE}")
    machines: list[MachineType] = []
    for number, one in enumerate(listed, 1):
        machine = _read_machine(one, f"{path}, machine {number}")
        if any(machine.name == other.name for other in machines):
            raise ConfigError(f"{path}, machine {number}: there is another machine named {machine.name!r}")
        machines.append(machine)
    return tuple(machines)


def _disk_words(disk: DiskType | str | None, rates: IoRates) -> list[str]:
    """Return the changes from the disk with ``rates`` to another disk. Pure."""
    if disk is None:
        return []
    if isinstance(disk, str):
        return [f"disk={disk}"]
    # The factor of "disk" applies to all reads and writes. Those of "disk.random" and "disk.write" are applied in
    # addition, so they are divided by it.
    read_factor = disk.read_bytes_per_s / rates.read_bytes_per_s
    random_factor = disk.random_reads_per_s / rates.random_reads_per_s
    write_factor = disk.write_bytes_per_s / rates.write_bytes_per_s
    return [
        f"disk={read_factor!r}x",
        f"disk.random={random_factor / read_factor!r}x",
        f"disk.write={write_factor / read_factor!r}x",
    ]


def _read_machine(one: object, where: str) -> MachineType:
    """Return one machine of the file; ``where`` names it in errors."""
    values = _checked_keys(one, where, _REQUIRED, _ALLOWED)
    name = values["name"]
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{where}: its name is {name!r}; write a text")
    where = f"{where} ({name})"
    cores = values["cores"]
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise ConfigError(f"{where}: cores is {cores!r}; write a whole number of at least 1")
    disk = values.get("disk")
    return MachineType(
        name=name,
        cores=cores,
        memory_bytes=_size(values["memory"], "memory", where),
        ssd_bytes=_size(values["ssd"], "ssd", where),
        dollars_per_hour=_number(values["dollars_per_hour"], "dollars_per_hour", where, may_be_zero=True),
        disk=_disk(disk, where) if isinstance(disk, dict) else _word(disk, "disk", where),
        gpu=_word(values.get("gpu"), "gpu", where),
        network=_word(values.get("network"), "network", where),
    )


def _disk(content: object, where: str) -> DiskType:
    """Return the disk that a mapping with three rates describes. Raises ConfigError for anything else."""
    names = tuple(part.name for part in fields(DiskType))
    values = _checked_keys(content, f"{where}, disk", names, names)
    return DiskType(**{name: _rate(values[name], name, f"{where}, disk") for name in names})


def _checked_keys(
    content: object, where: str, required: Sequence[str], allowed: Sequence[str]
) -> Mapping[str, Any]:
    """Return ``content`` as a mapping with these keys. Raises ConfigError for anything else."""
    if not isinstance(content, dict):
        raise ConfigError(f"{where} is a {type(content).__name__}, not a mapping with {', '.join(required)}")
    for key in content:
        if key not in allowed:
            nearest = get_close_matches(str(key), allowed, n=1, cutoff=0.5)
            advice = f"did you mean {nearest[0]!r}?" if nearest else f"keys are: {', '.join(allowed)}"
            raise ConfigError(f"{where}: unknown key {shown(key)}; {advice}")
    if missing := [key for key in required if key not in content]:
        raise ConfigError(f"{where}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    return content


def _size(value: Any, name: str, where: str) -> int:
    """Return the bytes of a size such as 64GB, above 0. Raises ConfigError for anything else."""
    try:
        size = parse_bytes(value)
    except ConfigError as error:
        raise ConfigError(f"{where}: {name}: {error}") from None
    if not size:
        raise ConfigError(f"{where}: {name} is {value!r}; write a size above 0, such as 64GB")
    return size


def _rate(value: Any, name: str, where: str) -> float:
    """Return a rate per second. For bytes it may be a text such as 3GB/s."""
    if isinstance(value, str) and "bytes" in name:
        return float(_size(value.removesuffix("/s"), name, where))
    return _number(value, name, where)


def _number(value: Any, name: str, where: str, *, may_be_zero: bool = False) -> float:
    """Return a finite number above 0, or of at least 0. Raises ConfigError for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
        least = "of at least 0" if may_be_zero else "above 0"
        raise ConfigError(f"{where}: {name} is {value!r}; write a number {least}")
    return float(value)


def _word(value: object, name: str, where: str) -> str | None:
    """Return a factor such as 2x, or another value that a what-if allows for ``name``. Raises ConfigError otherwise."""
    if value is None:
        return None
    if not isinstance(value, str) or "," in value:
        raise ConfigError(f"{where}: {name} is {value!r}; write a text such as 2x")
    try:
        parse_changes(f"{name}={value}")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return value


_RESULT: Final = "result.json"  # the run folder's file with the run's results
# Evaluations may take a run's memory divided by this number; see `gloader.training.run_budget.share_budget`.
_EVALUATIONS: Final = 4
_NUM_BUDGETS: Final = 6  # memory budgets to try on a machine
# Largest budget, as a share of a machine's memory; the system and page cache take the rest.
_BUDGET_SHARE: Final = 0.8
# The search for the least budget ends when its bounds differ by at most this factor.
_CLOSE_BUDGETS: Final = 1.1
_SMALLEST: Final = 1 << 20  # bytes: a smaller loader is not tried
_SECONDS_PER_HOUR: Final = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """The division of a run's memory between its loader and everything else."""

    total_bytes: int  # the recorded run's memory
    loader_bytes: int  # the loader's part

    @classmethod
    def of_run(cls, run: Path, header: RunHeader) -> RunMemory:
        """Return the division for the run in a folder. With only a trace, the loader has all memory."""
        try:
            total = int(json.loads((run / _RESULT).read_bytes())["memory_budget_bytes"])
        except (OSError, *MALFORMED):
            total = 0
        return cls(total_bytes=max(total, header.budget_bytes), loader_bytes=header.budget_bytes)

    def of_loader(self, total_bytes: int) -> int:
        """Return the loader's approximate part of ``total_bytes``.

        Evaluations take a share of any total. The other parts of the run take as many bytes as they did when recorded.
        """
        # Of the bytes outside the loader, at most 1/4 of the total scales with the total; the rest is constant.
        other_bytes = self.total_bytes - self.loader_bytes
        share = min(other_bytes / self.total_bytes, 1 / _EVALUATIONS)
        return int(total_bytes * (1 - share) - (other_bytes - share * self.total_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOffer:
    """A machine with a memory budget, and its predicted epoch."""

    machine: MachineType
    budget_bytes: int  # the run's memory
    seconds: float  # seconds per epoch
    ssd_bytes: int  # disk for the dataset and packs
    dollars: float  # dollars per epoch

    @property
    def costs(self) -> tuple[float, ...]:
        """The values to minimise."""
        return (self.seconds, self.budget_bytes, self.ssd_bytes, self.dollars)

    def to_json(self) -> dict[str, Any]:
        """Return the offer as a JSON object."""
        return {
            "machine": self.machine.name,
            "epoch_s": self.seconds,
            "memory_bytes": self.budget_bytes,
            "ssd_bytes": self.ssd_bytes,
            "dollars_per_epoch": self.dollars,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """A run's predictions on all machines."""

    best: tuple[MachineOffer, ...]  # the undominated offers, fastest first
    num_predicted: int  # predicted offers, with the dominated ones
    left_out: Mapping[str, str]  # by machine name: the reason why the run is impossible on it

    def choose(
        self, *, most_dollars: float | None = None, most_seconds: float | None = None
    ) -> MachineOffer | None:
        """Return the best offer within the bounds, or None if there is none.

        The best offer is the fastest one if only dollars are bounded, else the cheapest.

        Parameters
        ----------
        most_dollars, most_seconds : bounds for an epoch; None means no bound
        """
        within = [
            offer
            for offer in self.best
            if offer.dollars <= (math.inf if most_dollars is None else most_dollars)
            and offer.seconds <= (math.inf if most_seconds is None else most_seconds)
        ]
        if most_seconds is None and most_dollars is not None:
            return min(within, key=lambda offer: (offer.seconds, offer.dollars), default=None)
        return min(within, key=lambda offer: (offer.dollars, offer.seconds), default=None)


def find_offers(
    predictor: Predictor,
    machines: Sequence[MachineType],
    *,
    memory: RunMemory,
    says: Callable[[str], None] = lambda _: None,
) -> Offers:
    """Predict an epoch on each machine, with several memory budgets, and keep the undominated offers.

    Parameters
    ----------
    predictor : predicts the run
    machines : the machines on offer
    memory : the division of the run's memory
    says : receives each tried machine's name

    Raises
    ------
    ReplayError
        The replay explains too little of the run for predictions.
    """
    header = predictor.recording.header
    predictor.predict(NO_CHANGES)  # raises for an untrusted run, before any machine
    dataset_bytes = stored_bytes(header)
    least = _least_budget(predictor, memory, _most_memory(max(one.memory_bytes for one in machines)))
    offers: list[MachineOffer] = []
    left_out: dict[str, str] = {}
    for machine in machines:
        says(machine.name)
        machine_offers: list[MachineOffer] = []
        reason = f"{format_bytes(machine.memory_bytes)} of memory are too little"
        for budget in _budgets(machine, least, memory):
            try:
                machine_offers.append(_offer(predictor, machine, budget, memory, dataset_bytes))
            except (BudgetError, ConfigError, ReplayError) as error:
                reason = str(error)
        offers += machine_offers
        if not machine_offers:
            left_out[machine.name] = reason
    best = (offers[number] for number in non_dominated([one.costs for one in offers]))
    return Offers(
        best=tuple(sorted(best, key=lambda one: one.costs)), num_predicted=len(offers), left_out=left_out
    )


def stored_bytes(header: RunHeader) -> int:
    """Return the disk bytes for a run's dataset, or for its feature rows if the dataset is not on this machine."""
    root = Path(header.dataset)
    if root.is_dir():
        return sum(
            (Path(folder) / name).stat().st_size for folder, _, names in os.walk(root) for name in names
        )
    return sum(table.num_rows * table.row_bytes for table in header.tables)


def _offer(
    predictor: Predictor,
    machine: MachineType,
    budget_bytes: int | None,
    memory: RunMemory,
    dataset_bytes: int,
) -> MachineOffer:
    """Return the offer for ``machine``. Raises BudgetError if its disk is too small.

    Without ``budget_bytes``, the run keeps its recorded budget.
    """
    loader_bytes = None if budget_bytes is None else memory.of_loader(budget_bytes)
    prediction = predictor.predict(machine.changes(predictor.recording.header, loader_bytes=loader_bytes))
    ssd_bytes = dataset_bytes + predictor.spill_bytes(prediction)
    if ssd_bytes > machine.ssd_bytes:
        raise BudgetError(
            f"dataset and packs take {format_bytes(ssd_bytes)} of disk, and it has {format_bytes(machine.ssd_bytes)}"
        )
    seconds = prediction.replayed_s
    return MachineOffer(
        machine=machine,
        budget_bytes=memory.total_bytes if budget_bytes is None else budget_bytes,
        seconds=seconds,
        ssd_bytes=ssd_bytes,
        dollars=seconds / _SECONDS_PER_HOUR * machine.dollars_per_hour,
    )


def _least_budget(predictor: Predictor, memory: RunMemory, most_bytes: int) -> int | None:
    """Return the approximate least memory for the run, or ``most_bytes`` + 1 if ``most_bytes`` are too little.

    The search halves the interval of budgets on a logarithmic scale. Returns None if only the recorded budget can be
    predicted.
    """

    def works(budget_bytes: int) -> bool:
        """Return whether the run can be planned within this memory."""
        loader_bytes = memory.of_loader(budget_bytes)
        if loader_bytes < _SMALLEST:
            return False
        try:
            predictor.predict(parse_changes(f"memory={loader_bytes}"))
        except BudgetError:
            return False
        return True

    low, high = _SMALLEST, most_bytes
    try:
        if not works(high):
            return high + 1
        while high > _CLOSE_BUDGETS * low:
            middle = int(math.sqrt(low * high))
            low, high = (low, middle) if works(middle) else (middle, high)
    except (ConfigError, ReplayError):
        return None
    return high


def _most_memory(memory_bytes: int) -> int:
    """Return the largest budget for a run on a machine with this memory, in bytes."""
    return int(_BUDGET_SHARE * memory_bytes)


def _budgets(machine: MachineType, least: int | None, memory: RunMemory) -> tuple[int | None, ...]:
    """Return the budgets to try on a machine, in geometric steps. None stands for the recorded budget. Pure."""
    most = _most_memory(machine.memory_bytes)
    if least is None:
        return (None,) if memory.total_bytes <= most else ()
    if least > most:
        return ()
    steps = _NUM_BUDGETS - 1
    return tuple(
        dict.fromkeys(
            most if number == steps else int(least * (most / least) ** (number / steps))
            for number in range(_NUM_BUDGETS)
        )
    )
