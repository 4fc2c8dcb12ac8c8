"""A propagation that is killed or refused at any change of the disk: nothing half-made, the same bits in the end."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import forking
import numpy as np
import pytest

from gloader.core.units import parse_bytes
from gloader.dataset import Dataset
from gloader.dataset.verify import verify_dataset
from gloader.errors import BudgetError, StoreError
from gloader.ssd_store.os_io import OsIO
from gloader.testing.faults import FaultyOS
from gloader.training.propagation import hop_plan
from gloader.training.propagation.hop_request import HopSettings
from gloader.training.propagation.propagate_dataset import make_hops

if TYPE_CHECKING:
    from pathlib import Path

N = 400
CHANGES = frozenset(
    {
        *(
            "write",
            "pwrite",
            "fsync",
            "fsync_dir",
            "mkdir",
            "link",
            "replace",
            "rename_noreplace",
            "exchange",
        ),
        *("unlink", "rmtree", "rmdir"),
    }
)
SETTINGS = {
    "all": HopSettings(hops=2, labels=True),
    "labelled": HopSettings(hops=2, nodes="labelled", dtype="float16", directions=("in", "out")),
}


@pytest.fixture(scope="module", name="dataset")
def _dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    random = np.random.default_rng(0)
    ids = random.permutation(N)
    return Dataset.from_numpy(
        tmp_path_factory.mktemp("given") / "d",
        features=random.normal(size=(N, 40)).astype(np.float32),
        labels=random.integers(0, 3, N),
        edge_index=random.integers(0, N, (2, 2000)),
        train=ids[:100],
        valid=ids[100:150],
        test=ids[150:200],
    )


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep finished columns of short runs too."""
    monkeypatch.setattr(hop_plan, "_KEPT_FROM_S", 0.0)


class Deadly(OsIO):
    """Kills the process before its change number ``at`` of the disk."""

    def __init__(self, at: int) -> None:
        self.at, self.count, self.lock = at, 0, threading.Lock()

    def step(self) -> None:
        with self.lock:
            self.count += 1
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)


def _stepping(name: str) -> Any:
    def call(self: Deadly, *given: Any, **keywords: Any) -> Any:
        self.step()
        return getattr(super(Deadly, self), name)(*given, **keywords)

    return call


for _name in CHANGES:
    setattr(Deadly, _name, _stepping(_name))


@functools.cache
def little(dataset: Dataset, settings: HopSettings, suffix: str = "") -> int:
    """Return nearly the least memory budget: "labelled" has two slabs on the SSD."""
    with pytest.raises(BudgetError) as caught:
        make_hops(dataset, dataset.root.with_name(f"none{suffix}"), settings, memory_budget_bytes=1000)
    # The narrowest slabs would take a minute.
    return parse_bytes(str(caught.value).partition('memory_budget="')[2].partition('"')[0]) + 200_000


def make(dataset: Dataset, out: Path, settings: HopSettings, **more: Any) -> None:
    budget = little(dataset, settings, out.suffix)
    make_hops(dataset, out, settings, memory_budget_bytes=budget, **more)


def run(dataset: Dataset, out: Path, kind: str, os_io: OsIO) -> str:
    make(dataset, out, SETTINGS[kind], os_io=os_io)
    return Dataset.open(out).fingerprint


def check_kills(dataset: Dataset, folder: Path, kind: str, step: int) -> None:
    counter = Deadly(0)
    expected = run(dataset, folder / "straight", kind, counter)
    assert counter.count > 60
    found = set()
    for at in range(1 + step // 2, counter.count + 1, step):
        out = folder / f"out{at}"
        end = forking.in_child(lambda out=out, at=at: run(dataset, out, kind, Deadly(at)))
        assert end in {-9, 0}, at  # threads change the number of calls a little
        found.add((end, out.exists()))
        if not out.exists():
            assert run(dataset, out, kind, OsIO()) == expected, at
        elif (folder / f".out{at}.propagate").exists():
            # Killed behind the commit: the dataset is complete, and a fresh run removes what is left.
            make(dataset, out, SETTINGS[kind], overwrite=True, resume=False)
        assert Dataset.open(out).fingerprint == expected, at
        assert verify_dataset(out).is_ok, at
    assert (-9, False) in found
    assert all(not path.name.startswith(".") for path in folder.iterdir()), sorted(folder.iterdir())


@pytest.mark.parametrize("kind", sorted(SETTINGS))
def test_sigkill_at_changes_of_the_disk(dataset: Dataset, tmp_path: Path, kind: str) -> None:
    check_kills(dataset, tmp_path, kind, 17)


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(SETTINGS))
def test_sigkill_at_every_change_of_the_disk(dataset: Dataset, tmp_path: Path, kind: str) -> None:
    check_kills(dataset, tmp_path, kind, 1)


def check_refusals(dataset: Dataset, folder: Path, kind: str, step: int, error: int) -> None:
    counter = FaultyOS(calls=CHANGES)
    expected = run(dataset, folder / "straight", kind, counter)
    for at in range(1 + step // 2, counter.num_calls + 1, step):
        out = folder / f"out{at}"
        broken = FaultyOS(fail_at=at, calls=CHANGES, error=error)
        # A failure behind the commit is only logged.
        with contextlib.suppress(StoreError, OSError):
            run(dataset, out, kind, broken)
        names = {path.name for path in folder.iterdir() if f"out{at}" in path.name}
        assert names <= {out.name, f".{out.name}.propagate"}, names
        if not out.exists():
            assert run(dataset, out, kind, OsIO()) == expected, at
        assert Dataset.open(out).fingerprint == expected, at


@pytest.mark.parametrize("kind", sorted(SETTINGS))
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_refused_change_leaves_nothing_half_made(
    dataset: Dataset, tmp_path: Path, kind: str, error: int
) -> None:
    check_refusals(dataset, tmp_path, kind, 13, error)


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(SETTINGS))
def test_every_refused_change_leaves_nothing_half_made(dataset: Dataset, tmp_path: Path, kind: str) -> None:
    check_refusals(dataset, tmp_path, kind, 1, errno.ENOSPC)


def test_a_table_is_complete_or_absent(dataset: Dataset, tmp_path: Path) -> None:
    settings = HopSettings(hops=1, nodes="labelled")
    calls = FaultyOS(calls=CHANGES)
    make(dataset, tmp_path / "straight.csv", settings, os_io=calls)
    expected = (tmp_path / "straight.csv").read_bytes()
    for at in range(1, calls.num_calls + 1, 3):
        out = tmp_path / f"t{at}.csv"
        broken = FaultyOS(fail_at=at, calls=CHANGES, error=errno.ENOSPC)
        with contextlib.suppress(StoreError, OSError):
            make(dataset, out, settings, os_io=broken)
        if not out.exists():
            make(dataset, out, settings)
        assert out.read_bytes() == expected, at
