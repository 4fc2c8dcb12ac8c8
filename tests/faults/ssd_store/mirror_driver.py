"""Children that read through a mirror and are killed; run as a program, prints one JSON line for each point.

    mirror_driver.py DATASET MIRRORS SEED POINT...

A point is a kill point of the mirror, or a number of milliseconds after which the child is killed from outside. Behind
each the next child goes on in the same mirrors, and at the end one reads everything. For each: how it ended, which
blocks were asked for, and whether what it read was right.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from gloader.ssd_store.mirror import open_mirror, open_objects
from gloader.ssd_store.os_io import KILL_AT_VARIABLE
from gloader.testing.faults import FaultyObjects

BLOCK = 16 * 1024
REQUESTS = 4


class Logged(FaultyObjects):
    """A store whose requests are noted in a file, so that they outlive a kill."""

    log = -1

    def get(self, name, start, length, etag, /):
        os.write(self.log, f"{name} {start}\n".encode())
        return super().get(name, start, length, etag)


def live(dataset: Path, mirrors: Path, log: Path, seed: int) -> None:
    objects = Logged(open_objects(f"file://{dataset}"), delay_s=0.001)
    objects.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    root, os_io = open_mirror(
        objects.url, mirror_dir=mirrors, objects=objects, requests=REQUESTS, block_bytes=BLOCK
    )
    names = sorted(path.relative_to(dataset).as_posix() for path in dataset.rglob("*.*") if path.is_file())
    for at in np.random.default_rng(seed).permutation(len(names)):
        name = names[at]
        expected = (dataset / name).read_bytes()
        fd = os_io.open(root / name, os.O_RDONLY)
        done = bytearray()
        while len(done) < len(expected):
            buffer = bytearray(min(8192, len(expected) - len(done)))
            count = os_io.pread_into(fd, memoryview(buffer), len(done))
            done += buffer[:count]
        os_io.close(fd)
        if done != expected:
            os._exit(3)
    os_io.close_mirror()


def end_of_child(point: str, dataset: Path, mirrors: Path, log: Path, seed: int) -> str:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if not point.isdigit():
                os.environ[KILL_AT_VARIABLE] = point
            live(dataset, mirrors, log, seed)
            code = 0
        finally:
            os._exit(code)
    if point.isdigit():
        time.sleep(int(point) / 1000)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return "killed" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


if __name__ == "__main__":
    dataset, mirrors = map(Path, sys.argv[1:3])
    log = mirrors.with_name("requests.log")
    for number, point in enumerate([*sys.argv[4:], ""]):
        log.unlink(missing_ok=True)
        end = end_of_child(point, dataset, mirrors, log, int(sys.argv[3]) + number)
        asked = log.read_text().splitlines() if log.exists() else []
        drafts = sorted(path.name for path in mirrors.iterdir()) if mirrors.exists() else []
        print(json.dumps([point, end, asked, drafts]))
