"""A web server on loopback that serves a folder as an object store does: ranges, ETags, uploads, and faults on demand.

`RangeServer` runs in threads of this process, `range_server_process` in a process of its own, for measurements::

    python -m gloader.testing.range_server FOLDER --port 8000 --latency 0.05 --bytes-per-s 1GB
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gloader.core.units import parse_bytes
from gloader.testing.range_handler import COUNTS_PATH, Listener
from gloader.testing.served_faults import FAULT_KINDS, NO_FAULTS, Faults, Flip
from gloader.testing.served_folder import ServedFolder
from gloader.testing.served_requests import ServedCounts

if TYPE_CHECKING:
    from collections.abc import Iterator


class RangeServer:
    """Serves a folder at `url`. Thread-safe. Owns its threads until `close`; a context manager.

    An ETag is made of a file's inode, size and time, so that a file that another takes the place of has another.

    Parameters
    ----------
    folder, latency_s, bytes_per_s, faults, flips : as of `ServedFolder`
    port : 0: any that is free
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        latency_s: float = 0.0,
        bytes_per_s: float | None = None,
        faults: Faults = NO_FAULTS,
        flips: tuple[Flip, ...] = (),
    ) -> None:
        self.served = ServedFolder(
            folder, latency_s=latency_s, bytes_per_s=bytes_per_s, faults=faults, flips=flips
        )
        self._listener = Listener(self.served, port)
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.05}, name="range-server"
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the folder is, without a slash at the end."""
        return f"http://127.0.0.1:{self._listener.server_address[1]}"

    @property
    def counts(self) -> ServedCounts:
        """What was asked for so far."""
        return self.served.counts

    def close(self) -> None:
        """End every connection and thread. Idempotent."""
        self.served.is_closing.set()
        self._listener.shutdown()
        self._listener.end_connections()
        self._listener.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A range server in a process of its own."""

    url: str

    @property
    def counts(self) -> ServedCounts:
        """What was asked for so far."""
        with urllib.request.urlopen(self.url + COUNTS_PATH, timeout=10) as answer:  # noqa: S310 - ours
            return ServedCounts(**json.load(answer))


@contextlib.contextmanager
def range_server_process(
    folder: Path, *, latency_s: float = 0.0, bytes_per_s: int | None = None, faults: Faults = NO_FAULTS
) -> Iterator[ServerProcess]:
    """Serve ``folder`` from another process inside the block: its threads take no time of this one's interpreter."""
    words = [sys.executable, "-m", __spec__.name, str(folder), "--latency", str(latency_s)]
    words += ["--fault-rate", str(faults.rate), "--seed", str(faults.seed), "--stall", str(faults.stall_s)]
    words += ["--kinds", ",".join(faults.kinds)]
    words += [] if bytes_per_s is None else ["--bytes-per-s", str(bytes_per_s)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield ServerProcess(url=(child.stdout.readline() if child.stdout else "").strip())
        finally:
            child.kill()


def _main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--bytes-per-s", type=parse_bytes, default=None, help="cap over all connections")
    parser.add_argument("--fault-rate", type=float, default=0.0, help="share of GETs that fail")
    parser.add_argument("--kinds", default=",".join(FAULT_KINDS), help="how they fail")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stall", type=float, default=60.0, help="seconds without an answer")
    given = parser.parse_args()
    kinds = tuple(kind for kind in FAULT_KINDS if kind in given.kinds.split(","))
    faults = Faults(rate=given.fault_rate, kinds=kinds, seed=given.seed, stall_s=given.stall)
    with RangeServer(
        given.folder, port=given.port, latency_s=given.latency, bytes_per_s=given.bytes_per_s, faults=faults
    ) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            server.served.is_closing.wait()


if __name__ == "__main__":
    _main()
