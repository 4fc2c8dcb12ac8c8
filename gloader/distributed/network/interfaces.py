"""The network interfaces of this machine, and which of them gloo takes by itself."""

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
    from collections.abc import Iterator, Sequence

INTERFACE_VARIABLE: Final = "GLOO_SOCKET_IFNAME"

_CLASS: Final = Path("/sys/class/net")
_UP, _LOOPBACK = 0x1, 0x8  # of /sys/class/net/NAME/flags
_FAMILIES: Final = {
    socket.AF_INET: (4, 4),
    socket.AF_INET6: (8, 16),
}  # where a sockaddr has its address, in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface that is up and has an address."""

    name: str
    addresses: tuple[str, ...]  # with their prefix, such as 10.0.0.3/24
    is_loopback: bool
    bits_per_s: float | None  # as its driver says; None: it does not

    def has(self, address: str) -> bool:
        """Return whether ``address``, without a prefix, is one of this interface. Pure."""
        wanted = ipaddress.ip_address(address)
        # All of 127.0.0.0/8 is this machine.
        if wanted.is_loopback:
            return self.is_loopback
        return any(ipaddress.ip_interface(own).ip == wanted for own in self.addresses)


def list_interfaces(folder: Path = _CLASS) -> list[Interface]:
    """Return the interfaces that are up and have an address, by name.

    Parameters
    ----------
    folder : where the system describes them
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
    """Return the address that gloo takes where nobody names an interface.

    It is the first that the host's name resolves to and that this machine has; 127.0.0.1 where there is none.
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
        # A descriptor may be gone by now: the one of this listing is.
        with suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                    if copy.family in _FAMILIES:
                        found[target] = str(copy.getsockname()[0]).split("%")[0]
    return found


def interface_of(address: str, interfaces: Sequence[Interface]) -> str:
    """Return the name of the interface that has ``address``; empty where none has. Pure."""
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
    """Yield names of interfaces with an address each."""
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
    """Return the address in a ``struct sockaddr``; None for one of another family."""
    if not pointer:
        return None
    family = ctypes.c_uint16.from_address(pointer).value
    for known, (start, size) in _FAMILIES.items():
        if family == known:
            return ipaddress.ip_address(ctypes.string_at(pointer + start, size))
    return None
