"""A report page, built from run folders, figure files and timelines, and written as one file: `gloader report`.

`read_training` reads a run folder. `read_sections` makes the sections for a folder or a file, by the file's content.
`make_report` writes the page.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import MALFORMED, shown
from gloader.errors import ConfigError, FormatError, GloaderError
from gloader.lab.analyze.findings import Findings
from gloader.lab.report.analysis_page import analysis_sections
from gloader.lab.report.comparison import Comparison, comparison_charts
from gloader.lab.report.inspection import inspection_section
from gloader.lab.report.page import Section, TextTable, render_page, slug
from gloader.lab.report.run_facts import circumstances_of, facts_of, table_of
from gloader.lab.report.run_sections import beside, run_section
from gloader.lab.report.score_pictures import pictures_of
from gloader.lab.report.timeline_picture import draw_timeline
from gloader.lab.report.training import Epoch, Training, read_settings, split_seconds
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.atomic_file import make_output_folder, require_file_target, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


# Files of a run's folder: a line for each epoch, the settings, and the results and scores of a finished run.
METRICS: Final = "metrics.jsonl"
CONFIG: Final = "config.yaml"
_RESULT: Final = "result.json"
_SCORES: Final = "scores.json"
MLP: Final = "mlp"  # folder for the run of `--compare-mlp`
PART: Final = "run-"  # prefix of a run's folder among several runs; a number follows
_ACCURACY = "acc"  # the metric of runs without a validation


def read_training(folder: Path) -> Training:
    """Read a run's figures.

    Raises
    ------
    FormatError
        ``metrics.jsonl``, ``result.json``, ``scores.json`` or ``config.yaml`` was not written by `gloader train`.
    """
    path = _config_of(folder)  # the file that is read now; an error names it
    try:
        settings = read_settings(path)
        seed = settings.seed
        if path.parent != folder and seed:  # several runs share the settings: run k has this seed + k
            seed = str(int(seed) + int(folder.name.removeprefix(PART)))
        path = folder / METRICS
        lines = _lines(path)
        metric = _metric_of(lines)
        epochs = tuple(_epoch(line, metric) for line in lines)
        path = folder / _RESULT
        result = json.loads(path.read_text()) if path.is_file() else {}
        training = Training(
            name=_run_name(folder.resolve()),
            source=str(folder),
            epochs=epochs,
            metric=metric,
            settings=settings.named,
            seed=seed,
            budget_bytes=result.get("memory_budget_bytes") or settings.budget_bytes,
            result=dict(result),
        )
        # These calls raise for malformed values in the result, while ``path`` still names the file.
        facts_of(training), circumstances_of(training), table_of(training)
        path = folder / _SCORES
        if path.is_file():
            training = replace(training, scores=json.loads(path.read_text()))
            pictures_of(training)
    except MALFORMED as error:
        raise FormatError(f"{path} is not what `gloader train` writes: {shown(error)}") from error
    return training


def _run_name(folder: Path) -> str:
    """Return a run's name. Among several runs, it follows the common name."""
    is_part = folder.name == MLP or folder.name.startswith(PART)
    return f"{_run_name(folder.parent)}/{folder.name}" if is_part else folder.name


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return each line's JSON object. The last line may be incomplete if the run was killed while it wrote."""
    whole, _, incomplete = path.read_text().rpartition("\n") if path.is_file() else ("", "", "")
    lines = [json.loads(line) for line in whole.splitlines()]
    try:
        return lines + ([json.loads(incomplete)] if incomplete else [])
    except MALFORMED:
        return lines


def _config_of(folder: Path) -> Path:
    """Return the file with a run's settings. Several runs share one file."""
    is_part = folder.name.startswith(PART) and not (folder / CONFIG).is_file()
    return (folder.parent if is_part else folder) / CONFIG


def _metric_of(lines: list[dict[str, Any]]) -> str:
    """Return the validation metric, from its name in the lines."""
    names = (name.removeprefix("valid_") for line in lines for name in line if name.startswith("valid_"))
    return next(names, _ACCURACY)


def _epoch(line: dict[str, Any], metric: str) -> Epoch:
    """Return one epoch from a line of metrics.jsonl."""
    seconds, evaluate_seconds = float(line["seconds"]), float(line["evaluate_seconds"])
    stages = line.get("stage_seconds")
    valid = line[f"valid_{metric}"]
    return Epoch(
        number=int(line["epoch"]) + 1,
        seconds=seconds,
        evaluate_seconds=evaluate_seconds,
        loss=float(line["loss"]),
        train_acc=None if line["train_acc"] is None else float(line["train_acc"]),
        valid=None if valid is None else float(valid),
        rows=int(line["rows_gathered"]),
        hit_rate=float(line["hit_rate"]),
        bytes_read=int(line["bytes_read"]) + int(line.get("edge_bytes_read", 0)),
        bytes_written=int(line["bytes_written"]) + int(line.get("edge_bytes_written", 0)),
        bottleneck=str(line["bottleneck"]),
        wait_s=None if stages is None else float(stages["wait"]),
        parts=()
        if stages is None
        else split_seconds(seconds, evaluate_seconds, stages, str(line["bottleneck"])),
        memory_bytes=tuple(int(most) for most in line.get("memory_bytes", ())),
    )


_TRACE, _INSPECTION, _COMPARISON = "trace.json", "inspect.json", "compare.json"
_ANALYSIS = "analysis.json"
_DATASET = "dataset.json"  # a dataset's commit record
_MOST_NAMED = 8  # largest number of run folders that an error names
_FILES = (_TRACE, _ANALYSIS, _INSPECTION, _COMPARISON)  # the files in a folder that have sections
_ACCEPTED = (
    "the folder of a `gloader train` run, `inspect.json` of `gloader inspect --out`, "
    "the trace of `gloader train --trace`, `analysis.json` of `gloader analyze`, "
    "the JSON of experiments/bench/compare.py, or a folder with some of these"
)


def read_sections(path: Path) -> list[Section]:
    """Return the sections for ``path``, a folder or a file.

    Raises
    ------
    ConfigError
        There is nothing at ``path``, or nothing that can be shown.
    FormatError
        A file has another content than its writer writes.
    """
    try:
        if path.is_dir():
            sections = list(_folder_sections(path))
        elif path.is_file():
            sections = _file_sections(path)
        else:
            raise ConfigError(f"{path} does not exist; give {_ACCEPTED}")
    except GloaderError:
        raise
    # Files of figures may come from anywhere: a value that no table or picture can show is malformed.
    except (RuntimeError, *MALFORMED) as error:
        raise FormatError(f"{path} cannot be shown: {shown(error)}; give {_ACCEPTED}") from error
    if not sections:
        raise ConfigError(f"{path} {_why_not(path)}; give {_ACCEPTED}")
    return sections


def _why_not(folder: Path) -> str:
    """Return the reason why nothing in a folder can be shown."""
    if (folder / _DATASET).is_file():
        return "is a dataset, which `gloader info` shows"
    runs = sorted(path.parent.name for path in folder.glob(f"*/{METRICS}"))
    if runs:
        some = " ".join(f"{folder}/{name}" for name in runs[:_MOST_NAMED])
        return f"is no run but holds {len(runs)}: gloader report {some}"
    return "holds nothing that can be shown"


def _folder_sections(folder: Path) -> Iterator[Section]:
    """Yield the sections of a folder's runs, then those of its other files."""
    # Several runs by one command have a folder each, and so has the compared MLP.
    runs = [
        run
        for home in (folder, folder / MLP)
        for run in (home, *sorted(home.glob(f"{PART}*"), key=lambda path: (len(path.name), path.name)))
        if (run / METRICS).is_file()
    ]
    # A run that ended in its first epoch has only its settings.
    if not runs and (folder / CONFIG).is_file():
        runs = [folder]
    for run in runs:
        yield run_section(read_training(run))
    for name in _FILES:
        if (folder / name).is_file():
            yield from _file_sections(folder / name)


def _file_sections(path: Path) -> list[Section]:
    """Return a file's sections. Its content decides their kind."""
    try:
        values = json.loads(path.read_text())
    except MALFORMED as error:
        raise FormatError(f"{path} is not JSON: {shown(error)}; give {_ACCEPTED}") from error
    if not isinstance(values, dict):
        raise FormatError(f"{path} holds no JSON object; give {_ACCEPTED}")
    # The content decides, not the name, because a user may have renamed the file.
    if values.get("benchmark") == "compare":
        return _comparison_sections(path, values)
    if "traceEvents" in values:
        return [_trace_section(path, values)]
    if "what_if" in values and "unexplained" in values:
        found = Findings.from_json(values)
        return analysis_sections(found, source=str(path), name=_name_of(path))
    if "knee" in values and "policies" in values:
        return [inspection_section(values, source=str(path))]
    raise ConfigError(f"{path} is no file that a report can show; give {_ACCEPTED}")


def _comparison_sections(path: Path, values: dict[str, Any]) -> list[Section]:
    """Return a section for each graph in a comparison."""
    try:
        parts = [(part, Comparison.from_json(part)) for part in values["comparisons"]]
        facts = [
            ("machine", _listed(values["machine"])),
            ("versions", _listed(values["versions"])),
            ("read-ahead, KB", _listed(values["read_ahead_kb"])),
            ("command", str(values["command"])),
        ]
    except MALFORMED as error:
        raise FormatError(f"{path} is no comparison: {shown(error)}") from error
    return [
        Section(
            title=f"Comparison on {comparison.kind}",
            source=str(path),
            facts=(("workload", comparison.heading), *facts),
            charts=tuple(comparison_charts(comparison)),
            tables=(comparison.table(), _tried_table(part)),
            notes=("\n".join(comparison.notes()),),
        )
        for part, comparison in parts
    ]


def _tried_table(part: dict[str, Any]) -> TextTable:
    """Return each contender's tried settings and their outcomes."""
    rows = [
        (
            row["name"],
            ", ".join(f"{name} {value}" for name, value in tried["settings"].items()) or "-",
            "" if tried["later_epoch_s"] is None else f"{tried['later_epoch_s']:.2f}",
            tried["outcome"],
        )
        for row in part["rows"]
        for tried in row["tried"]
    ]
    return TextTable(
        header=("contender", "settings of a run", "seconds of an epoch", "outcome"), rows=tuple(rows)
    )


def _trace_section(path: Path, values: dict[str, Any]) -> Section:
    """Return the section with the picture of a recorded epoch."""
    try:
        epochs = {e["args"]["epoch"] for e in values["traceEvents"] if e["ph"] == "X" and e["cat"] == "stage"}
    except MALFORMED as error:
        raise FormatError(f"{path} is no trace of gloader: {shown(error)}") from error
    epoch = min(1, max(epochs, default=0))  # the second epoch is the first one in the steady state
    name = _name_of(path)
    caption = f"Epoch {epoch + 1}: what each stage did while the others worked. Shades alternate between superbatches."
    return Section(
        title=f"Timeline: {name}",
        source=f"{path}; https://ui.perfetto.dev shows all of it",
        charts=tuple(filter(None, [draw_timeline(f"{name}-timeline", caption, values, epoch=epoch)])),
    )


def _name_of(path: Path) -> str:
    """Return the folder's name for a file with a fixed name, or the file's own name."""
    return path.resolve().parent.name if path.name in _FILES else path.stem


def _listed(values: dict[str, Any]) -> str:
    """Return "name value, name value, ..."."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def make_report(
    runs: Sequence[Path],
    out: Path,
    *,
    png: Path | None = None,
    title: str = "",
    os_io: OsIO = REAL_OS,
) -> list[Section]:
    """Write one HTML page that shows ``runs``, and return its sections.

    Parameters
    ----------
    runs : folders and files, see `gloader.lab.report.build_page.read_sections`
    out : the page's file; replaced atomically, or left unchanged
    png : folder for the charts as separate SVG files. None means no files.
    title : the page's heading; empty means the runs' names

    Raises
    ------
    ConfigError, FormatError
        There are no runs, or a run cannot be shown.
    StoreExistsError
        A file to write exists and is not a regular file: a folder, a link, a device.
    StoreWriteError
        Writing failed.
    """
    if not runs:
        raise ConfigError("there are no runs; give at least one folder or file")
    require_file_target(out, os_io=os_io)
    # Everything is read and drawn before the old page is touched.
    sections = beside([section for run in runs for section in read_sections(run)])
    make_output_folder(out.parent, os_io=os_io)
    named = (
        title or ", ".join(section.run.name for section in sections if section.run is not None) or "gloader"
    )
    made = f"{datetime.now().astimezone():%Y-%m-%d %H:%M}, gloader report {' '.join(map(str, runs))}"
    write_atomically(
        out, render_page(named, sections, made=made).encode(errors="backslashreplace"), os_io=os_io
    )
    if png is not None:
        make_output_folder(png, os_io=os_io)
        for name, data in name_pictures(sections).items():
            write_atomically(png / name, data, os_io=os_io)
    return sections


def name_pictures(sections: Sequence[Section]) -> dict[str, bytes]:
    """Return the charts by file name. A repeated name gets a number. Pure."""
    named: dict[str, bytes] = {}
    for chart in (chart for section in sections for chart in section.charts):
        base, number = slug(chart.name), 2
        name = f"{base}.svg"
        while name in named:
            name, number = f"{base}-{number}.svg", number + 1
        named[name] = chart.as_file()
    return named
