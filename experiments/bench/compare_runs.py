"""Runs of the comparison: a process each, under the memory limit where it applies, the files not in the page cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from control_group import call_child, limited
from pipeline_runs import drop_from_page_cache

Run = dict[str, Any]
_CHILD = Path(__file__).with_name("compare_child.py")
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
        code, output, errors = call_child(_CHILD, job, group=group, timeout_s=job["deadline_s"] + _GRACE_S)
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
