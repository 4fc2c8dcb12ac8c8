"""The memory budget against what is taken: every command, model and home of the features, over many budgets.

A run is `gloader prepare`, `train` (which evaluates too) or `infer`, a process each. What counts is anonymous memory
(RssAnon and RssShmem of the process and its children, read every few milliseconds) less that of a bare `import torch`;
it may exceed the budget by a tenth or 64 MB, whichever is more. As root, each runs in a control group (v1) of exactly
that: budget, interpreter and what it may exceed by, with its page cache and the kernel's own memory. A run that the
budget is too small for has to say so, and is marked as refused.

    python experiments/bench/memory.py --workdir /var/tmp --out experiments/results/DATE-memory.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compare_runs import limited

from gloader.core.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUP = Path("/sys/fs/cgroup/memory")
MB = 1_000_000
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
_EVERY_S = 0.003
_REFUSED = 2  # the exit status of a budget that is too small
_DIM = 128
_EDGES_PER_NODE = 10
_FEATURES_OF_BUDGET = {"ssd": 1.5, "ram": 0.35}
_BATCHES = 30  # of an epoch: enough for caches and packs to be full


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One command, and what it took."""

    command: str
    model: str
    features: str
    budget_bytes: int
    outcome: str  # "done", "refused", "killed" or the error
    peak_bytes: int  # of anonymous memory above a bare `import torch`
    group_peak_bytes: int | None  # with page cache and kernel memory; None: no group
    seconds: float
    words: str

    @property
    def over_bytes(self) -> int:
        """By how much the budget was exceeded; negative where it was not."""
        return self.peak_bytes - self.budget_bytes

    @property
    def holds(self) -> bool:
        """Whether it stayed within its budget, or said that it cannot."""
        within = self.over_bytes <= allowed_over_bytes(self.budget_bytes)
        return within and self.outcome in {"done", "refused"}


def allowed_over_bytes(budget_bytes: int) -> int:
    """Return the bytes by which anonymous memory may exceed a budget. Pure."""
    return max(budget_bytes // 10, 64 * MB)


def main() -> None:
    """Run every combination, print the table and write it."""
    args = _parse()
    bare = bare_torch_bytes()
    print(f"bare import torch: {format_bytes(bare)} of anonymous memory", flush=True)
    runs = []
    with tempfile.TemporaryDirectory(dir=args.workdir, prefix="gloader-memory-") as name:
        for budget in args.budgets:
            for features in args.features:
                bench = _Bench(Path(name), budget, features, bare=bare, args=args)
                for run in bench.runs():
                    runs.append(run)
                    print(_line(run), flush=True)
                bench.close()
    table = markdown(runs, bare=bare)
    print(table)
    if args.out is not None:
        rows = [asdict(run) | {"over_bytes": run.over_bytes, "holds": run.holds} for run in runs]
        found = {"command": _command(), "commit": _commit(), "bare_torch_bytes": bare, "runs": rows}
        args.out.write_text(json.dumps(found, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(table)
    if not all(run.holds for run in runs):
        raise SystemExit("a run exceeded its budget")


class _Bench:
    """The runs with one budget and one home of the features."""

    def __init__(
        self, folder: Path, budget: int, features: str, *, bare: int, args: argparse.Namespace
    ) -> None:
        self._budget, self._features, self._bare, self._args = budget, features, bare, args
        self._dataset, self._out = folder / "dataset", folder / "run"
        self._folder = folder

    def runs(self) -> Iterator[Run]:
        """Prepare, then train and predict with each model."""
        batch = 256 if self._budget < 2_000 * MB else 1024
        nodes = int(self._budget * _FEATURES_OF_BUDGET[self._features] / (4 * _DIM))
        share = min(0.6, _BATCHES * batch / nodes)
        spec = (
            f"synthetic:rmat,nodes={nodes},edges={_EDGES_PER_NODE * nodes},dim={_DIM},classes=8,seed=5,"
            f"train={share:.6f},valid={share:.6f}"
        )
        yield self._run("prepare", "-", "prepare", spec, str(self._dataset), "--overwrite")
        for model in self._args.models:
            shutil.rmtree(self._out, ignore_errors=True)
            train = self._run(
                "train, evaluate", model, "train", "--dataset", str(self._dataset), "--out", str(self._out),
                "--model", model, "--features", self._features, "--batch-size", str(batch), "--fanout", "10,10",
                "--hidden", "64", "--epochs", "1", "--json",
            )  # fmt: skip
            yield train
            if train.outcome == "done":
                yield self._run(
                    "infer", model, "infer", "--dataset", str(self._dataset), "--checkpoint", str(self._out), "--out",
                    str(self._folder / "predicted.npy"),
                )  # fmt: skip

    def _run(self, command: str, model: str, *words: str) -> Run:
        cold = self._folder / "kernels"
        shutil.rmtree(cold, ignore_errors=True)
        limit = self._budget + self._bare + allowed_over_bytes(self._budget)
        line = [sys.executable, "-m", "gloader", *words, "--memory-budget", str(self._budget)]
        with limited(self._args.cgroup, limit) as group:
            env = {"NUMBA_CACHE_DIR": str(cold)} if self._args.cold else {}
            began = time.perf_counter()
            code, error, peak = measure(line, group=group, env=env)
            seconds = time.perf_counter() - began
            group_peak, was_killed = None, False
            if group is not None:
                group_peak = int((group / "memory.max_usage_in_bytes").read_text())
                was_killed = "oom_kill 0" not in (group / "memory.oom_control").read_text()
        refused = code == _REFUSED and "budget" in error
        outcome = "killed" if was_killed else "done" if code == 0 else "refused" if refused else error[-300:]
        return Run(
            command=command,
            model=model,
            features=self._features,
            budget_bytes=self._budget,
            outcome=outcome,
            peak_bytes=max(0, peak - self._bare),
            group_peak_bytes=group_peak,
            seconds=seconds,
            words=" ".join(words).replace(str(self._folder), "FOLDER"),
        )

    def close(self) -> None:
        """Remove the dataset."""
        shutil.rmtree(self._dataset, ignore_errors=True)


def measure(command: list[str], *, group: Path | None, env: dict[str, str]) -> tuple[int, str, int]:
    """Run ``command``; return its status, what it said on stderr, and the peak of its anonymous memory.

    Parameters
    ----------
    command : started in ``group``
    group : a control group; None: none
    env : beside this process's
    """
    if group is not None:
        command = ["/bin/sh", "-c", _ENTER, str(group), *command]
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=os.environ | _paths() | env
        )
        peak = 0
        try:
            while child.poll() is None:
                peak = max(peak, anonymous_bytes(child.pid))
                time.sleep(_EVERY_S)
        except BaseException:
            child.kill()
            child.wait()
            raise
        errors.seek(0)
        return child.returncode, errors.read().strip(), peak


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous and shared memory of a process and its children, 0 for one that is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace")
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return 0
    own = sum(
        1024 * int(line.split()[1])
        for line in status.splitlines()
        if line.startswith(("RssAnon", "RssShmem"))
    )
    return own + sum(map(anonymous_bytes, children))


def bare_torch_bytes() -> int:
    """Return the anonymous memory that a process has taken when it has imported torch."""
    wait = "import sys, torch; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        if child.stdout is None or child.stdin is None:
            raise RuntimeError("the child has no pipes")
        child.stdout.readline()
        found = anonymous_bytes(child.pid)
        child.stdin.close()
    return found


def markdown(runs: list[Run], *, bare: int) -> str:
    """Return the table of all runs. Pure."""
    lines = [
        f"Anonymous memory above a bare `import torch` ({format_bytes(bare)}), in MB; allowed: a tenth or 64 MB over.",
        "",
        "| command | model | features | budget | peak | over by | allowed | group peak | outcome |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        group = "-" if run.group_peak_bytes is None else f"{run.group_peak_bytes / MB:,.0f}"
        cells = (
            run.command,
            run.model,
            run.features,
            f"{run.budget_bytes / MB:,.0f}",
            f"{run.peak_bytes / MB:,.0f}",
            f"{run.over_bytes / MB:+,.0f}",
            f"{allowed_over_bytes(run.budget_bytes) / MB:,.0f}",
            group,
            run.outcome + ("" if run.holds else " **exceeded**"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    held = sum(run.holds for run in runs)
    return "\n".join([*lines, "", f"{held} of {len(runs)} runs held.", ""])


def _line(run: Run) -> str:
    mark = "ok " if run.holds else "BAD"
    return (
        f"{mark} {run.command:16} {run.model:10} {run.features} budget {run.budget_bytes / MB:6,.0f} MB "
        f"peak {run.peak_bytes / MB:6,.0f} over {run.over_bytes / MB:+6,.0f} group "
        f"{(run.group_peak_bytes or 0) / MB:6,.0f} {run.seconds:5.0f} s {run.outcome}"
    )


def _paths() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


def _command() -> str:
    return "python experiments/bench/memory.py " + " ".join(sys.argv[1:])


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return found.stdout.strip()


def _parse() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, help="where datasets are made: 1.5 times the largest budget")
    parser.add_argument("--budgets", type=lambda text: [parse_bytes(word) for word in words(text)],
                        default="300MB,512MB,1GB,2GB,8GB")  # fmt: skip
    parser.add_argument("--models", type=words, default="graphsage,gcn,gat")
    parser.add_argument("--features", type=words, default="ssd,ram")
    parser.add_argument("--cold", action="store_true", help="compile every kernel in every run")
    parser.add_argument("--cgroup", type=Path, default=CGROUP, help="where groups are made")
    parser.add_argument("--out", type=Path, help="JSON file; the table is written beside it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
