"""Many short runs of the command line, each in a process of its own that needs no start-up.

A server imports everything, trains once so that every kernel is loaded, and then forks for each run. It uses one
compute thread: a pool of threads would not survive the fork.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from gloader.ssd_store.os_io import KILL_AT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LEFT_A_THREAD = 99
_ENDING = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended."""

    status: int  # negative: killed by that signal
    seconds: float  # from its start, or from the signal where one was sent
    text: str  # what it wrote


class RunServer:
    """Starts runs; a context manager that owns the server."""

    def __init__(self, warm_up: Sequence[str], *, log: Path) -> None:
        self._log = log.open("w+b")
        self._server = subprocess.Popen(
            [sys.executable, __file__, json.dumps(list(warm_up))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        self._read()

    def run(
        self,
        words: Sequence[str],
        *,
        after_s: float = 0.0,
        number: signal.Signals | None = None,
        kill_at: str = "",
    ) -> Ended:
        """Run ``gloader`` with ``words``; send it signal ``number`` after ``after_s``, SIGKILL at a kill point."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps([kill_at, *words]) + "\n")
        self._server.stdin.flush()
        pid = self._read()
        start, started = os.fstat(self._log.fileno()).st_size, time.monotonic()
        if number is not None:
            time.sleep(after_s)
            started = time.monotonic()
            os.kill(
                pid, number
            )  # the server waits for it only after the next line: the process still has its id
        self._server.stdin.write("wait\n")
        self._server.stdin.flush()
        status, seconds = self._read(), time.monotonic() - started
        # Server and runs share the place of this file: it is read without being moved.
        written = os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size - start, start)
        return Ended(status=status, seconds=seconds, text=written.decode())

    def _read(self) -> int:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, f"the server died; see {self._log.name}"
        return int(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=20)
        self._server.stdout.close()
        self._log.close()


def _run(words: list[str]) -> int:
    from gloader.cli.main import main

    # Before main began to listen, and behind it, SIGTERM would kill the process, whatever a run makes of it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        status = main(words)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:  # before main began to listen
        status = 130
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("gloader")]
    if left:
        sys.stderr.write(f"left behind: {left}\n")
        return LEFT_A_THREAD
    return status


def _serve(warm_up: list[str]) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)
    status = _run(warm_up)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.write(answers, f"{status}\n".encode())
    for line in sys.stdin:
        # One that comes before the run has begun waits for it: it is the run's to handle, not this module's.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        pid = os.fork()
        if pid == 0:
            os.environ[KILL_AT_VARIABLE], *words = json.loads(line)
            status = _run(words)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        os.write(answers, f"{pid}\n".encode())
        sys.stdin.readline()
        _, status = os.waitpid(pid, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
