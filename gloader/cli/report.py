"""`gloader report`: an HTML page that compares runs.

`gloader.lab.report` reads the runs and writes the page, which has a section for each input. This module prints a table
of the training runs and the titles of the other sections.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, figures

if TYPE_CHECKING:
    from gloader.lab.report.training import Training

# Least width of a screen, in characters, for all columns of the table of runs.
_WIDE = 150
# Columns of the table from `overview` that a narrower screen shows: run, test, median epoch, waiting, peak memory,
# budget and read.
_ESSENTIAL = (0, 2, 5, 6, 7, 8, 9)


def report(
    *runs: Path,
    out: Path = Path("report.html"),
    png: Path | None = None,
    title: str = "",
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Make one HTML page that compares runs: curves, seconds, memory and bytes.

    The page contains its pictures, and needs no network. Inputs are the folders of `gloader train` (with `--trace`,
    also the timeline), `gloader inspect --out` and `gloader analyze`, traces, and the JSON of
    `experiments/bench/compare.py`. Runs that differ only in their seed are shown as one, with mean and standard
    deviation.

    Parameters
    ----------
    runs
        Folders and files to show, in this order.
    out
        The HTML file.
    png
        Folder for the pictures as separate files.
    title
        Heading of the page. Default: the names of the runs.
    """
    from gloader.lab.report import make_report
    from gloader.lab.report.build_page import name_pictures
    from gloader.lab.report.run_facts import grouped, overview

    screen = Screen.open(is_json=output.json)
    sections = make_report(runs, out, png=png, title=title)
    pictures = [] if png is None else [str(png / name) for name in name_pictures(sections)]
    trained = [section.run for section in sections if section.run is not None]
    if trained:
        table = overview(grouped(trained))
        screen.console.print(figures(table if screen.console.width >= _WIDE else table.columns(*_ESSENTIAL)))
        screen.say("")
    for section in sections:
        if section.run is None:  # sections with a run are in the table
            screen.say(section.title)
    screen.say(f"\npage: {out}")
    for picture in pictures:
        screen.say(f"picture: {picture}")
    screen.result(
        {
            "out": str(out),
            "sections": [section.title for section in sections],
            "runs": [_record_of(run) for run in trained],
            "pictures": pictures,
        }
    )


def _record_of(run: "Training") -> dict[str, object]:
    """Return a training run's entry in the JSON result; names that end in _s are seconds."""
    return {
        "name": run.name,
        "folder": run.source,
        "seed": run.seed,
        "epochs": len(run.epochs),
        "metric": run.metric,
        "test": run.test,
        "best_valid": run.best,
        "epoch_s": run.epoch_s,
        "total_s": run.total_seconds,
        "peak_anonymous_bytes": run.peak_bytes,
        "memory_budget_bytes": run.budget_bytes,
        "bytes_read": run.bytes_read,
        "bytes_written": run.bytes_written,
    }
