from __future__ import annotations

from dataclasses import replace

from training_runs import run

from gloader.lab.report.page import Section
from gloader.lab.report.run_sections import beside, run_section
from gloader.lab.report.training import Training


def _beside(*runs: Training) -> list[Section]:
    return beside([run_section(each) for each in runs])


WIDE = run("wide", settings={"fanouts": "15,10"})


def test_one_run_stays_alone_with_all_its_charts() -> None:
    (section,) = _beside(run("a"))
    assert section.title == "Training: a"
    assert ("model", "graphsage") in section.facts
    assert [chart.name for chart in section.charts][:2] == ["a-epochs", "loss"]
    assert section.notes == ("waited for\nepochs 1 to 2: the loop waits for the SSD",)


def test_several_stand_together_before_each_of_them_and_what_is_shown_there_is_not_repeated() -> None:
    other = Section(title="Misses", source="x")
    together, first, between, second = beside([run_section(run("a")), other, run_section(WIDE)])
    assert [row[0] for row in together.tables[0].rows] == ["a", "wide"]
    assert dict(together.named_tables)["Settings, versions and machines that differ"].rows == (
        ("fanouts", "5,5", "15,10"),
    )
    assert ("model", "graphsage") in together.facts
    assert between is other
    assert [section.title for section in (first, second)] == ["Training: a", "Training: wide"]
    assert [[chart.name for chart in section.charts] for section in (first, second)] == [
        ["a-epochs"],
        ["wide-epochs"],
    ]
    assert ("model", "graphsage") not in first.facts
    assert ("epochs", "2") in first.facts


def test_what_runs_do_not_share_stays_with_each() -> None:
    together, first, second = _beside(run("a"), run("b", settings={"model": "gat"}))
    assert [name for name, _ in together.facts] == ["dataset", "features", "versions"]
    assert ("model", "graphsage") in first.facts
    assert ("model", "gat") in second.facts


def test_seeds_are_folded_below_their_mean() -> None:
    together, *_ = _beside(run("s0"), run("s1", seed="1"))
    assert [row[0] for row in together.tables[0].rows] == ["s (2 seeds)"]
    assert [row[0] for row in dict(together.folded_tables)["Each seed"].rows] == ["s0", "s1"]
    assert together.notes == ("the runs differ in their seed alone",)


def test_repetitions_differ_in_nothing() -> None:
    together, *_ = _beside(run("a"), run("b"))
    assert together.notes == ("the runs differ in nothing: settings, versions and machine are the same",)


def test_what_a_reader_should_know_is_said_below() -> None:
    above = run("above", settings={"cache": "1 MB"}, budget_bytes=8)
    together, *_ = _beside(run("a"), above, replace(run("bare"), settings={}))
    assert together.notes == (
        "without a config.yaml, so that its settings are not known: bare",
        "above its memory budget: above, by 1 B",
    )


def test_a_run_without_an_epoch_says_so() -> None:
    (empty,) = _beside(replace(run("a"), epochs=()))
    assert empty.notes == ("no epoch was finished",)
    assert (empty.charts, empty.folded_tables) == ((), ())
