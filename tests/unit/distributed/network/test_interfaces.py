"""The interfaces of this machine, as the system tells them."""

import socket
from pathlib import Path

import pytest

from gloader.distributed.network import interfaces
from gloader.distributed.network.interfaces import address_of_host_name, list_interfaces, open_sockets


def test_loopback_is_among_the_interfaces_with_its_address() -> None:
    lo = {interface.name: interface for interface in list_interfaces()}["lo"]
    assert (lo.is_loopback, lo.bits_per_s) == (True, None)
    assert "127.0.0.1/8" in lo.addresses


def test_speed_and_state_are_what_the_driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        interfaces,
        "_addresses",
        lambda: iter([("a", "10.0.0.1/24"), ("a", "fd00::1/64"), ("b", "10.0.0.2/24"), ("c", "10.0.0.3/24")]),
    )
    for name, flags, speed in (("a", "0x1003", "25000"), ("b", "0x1002", "1000"), ("c", "0x1003", "-1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "flags").write_text(f"{flags}\n")
        (tmp_path / name / "speed").write_text(f"{speed}\n")
    first, second = list_interfaces(tmp_path)  # b is down
    assert (first.name, first.bits_per_s, first.addresses) == ("a", 25e9, ("10.0.0.1/24", "fd00::1/64"))
    assert (second.name, second.bits_per_s) == ("c", None)


@pytest.mark.parametrize(
    ("found", "address"),
    [
        # gloo takes the first address that this machine has, and loopback where it has none of them.
        ([("192.0.2.77", 0), ("127.0.0.1", 0)], "127.0.0.1"),
        ([("192.0.2.77", 0)], "127.0.0.1"),
        ([("127.0.1.1", 0)], "127.0.1.1"),
    ],
)
def test_the_address_of_the_host_name_is_one_that_this_machine_has(
    monkeypatch: pytest.MonkeyPatch, found: list[tuple[str, int]], address: str
) -> None:
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one) for one in found]
    monkeypatch.setattr(interfaces.socket, "getaddrinfo", lambda *_, **__: answers)
    assert address_of_host_name() == address


def test_a_name_that_does_not_resolve_leaves_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(interfaces.socket, "getaddrinfo", unknown)
    assert address_of_host_name() == "127.0.0.1"


def test_sockets_are_seen_with_their_addresses_and_stay_open() -> None:
    before = open_sockets()
    with socket.create_server(("127.0.0.1", 0)) as server:
        (new,) = open_sockets().keys() - before.keys()
        assert open_sockets()[new] == "127.0.0.1"
        assert server.fileno() >= 0
    assert open_sockets().keys() == before.keys()
