from __future__ import annotations

from dataclasses import replace

import pytest
from training_runs import run

from gloader.lab.report.run_facts import RunGroup, differences, differing_settings, grouped, with_own_names
from gloader.lab.report.training import Training


def _names(*groups: RunGroup) -> list[list[str]]:
    return [[member.name for member in group.runs] for group in groups]


def test_runs_that_differ_in_their_seed_alone_are_one_group() -> None:
    groups = grouped([run("s0"), run("wide", settings={"fanouts": "15,10"}), run("s1", seed="1")])
    assert _names(*groups) == [["s0", "s1"], ["wide"]]
    assert [group.name for group in groups] == ["s (2 seeds)", "wide"]
    assert [group.style for group in groups] == [0, 1]


@pytest.mark.parametrize(
    "other",
    [
        run("b", seed="1", versions={"gloader": "2.0", "torch": "2.0"}),
        run("b", seed="1", metric="mrr"),
        run("b", seed="0"),  # a repetition is no other draw
    ],
)
def test_runs_that_differ_in_more_stand_alone(other: Training) -> None:
    assert _names(*grouped([run("a"), other])) == [["a"], ["b"]]


def test_runs_of_which_nothing_is_known_stand_alone() -> None:
    groups = grouped([replace(run(name), settings={}, seed="") for name in ("a", "b")])
    assert _names(*groups) == [["a"], ["b"]]
    assert differences(groups) is None


def test_names_take_as_much_of_the_path_as_tells_them_apart() -> None:
    runs = [run("r", source=source) for source in ("x/one/r", "x/two/r", "y/two/r")]
    assert [each.name for each in with_own_names(runs)] == ["one/r", "x/two/r", "y/two/r"]
    same = [run("r", source="one/r")] * 2
    assert [each.name for each in with_own_names(same)] == ["one/r (1)", "one/r (2)"]


def test_what_differs_is_a_row_and_what_is_the_same_is_none() -> None:
    groups = grouped(
        [
            run("s0"),
            run("s1", seed="1"),
            run(
                "wide",
                settings={"fanouts": "15,10", "heads": "4"},
                versions={"gloader": "2.0", "torch": "2.0"},
            ),
        ]
    )
    table = differences(groups)
    assert table is not None
    assert table.header == ("", "s (2 seeds)", "wide")
    assert table.rows == (
        ("fanouts", "5,5", "15,10"), ("heads", "", "4"), ("version of gloader", "1.0", "2.0"), ("seed", "0, 1", "0"),
    )  # fmt: skip
    assert differing_settings(groups) == [{"fanouts": "5,5"}, {"fanouts": "15,10", "heads": "4"}]


def test_what_a_run_that_is_not_finished_ran_on_differs_in_nothing() -> None:
    assert differences(grouped([run("a"), run("b", result={})])) is None


def test_what_was_measured_is_a_difference_too() -> None:
    groups = grouped([run("a"), run("b", metric="mrr")])
    assert differing_settings(groups) == [{"metric": "acc"}, {"metric": "mrr"}]
