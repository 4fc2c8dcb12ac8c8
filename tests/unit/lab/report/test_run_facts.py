from __future__ import annotations

from dataclasses import replace

from training_runs import epoch, run

from gloader.lab.report.run_facts import circumstances_of, facts_of, table_of, waits_of


def test_the_figures_of_a_run() -> None:
    known = run("a", epoch(1), epoch(2, seconds=4.0, wait_s=2.5, valid=0.9), settings={"epochs": "5"})
    assert dict(facts_of(known)) == {
        "test accuracy": "0.5000", "best validation accuracy": "0.9000 (epoch 2)", "last loss": "0.5000",
        "epochs": "2 of 5", "median epoch": "3.0 s", "waiting for data": "50%", "whole run": "8.0 s",
        "peak memory": "9 B of a budget of 20 B", "read from the SSD": "8 MB", "written to the SSD": "0 B",
        "rows from memory": "25.0%",
    }  # fmt: skip


def test_a_peak_above_the_budget_is_called_so() -> None:
    assert dict(facts_of(run(budget_bytes=8)))["peak memory"] == "9 B above its budget of 8 B"
    assert dict(facts_of(run(budget_bytes=None)))["peak memory"] == "9 B"


def test_what_an_earlier_version_did_not_record_is_a_dash() -> None:
    old = epoch(1, wait_s=None, parts=(), memory_bytes=())
    facts = dict(facts_of(run("a", old)))
    assert (facts["peak memory"], facts["waiting for data"]) == ("-", "-")
    assert table_of(run("a", old)).rows[0][2] == table_of(run("a", old)).rows[0][-1] == ""


def test_what_the_figures_depend_on() -> None:
    known = run()
    machine = {"device": "NVIDIA H100", "processor": "EPYC", "cores": 16, "memory_bytes": 128 * 10**9}
    known = replace(known, result={**known.result, "machine": machine})
    assert dict(circumstances_of(known)) == {
        "dataset": "d", "model": "graphsage", "features": "ssd, policy belady, I/O auto",
        "versions": "gloader 1.0, torch 2.0", "machine": "NVIDIA H100, EPYC, 16 cores, 128 GB of memory",
    }  # fmt: skip
    assert circumstances_of(run(settings={"dataset": "", "model": ""}, result={})) == ()


def test_what_epochs_waited_for_is_said_once_for_all_of_them() -> None:
    waits = ["sweep", *["model"] * 3, "sweep"]
    epochs = [epoch(number, bottleneck=wait) for number, wait in enumerate(waits, 1)]
    assert waits_of(run("a", *epochs)) == ("epochs 1, 5: sweep", "epochs 2 to 4: model")
