from __future__ import annotations

import pytest

from gloader.cli import main as cli
from gloader.cli.ranks import RankLaunch, apart, joined_ranks
from gloader.errors import ConfigError

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def test_a_process_that_torchrun_did_not_start_is_alone() -> None:
    assert RankLaunch.from_environ({"WORLD_SIZE": "2"}) == RankLaunch(world_size=1)
    with joined_ranks(RankLaunch(), device="cpu", stall_timeout_s=1.0) as group:
        assert group.is_alone


def test_torchrun_says_where_a_rank_stands() -> None:
    found = RankLaunch.from_environ(
        TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3"}
    )
    assert found == RankLaunch(world_size=2, local_rank=1, restarts=1, max_restarts=3, is_first=False)


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(ConfigError, match="WORLD_SIZE is 'two'; torchrun sets it to a number"):
        RankLaunch.from_environ(TORCHRUN | {"WORLD_SIZE": "two"})


def test_an_interface_that_is_not_there_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    of_gloo = RuntimeError("[enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: eth7")
    said = str(apart(RankLaunch(world_size=2), of_gloo))
    assert "GLOO_SOCKET_IFNAME=eth7 names an interface that this machine does not have; it has " in said
    assert "lo" in said.rpartition("it has ")[2].split(", ")
    assert (
        str(apart(RankLaunch(world_size=2), RuntimeError("late")))
        == "the 2 ranks did not find one another: late"
    )


def test_a_run_that_may_be_restarted_needs_a_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (TORCHRUN | {"TORCHELASTIC_MAX_RESTARTS": "1"}).items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", "--dataset", "nowhere"]) == 2
    assert "--max-restarts needs --out" in " ".join(capsys.readouterr().err.split())
