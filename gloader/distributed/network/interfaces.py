"""The machine's network interfaces, and gloo's settings for the choice among them.

gloo is torch's library for transfers between CPUs. Its environment variable GLOO_SOCKET_IFNAME names the interface that
it uses; a name that is given n times means n connections to each other machine.

For ``gloader doctor --network``, `gloader.distributed.network.survey` calls this module. First, `list_interfaces` reads
a machine's interfaces from Linux. `settings_to_try` then lists the settings to measure, and `advise` compares the
measured trials. The last two are pure.

- A `Card` is a machine's description (not a network card): its interfaces and its present setting.
- A setting is the value of the variable on each machine. A trial is a setting with its measurements.
- A loopback interface connects a machine only with itself.
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

_CLASS: Final = Path("/sys/class/net")  # Linux has a folder for each interface here
_UP, _LOOPBACK = 0x1, 0x8  # bits in /sys/class/net/NAME/flags
# Offset and size of the address in a `struct sockaddr`, in bytes, by address family.
_FAMILIES: Final = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface that is up and has an address."""

    name: str
    addresses: tuple[str, ...]  # with a prefix, such as 10.0.0.3/24
    is_loopback: bool
    bits_per_s: float | None  # reported by the driver; None if unknown

    def has(self, address: str) -> bool:
        """Return whether this interface has ``address``, which has no prefix. Pure."""
        parsed = ipaddress.ip_address(address)
        # Every address in 127.0.0.0/8 is this machine.
        if parsed.is_loopback:
            return self.is_loopback
        return any(ipaddress.ip_interface(text).ip == parsed for text in self.addresses)


def list_interfaces(folder: Path = _CLASS) -> list[Interface]:
    """Return the interfaces that are up and have an address, by name.

    Parameters
    ----------
    folder : the system's folder with one entry per interface
    """
    addresses: dict[str, list[str]] = {}
    for name, address in _addresses():
        addresses.setdefault(name, []).append(address)
    interfaces = []
    for name in sorted(addresses):
        flags = int(_read(folder / name / "flags") or "0", 0)
        if flags & _UP:
            interfaces.append(
                Interface(
                    name=name,
                    addresses=tuple(addresses[name]),
                    is_loopback=bool(flags & _LOOPBACK),
                    bits_per_s=_speed(folder / name / "speed"),
                )
            )
    return interfaces


def address_of_host_name() -> str:
    """Return the address that gloo uses if no interface is named.

    It is the first of the host name's addresses that this machine has, or else 127.0.0.1. As in gloo, the test is to
    bind a socket, which fails for an address of another machine.
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
    """Return the local address of each of this process's internet sockets, such as {"socket:[4711]": "10.0.0.3"}.

    The keys are Linux's names of the sockets. A survey calls this before and after gloo connects: the new sockets show
    the address that gloo uses.
    """
    addresses = {}
    for entry in Path("/proc/self/fd").iterdir():
        # A descriptor may be closed by now, such as the one for this directory listing.
        with suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                    if copy.family in _FAMILIES:
                        addresses[target] = str(copy.getsockname()[0]).split("%")[0]
    return addresses


def interface_of(address: str, interfaces: Sequence[Interface]) -> str:
    """Return the name of the interface with ``address``, or "". Pure."""
    return next((interface.name for interface in interfaces if interface.has(address)), "")


def _speed(path: Path) -> float | None:
    """Return the bits per second in the file ``path``, which counts megabits; None if unknown."""
    # Virtual interfaces report an error or -1.
    text = _read(path)
    return float(text) * 1e6 if text.isdigit() and int(text) else None


def _read(path: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


class _Entry(ctypes.Structure):
    """`struct ifaddrs` of the C library, an element of a linked list.

    Only ``next``, ``name``, ``address`` and ``mask`` are read. The other fields give these their offsets.
    """

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
    """Yield pairs of an interface name and an address with its prefix."""
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
    """Return the address in a ``struct sockaddr``; None for other address families."""
    if not pointer:
        return None
    family = ctypes.c_uint16.from_address(pointer).value
    for known, (start, size) in _FAMILIES.items():
        if family == known:
            return ipaddress.ip_address(ctypes.string_at(pointer + start, size))
    return None


CONNECTIONS: Final = (2, 4)  # numbers of connections between two machines, tried in addition to 1
MOST_TRIED: Final = 6  # maximum number of networks to try
# Minimum ratio of a setting's rate to the best rate so far, which at first is the current setting's. A smaller gain may
# be noise, and is no reason to change a launch script.
_GAIN: Final = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A machine's description, sent to the other machines of a launch."""

    name: str
    # Id of the computer and of its network. Machines that GLOADER_MACHINE simulates on one computer have the same host.
    host: str
    interfaces: tuple[Interface, ...]
    named: str  # the value of GLOO_SOCKET_IFNAME, or ""
    resolved: str  # the host name's address


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value of GLOO_SOCKET_IFNAME for each machine, or the current setting, which leaves the variable unchanged."""

    names: tuple[str, ...]  # one interface name per machine; empty for the current setting
    connections: int = 1  # number of connections between two machines

    def value_on(self, machine: int) -> str:
        """Return the variable's value on the machine with number ``machine``. Not for the current setting. Pure."""
        return ",".join([self.names[machine]] * self.connections)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTrial:
    """A setting and its measurements."""

    setting: Setting
    used: tuple[str, ...]  # local address of each machine's connections; empty if not connected
    # The rate at which the slowest machine sends while every machine sends to all others; 0 if not connected.
    bytes_per_s: float
    latency_s: float  # seconds of an almost empty exchange of all machines
    # (bytes per second in each direction, seconds of latency in one direction) of two machines. The key has the
    # machines' numbers, the smaller number first.
    pairs: Mapping[tuple[int, int], tuple[float, float]]
    error: str  # the reason why no connection was made; empty if connected

    @property
    def is_connected(self) -> bool:
        """True if the machines reached each other."""
        return not self.error


def failed(setting: Setting, error: str) -> NetworkTrial:
    """Return the trial of a setting that does not connect the machines. Pure."""
    return NetworkTrial(setting=setting, used=(), bytes_per_s=0.0, latency_s=0.0, pairs={}, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAdvice:
    """The result of `advise`: a recommended change of the network settings, or the reason why there is none."""

    lines: tuple[str, ...]  # one command per machine, run before torchrun; empty without a change
    reason: str  # for the change, or for no change, as text for the user
    is_needed: bool  # True if the machines cannot connect with the current setting, even if no other setting connects
    trial: NetworkTrial | None  # the trial that shows the gain, if any


def settings_to_try(cards: Sequence[Card]) -> list[Setting]:
    """Return one setting per network that all machines share, fastest first. Pure.

    Machines share a network if their addresses have the same prefix, or if their interfaces have the same name.
    Loopback connects only machines on one host.
    """
    is_one_host = len({card.host for card in cards}) == 1
    # The bits per second of each candidate. A candidate is one interface name per machine, in the order of ``cards``.
    speeds: dict[tuple[str, ...], float] = {}
    usable = [
        [interface for interface in card.interfaces if is_one_host or not interface.is_loopback]
        for card in cards
    ]
    keys = [{key for interface in interfaces for key in _networks(interface)} for interfaces in usable]
    for key in sorted(set.intersection(*keys)) if keys else ():
        # Each machine's first interface with this key.
        chosen = [
            next(interface for interface in interfaces if key in _networks(interface))
            for interfaces in usable
        ]
        # A candidate is as fast as its slowest interface. An unknown speed counts as 0, so the candidate is tried last.
        speed = min((interface.bits_per_s or 0.0 for interface in chosen), default=0.0)
        speeds[tuple(interface.name for interface in chosen)] = speed
    ranked = sorted(speeds, key=lambda names: (-speeds[names], names))
    return [Setting(names=names) for names in ranked[:MOST_TRIED]]


def _networks(interface: Interface) -> set[str]:
    """Return the interface's keys; interfaces with a common key may share a network. Pure."""
    shared = {f"name {interface.name}"}
    for text in interface.addresses:
        address = ipaddress.ip_interface(text)
        # Link-local addresses have the same prefix in every network, so this prefix identifies no network.
        if not address.is_link_local:
            shared.add(f"network {address.network}")
    return shared


def advise(cards: Sequence[Card], now: NetworkTrial, others: Sequence[NetworkTrial]) -> NetworkAdvice:
    """Return the values to export on each machine, if another setting is faster or the current one fails. Pure.

    Parameters
    ----------
    cards : the machines' cards
    now : the current setting's trial
    others : trials of other settings
    """
    best = now  # a connected setting is better than one that does not connect, whose rate is 0
    for trial in others:
        if trial.bytes_per_s > _GAIN * best.bytes_per_s:
            best = trial
    if best is now:
        if now.is_connected:
            return NetworkAdvice(lines=(), reason="no other setting is faster", is_needed=False, trial=None)
        return NetworkAdvice(lines=(), reason=_no_connection(cards), is_needed=True, trial=None)
    values = [best.setting.value_on(machine) for machine in range(len(cards))]
    lines = tuple(f"export {INTERFACE_VARIABLE}={value}" for value in values)
    reason = now.error
    if now.is_connected:
        reason = f"{best.bytes_per_s / now.bytes_per_s:.1f} times as fast"
    return NetworkAdvice(lines=lines, reason=reason, is_needed=not now.is_connected, trial=best)


def lost_as_it_is(cards: Sequence[Card]) -> str:
    """Return the reason why gloo cannot connect with the current setting; "" if no reason is found. Pure.

    gloo cannot connect if the variable names an interface that the machine lacks. With several hosts, it also cannot
    connect if a machine's address is a loopback address.
    """
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
                f"takes that address if {INTERFACE_VARIABLE} is not set"
            )
    return ""


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.split("%", maxsplit=1)[0]).is_loopback


def _no_connection(cards: Sequence[Card]) -> str:
    """Return the reason of an advice if no setting connects the machines. Pure."""
    names = sorted(
        {interface.name for card in cards for interface in card.interfaces if not interface.is_loopback}
    )
    return (
        f"no interface of the machines ({', '.join(names) or 'they have only loopback'}) reaches all others: look at "
        "firewalls, which have to allow every port between the machines, and at routes"
    )
