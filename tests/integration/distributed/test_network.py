"""`gloader doctor --network`: what it says of the machines of a launch, and that its advice brings what it promises."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rank_server import Ended

Run = Callable[..., list[Ended]]

_FAST, _SLOW = "fast0", "slow0"


def test_machines_of_a_host_are_surveyed_and_nothing_is_left(run: Run) -> None:
    ended = run("surveying", world=3, names=["a", "b", "a"], timeout_s=60.0)
    assert [(how.status, how.error) for how in ended] == [(0, "")] * 3
    first, *others = [how.result for how in ended]
    assert [machine["name"] for machine in first["machines"]] == ["a", "b"]
    assert all({**found, "left": []} == {**first, "left": []} for found in others)
    now = first["now"]
    assert (now["error"], now["used"]) == ("", ["127.0.0.1"] * 2)  # the tests set the variable to lo
    assert now["bytes_per_s"] > 1e6
    ((*pair, bytes_per_s, latency_s),) = now["pairs"]
    assert pair == [0, 1]
    assert bytes_per_s > 1e6
    assert 0 < latency_s < 1
    tried = [trial["setting"] for trial in first["others"]]
    assert {"names": ["lo", "lo"], "connections": 1} in tried
    assert {setting["connections"] for setting in tried} == {1, 2, 4}
    assert "gloo uses lo (127.0.0.1, GLOO_SOCKET_IFNAME=lo)" in first["findings"][0]["value"]
    for how in ended:
        assert (how.result["left"], how.result["variable"], how.result["has_group"]) == ([], "lo", False)


def test_one_machine_has_no_network_to_measure(run: Run) -> None:
    for how in run("surveying", world=2, names=["a", "a"]):
        assert how.error.startswith(
            "gloader.errors.ConfigError: all 2 ranks are on one machine, a: there is no"
        )


def test_without_torchrun_it_is_said_how_to_run_it() -> None:
    environ = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    command = [sys.executable, "-m", "gloader", "doctor", "--network"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environ)
    assert ended.returncode == 2
    assert "start it on each of them with" in ended.stderr
    assert "torchrun --nnodes W" in ended.stderr


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with two cables between them: one of 100 Mbit/s and one of 1 Gbit/s."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    names = (f"gl{os.getpid()}a", f"gl{os.getpid()}b")
    try:
        for name in names:
            _ip("netns", "add", name)
        for number, (cable, rate) in enumerate(((_FAST, "1gbit"), (_SLOW, "100mbit"))):
            ends = [f"{name}{number}"[-15:] for name in names]
            _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for machine, (name, end) in enumerate(zip(names, ends, strict=True), start=1):
                _ip("link", "set", end, "netns", name)
                _ip("-n", name, "link", "set", end, "name", cable)
                _ip("-n", name, "addr", "add", f"10.99.{number}.{machine}/24", "dev", cable)
                _ip("-n", name, "link", "set", cable, "up")
                _ip("-n", name, "link", "set", "lo", "up")
                shape = ["root", "tbf", "rate", rate, "burst", "512kb", "latency", "50ms"]
                command = ["tc", "-n", name, "qdisc", "add", "dev", cable, *shape]
                subprocess.run(command, check=True, capture_output=True)
        yield names
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', error)}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _doctor(names: tuple[str, str], lines: list[str], folder: Path) -> tuple[list[int], dict]:
    """Run the doctor on both machines after the ``lines`` of each; return the statuses and what the first one says."""
    common = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    common |= {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.99.1.1", "MASTER_PORT": "29533"}
    command = f"{sys.executable} -m gloader doctor --network --json"
    outputs = [folder / f"out-{rank}" for rank in range(2)]
    processes = []
    for rank, (name, line, output) in enumerate(zip(names, lines, outputs, strict=True)):
        with output.open("wb") as file:
            processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", name, "sh", "-c", f"{line}\n exec {command}"],
                    env=common | {"RANK": str(rank), "GLOADER_MACHINE": "ab"[rank]},
                    stdout=file,
                    stderr=subprocess.DEVNULL,
                )
            )
    statuses = [process.wait(120) for process in processes]
    found = json.loads(outputs[0].read_text())
    return statuses, {**found, **found["network"]}


@pytest.mark.long
@pytest.mark.parametrize("at_first", ["true", f"export GLOO_SOCKET_IFNAME={_SLOW}"])
def test_who_follows_the_advice_gets_the_fast_network(
    namespaces: tuple[str, str], at_first: str, tmp_path: Path
) -> None:
    """At first gloo takes loopback, as the host's name resolves to it, or the slow cable that somebody named."""
    statuses, found = _doctor(namespaces, [at_first] * 2, tmp_path)
    is_lost = at_first == "true"
    assert statuses == [1, 1] if is_lost else [0, 0]
    assert found["usable"] is not is_lost
    (advice,) = [finding for finding in found["findings"] if finding["name"] == "advice"]
    assert advice["severity"] == ("problem" if is_lost else "note")
    assert advice["fix"].split("=")[1].split(",")[0] == _FAST
    statuses, followed = _doctor(namespaces, found["export"], tmp_path)
    assert statuses == [0, 0]
    assert followed["now"]["used"] == ["10.99.0.1", "10.99.0.2"]
    promised = {
        tuple(trial["setting"]["names"]): trial["bytes_per_s"]
        for trial in found["others"]
        if trial["setting"]["connections"] == 1
    }
    assert followed["now"]["bytes_per_s"] > 0.5 * promised[_FAST, _FAST]
    assert followed["now"]["bytes_per_s"] > 3 * promised[_SLOW, _SLOW]
    assert not any(_SLOW in line for line in followed["export"])
