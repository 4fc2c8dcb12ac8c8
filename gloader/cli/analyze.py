"""`gloader analyze`: the causes of an epoch's time in a recorded run, and predictions of the time after changes.

A recording (`gloader train --trace`) has the times of each thread's work. A replay computes the time that the same work
takes, on the same machine or after a change such as a faster disk. The command replays the run unchanged and with
changes, and writes the findings to the screen and to files. A stall is time in which the training waits for data.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gloader.cli.failure import EXIT_FAILURE, EXIT_OK
from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, facts
from gloader.core.flag_values import REPEATED, SWITCH
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.lab.analyze.findings import Findings


def analyze(
    run: Path,
    /,
    *,
    what_if: Annotated[tuple[str, ...], REPEATED, Parameter(metavar="CHANGE")] = (),
    out: Path | None = None,
    verify: Annotated[bool, SWITCH] = False,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> int:
    """Show where the time of a recorded run went, and predict the effect of changes.

    Record a run with `gloader train ... --trace --out RUN`. The command replays the run from the recorded work of its
    threads, unchanged and with changes. A change that affects the reads is sampled and planned again. Nothing is
    trained. The exit status is 1 if the replay explains too little of the run for predictions.

    Parameters
    ----------
    run
        The folder of `gloader train --trace`, or a trace.
    what_if
        A change, such as disk=2x, or several together, such as cache=2x,superbatch=128. The flag may be repeated.
        Default: changes that often help. Names: disk, disk.random, disk.write, gpu, compute, network, cores, threads,
        buffers, ranks, memory, cache, superbatch, policy, strategy, dtype, order, fanout, batch-size.
    out
        Folder for analysis.json, analysis.html and replay.trace.json. Default: the run's folder.
    verify
        Also train a few hundred batches with this run's settings: on batches that stay in memory, with everything in
        memory, and as recorded. The measured stalls are shown next to the replay's.
    """
    from gloader.replay.changes import parse_changes

    screen = Screen.open(is_json=output.json)
    changes = tuple(map(parse_changes, what_if))
    files = _Files.beside(run, out)

    from gloader.lab.analyze.analysis import analyse
    from gloader.lab.analyze.lanes import write_replay
    from gloader.lab.analyze.predict import open_run

    with open_run(run) as predictor:
        recording = predictor.recording
        with screen.console.status("replaying"):
            findings = analyse(predictor, run, what_if=changes)
        if verify:
            from gloader.lab.analyze.analysis import verify_stalls

            with screen.console.status("training, to verify"):
                findings = replace(findings, verified=verify_stalls(run, recording.header))
        write_replay(files.trace, recording, predictor.base)
    files.write(findings)
    if not screen.is_json:
        _show(screen, findings, files)
    screen.result(findings.to_json())
    return EXIT_OK if findings.is_trusted else EXIT_FAILURE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The output files, all in one folder."""

    figures: Path
    page: Path
    trace: Path

    @classmethod
    def beside(cls, run: Path, out: Path | None) -> "_Files":
        """Return the files for ``run`` in ``out``. Makes the folder now, so that a failure precedes minutes of work."""
        from gloader.ssd_store.write.atomic_file import make_output_folder, require_file_target

        folder = out or (run if run.is_dir() else run.parent)
        files = cls(
            figures=folder / "analysis.json",
            page=folder / "analysis.html",
            trace=folder / "replay.trace.json",
        )
        if run.name in (files.figures.name, files.trace.name):
            raise ConfigError(f"{run} is a file that gloader analyze writes; give the run, or its trace.json")
        for path in (files.figures, files.page, files.trace):
            require_file_target(path)
        if run.exists():
            make_output_folder(folder)
        return files

    def write(self, findings: "Findings") -> None:
        """Write the figures and the page."""
        from gloader.lab.report.analysis_page import analysis_sections
        from gloader.lab.report.page import render_page
        from gloader.ssd_store.write.atomic_file import write_atomically

        text = json.dumps(findings.to_json(), indent=1, default=str) + "\n"
        write_atomically(self.figures, text.encode())
        name = Path(findings.run).resolve().name
        sections = analysis_sections(findings, source=findings.run, name=name)
        write_atomically(
            self.page,
            render_page(f"gloader analyze: {name}", sections).encode(errors="backslashreplace"),
        )


def _show(screen: Screen, findings: "Findings", files: _Files) -> None:
    """Write the table of causes, predictions and the floor (the least possible time), and the names of the files."""
    from gloader.lab.analyze.findings import lines_of, no_help_words, what_if_words

    rows = lines_of(findings)
    floor = rows.pop("floor", None)
    if findings.is_trusted:
        heading = "what if" if findings.was_asked else "what would help"
        rows[heading] = "" if findings.shown else no_help_words(findings)
        rows |= {f"  {prediction.change}": what_if_words(prediction) for prediction in findings.shown}
    if floor is not None:
        rows["floor"] = floor
    screen.console.print(facts(rows, title=findings.run))
    screen.say(f"\npage: {files.page}\nfigures: {files.figures}")
    screen.say(f"replay beside the run: {files.trace}, for https://ui.perfetto.dev")
