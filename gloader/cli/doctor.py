"""`gloader doctor`: the checks of `gloader.cli.machine_check` as a table.

The command checks this machine, or with --network the connections between the machines of a torchrun launch.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table

from gloader.cli.ranks import RankLaunch
from gloader.cli.screen import DEFAULT_OUTPUT, OutputFlags, Screen, cell
from gloader.core.flag_values import SWITCH
from gloader.core.paths import home_dir

if TYPE_CHECKING:
    from gloader.cli.machine_check import MachineFinding

# The word and its style for each severity of a finding.
_MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("problem", "bold red")}


def doctor(
    *,
    path: Path | None = None,
    network: Annotated[bool, SWITCH] = False,
    output: OutputFlags = DEFAULT_OUTPUT,
) -> int:
    """Check this machine and list its problems. The disk is measured for two to three seconds.

    The disk's rates are remembered: later loaders choose their way of reading by them. The exit status is 1 if a
    problem makes gloader unusable.

    Parameters
    ----------
    path
        Folder on the disk to measure. Default: the folder of prepared sources.
    network
        Measure the network between several machines instead. Start the command on each machine with
        `torchrun --nnodes W ... -m gloader doctor --network`. If another network interface is faster, the variable to
        export is shown.
    """
    screen = Screen.open(is_json=output.json)
    if network:
        return _network(screen)
    from gloader.cli.machine_check import diagnose

    findings = diagnose(path or home_dir())
    is_usable = _show(screen, findings)
    if not output.json:
        screen.say(
            "everything gloader needs is here" if is_usable else "gloader cannot run: see the problems above"
        )
    screen.result({"usable": is_usable, "findings": [asdict(finding) for finding in findings]})
    return 0 if is_usable else 1


def _network(screen: Screen) -> int:
    """Show the network between the machines of a launch, on the first rank."""
    from gloader.cli.machine_check import network_findings, survey_launch, to_json, what_to_do

    launch = RankLaunch.from_environ()
    survey = survey_launch(launch)
    findings = network_findings(survey)
    if launch.is_first:
        _show(screen, findings)
        if not screen.is_json:
            screen.say(what_to_do(survey))
        screen.result(
            {
                "usable": not survey.advice.is_needed,
                "findings": [asdict(finding) for finding in findings],
                "network": to_json(survey),
            }
        )
    return 1 if survey.advice.is_needed else 0


def _show(screen: Screen, findings: "list[MachineFinding]") -> bool:
    """Print a table of findings, unless the output is JSON; return whether no finding is a problem."""
    if not screen.is_json:
        screen.console.print(_table(findings))
    return all(finding.severity != "problem" for finding in findings)


def _table(findings: "list[MachineFinding]") -> Table:
    """Return a row for each finding, followed by its remedy if there is one."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        word, style = _MARKS[finding.severity]
        table.add_row(cell(word, style), cell(finding.name), cell(finding.value))
        if finding.fix:
            table.add_row("", "", cell(f"-> {finding.fix}", "yellow"))
    return table
