"""Groups of ranks (gloo, one machine), each in a process of its own that needs no start-up.

A server imports everything, loads every kernel, and then forks the ranks of each group. It uses one compute thread: a
pool of threads would not survive the fork. What a rank does is a function of `rank_scenarios`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

POLL_S = 0.01
STACKS_S = 0.2
NOT_STARTED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a rank ended."""

    status: int  # negative: killed by that signal
    seconds: float  # from the start of the group, or from the signal where one was sent
    result: Any  # of the scenario; None where it raised
    error: str  # what it raised; where it hung, the stacks of its threads


class RankServer:
    """Starts groups of ranks; a context manager that owns the server."""

    def __init__(self, dataset: Path, *, log: Path) -> None:
        self._log = log.open("wb")
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(dataset)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            text=True,
        )
        self._read()

    def run(
        self,
        scenario: str,
        *,
        world: int = 2,
        timeout_s: float = 30.0,
        ready_s: float = 120.0,
        kill: int | Sequence[int] = (),
        signal_number: int = signal.SIGKILL,
        **args: Any,
    ) -> list[Ended]:
        """Run ``scenario`` on ``world`` ranks; send ranks ``kill`` a signal once every rank said that it is ready."""
        killed = (kill,) if isinstance(kill, int) else kill
        with tempfile.TemporaryDirectory(prefix="ranks") as folder:
            self._write({"scenario": scenario, "world": world, "folder": folder, "args": args})
            pids = self._read()
            started = time.monotonic()
            try:
                while killed and not all((Path(folder) / f"ready-{rank}").exists() for rank in range(world)):
                    assert time.monotonic() < started + ready_s, "the ranks do not get ready"
                    time.sleep(POLL_S)
                for rank in killed:
                    os.kill(pids[rank], signal_number)
            except AssertionError:
                timeout_s = 0.0  # the server kills them, and is ready for the next ones
                raise
            finally:
                self._write({"timeout_s": timeout_s})
                ended = self._read()
            return [_ended(Path(folder), rank, *how) for rank, how in enumerate(ended)]

    def _write(self, request: dict[str, Any]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()

    def _read(self) -> Any:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, f"the server died; see {self._log.name}"
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=20)
        self._server.stdout.close()
        self._log.close()


def _ended(folder: Path, rank: int, status: int, seconds: float) -> Ended:
    with contextlib.suppress(FileNotFoundError):
        found = json.loads((folder / f"result-{rank}").read_text())
        return Ended(status=status, seconds=seconds, result=found["result"], error=found["error"])
    stacks = (folder / f"stacks-{rank}").read_text()
    return Ended(status=status, seconds=seconds, result=None, error=stacks)


def _rank(rank: int, request: dict[str, Any]) -> int:
    import rank_scenarios
    import torch.distributed

    world, folder = request["world"], Path(request["folder"])
    faulthandler.register(signal.SIGUSR2, file=(folder / f"stacks-{rank}").open("w"))
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    found: dict[str, Any] = {"result": None, "error": ""}
    try:
        scenario = getattr(rank_scenarios, request["scenario"])
        found["result"] = scenario(rank=rank, world=world, folder=folder, **request["args"])
    except Exception as error:
        traceback.print_exc()
        found["error"] = "".join(traceback.format_exception_only(error))
    (folder / f"result-{rank}").write_text(json.dumps(found))
    return 1 if found["error"] else 0


def _fork(rank: int, request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            status = _rank(rank, request)
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid


def _wait(pids: list[int], timeout_s: float) -> list[tuple[int, float]]:
    """Return how each rank ended; those that do not end in time, or stand still after all others, are killed."""
    started = time.monotonic()
    ended: dict[int, tuple[int, float]] = {}
    stopped: set[int] = set()
    while len(ended) < len(pids):
        is_over = time.monotonic() > started + timeout_s or len(ended) + len(stopped) == len(pids)
        for pid in pids:
            if pid in ended:
                continue
            if is_over:
                os.kill(pid, signal.SIGUSR2)  # it writes its stacks
                time.sleep(STACKS_S)
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if done and os.WIFSTOPPED(status):
                stopped.add(pid)
            elif done:
                ended[pid] = (os.waitstatus_to_exitcode(status), time.monotonic() - started)
                stopped.discard(pid)
        time.sleep(POLL_S)
    return [ended[pid] for pid in pids]


def _serve(dataset: str) -> None:
    import rank_scenarios

    answers = os.dup(1)
    os.dup2(2, 1)
    rank_scenarios.warm_up(dataset)
    os.write(answers, b"0\n")
    for line in sys.stdin:
        request = json.loads(line)
        pids = [_fork(rank, request) for rank in range(request["world"])]
        os.write(answers, json.dumps(pids).encode() + b"\n")
        timeout_s = json.loads(sys.stdin.readline())["timeout_s"]
        os.write(answers, json.dumps(_wait(pids, timeout_s)).encode() + b"\n")


if __name__ == "__main__":
    _serve(sys.argv[1])
