"""The ring itself: set up, probed, closed, and unimpressed by refusals."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.errors import StoreReadError
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.read import uring
from gloader.ssd_store.read.uring import Uring, probe_uring

if TYPE_CHECKING:
    from gloader.types import IdArray

pytestmark = pytest.mark.skipif(probe_uring() is not None, reason=f"no io_uring here: {probe_uring()}")


def rings() -> int:
    links = []
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115 - a link to no path
        except FileNotFoundError:
            continue
    return sum("io_uring" in link for link in links)


def test_the_probe_leaves_nothing_open() -> None:
    before = rings()
    assert probe_uring() is None
    assert rings() == before


def test_close_releases_the_ring_and_is_idempotent() -> None:
    before = rings()
    ring = Uring(8)
    assert rings() > before
    ring.close()
    ring.close()
    assert rings() == before


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.ENOMEM])
def test_a_refused_ring_is_an_oserror_and_a_reason(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uring, "_create", lambda *_: code)
    with pytest.raises(OSError, match=os.strerror(code)):
        Uring(8)
    assert os.strerror(code) in str(probe_uring())


def test_a_ring_that_may_be_made_but_not_entered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real, before = uring._call, rings()

    def no_entry(number: int, *rest: int) -> int:
        if number == uring.ENTER:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return real(number, *rest)

    monkeypatch.setattr(uring, "_call", no_entry)
    assert "not permitted" in str(probe_uring())
    assert rings() == before


def test_a_ring_that_nobody_holds_closes_itself() -> None:
    before = rings()
    ring = Uring(8)
    assert rings() > before
    del ring
    gc.collect()
    assert rings() == before


def test_a_signal_while_a_ring_is_made_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    real, before = uring._create, rings()

    def interrupted(*words: Any) -> int:
        real(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(uring, "_create", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Uring(8)
    gc.collect()
    assert rings() == before


def test_old_kernels_get_no_flags_they_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    real = uring._create
    flags = []

    def old_kernel(function: int, location: int, entries: int, params: int, descriptor: IdArray) -> int:
        block = np.ctypeslib.as_array((ctypes.c_uint32 * 30).from_address(params))
        flags.append(int(block[2]))
        return errno.EINVAL if block[2] else int(real(function, location, entries, params, descriptor))

    monkeypatch.setattr(uring, "_create", old_kernel)
    Uring(8).close()
    assert flags == [uring.COOP_TASKRUN, 0]


def test_a_ring_that_breaks_stays_broken(tmp_path: Path) -> None:
    rows, out = np.arange(8), np.zeros((8, 4), np.float32)
    with FeatureStore.create(tmp_path / "s", np.ones((8, 4), np.float32)) as store:
        store._lane._backend._table[uring.FD] = -1
        with pytest.raises(
            StoreReadError, match="io_uring_enter failed: Bad file descriptor; use io='threads'"
        ):
            store.read_into(rows, out)
        with pytest.raises(StoreReadError, match="closed or broke; open the loader, or the store, again"):
            store.read_into(rows, out)


def test_locked_memory_that_is_scarce_only_costs_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = uring._call

    def scarce(number: int, *rest: int) -> int:
        if number == uring.REGISTER:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(number, *rest)

    monkeypatch.setattr(uring, "_call", scarce)
    ring = Uring(8, np.zeros(8192, np.uint8))
    assert not ring._table[uring.FIXED]
    ring.close()


def test_a_ring_that_a_signal_kept_from_beginning_ends_without_a_word() -> None:
    Uring.__new__(Uring).__del__()
