"""The ranks of a loader: which one this process is, and what all of them agree on."""

from dataclasses import replace

import pytest

from gloader.distributed.agree import find_membership, is_gone, own_process, require_equal
from gloader.errors import ConfigError, RankSettingsError
from gloader.ssd_store.spill.claim import SpillOwner


def test_without_a_process_group_a_loader_is_alone() -> None:
    membership = find_membership("auto", None, None)
    assert (membership.rank, membership.world_size, membership.is_collective, membership.is_shared) == (
        0,
        1,
        False,
        False,
    )
    assert find_membership("private", 1, 4).rank == 1


def test_sharing_with_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sharing='shared' for rank 0 of 1: start the process group"):
        find_membership("shared", None, None)
    with pytest.raises(ConfigError, match="give both of them, or neither"):
        find_membership("auto", 1, None)


def test_the_first_fact_that_differs_is_named_with_both_ranks() -> None:
    facts = {
        0: {"seed": 1, "fanouts": [2]},
        3: {"seed": 1, "fanouts": [2]},
        5: {"seed": 1, "fanouts": [3], "new": 1},
    }
    with pytest.raises(
        RankSettingsError, match=r"fanouts is \[2\] on rank 0 and \[3\] on rank 5; .* same on every rank"
    ):
        require_equal(facts, "on every rank")
    del facts[5]
    require_equal(facts, "on every rank")
    with pytest.raises(
        RankSettingsError, match=r"every rank: its fingerprint differs; prepare it with one line"
    ):
        require_equal({0: {"dataset": "f7"}, 1: {"dataset": "df"}}, "on every rank")


def test_a_process_that_runs_or_may_run_elsewhere_is_not_gone() -> None:
    own, owner = own_process(), SpillOwner.this_process()
    ended = replace(owner, start_ticks=owner.start_ticks + 1)  # its number was given out again
    elsewhere = replace(ended, host="another")
    assert not is_gone(own)
    assert is_gone(own | {"owner": ended.to_json()})
    assert not is_gone(own | {"owner": elsewhere.to_json()})
    assert not is_gone(own | {"owner": ended.to_json(), "namespace": "another"})
    # As on a cluster: what became of another machine's processes is heard by the network alone.
    assert not is_gone(own | {"owner": ended.to_json(), "machine": "another"})
