"""The settings of gloo that are tried, and the one that is advised."""

import json
from dataclasses import asdict, replace

import pytest

from gloader.cli.machine_check import what_to_do
from gloader.core.records import Records
from gloader.distributed.network.interfaces import (
    Card,
    Interface,
    NetworkTrial,
    Setting,
    advise,
    failed,
    interface_of,
    lost_as_it_is,
    settings_to_try,
)
from gloader.distributed.network.survey import Survey, rounds


def _interface(name: str, *addresses: str, gigabits: float | None = None) -> Interface:
    speed = None if gigabits is None else gigabits * 1e9
    return Interface(name=name, addresses=addresses, is_loopback=name == "lo", bits_per_s=speed)


LO = _interface("lo", "127.0.0.1/8", "::1/128")


def _card(name: str, *interfaces: Interface, named: str = "", resolved: str = "10.0.0.1") -> Card:
    return Card(name=name, host=name, interfaces=(LO, *interfaces), named=named, resolved=resolved)


def _trial(names: tuple[str, ...], megabytes: float, connections: int = 1) -> NetworkTrial:
    return NetworkTrial(
        setting=Setting(names=names, connections=connections),
        used=("10.0.0.1", "10.0.0.2"),
        bytes_per_s=megabytes * 1e6,
        latency_s=1e-4,
        pairs={(0, 1): (1e6, 1e-4)},
        error="",
    )


A = _card("a", _interface("eth0", "10.0.0.1/24", gigabits=1), _interface("ib0", "10.9.0.1/16", gigabits=100))
B = _card("b", _interface("eth0", "10.0.0.2/24", gigabits=1), _interface("ibp3", "10.9.0.2/16", gigabits=100))


def test_networks_that_all_machines_share_are_tried_the_fastest_first() -> None:
    assert [setting.names for setting in settings_to_try([A, B])] == [("ib0", "ibp3"), ("eth0", "eth0")]


def test_loopback_is_tried_between_machines_of_one_host_alone() -> None:
    rehearsed = [replace(A, host="h"), replace(B, host="h")]
    assert ("lo", "lo") in [setting.names for setting in settings_to_try(rehearsed)]
    assert ("lo", "lo") not in [setting.names for setting in settings_to_try([A, B])]


def test_interfaces_of_one_name_are_tried_though_their_networks_differ() -> None:
    routed = _card("c", _interface("eth0", "10.0.7.2/24"))
    assert [setting.names for setting in settings_to_try([A, routed])] == [("eth0", "eth0")]


def test_link_local_addresses_are_no_network_that_machines_share() -> None:
    one = _card("a", _interface("x", "fe80::1/64"), _interface("y", "10.0.0.1/24"))
    other = _card("b", _interface("z", "fe80::2/64"), _interface("y", "10.0.0.2/24"))
    assert [setting.names for setting in settings_to_try([one, other])] == [("y", "y")]


def test_a_setting_names_one_interface_for_each_connection() -> None:
    assert Setting(names=("eth0", "ib0"), connections=4).value_on(1) == "ib0,ib0,ib0,ib0"


def test_another_network_is_advised_where_it_is_a_fifth_faster() -> None:
    now = _trial((), 100)
    assert advise([A, B], now, [_trial(("eth0", "eth0"), 119)]).lines == ()
    advice = advise([A, B], now, [_trial(("eth0", "eth0"), 119), _trial(("ib0", "ibp3"), 900)])
    assert advice.lines == ("export GLOO_SOCKET_IFNAME=ib0", "export GLOO_SOCKET_IFNAME=ibp3")
    assert (advice.reason, advice.is_needed) == ("9.0 times as fast", False)


@pytest.mark.parametrize(("megabytes", "value"), [(1000, "ib0"), (1300, "ib0,ib0,ib0,ib0")])
def test_several_connections_are_advised_where_they_are_faster_than_one(megabytes: float, value: str) -> None:
    names = ("ib0", "ibp3")
    advice = advise([A, B], _trial((), 100), [_trial(names, 900), _trial(names, megabytes, connections=4)])
    assert advice.lines[0] == f"export GLOO_SOCKET_IFNAME={value}"


def test_a_setting_that_does_not_connect_is_never_advised() -> None:
    advice = advise([A, B], _trial((), 1), [failed(Setting(names=("ib0", "ibp3")), "time-out")])
    assert advice.lines == ()


@pytest.mark.parametrize(
    ("card", "why"),
    [
        (replace(B, resolved="127.0.1.1"), "host name of b resolves to 127.0.1.1"),
        (replace(B, resolved="fe80::1%eth0"), ""),
        (replace(B, named="eth7"), "b has no interface eth7"),
        (replace(B, named="eth0,lo"), "names lo on b"),
        (replace(B, named="eth0,eth0", resolved="127.0.0.1"), ""),
    ],
)
def test_what_cannot_connect_is_known_before_it_is_tried(card: Card, why: str) -> None:
    assert why in lost_as_it_is([A, card])
    assert bool(lost_as_it_is([A, card])) == bool(why)


def test_loopback_is_no_obstacle_between_machines_of_one_host() -> None:
    rehearsed = [replace(card, host="h", named="lo", resolved="127.0.0.1") for card in (A, B)]
    assert lost_as_it_is(rehearsed) == ""


def test_where_nothing_works_it_is_said_what_to_look_at() -> None:
    now = failed(Setting(names=()), "refused")
    advice = advise([A, B], now, [failed(Setting(names=("eth0", "eth0")), "time-out")])
    assert (advice.lines, advice.is_needed) == ((), True)
    assert "(eth0, ib0, ibp3)" in advice.reason
    assert "firewalls" in advice.reason


def test_lines_to_copy_stand_alone() -> None:
    others = [_trial(("ib0", "ibp3"), 900)]
    advice = advise([A, B], _trial((), 1), others)
    survey = Survey(cards=(A, B), now=_trial((), 1), others=tuple(others), advice=advice)
    assert what_to_do(survey).splitlines() == [
        "run these before torchrun",
        "on a:",
        "export GLOO_SOCKET_IFNAME=ib0",
        "on b:",
        "export GLOO_SOCKET_IFNAME=ibp3",
    ]
    same = replace(survey, advice=replace(advice, lines=("export X=y",) * 2))
    assert what_to_do(same).splitlines()[1:] == ["export X=y"]


def test_a_card_comes_back_from_json() -> None:
    assert Records().read(Card, json.loads(json.dumps(asdict(A)))) == A


@pytest.mark.parametrize("size", range(1, 10))
def test_every_machine_meets_every_other_once(size: int) -> None:
    met = [list(rounds(index, size)) for index in range(size)]
    for index, peers in enumerate(met):
        assert sorted(peer for peer in peers if peer is not None) == [
            other for other in range(size) if other != index
        ]
        # Whom I meet meets me, in the same round.
        assert all(met[peer][turn] == index for turn, peer in enumerate(peers) if peer is not None)


def test_an_address_belongs_to_its_interface() -> None:
    assert interface_of("10.9.0.1", A.interfaces) == "ib0"
    assert interface_of("127.0.1.1", A.interfaces) == "lo"
    assert interface_of("10.0.0.77", A.interfaces) == ""
