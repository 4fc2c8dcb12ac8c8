"""Children that write an embedding table and are killed; run as a program, prints one JSON line with the findings.

    embedding_driver.py FOLDER STEP

Each child is killed at another call that writes, renames, removes or forces to the device: the first, and then every
STEP-th one. It forks, because a new
interpreter takes a second.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from itertools import count
from pathlib import Path

from embedding_story import Story, check

from gloader.testing.faults import FaultyOS

CALLS = {"open", "write", "fsync", "fsync_dir", "replace", "unlink", "mkdir", "rmdir"}


class KillingOS(FaultyOS):
    """Real system calls, of which the n-th ends the process before it is made."""

    def __init__(self, number: int) -> None:
        super().__init__(calls=CALLS)
        self._number = number

    def _enter(self, name: str) -> None:
        super()._enter(name)
        if self.num_calls == self._number:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path, number: int) -> tuple[bool, int]:
    """Run the story in a child; return whether it was killed, and the number of commits that it began."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Story(lambda: os.write(writer, b".")).run(folder, KillingOS(number))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        begun = len(pipe.read())
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"the child failed at call {number}")
    return os.WIFSIGNALED(status), begun


def main(folder: Path, step: int) -> None:
    """Kill a child at every ``step``-th call."""
    whole, kills = Story(), 0
    (folder / "whole").mkdir()
    whole.run(folder / "whole")
    for number in count(1, step):
        where = folder / str(number)
        where.mkdir()
        was_killed, begun = killed(where, number)
        check(where, whole.states[max(begun - 1, 0) : begun + 1] if was_killed else whole.states[-1:])
        shutil.rmtree(where)
        if not was_killed:
            break
        kills += 1
    print(json.dumps({"killed": kills}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
