"""A folder as a range server serves it: late, capped and with faults; and what was asked for so far."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from gloader.testing.served_faults import NO_FAULTS, Faults, Flip, Pace
from gloader.testing.served_requests import Served, ServedCounts

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.testing.served_faults import FaultKind


class ServedFolder:
    """What is served, and how. Thread-safe; `latency_s`, `faults` and `flips` may be set while it is served.

    Parameters
    ----------
    folder : what is served; uploads are written there, whole or not at all
    latency_s : before each answer
    bytes_per_s : cap over all connections; None: none
    faults : answers that go wrong
    flips : bytes that are served changed
    """

    def __init__(
        self,
        folder: Path,
        *,
        latency_s: float = 0.0,
        bytes_per_s: float | None = None,
        faults: Faults = NO_FAULTS,
        flips: tuple[Flip, ...] = (),
    ) -> None:
        self.folder = folder.resolve()
        self.latency_s = latency_s
        self.faults = faults
        self.flips = flips
        self.pace = Pace(bytes_per_s)
        self.is_closing = threading.Event()
        self._log: list[Served] = []
        self._replacements: dict[str, tuple[int, Path]] = {}
        self._attempts: Counter[tuple[str, str, int]] = Counter()
        self._lock = threading.Lock()

    @property
    def counts(self) -> ServedCounts:
        """What was asked for so far."""
        return ServedCounts.of(self.log)

    @property
    def log(self) -> list[Served]:
        """Every answered request, in order."""
        with self._lock:
            return [*self._log]

    def forget(self) -> None:
        """Count from here on."""
        with self._lock:
            self._log.clear()

    def replace_after(self, name: str, *, gets: int, by: Path) -> None:
        """Put the file ``by`` in the place of ``name`` when it has been asked for ``gets`` times from now on."""
        with self._lock:
            self._replacements[name] = (gets, by)

    def note(self, served: Served) -> None:
        """Count an answered request."""
        with self._lock:
            self._log.append(served)

    def begin(self, method: str, name: str, start: int) -> FaultKind | None:
        """Return the fault that a request is to have; what is to be replaced before it is, is."""
        with self._lock:
            attempt = self._attempts[method, name, start]
            self._attempts[method, name, start] += 1
            if method == "GET" and name in self._replacements:
                left, by = self._replacements.pop(name)
                if left:
                    self._replacements[name] = (left - 1, by)
                else:
                    by.replace(self.folder / name)
        return self.faults.of(method, name, start, attempt)

    def path_of(self, target: str) -> Path | None:
        """Return the file that a request's path names, None: it is outside of the folder."""
        path = (self.folder / unquote(urlsplit(target).path).lstrip("/")).resolve()
        return path if path.is_relative_to(self.folder) else None
