"""The processes that compile kernels before a run: as many at once as the memory budget allows.

A kernel is a function that numba compiles. A job is a group of kernels that one process compiles and saves in numba's
cache. numba keeps compilation memory until its process ends. When all processes together come near the budget, one of
them ends, and a new process continues its job; it loads the saved kernels.

`gloader.training.first_run` starts the jobs with `run_all`, and calls `save_in_turns` in each process. All memory here
is anonymous memory, which is not backed by a file, in bytes.
"""

import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from gloader.core.units import format_bytes

_LOG = logging.getLogger("gloader")
_SAYS_EVERY_S = 4.0  # seconds between two progress messages
_LOOKS_EVERY_S = 0.05  # seconds between two checks of the processes

# Memory that a process takes to load all kernels of a job and compile a few. Measured: 95 MB, and with torch 216 MB;
# for links, or for several types, somewhat more.
_LEAST_BYTES, _LEAST_BYTES_WITH_TORCH = 120_000_000, 232_000_000
# Memory to compile the largest kernel. A process finishes its kernel before it checks whether it should end.
_KERNEL_BYTES = 12_000_000
# Kernels that a process saves before it may end early, because the next process takes two seconds to begin.
_LEAST_SAVED = 2
_EXIT_FOR_ROOM = 75  # exit status of a process that ended early to free its memory
# Memory of an interpreter with torch, if it cannot be measured here. A memory budget counts only memory above this
# base.
_BARE_BYTES = 145_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileJob:
    """Kernels that one process compiles."""

    name: str  # names the job's files
    module: str  # the program, run as ``python -m module words``
    words: str  # its argument
    needs_torch: bool  # whether the process imports torch

    @property
    def least_bytes(self) -> int:
        """Bytes that the process takes in any case."""
        return _LEAST_BYTES_WITH_TORCH if self.needs_torch else _LEAST_BYTES

    def start(self, folder: Path) -> "subprocess.Popen[bytes]":
        """Start a process. For each saved kernel it writes one byte to the job's ``.compiled`` file in ``folder``."""
        stop_file(folder, self.name).unlink(missing_ok=True)
        command = [sys.executable, "-m", self.module, self.words]
        with (folder / f"{self.name}.compiled").open("ab") as compiled:
            return subprocess.Popen(command, stdout=compiled, stderr=subprocess.DEVNULL)


def room_beside(memory_budget: int | None, *, num_ranks: int) -> int:
    """Return the bytes that all compiling processes may take: the budget without the memory of the waiting ranks.

    Parameters
    ----------
    memory_budget : budget in bytes; None means half the free memory
    num_ranks : ranks, the run's processes, on this machine; each holds as much as this one
    """
    from gloader.observe.peak_memory import anonymous_bytes, bare_bytes
    from gloader.plan.available import default_budget_bytes

    budget = default_budget_bytes() if memory_budget is None else memory_budget
    # ``bare`` is the memory of an interpreter with torch. The budget does not count it, so each rank's part is its
    # memory without ``bare``. `bare_bytes` would import torch. If this process has not imported it, the process needs
    # less memory than ``bare``, and the compiling processes get the difference.
    bare = bare_bytes() if "torch" in sys.modules else _BARE_BYTES
    return budget + num_ranks * (bare - anonymous_bytes())


def lack_of(room_bytes: int, jobs: Sequence[CompileJob]) -> str:
    """Return a warning for the end of a message, beginning with ";", if the room is small; otherwise "". Pure.

    Parameters
    ----------
    room_bytes : memory for all processes together
    jobs : the jobs
    """
    least = [job.least_bytes for job in jobs]
    if max(least) > room_bytes:
        return f"; that takes {format_bytes(max(least) - room_bytes)} more than the memory budget"
    return "; longer in so small a memory budget" if sum(least) > room_bytes else ""


def run_all(jobs: Sequence[CompileJob], folder: Path, says: Any, *, room_bytes: int) -> bool:
    """Run all jobs in processes, one per core, and report progress every few seconds.

    If the memory does not suffice for all jobs, they run one after another. Returns False if the process of a job
    failed; the run itself then compiles the rest of that job.

    Parameters
    ----------
    jobs : the jobs
    folder : receives the processes' files: counts of kernels, orders to stop and a lock
    says : function that shows a progress message
    room_bytes : memory for all processes together
    """
    is_ample = sum(job.least_bytes for job in jobs) <= room_bytes
    max_running = len(os.sched_getaffinity(0)) if is_ample else 1
    # One at a time, jobs without torch run first. They leave the most memory for compilation, and later jobs load the
    # kernels that the first ones compiled.
    waiting = list(jobs) if is_ample else sorted(jobs, key=lambda job: job.least_bytes)
    running: list[tuple[CompileJob, subprocess.Popen[bytes]]] = []
    # Processes that `_make_room` has killed; their jobs start again.
    killed: list[subprocess.Popen[bytes]] = []
    is_whole = True  # False after a failed process
    began = reported = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < max_running and _has_room(waiting[0], running, room_bytes):
                job = waiting.pop(0)
                running.append((job, job.start(folder)))
            for ended in [each for each in running if each[1].poll() is not None]:
                running.remove(ended)
                job, process = ended
                if process.returncode == _EXIT_FOR_ROOM or process in killed:
                    waiting.insert(0, job)
                elif process.returncode:
                    is_whole = False
                    _LOG.debug("kernels are compiled in the run itself: %s", process.args)
            killed += _make_room(running, folder, room_bytes)
            if time.monotonic() - reported >= _SAYS_EVERY_S:
                reported = time.monotonic()
                done = sum(path.stat().st_size for path in folder.glob("*.compiled"))  # one byte per kernel
                # Each process first loads numba, which takes some seconds.
                says(f"compiling: {reported - began:.0f} s so far" + (f", kernels: {done}" if done else ""))
            if running:
                time.sleep(_LOOKS_EVERY_S)
    finally:
        for _, process in running:
            process.kill()
            process.wait()
    return is_whole


def _has_room(
    job: CompileJob, running: "Sequence[tuple[CompileJob, subprocess.Popen[bytes]]]", room_bytes: int
) -> bool:
    """Return whether a process for ``job`` may start. Each process counts with its least memory and one more kernel.

    A first process may always start.
    """
    held = [
        max(each.least_bytes, size)
        for (each, _), size in zip(running, _bytes_of_processes(running), strict=True)
    ]
    return not running or sum(held) + job.least_bytes + (len(held) + 1) * _KERNEL_BYTES <= room_bytes


def _bytes_of_processes(running: "Sequence[tuple[CompileJob, subprocess.Popen[bytes]]]") -> list[int]:
    """Return each process's memory in bytes."""
    from gloader.observe.peak_memory import anonymous_bytes

    return [anonymous_bytes(Path(f"/proc/{process.pid}/status")) for _, process in running]


def _make_room(
    running: "Sequence[tuple[CompileJob, subprocess.Popen[bytes]]]", folder: Path, room_bytes: int
) -> "list[subprocess.Popen[bytes]]":
    """End one process if all together come near ``room_bytes``. Returns the killed process, or nothing.

    The process belongs to the job with the least memory. Normally it gets an order to end after its current kernel, and
    the result is empty. If less than the memory for one kernel is left and there are several processes, the process is
    killed. Its current kernel is lost, but to wait for it could take so long that the other processes exceed
    ``room_bytes``.
    """
    held = _bytes_of_processes(running)
    if sum(held) + len(held) * _KERNEL_BYTES <= room_bytes:
        return []
    if len(held) > 1 and sum(held) + _KERNEL_BYTES > room_bytes:
        _, process = min(running, key=lambda each: each[0].least_bytes)
        process.kill()
        return [process]
    # A process that holds only its job's least memory is not ended, unless it is alone: its successor would hold as
    # much again.
    is_alone = len(held) == 1
    grown = [job for (job, _), size in zip(running, held, strict=True) if is_alone or size > job.least_bytes]
    if grown:
        stop_file(folder, min(grown, key=lambda job: job.least_bytes).name).touch()
    return []


def stop_file(folder: Path, job: str) -> Path:
    """Return the file that orders a job's process to end after it has saved its kernel."""
    return folder / f"{job}.stop"


def save_in_turns(folder: Path, job: str) -> None:
    """Replace numba's function that saves a kernel, in this process.

    From now on, only one process at a time saves a kernel, and this process ends after a save if it must make room.

    numba numbers a kernel's files by an index, which it reads and writes without a lock. Two processes that save
    the kernel for different types at once would take the same number, and one file would replace the other.

    Parameters
    ----------
    folder : folder of all processes, with their lock file
    job : this process's job
    """
    from numba.core.caching import IndexDataCacheFile

    save, saved = IndexDataCacheFile.save, count(1)

    def save_in_turn(cache: Any, key: Any, data: Any) -> None:
        """Save a kernel under the lock, count it on stdout, and end this process if ordered."""
        with (folder / "saving").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            save(cache, key, data)
        sys.stdout.write(".")
        sys.stdout.flush()
        if next(saved) >= _LEAST_SAVED and stop_file(folder, job).exists():
            # The exit is immediate. The process compiles by rehearsing a small run, and the run's other threads would
            # continue with the next kernels.
            os._exit(_EXIT_FOR_ROOM)

    IndexDataCacheFile.save = save_in_turn
