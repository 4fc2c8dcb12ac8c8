"""Machines that can be had, and their prices, as a file of the user's describes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import shown
from gloader.core.units import parse_bytes
from gloader.core.yaml_file import read_yaml_mapping
from gloader.errors import ConfigError
from gloader.replay.changes import parse_changes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gloader.replay.changes import Changes
    from gloader.replay.recording import RunHeader
    from gloader.ssd_store.cost.io_rates import IoRates

_REQUIRED: Final = ("name", "cores", "memory", "ssd", "dollars_per_hour")
_ALLOWED: Final = (*_REQUIRED, "disk", "gpu", "network")
_EXAMPLE: Final = (
    "machines; write 'machines:' and below it lines such as '- {name: small, cores: 8, memory: 64GB}'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskType:
    """What a disk does, in the terms of `gloader.ssd_store.cost.strategy.IoRates`."""

    random_reads_per_s: float
    read_bytes_per_s: float
    write_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A machine that can be had, and its price."""

    name: str
    cores: int
    memory_bytes: int
    ssd_bytes: int
    dollars_per_hour: float
    disk: DiskType | str | None = None  # or a factor such as "2x"; None: as where the run was recorded
    gpu: str | None = None  # a factor such as "4x"
    network: str | None = None  # a factor, or a rate such as "25Gb/s"

    def changes(self, header: RunHeader, *, loader_bytes: int | None) -> Changes:
        """Return what differs on this machine from where a run was recorded. Pure.

        Parameters
        ----------
        header : of the recording
        loader_bytes : of memory, for the loader; None: as much as it had
        """
        words = [f"cores={self.cores}"]
        # Whoever names no number of sampling threads gets one for each core.
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
        The file is missing or no YAML, or a machine in it is not described as it has to be; says which, and how.
    """
    content = read_yaml_mapping(path, what="the file of machines", holds=_EXAMPLE, error=ConfigError)
    listed = content.get("machines")
    if len(content) != 1 or not isinstance(listed, list) or not listed:
        raise ConfigError(f"{path} holds no list of {_EXAMPLE}")
    found: list[MachineType] = []
    for number, one in enumerate(listed, 1):
        machine = _read_machine(one, f"{path}, machine {number}")
        if any(machine.name == other.name for other in found):
            raise ConfigError(f"{path}, machine {number}: there is another machine named {machine.name!r}")
        found.append(machine)
    return tuple(found)


def _disk_words(disk: DiskType | str | None, rates: IoRates) -> list[str]:
    """Return the changes that make of the disk with ``rates`` another one. Pure."""
    if disk is None:
        return []
    if isinstance(disk, str):
        return [f"disk={disk}"]
    # A factor of reads at random, or of writes, comes on top of that of the disk.
    both = disk.read_bytes_per_s / rates.read_bytes_per_s
    random = disk.random_reads_per_s / rates.random_reads_per_s
    write = disk.write_bytes_per_s / rates.write_bytes_per_s
    return [f"disk={both!r}x", f"disk.random={random / both!r}x", f"disk.write={write / both!r}x"]


def _read_machine(one: object, where: str) -> MachineType:
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
    names = tuple(part.name for part in fields(DiskType))
    values = _checked_keys(content, f"{where}, disk", names, names)
    return DiskType(**{name: _rate(values[name], name, f"{where}, disk") for name in names})


def _checked_keys(
    content: object, where: str, required: Sequence[str], allowed: Sequence[str]
) -> Mapping[str, Any]:
    """Return ``content``, a mapping with these keys; ConfigError where it is none."""
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
    try:
        size = parse_bytes(value)
    except ConfigError as error:
        raise ConfigError(f"{where}: {name}: {error}") from None
    if not size:
        raise ConfigError(f"{where}: {name} is {value!r}; write a size above 0, such as 64GB")
    return size


def _rate(value: Any, name: str, where: str) -> float:
    """Return a number in a second, which of bytes may be a text such as 3GB/s."""
    if isinstance(value, str) and "bytes" in name:
        return float(_size(value.removesuffix("/s"), name, where))
    return _number(value, name, where)


def _number(value: Any, name: str, where: str, *, may_be_zero: bool = False) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
        least = "of at least 0" if may_be_zero else "above 0"
        raise ConfigError(f"{where}: {name} is {value!r}; write a number {least}")
    return float(value)


def _word(value: object, name: str, where: str) -> str | None:
    """Return a factor such as 2x, or whatever else a what-if of ``name`` takes."""
    if value is None:
        return None
    if not isinstance(value, str) or "," in value:
        raise ConfigError(f"{where}: {name} is {value!r}; write a text such as 2x")
    try:
        parse_changes(f"{name}={value}")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return value
