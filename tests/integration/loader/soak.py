"""Loaders that are opened, left and closed in any way, over and over, while what the process holds is watched."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import gloader

from .streams import PLACES, SAMPLING, digest

EPOCHS = 5
_END_S = 5.0


@dataclass(kw_only=True)
class Held:
    """What the process held, from time to time."""

    rounds: int = 0
    batches: int = 0
    resident: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def note(self) -> None:
        """Measure it now."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        self.resident.append(pages * os.sysconf("SC_PAGE_SIZE"))
        self.descriptors.append(len(list(Path("/proc/self/fd").iterdir())))
        self.threads.append(threading.active_count())


class Soak:
    """One process's life of loaders; every batch is compared with ``expected``."""

    def __init__(
        self, dataset: gloader.Dataset, expected: list[list[str]], spill: Path, *, seed: int
    ) -> None:
        self._dataset, self._expected, self._spill = dataset, expected, spill
        self._draw = random.Random(seed)  # noqa: S311 - a schedule, not a secret
        self.held = Held()

    def round(self) -> None:
        """Open a loader, use it for some epochs in some way, and leave nothing of it."""
        draw = self._draw
        settings: dict[str, Any] = {
            "memory_budget": draw.choice(["150MB", "200MB"]),
            "threads": draw.randint(1, 4),
            "spill_dir": self._spill,
            "epochs": draw.choice([None, None, EPOCHS]),
            "trace": draw.random() < 0.1,
        }
        loader = gloader.Loader(self._dataset, **(SAMPLING | settings | draw.choice(PLACES)))
        for _ in range(draw.randint(1, 4)):
            loader.load_state_dict(loader.state_dict() | {"next": self._place(loader)})
            draw.choice([self._whole, self._break, self._raise, self._drop])(loader)
        draw.choice([self._close, self._close_elsewhere, self._forget])(loader)
        del loader
        self._require_nothing_left()
        self.held.rounds += 1

    def _place(self, loader: gloader.Loader) -> list[int]:
        return [self._draw.randrange(EPOCHS), self._draw.randrange(len(loader))]

    def _checked(self, batch: Any) -> None:
        assert digest(batch) == self._expected[batch.id.epoch][batch.id.index], (batch.id, self.held.rounds)
        self.held.batches += 1

    def _whole(self, loader: gloader.Loader) -> None:
        for batch in loader:
            self._checked(batch)

    def _break(self, loader: gloader.Loader) -> None:
        last = self._draw.randrange(len(loader))
        for batch in loader:
            self._checked(batch)
            if batch.id.index >= last:
                break

    def _raise(self, loader: gloader.Loader) -> None:
        with pytest.raises(ZeroDivisionError):
            for batch in loader:
                self._checked(batch)
                if self._draw.random() < 0.4 or batch.id.index + 1 == len(loader):
                    raise ZeroDivisionError

    def _drop(self, loader: gloader.Loader) -> None:
        batches = iter(loader)
        for _ in range(self._draw.randrange(3)):
            batch = next(batches, None)
            if batch is not None:
                self._checked(batch)
        time.sleep(self._draw.random() * 0.01)

    def _close(self, loader: gloader.Loader) -> None:
        loader.close()

    def _close_elsewhere(self, loader: gloader.Loader) -> None:
        thread = threading.Thread(target=loader.close, name="closer")
        thread.start()
        thread.join()

    def _forget(self, loader: gloader.Loader) -> None:
        """Leave the loader to the garbage collector."""

    def _require_nothing_left(self) -> None:
        gc.collect()
        deadline = time.monotonic() + _END_S
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not left, (left, self.held.rounds)

    def _left(self) -> list[str]:
        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("gloader")]
        return threads + [path.name for path in self._spill.iterdir()]


def soak(
    dataset: gloader.Dataset,
    expected: list[list[str]],
    spill: Path,
    *,
    seed: int,
    is_over: Callable[[Held], bool],
) -> Held:
    """Run rounds until ``is_over``; return what was held after every fifth of them."""
    run = Soak(dataset, expected, spill, seed=seed)
    while not is_over(run.held):
        run.round()
        if run.held.rounds % 5 == 0:
            run.held.note()
    return run.held
