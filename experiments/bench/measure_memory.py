"""The anonymous memory of processes, read from outside while they run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
_EVERY_S = 0.005
_LOOKS_FOR_CHILDREN = 20


def measure(
    command: list[str], *, group: Path | None, env: dict[str, str], is_launcher: bool = False
) -> tuple[int, str, int]:
    """Run ``command``; return its status, what it said on stderr, and the peak of its anonymous memory.

    Parameters
    ----------
    command : started in ``group``
    group : a control group; None: none
    env : beside this process's
    is_launcher : it starts the processes that count, and does not count itself
    """
    if group is not None:
        command = ["/bin/sh", "-c", _ENTER, str(group), *command]
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=os.environ | paths() | env
        )
        peak, looks = 0, 0
        found: list[int] = []
        try:
            while child.poll() is None:
                # To look for children takes longer than to read their memory.
                if looks % _LOOKS_FOR_CHILDREN == 0:
                    found = processes_of(child.pid)
                looks += 1
                peak = max(peak, sum(map(anonymous_bytes, found[1:] if is_launcher else found)))
                time.sleep(_EVERY_S)
        except BaseException:
            child.kill()
            child.wait()
            raise
        errors.seek(0)
        return child.returncode, errors.read().strip(), peak


def processes_of(pid: int) -> list[int]:
    """Return a process and all that it started; nothing for one that is gone."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(each for child in children for each in processes_of(child))]


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of a process, and its part of shared memory; 0 for one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Anonymous:", "Pss_Shmem:")))


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


def paths() -> dict[str, str]:
    """Return the environment in which a child imports this clone."""
    root = str(Path(__file__).parents[2])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
