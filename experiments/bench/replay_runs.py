"""Runs of the benchmark of the replay: each in processes of its own, kept in the working folder and not repeated."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from control_group import call_child
from pipeline_runs import turns
from ranks import Place, run_group
from replay_cases import make_graph
from replay_disk import held_back, home_of

from gloader.core.units import format_exact_seconds
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay_cases import Case

Run = dict[str, Any]
CHILD: Final = Path(__file__).with_name("replay_child.py")
_TIMEOUT_S: Final = 180.0
_RESULT: Final = "result.json"
_TRACE: Final = "trace.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Where runs are made and kept."""

    workdir: Path  # on the disk to measure
    rounds: int = 1
    is_again: bool = False  # runs that are kept are made once more
    is_quick: bool = False  # tiny graphs, to see that it works

    def run_all(self, cases: Sequence[Case]) -> dict[str, list[Run]]:
        """Return the runs of each case, by its name; those that are not kept are made in turns.

        A case that failed is not run again.
        """
        by_name = {case.name: case for case in cases}
        found: dict[str, list[Run]] = {name: [] for name in by_name}
        for name in turns(list(by_name), self.rounds):
            if found[name] and "failed" in found[name][-1]:
                continue
            found[name].append(self.run(by_name[name], len(found[name])))
        return found

    def run(self, case: Case, number: int = 0) -> Run:
        """Return a run of ``case``: what it took, where its trace lies, and how much else was going on."""
        if self.is_quick:
            case = case.tiny
        folder = self._folder_of(case, number)
        if (folder / _RESULT).exists() and not self.is_again:
            return dict(json.loads((folder / _RESULT).read_text()))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            found = self._made(case, folder)
        except ConfigError as error:
            found = {"failed": str(error)}
        found["load_average"] = os.getloadavg()[0]
        if "failed" not in found:
            (folder / _RESULT).write_text(json.dumps(found))
        print(f"  {said(case, found)}", flush=True)
        return found

    def is_kept(self, case: Case) -> bool:
        """Return whether no run of ``case`` has to be made."""
        folders = [self._folder_of(case, number) for number in range(self.rounds)]
        return all((folder / _RESULT).exists() for folder in folders) and not self.is_again

    def _folder_of(self, case: Case, number: int) -> Path:
        return self.workdir / "runs" / f"{case.key}-{number}"

    def _made(self, case: Case, folder: Path) -> Run:
        job: dict[str, Any] = {
            "dataset": str(make_graph(self.workdir, case.graph)),
            "loader": {"spill_dir": str(folder)} | case.loader,
            "model": case.model,
            "links": case.links,
            "epochs": case.epochs,
            "compute": case.compute,
            "cores": case.cores,
            "trace": str(folder / _TRACE),
        }
        home = {"GLOADER_HOME": str(home_of(self.workdir, case.disk))}
        with held_back(self.workdir, case.disk) as group:
            job["groups"] = [] if group is None else [str(group)]
            return _alone(job, home) if case.ranks == 1 else _together(job, home, case.ranks)


def _alone(job: dict[str, Any], home: dict[str, str]) -> Run:
    os.environ |= home
    code, output, errors = call_child(CHILD, job, group=None, timeout_s=_TIMEOUT_S)
    if code is None:
        return {"failed": f"it was not done after {_TIMEOUT_S:.0f} s"}
    if code != 0:
        return {"failed": f"exit {code}: {why(errors)}", "errors": errors[-4000:]}
    return summed([json.loads(output.splitlines()[-1])], job["trace"])


def why(errors: str) -> str:
    """Return the line of a traceback that says what happened: notes on where may stand below it. Pure."""
    lines = errors.strip().splitlines() or ["nothing was said"]
    return next((line for line in reversed(lines) if line.startswith("gloader.errors.")), lines[-1])


def _together(job: dict[str, Any], home: dict[str, str], ranks: int) -> Run:
    places = [Place(environ={**home, "OMP_WAIT_POLICY": "PASSIVE"})] * ranks
    try:
        return summed(run_group(str(CHILD), ranks, job, places=places, timeout_s=_TIMEOUT_S), job["trace"])
    except SystemExit as error:
        return {"failed": str(error)}
    except subprocess.TimeoutExpired:
        return {"failed": f"the ranks were not done after {_TIMEOUT_S:.0f} s"}


def summed(ranks: Sequence[Run], trace: str) -> Run:
    """Return a run as its first rank saw it, with what other processes of the machine used meanwhile. Pure."""
    first = dict(ranks[0])
    seconds = sum(first["epoch_s"])
    others = first["all_cpu_s"] - sum(rank["own_cpu_s"] for rank in ranks)
    return first | {
        "trace": trace,
        "peak_bytes": sum(rank["peak_bytes"] for rank in ranks),
        # Of a core, on average: above a few hundredths, the run was not alone.
        "others_share": max(others, 0.0) / seconds,
        "stolen_share": first["stolen_cpu_s"] / seconds,
    }


def said(case: Case, run: Run) -> str:
    """Return a run in a line. Pure."""
    if "failed" in run:
        return f"{case.name} failed: {run['failed']}"
    epochs = ", ".join(format_exact_seconds(seconds) for seconds in run["epoch_s"])
    return f"{case.name}: epochs of {run['batches']} batches {epochs}; others used {run['others_share']:.2f} cores"
