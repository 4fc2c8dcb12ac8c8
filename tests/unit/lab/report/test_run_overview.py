from __future__ import annotations

from training_runs import epoch, run

from gloader.lab.report.run_facts import each_seed, grouped, overview

NO_BREAK = "\u00a0"


def test_a_run_is_a_row_of_figures() -> None:
    table = overview(grouped([run("a"), run("b", settings={"fanouts": "15,10", "epochs": "3"}, test=0.75)]))
    assert table.header[:4] == ("run", "what it is", "test accuracy", "best validation accuracy")
    assert table.rows == (
        ("a", f"graphsage, fanouts{NO_BREAK}5,5", "0.5000", "0.7000", "2", "2.0 s", "25%", "9 B", "20 B", "8 MB",
         "0 B", "25.0%"),
        ("b", f"graphsage, fanouts{NO_BREAK}15,10", "0.7500", "0.7000", "2 of 3", "2.0 s", "25%", "9 B", "20 B",
         "8 MB", "0 B", "25.0%"),
    )  # fmt: skip


def test_of_several_seeds_there_are_means_and_deviations_and_each_of_them_below() -> None:
    groups = grouped(
        [run("s0", test=0.5), run("s1", test=0.7, seed="1"), run("b", settings={"cache": "0 B"})]
    )
    rows = overview(groups).rows
    assert [row[0] for row in rows] == ["s (2 seeds)", "b"]
    assert rows[0][2] == "0.6000 ± 0.1414"
    assert rows[0][9] == "8 MB"  # of both
    seeds = each_seed(groups)
    assert seeds is not None
    assert [row[:3] for row in seeds.rows] == [
        ("s0", f"seed{NO_BREAK}0", "0.5000"),
        ("s1", f"seed{NO_BREAK}1", "0.7000"),
    ]
    assert each_seed(grouped([run("a")])) is None


def test_runs_of_several_metrics_say_which() -> None:
    table = overview(grouped([run("a"), run("b", metric="mrr")]))
    assert table.header[2] == "test"
    assert [row[1].split(NO_BREAK)[-1] for row in table.rows] == ["acc", "mrr"]


def test_what_is_not_known_is_a_dash() -> None:
    old = epoch(1, wait_s=None, parts=(), memory_bytes=(), valid=None)
    (row,) = overview(grouped([run("a", old, budget_bytes=None, test=None)])).rows
    assert [row[place] for place in (2, 3, 6, 7, 8)] == ["-"] * 5
