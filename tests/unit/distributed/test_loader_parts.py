"""The parts that a loader owns end once, and request nothing after that."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gloader.distributed.open import LoaderParts, PartsGuard


def test_parts_that_are_closed_may_be_dropped_when_the_interpreter_is_taken_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []
    guard = PartsGuard(LoaderParts(cast("Any", SimpleNamespace(close=lambda: closed.append(True)))))
    guard.parts.close()
    monkeypatch.setattr("gloader.distributed.open.close_in_finalizer", None)
    guard.__del__()
    assert closed == [True]


def test_dropped_parts_are_closed() -> None:
    closed = []
    guard = PartsGuard(LoaderParts(cast("Any", SimpleNamespace(close=lambda: closed.append(True)))))
    del guard
    assert closed == [True]
