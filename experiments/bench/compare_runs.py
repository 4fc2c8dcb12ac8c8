"""Runs of the comparison: a process each, under the memory limit where it applies, the files not in the page cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline_runs import drop_from_page_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

Run = dict[str, Any]
_CHILD = Path(__file__).with_name("compare_child.py")
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
_GRACE_S = 300.0  # beyond the time to train: starting, and a last batch that crawls


def run(job: dict[str, Any], *, parent: Path, limit_bytes: int | None) -> Run:
    """Run one job on cold files; how it ended, also by the kernel's hand, is part of what is returned.

    Parameters
    ----------
    parent : the folder of control groups (v1, memory), in which a group is made for a limit
    limit_bytes : of memory, page cache included; None for no limit
    """
    drop_from_page_cache(Path(job["dataset"]))
    with limited(parent, limit_bytes) as group:
        command = [sys.executable, str(_CHILD), json.dumps(job)]
        if group is not None:
            command = ["/bin/sh", "-c", _ENTER, str(group), *command]
        code, output, errors = _call(command, timeout_s=job["deadline_s"] + _GRACE_S)
        found = read_events(output)
        found["is_limited"] = group is not None
        was_killed = False
        if group is not None:
            found["group_peak_bytes"] = int((group / "memory.max_usage_in_bytes").read_text())
            was_killed = "oom_kill 0" not in (group / "memory.oom_control").read_text()
    found["outcome"] = _outcome(found, code, errors, was_killed=was_killed)
    return found


def read_events(output: str) -> Run:
    """Return what a child said, line by line, as one value. Pure."""
    found: Run = {"epochs": []}
    for line in output.splitlines():
        if not line.startswith('{"event"'):
            continue
        said = json.loads(line)
        match said.pop("event"):
            case "epoch":
                found["epochs"].append(said)
            case "start":
                found["setup_s"], found["setup_bytes_read"] = said["seconds"], said["bytes_read"]
            case "cannot":
                found["cannot"] = said["reason"]
            case "end":
                found |= said | {"has_ended": True}
            case _:
                found |= said
    return found


def _outcome(found: Run, code: int | None, errors: str, *, was_killed: bool) -> str:
    """Return in words how a run ended. Pure."""
    if "cannot" in found:
        return f"cannot run: {found['cannot']}"
    if was_killed:
        return "killed at the limit"
    if code is None:
        return "stopped: it did not end in time"
    if code:
        last = errors.strip().splitlines()[-1:] or ["no message"]
        return f"failed with status {code}: {last[0][:300]}"
    epochs = found["epochs"]
    if epochs and epochs[-1]["batches"] < epochs[-1]["num_batches"]:
        return f"out of time in epoch {epochs[-1]['epoch'] + 1}"
    return "done"


def _call(command: list[str], *, timeout_s: float) -> tuple[int | None, str, str]:
    """Return exit status (None: stopped), output and errors."""
    bench = str(Path(__file__).parent)
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, bench, os.environ.get("PYTHONPATH"))))
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    try:
        output, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        output, errors = child.communicate()
        return None, output, errors
    except BaseException:
        child.kill()
        child.wait()
        raise
    return child.returncode, output, errors


@contextmanager
def limited(parent: Path, limit_bytes: int | None) -> Iterator[Path | None]:
    """Make a control group with a memory limit, and remove it; None without a limit, or where none can be made."""
    group = parent / f"gloader-bench-{os.getpid()}"
    if limit_bytes is None:
        yield None
        return
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError as error:
        print(f"  no memory control group ({error}): this run is not limited", flush=True)
        with suppress(OSError):
            group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Remove a group whose last process may still be on its way out."""
    for _ in range(50):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.1)
        else:
            return
