"""The machine that a process belongs to, and the names that tell machines of one host apart."""

import os
from pathlib import Path

import pytest

from gloader.core import machine
from gloader.core.machine import (
    MACHINE_VARIABLE,
    distinct_names,
    folder_of_machine,
    host_id,
    machine_id,
    named_machine,
    shown_machine,
)
from gloader.errors import ConfigError


@pytest.mark.parametrize("name", ["a", "numa-0", "rack_3.node-17", "7", "x" * 64])
def test_a_short_printable_name_names_a_machine(name: str) -> None:
    assert named_machine({MACHINE_VARIABLE: name}) == name


@pytest.mark.parametrize("name", [" ", "a b", "a/b", "..", ".a", "-a", "a\n", "ä", "x" * 65, "a\x1b[2J"])
def test_another_name_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"GLOADER_MACHINE=.* 1 to 64 letters, digits, dots, dashes"
    ) as caught:
        named_machine({MACHINE_VARIABLE: name})
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("environ", [{}, {MACHINE_VARIABLE: ""}])
def test_without_a_name_the_host_is_the_machine(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    monkeypatch.delenv(MACHINE_VARIABLE, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert machine_id() == host_id()
    assert shown_machine() == os.uname().nodename
    assert folder_of_machine(Path("/mirrors")) == Path("/mirrors")


def test_named_machines_of_one_host_differ_in_all_but_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("a", "b"):
        monkeypatch.setenv(MACHINE_VARIABLE, name)
        found.append((machine_id(), shown_machine(), folder_of_machine(Path("/mirrors")), host_id()))
    (*first, first_host), (*second, second_host) = found
    assert all(one != other for one, other in zip(first, second, strict=True))
    assert first_host == second_host
    assert found[0][1:3] == ("a", Path("/mirrors/a"))


def test_a_host_without_a_boot_id_is_known_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "_BOOT_ID", tmp_path / "missing")
    assert host_id() == os.uname().nodename


def test_names_that_several_machines_have_say_whose_they_are() -> None:
    assert distinct_names(["a", "b"], [0, 3]) == ("a", "b")
    assert distinct_names(["pod", "b", "pod"], [0, 2, 5]) == ("pod (rank 0)", "b", "pod (rank 5)")
