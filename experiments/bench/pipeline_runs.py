"""Runs of the pipeline's benchmark: each in a process of its own, contenders in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Job = dict[str, Any]
Result = dict[str, Any]
_CHILD = Path(__file__).with_name("pipeline_child.py")
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


def run(job: Job, *, cgroup: Path | None = None, is_cold: bool = False) -> Result:
    """Run one job, within a control group where one is given; ``is_cold`` drops its dataset from the page cache."""
    if is_cold:
        drop_from_page_cache(Path(job["dataset"]))
    command = [sys.executable, str(_CHILD), json.dumps(job)]
    if cgroup is not None:
        command = ["/bin/sh", "-c", _ENTER, str(cgroup), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": f"exit {done.returncode}: {done.stderr.strip()[-2000:]}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def in_turns(jobs: Mapping[str, Job], rounds: int, *, is_cold: bool = False) -> dict[str, list[Result]]:
    """Run every job once a round; return the results of each. One that is refused is not run again."""
    results: dict[str, list[Result]] = {name: [] for name in jobs}
    for name in turns(list(jobs), rounds):
        if results[name] and is_void(results[name][-1]):
            continue
        results[name].append(run(jobs[name], is_cold=is_cold))
        if "failed" in results[name][-1]:
            print(f"  {name} failed: {results[name][-1]['failed']}", flush=True)
    return results


def turns(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Yield who runs next; who begins a round changes."""
    for i in range(rounds):
        first = i % len(names)
        yield from (*names[first:], *names[:first])


def is_void(result: Result) -> bool:
    """Return whether the run measured nothing."""
    return "refused" in result or "failed" in result


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, least and most."""
    return {"median": median(values), "least": min(values), "most": max(values)}


def column(results: Sequence[Result], name: str) -> list[float]:
    """Return one number of every result that is not void."""
    return [result[name] for result in results if not is_void(result)]


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Return the spread of the ratios of the rounds."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def drop_from_page_cache(folder: Path) -> None:
    """Let the next read of every file of ``folder`` come from the disk."""
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
