"""The network interfaces of this machine, and gloo's settings for choosing among them.

`settings_to_try` lists the settings that are worth a trial, and `advise` compares the trials. Both are pure.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


INTERFACE_VARIABLE: Final = "GLOO_SOCKET_IFNAME"

_CLASS: Final = Path("/sys/class/net")
_UP, _LOOPBACK = 0x1, 0x8  # of /sys/class/net/NAME/flags
_FAMILIES: Final = {
    socket.AF_INET: (4, 4),
    socket.AF_INET6: (8, 16),
}  # offset of the address in a sockaddr, in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface that is up and has an address."""

    name: str
    addresses: tuple[str, ...]  # with their prefix, such as 10.0.0.3/24
    is_loopback: bool
    bits_per_s: float | None  # from its driver; None if unknown

    def has(self, address: str) -> bool:
        """Return whether this interface has ``address``, given without a prefix. Pure."""
        wanted = ipaddress.ip_address(address)
        # All of 127.0.0.0/8 is this machine.
        if wanted.is_loopback:
            return self.is_loopback
        return any(ipaddress.ip_interface(own).ip == wanted for own in self.addresses)


def list_interfaces(folder: Path = _CLASS) -> list[Interface]:
    """Return the interfaces that are up and have an address, by name.

    Parameters
    ----------
    folder : the system's description of the interfaces
    """
    addresses: dict[str, list[str]] = {}
    for name, address in _addresses():
        addresses.setdefault(name, []).append(address)
    found = []
    for name in sorted(addresses):
        flags = int(_read(folder / name / "flags") or "0", 0)
        if flags & _UP:
            found.append(
                Interface(
                    name=name,
                    addresses=tuple(addresses[name]),
                    is_loopback=bool(flags & _LOOPBACK),
                    bits_per_s=_speed(folder / name / "speed"),
                )
            )
    return found


def address_of_host_name() -> str:
    """Return the address that gloo takes if no interface is named.

    It is the first address of the host's name that this machine has; 127.0.0.1 without any.
    """
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            socket.gethostname(), None, type=socket.SOCK_STREAM
        ):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return str(address[0])
    return "127.0.0.1"


def open_sockets() -> dict[str, str]:
    """Return the address of each internet socket of this process, by its number in the system."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        # A descriptor may be gone by now: for example that of this listing.
        with suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                    if copy.family in _FAMILIES:
                        found[target] = str(copy.getsockname()[0]).split("%")[0]
    return found


def interface_of(address: str, interfaces: Sequence[Interface]) -> str:
    """Return the name of the interface with ``address``, or "". Pure."""
    return next((interface.name for interface in interfaces if interface.has(address)), "")


def _speed(path: Path) -> float | None:
    # Virtual interfaces answer with an error, or with -1.
    text = _read(path)
    return float(text) * 1e6 if text.isdigit() and int(text) else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


class _Entry(ctypes.Structure):
    """`struct ifaddrs` of the C library."""

    _fields_: ClassVar = [
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("address", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("other", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
    ]


def _addresses() -> Iterator[tuple[str, str]]:
    """Yield pairs of an interface name and an address."""
    library, head = ctypes.CDLL(None, use_errno=True), ctypes.POINTER(_Entry)()
    if library.getifaddrs(ctypes.byref(head)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the interfaces of this machine cannot be listed: {os.strerror(number)}")
    try:
        pointer = ctypes.cast(head, ctypes.c_void_p).value
        while pointer:
            entry = _Entry.from_address(pointer)
            address, mask = _ip(entry.address), _ip(entry.mask)
            if address is not None and mask is not None:
                yield os.fsdecode(entry.name), f"{address}/{int(mask).bit_count()}"
            pointer = entry.next
    finally:
        library.freeifaddrs(head)


def _ip(pointer: int | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address in a ``struct sockaddr``; None for another family."""
    if not pointer:
        return None
    family = ctypes.c_uint16.from_address(pointer).value
    for known, (start, size) in _FAMILIES.items():
        if family == known:
            return ipaddress.ip_address(ctypes.string_at(pointer + start, size))
    return None


CONNECTIONS: Final = (2, 4)  # between two machines, tried besides a single one
MOST_TRIED: Final = 6  # networks
# A line in a launch script must be worth more than noise: least gain of another network, or of more connections.
_GAIN: Final = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The description that a machine of a launch sends to the others."""

    name: str
    host: str  # machines of one host are rehearsed
    interfaces: tuple[Interface, ...]
    named: str  # the value of GLOO_SOCKET_IFNAME, or ""
    resolved: str  # the address of the host's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of GLOO_SOCKET_IFNAME on each machine."""

    names: tuple[str, ...]  # an interface of each machine; empty for the present setting
    connections: int = 1

    def value_on(self, machine: int) -> str:
        """Return the value of the variable on ``machine``. Pure."""
        return ",".join([self.names[machine]] * self.connections)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTrial:
    """A setting and its measurements."""

    setting: Setting
    used: tuple[str, ...]  # address of each machine's connections; empty without connections
    bytes_per_s: float  # of the slowest machine, all sending at once; 0 without connections
    latency_s: float
    pairs: Mapping[tuple[int, int], tuple[float, float]]  # bytes/s and seconds by the numbers of two machines
    error: str  # cause of a failed connection; empty if connected

    @property
    def is_connected(self) -> bool:
        """True if the machines reached each other."""
        return not self.error


def failed(setting: Setting, error: str) -> NetworkTrial:
    """Return the trial of a setting that does not connect the machines. Pure."""
    return NetworkTrial(setting=setting, used=(), bytes_per_s=0.0, latency_s=0.0, pairs={}, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAdvice:
    """A recommended change of the network settings."""

    lines: tuple[str, ...]  # to run on each machine before torchrun; empty if no change is needed
    reason: str
    is_needed: bool  # whether the machines fail to connect without it
    trial: NetworkTrial | None  # the trial that shows the gain, if any


def settings_to_try(cards: Sequence[Card]) -> list[Setting]:
    """Return an interface of each machine for every network that all of them share, the fastest first. Pure.

    A network is shared if its addresses have the same prefix everywhere, or if its interfaces have one name. Loopback
    only reaches machines on one host.
    """
    is_one_host = len({card.host for card in cards}) == 1
    found: dict[tuple[str, ...], float] = {}
    usable = [
        [interface for interface in card.interfaces if is_one_host or not interface.is_loopback]
        for card in cards
    ]
    keys = [{key for interface in own for key in _networks(interface)} for own in usable]
    for key in sorted(set.intersection(*keys)) if keys else ():
        chosen = [next(interface for interface in own if key in _networks(interface)) for own in usable]
        speed = min((interface.bits_per_s or 0.0 for interface in chosen), default=0.0)
        found[tuple(interface.name for interface in chosen)] = speed
    ranked = sorted(found, key=lambda names: (-found[names], names))
    return [Setting(names=names) for names in ranked[:MOST_TRIED]]


def _networks(interface: Interface) -> set[str]:
    """Return the keys by which an interface may share a network with those of other machines. Pure."""
    shared = {f"name {interface.name}"}
    for text in interface.addresses:
        address = ipaddress.ip_interface(text)
        # Every interface has a link-local address: it does not identify a network.
        if not address.is_link_local:
            shared.add(f"network {address.network}")
    return shared


def advise(cards: Sequence[Card], now: NetworkTrial, others: Sequence[NetworkTrial]) -> NetworkAdvice:
    """Return the values to export on each machine, if another setting is faster or the present one fails. Pure.

    Parameters
    ----------
    cards : of the machines
    now : trial of the present setting
    others : trials of other settings
    """
    best = now
    for trial in others:
        if trial.bytes_per_s > _GAIN * best.bytes_per_s:
            best = trial
    if best is now:
        if now.is_connected:
            return NetworkAdvice(lines=(), reason="no other setting is faster", is_needed=False, trial=None)
        return NetworkAdvice(lines=(), reason=_no_way(cards), is_needed=True, trial=None)
    values = [best.setting.value_on(machine) for machine in range(len(cards))]
    lines = tuple(f"export {INTERFACE_VARIABLE}={value}" for value in values)
    reason = now.error
    if now.is_connected:
        reason = f"{best.bytes_per_s / now.bytes_per_s:.1f} times as fast"
    return NetworkAdvice(lines=lines, reason=reason, is_needed=not now.is_connected, trial=best)


def lost_as_it_is(cards: Sequence[Card]) -> str:
    """Return why gloo cannot reach the other machines with the present setting; "" if no reason is known. Pure."""
    is_one_host = len({card.host for card in cards}) == 1
    for card in cards:
        known = {interface.name: interface for interface in card.interfaces}
        for name in filter(None, card.named.split(",")):
            if name not in known:
                return f"{card.name} has no interface {name}, which {INTERFACE_VARIABLE} names"
            if known[name].is_loopback and not is_one_host:
                return f"{INTERFACE_VARIABLE} names {name} on {card.name}, which no other machine reaches"
        if not card.named and not is_one_host and _is_loopback(card.resolved):
            return (
                f"the host name of {card.name} resolves to {card.resolved}, which no other machine reaches; gloo "
                f"takes that address where {INTERFACE_VARIABLE} is not set"
            )
    return ""


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.split("%", maxsplit=1)[0]).is_loopback


def _no_way(cards: Sequence[Card]) -> str:
    names = sorted(
        {interface.name for card in cards for interface in card.interfaces if not interface.is_loopback}
    )
    return (
        f"no interface of the machines ({', '.join(names) or 'they have loopback alone'}) reaches all others: look at "
        "firewalls, which have to allow every port between them, and at routes"
    )
