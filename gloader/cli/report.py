"""`gloader report`: one HTML page of runs."""

from pathlib import Path

from gloader.cli.flags import DEFAULT_OUTPUT, OutputFlags
from gloader.cli.views.screen import Screen


def report(
    *runs: Path,
    out: Path = Path("report.html"),
    png: Path | None = None,
    title: str = "gloader",
    output: OutputFlags = DEFAULT_OUTPUT,
) -> None:
    """Make one HTML page of runs: stage timelines, miss-ratio curves, epoch times against peers.

    The page holds its pictures, and needs no network. It takes the folders of `gloader train` (with `--trace`, also
    the timeline) and `gloader inspect --out`, traces, and the JSON of `experiments/bench/compare.py`.

    Parameters
    ----------
    runs
        Folders and files to show, in this order.
    out
        The page.
    png
        Folder for the pictures as files of their own.
    title
        Heading of the page.
    """
    from gloader.report import make_report
    from gloader.report.build_page import name_pictures

    screen = Screen.open(is_json=output.json)
    sections = make_report(runs, out, png=png, title=title)
    pictures = [] if png is None else [str(png / f"{name}.png") for name in name_pictures(sections)]
    for section in sections:
        screen.say(section.title)
    screen.say(f"\npage: {out}")
    for picture in pictures:
        screen.say(f"picture: {picture}")
    screen.result(
        {"out": str(out), "sections": [section.title for section in sections], "pictures": pictures}
    )
