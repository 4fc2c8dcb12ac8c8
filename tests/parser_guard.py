"""A guard for parsers of files that anybody may have made: what may leave them, how long, and in how much memory."""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.errors import GloaderError

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MAX_SECONDS = 1.0  # of one core: other processes of the machine do not count
MAX_BYTES = 100 * 10**6


def resident_bytes(name: str) -> int:
    """Return VmRSS or VmHWM, the most since `watch_peak` began, of this process."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


@contextmanager
def within_limits(what: str, *, seconds: float = MAX_SECONDS, num_bytes: int = MAX_BYTES) -> Iterator[None]:
    """Fail where the block takes more than it may, whatever it raises; an error of ours goes on afterwards."""
    _CLEAR.write_text("5")  # VmHWM starts again from what is resident now
    before, started = resident_bytes("VmRSS"), time.process_time()
    refusal, message = None, ""
    # Any other error fails the test as it is, with its traceback.
    try:
        yield
    except GloaderError as error:
        refusal, message = error, str(error)
    assert len(message) < 3000, f"{what}: a message of {len(message)} characters"
    spent = time.process_time() - started
    grown = resident_bytes("VmHWM") - before
    assert spent < seconds, f"{what} took {spent:.2f} s"
    if grown >= num_bytes:
        gc.collect()
    assert grown < num_bytes, f"{what} took {grown / 1e6:.0f} MB"
    if refusal is not None:
        raise refusal
