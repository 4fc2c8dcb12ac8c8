"""The screen during a command: bars on a terminal, lines in a log."""

from __future__ import annotations

import io
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gloader.cli import screen as module
from gloader.cli.conversion_view import convert_view, format_amount
from gloader.cli.failure import report
from gloader.cli.main import main
from gloader.cli.run_view import RunView, print_result
from gloader.cli.screen import Screen, facts, show_logs
from gloader.cli.train import _print as end_of_run
from gloader.convert.registry import SOURCE_FORMS
from gloader.errors import ConfigError
from gloader.observe import compile_clock
from gloader.observe.epoch_stats import OF_TABLES, STAGES, EpochStats
from gloader.training.metrics import EpochRecord
from gloader.training.reporter import BatchReport, RunStart
from gloader.training.result import RunResult

RESULT: dict[str, Any] = {
    "test_acc": 0.9312, "test_acc_std": None, "valid_acc": None, "epoch_seconds": [1.0, 3.0], "seeds_per_second": 12345,
    "hit_rate": 0.291, "features": "ssd", "policy": "static", "rows_read": 5_040_000, "bytes_read": 14_500_000_000,
    "edge_passes": 3, "edge_bytes_read": 36_000_000_000, "edge_bytes_written": 3_000_000_000,
    "bytes_written": 3_000_000, "io_strategy": "auto: packed 12, direct 3",
    "stage_seconds": dict.fromkeys(STAGES, 1.5), "peak_rss_bytes": 1_190_000_000, "runs": [{}, {}, {}],
    "peak_anonymous_bytes": 480_000_000, "memory_budget_bytes": 512_000_000,
}  # fmt: skip

EDGES = "; 1 pass over the edges: 1 GB read, 0 B written"
START = RunStart(
    run=0, num_runs=2, first_epoch=0, num_epochs=3, num_batches=20, num_parameters=37_008, device="cpu",
    summary="features in memory", explanation="all of it\n  features in memory",
)  # fmt: skip


OBJECTS = {
    "url": "s3://b/papers",
    "requests": 1466,
    "num_bytes": 12_300_000_000,
    "retries": 3,
    "waited_s": 0.1,
}


def screen(*, width: int = 80, terminal: bool = False) -> Screen:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, highlight=False
    )
    return Screen(console=console, is_json=False)


def written(target: Screen) -> str:
    assert isinstance(target.console.file, io.StringIO)
    return target.console.file.getvalue()


def convert(target: Screen) -> None:
    with convert_view(target) as view:
        view.advance("reading edges", 0, 4_000_000, "edges")
        view.advance("reading edges", 4_000_000, 4_000_000, "edges")
        view.advance("writing features", 50, None, "bytes")
        view.advance("writing features", 102_000_000, None, "bytes")


def run(
    target: Screen,
    *,
    explains: bool = False,
    is_baseline: bool = False,
    tables: dict[str, Any] | None = None,
    bottleneck: str = "reading features waits for the SSD",
    stats: EpochStats | None = None,
) -> RunView:
    stats = stats or EpochStats(
        epoch=0, rows_gathered=10, cache_hits=4, edge_passes=1, edge_bytes_read=10**9, tables=tables or {}
    )
    epoch = EpochRecord(
        epoch=stats.epoch, loss=1.5, train_acc=0.5, valid_acc=None, lr=0.1, seconds=2.0, evaluate_seconds=1.0,
        rows_per_second=9000.0, bottleneck=bottleneck, stats=stats,
    )  # fmt: skip
    result = RunResult(
        seed=0, best_epoch=0, valid_acc=None, test_acc=0.5, epochs=(epoch,), seconds=2.0, num_parameters=10,
        features="ram", policy="none", io_strategy="none", sampler_threads=2, explanation="predicted 1 s, measured 2 s",
    )  # fmt: skip
    with RunView(target, explains=explains, is_baseline=is_baseline) as view:
        view.on_start(START)
        for index in range(7):
            view.on_batch(
                BatchReport(
                    epoch=0, index=index, num_batches=20, loss=1.5, accuracy=0.25, rows_per_second=9000.0
                )
            )
        view.on_evaluate(0.5)
        view.on_epoch(epoch)
        view.on_finish(result)
    return view


def test_names_between_colons_are_words_and_not_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Screen.open(is_json=False)
    shown.say("ring:100:")
    shown.console.print(facts({"source": "ring:100:"}))
    report(ConfigError("'ring:100:' is not a source"))
    captured = capsys.readouterr()
    assert captured.out.split() == ["ring:100:", "source", "ring:100:"]
    assert captured.err == "error: 'ring:100:' is not a source\n"


def test_help_of_prepare_names_every_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["prepare", "--help"]) == 0
    assert f"{', '.join(SOURCE_FORMS[:-1])} or {SOURCE_FORMS[-1]}" in capsys.readouterr().out


def test_conversion_in_a_log_is_a_line_per_stage() -> None:
    target = screen()
    convert(target)
    lines = written(target).splitlines()
    assert [line.partition(" in ")[0] for line in lines] == [
        "reading edges: 4 M edges",
        "writing features: 102 MB",
    ]


def test_long_stage_writes_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_EVERY_S", 0.0)
    target = screen()
    convert(target)
    assert "reading edges: 0 edges in" in written(target)
    assert "(0%)" in written(target)
    assert written(target).count("reading edges: 4 M edges") == 1  # it was said twice, once with (100%)


def test_conversion_on_a_terminal_is_a_bar_per_stage() -> None:
    target = screen(terminal=True)
    convert(target)
    frame = "\n".join(written(target).splitlines()[-3:])
    for part in ("reading edges", "writing features", "102 MB"):
        assert part in frame


def test_a_row_names_its_metric_and_values_have_no_accuracy() -> None:
    """An R2 may be far below 0, and is no share."""
    target, stats = screen(), EpochStats(epoch=0, rows_gathered=10, cache_hits=4)
    epoch = EpochRecord(
        epoch=0, loss=1.5, train_acc=None, valid_acc=-12.25, lr=0.1, seconds=2.0, evaluate_seconds=1.0,
        rows_per_second=9000.0, bottleneck="compute", stats=stats, metric="r2",
    )  # fmt: skip
    with RunView(target) as view:
        view.on_start(replace(START, metric="r2"))
        view.on_batch(
            BatchReport(epoch=0, index=19, num_batches=20, loss=1.5, accuracy=None, rows_per_second=9000.0)
        )
        view.on_epoch(epoch)
    assert written(target).splitlines()[2:] == [
        "epoch     loss   train  valid r2   rows/s    hits      time  bottleneck",
        "    1   1.5000       -  -12.2500    9,000   40.0%     2.0 s  compute",
    ]


def test_run_in_a_log_is_a_row_per_epoch() -> None:
    target = screen()
    run(target)
    assert written(target).splitlines() == [
        "run 1 of 2: 37,008 parameters on cpu, 3 epochs of 20 batches",
        "features in memory",
        "epoch     loss   train   valid   rows/s    hits      time  bottleneck",
        "    1   1.5000   50.00       -    9,000   40.0%     2.0 s  reading features waits for the SSD"
        + EDGES,
    ]


def test_a_long_epoch_in_a_log_says_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_EVERY_S", 0.0)
    log, terminal = screen(), screen(terminal=True)
    run(log)
    run(terminal)
    expected = "epoch 1/3: 35%, loss 1.500  acc 25.0%  9,000 rows/s\nevaluating: 50%\n    1   1.5000"
    assert expected in written(log)
    assert "evaluating: " not in written(terminal)


def test_the_closing_table_names_the_longest_stages_on_one_line() -> None:
    target = screen()
    spent = dict.fromkeys(STAGES, 0.0) | {
        "sample": 125.0,
        "gather": 3599.0,
        "compute": 754.0,
        "wait": 61.5,
        "stage": 0.5,
    }
    print_result(target, RESULT | {"stage_seconds": spent})
    (line,) = [line for line in written(target).splitlines() if line.startswith("stage times")]
    assert line.split("  ")[-1].strip() == "gather 59 min 59 s, compute 12 min 34 s, others 3 min 07 s"


def test_what_would_help_is_said_as_flags() -> None:
    target = screen()
    run(target, bottleneck='loading is slower: 40%; cache="2.56MB" would make it 1 s (-9%)')
    assert "--cache 2.56MB would make it 1 s" in written(target)


@pytest.mark.parametrize(("number", "wait", "is_exposed"), [(0, 1.5, False), (1, 1.5, True), (1, 0.1, False)])
def test_a_run_knows_whether_it_waited_for_loading(number: int, wait: float, is_exposed: bool) -> None:
    stats = EpochStats(epoch=number, seconds=2.0, stage_seconds=dict.fromkeys(STAGES, 0.0) | {"wait": wait})
    assert run(screen(), stats=stats).is_exposed == is_exposed


@pytest.mark.parametrize(
    ("trace", "is_exposed", "said"),
    [
        (None, False, []),
        (
            None,
            True,
            [
                "the loop waited for loading: train with --trace, then gloader analyze shows what would be faster"
            ],
        ),
        (Path("r/x/trace.json"), True, ["trace in r/x/trace.json"]),
    ],
)
def test_a_run_ends_with_what_would_make_it_faster(
    trace: Path | None, is_exposed: bool, said: list[str]
) -> None:
    """Analyze and autotune asked for `--trace` when the training was over."""
    target = screen(width=200)
    end_of_run(target, RESULT, None, out=Path("r/x"), trace=trace, is_exposed=is_exposed)
    last = written(target).partition("gloader report r/x\n")[2].splitlines()
    assert [line[: len(text)] for line, text in zip(last, said, strict=True)] == said


def test_an_epoch_of_few_batches_is_said_with_what_makes_more() -> None:
    target = screen()
    RunView(target).on_start(replace(START, num_batches=9))
    assert written(target).splitlines()[-2] == (
        "9 batches an epoch are few steps to learn from: a smaller --batch-size, or more --epochs, makes more"
    )


def test_run_of_several_types_says_what_came_from_memory_of_each() -> None:
    target = screen()
    counts = dict.fromkeys(OF_TABLES, 0) | {"rows_gathered": 5, "cache_hits": 1}
    run(target, tables={"paper": counts, "author": counts | {"cache_hits": 3}})
    assert written(target).splitlines()[-1].endswith(EDGES + "; from memory: paper 20%, author 60%")
    table = {"paper": counts | {"hit_rate": 0.2, "bytes_read": 4_000_000, "rows_gathered": 90_000}}
    print_result(target, RESULT | {"tables": table})
    assert "of paper 20.0% of 90 k, 4 MB read" in " ".join(written(target).replace("\xa0", " ").split())


def test_run_is_explained_before_and_after_where_asked_for() -> None:
    target = screen()
    run(target, explains=True)
    lines = written(target).splitlines()
    assert lines[1:3] == ["features in memory", "all of it"]
    assert lines[-1] == "predicted 1 s, measured 2 s"


def test_baseline_is_not_explained() -> None:
    target = screen()
    run(target, explains=True, is_baseline=True)
    assert "features in memory" not in written(target)
    assert "predicted" not in written(target)


def test_run_on_a_terminal_shows_the_batch() -> None:
    target = screen(terminal=True)
    run(target)
    assert "epoch 1/3" in written(target)
    assert "loss 1.500  acc 25.0%  9,000 rows/s" in written(target)
    assert "evaluating" in written(target)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_closing_table_fits_the_terminal(width: int) -> None:
    target = screen(width=width)
    print_result(target, {**RESULT, "test_acc_std": 0.0021}, mlp=RESULT)
    text = written(target)
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.replace("\xa0", " ").split())
    for part in (
        "93.12% +- 0.21 over 3 runs",
        "not evaluated",
        "29.1%",
        "14.5 GB read",
        "packed 12, direct 3",
        "36 GB read in 3 passes, 3 GB written",
        "1.19 GB",
    ):
        assert part in flat or width == 40
    assert "93.12%" in flat


def test_a_run_on_a_dataset_at_a_url_says_what_came_from_there_and_what_it_cost() -> None:
    target = screen(width=200)
    print_result(target, RESULT | {"objects": OBJECTS | {"cost": 1.108}})
    (line,) = [line for line in written(target).splitlines() if line.startswith("from the store")]
    assert line.rstrip().endswith(" 12.3 GB in 1,466 requests, 3 of them again, cost 1.11")
    target = screen(width=200)
    print_result(target, RESULT | {"objects": OBJECTS | {"cost": None}})
    assert "cost" not in written(target)


def test_amounts_carry_their_unit() -> None:
    assert format_amount(1.2e9, "bytes") == "1.2 GB"
    assert format_amount(42, "edges") == "42 edges"


def test_logs_reach_the_screen_until_it_closes() -> None:
    target = screen()
    show_logs(target.console)
    show_logs(target.console)
    logging.getLogger("gloader.somewhere").info("reads are buffered")
    show_logs(None)
    logging.getLogger("gloader.somewhere").info("after")
    assert written(target) == "reads are buffered\n"


def test_a_line_of_the_log_stays_one_line_on_a_narrow_console() -> None:
    target = screen(width=20)
    show_logs(target.console)
    try:
        logging.getLogger("gloader").warning("a line that is wider than that")
    finally:
        show_logs(None)
    assert written(target).splitlines() == ["a line that is wider than that"]


def test_a_step_that_compiled_kernels_is_not_called_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven seconds for 5,000 edges were those of the compiler, of the first conversion on a machine."""
    now, compiled = [0.0], iter([1.0, 1.0, 8.0, 8.0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(compile_clock, "compile_seconds", lambda: next(compiled))
    target = screen()
    with convert_view(target) as view:
        view.advance("reading edges", 0, None, "edges")
        now[0] = 8.0
        view.advance("reading edges", 5000, None, "edges")
        now[0] = 8.5
        view.advance("sorting edges", 5000, None, "edges")
    assert written(target).splitlines() == [
        "reading edges: 5,000 edges in 1.0 s, after 7.0 s of compiling kernels, once on a machine",
        "reading edges: 5,000 edges in 1.0 s, after 7.0 s of compiling kernels, once on a machine",
        "sorting edges: 5,000 edges in 500 ms",
    ]


@pytest.mark.reliability("J11")
@pytest.mark.parametrize(("peak", "is_over"), [(350_000_000, False), (356_200_000, True)])
def test_a_peak_above_the_budget_is_a_warning_that_says_what_to_type(peak: int, is_over: bool) -> None:
    target = screen()
    print_result(target, RESULT | {"peak_anonymous_bytes": peak, "memory_budget_bytes": 350_000_000})
    text = " ".join(written(target).split())
    assert ("warning: " in text) == is_over
    assert ("give --memory-budget 357MB or more" in text) == is_over
