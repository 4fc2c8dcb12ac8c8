"""Machines that exchange rows by gloo: every byte, and what all are told when one is gone, stands still or leaves."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rank_server import Ended

Run = Callable[..., list[Ended]]

SOON_S = 10.0


def test_hosts_get_the_rows_of_all_disks_in_groups_of_any_size_again_and_again(run: Run) -> None:
    ended = run("exchanging", world=4)
    for rank, how in enumerate(ended):
        assert how.error == ""
        assert how.result["rounds"] > 0
        assert how.result["sizes"] == [(rank - 1) % 4] * 2
        assert how.result["threads"] == []


# Before it connects, when it meets, in the plan of a fetch, in its rounds, and between two fetches.
@pytest.mark.reliability("N1")
@pytest.mark.parametrize(("victim", "call"), [(1, 0), (0, 8), (1, 11), (2, 14), (1, 15), (0, 17)])
def test_a_machine_that_is_killed_is_named_by_all_others(run: Run, victim: int, call: int) -> None:
    ended = run("dying", world=3, victim=victim, call=call, number=signal.SIGKILL, own_store=False)
    assert ended[victim].status == -signal.SIGKILL
    for rank in {0, 1, 2} - {victim}:
        text = ended[rank].result["error"]
        assert (
            f"rank {victim} (machine {'abc'[victim]}) {'is gone or does not answer' if call else 'did not come'}"
            in text
        )
        assert ended[rank].result["seconds"] < SOON_S
        assert ended[rank].result["threads"] == []


def test_a_machine_that_is_busy_elsewhere_is_not_taken_for_the_one_that_was_killed(run: Run) -> None:
    ended = run("dying", world=3, victim=2, call=10, number=signal.SIGKILL, own_store=False, busy_s=3.0)
    assert ended[0].result["error"].startswith("rank 2 (machine c) is gone or does not answer")


@pytest.mark.reliability("N2")
@pytest.mark.parametrize(("victim", "call"), [(1, 8), (2, 14)])
def test_a_machine_that_stands_still_is_named_by_all_others(run: Run, victim: int, call: int) -> None:
    ended = run("dying", world=3, victim=victim, call=call, number=signal.SIGSTOP, own_store=False)
    for rank in {0, 1, 2} - {victim}:
        text = ended[rank].result["error"]
        assert f"rank {victim} (machine {'abc'[victim]}) is gone or does not answer" in text
        assert ended[rank].result["seconds"] < SOON_S


@pytest.mark.reliability("J13")
def test_connections_can_be_ended_though_some_have_ended_already(run: Run) -> None:
    first, _, last = run("cutting", world=3)
    for text, seconds in (first.result, last.result):
        assert "pair" in text
        assert seconds < 2


@pytest.mark.reliability("N9")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_machine_that_takes_the_store_with_it_is_named_too(run: Run, number: int) -> None:
    ended = run("dying", world=3, victim=0, call=13, number=number, own_store=True)
    for rank in (1, 2):
        text = ended[rank].result["error"]
        assert "neither does the store of the process group, which rank 0 (machine a)" in text
        assert ended[rank].result["seconds"] < SOON_S


@pytest.mark.reliability("N6")
@pytest.mark.reliability("N7")
@pytest.mark.reliability("N8")
def test_a_machine_that_leaves_fails_or_stays_away_is_told_apart(run: Run) -> None:
    ended = run("leaving", world=3)
    for rank, how in enumerate(ended):
        assert how.error == ""
        assert how.result["threads"] == []
        assert how.result["late"] == [[0], [1], [2]]
        assert how.result["kept"] == []
        kind, text, seconds = how.result["cancelled"]
        assert kind == ("ChannelClosedError" if rank == 0 else "MachineLeftError")
        assert rank == 0 or "rank 0 (machine a) has left the run" in text
        assert seconds < 2
        if rank != 1:
            kind, text = how.result["left"]
            assert kind == "MachineLeftError"
            assert "rank 1 (machine b) has left the run" in text
            text, seconds = how.result["absent"]
            assert "rank 1 (machine b) did not come to the exchange" in text
            assert seconds < 4
        if rank != 2:
            assert how.result["failed"] == [
                "RankError",
                "rank 2 (machine c) failed: OSError: boom on the disk",
            ]


@pytest.mark.reliability("N6")
@pytest.mark.reliability("N7")
def test_an_end_that_gloo_does_not_notice_is_noticed_all_the_same(run: Run) -> None:
    for rank, how in enumerate(run("deaf", world=3)):
        assert how.error == ""
        assert how.result["threads"] == []
        assert how.result["kept"] == []
        for name, ends, kind, text in (
            ("left", 1, "MachineLeftError", "rank 1 (machine b) has left the run"),
            ("failed", 2, "RankError", "rank 2 (machine c) failed: OSError: boom"),
        ):
            if rank != ends:
                assert how.result[name][0] == kind
                assert text in how.result[name][1]
        assert rank != 0 or how.result["cancelled"][0] == "ChannelClosedError"


_EXITING = """
import sys, threading, time
import numpy as np
from torch import distributed
from gloader.core.signals import NEVER
from gloader.distributed.exchange import host_group
from gloader.distributed.exchange.host_group import HostGroup
from gloader.distributed.exchange.transport import gather
rank = int(sys.argv[1])
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
groups = [HostGroup([0, 1], ["a", "b"], rank=rank, name=name, timeout_s=60) for name in "xy"]
for group in groups:
    gather(group, np.zeros(1), cancellation=NEVER)
if rank == 0:
    # The end of the second group's connections is not noticed.
    deaf, inner = groups[1]._group, host_group.cut_connections
    host_group.cut_connections = lambda group: None if group is deaf else inner(group)
    for group in groups:
        how = {"args": (group, np.zeros(1)), "kwargs": {"cancellation": NEVER}}
        threading.Thread(target=gather, **how, daemon=True).start()
    time.sleep(0.3)
    print("leaving", flush=True)
else:
    sys.stdin.read()
"""


@pytest.mark.reliability("N14")
def test_a_process_that_ends_with_a_collective_under_way_does_not_wait_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _EXITING]
    with (
        subprocess.Popen([*command, "1", str(tmp_path / "store")], stdin=subprocess.PIPE) as other,
        subprocess.Popen([*command, "0", str(tmp_path / "store")], stdout=subprocess.PIPE) as leaving,
    ):
        assert leaving.stdout is not None
        assert leaving.stdout.readline() == b"leaving\n"
        assert leaving.wait(timeout=40) == 0  # the collective would wait for 60 s
        assert other.stdin is not None
        other.stdin.close()
        assert other.wait(timeout=20) == 0
