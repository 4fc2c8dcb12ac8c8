"""Kernels on disk: machine code is used again only while the kernel and all that it calls are unchanged."""

from __future__ import annotations

import importlib
import pickle
import sys
from typing import TYPE_CHECKING

import numba
import pytest

from gloader.core import kernels
from gloader.core.kernels import KernelCache, kernel_stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")

CALLER = """
from gloader.core.kernels import njit
from kernels_of_a_test.callee import STEP, Pair, grow

@njit(cache=True, nogil=True)
def total(pair, steps):
    return grow(pair.first) + STEP * steps

def run():
    return total(Pair(1, 2), 10)
"""
CALLEE = """
from typing import NamedTuple
from gloader.core.kernels import njit

STEP = {step}

class Pair(NamedTuple):
    first: int
    second: int

@njit(cache=True, nogil=True)
def grow(x):
    return x + {more}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Write the package with the numbers of a callee, and import it as a new process would."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(kernels, "_PACKAGE", "kernels_of_a_test")
    folder = tmp_path / "kernels_of_a_test"
    folder.mkdir()

    def forget() -> None:
        for name in [name for name in sys.modules if name.startswith("kernels_of_a_test")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        kernels._digest.cache_clear()

    def written(step: int, more: int) -> ModuleType:
        forget()
        for name, text in {
            "__init__": "",
            "callee": CALLEE.format(step=step, more=more),
            "caller": CALLER,
        }.items():
            path = folder / f"{name}.py"
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        return importlib.import_module("kernels_of_a_test.caller")

    yield written
    forget()


def test_a_kernel_is_compiled_once(write: Callable[..., ModuleType]) -> None:
    first = write(2, 5)
    assert not first.total._cache.is_filled()
    assert first.run() == 26
    again = write(2, 5)
    assert again.total._cache.is_filled()
    assert again.run() == 26
    assert sum(again.total.stats.cache_hits.values()) == 1


@pytest.mark.parametrize(
    ("step", "more", "expected"), [(2, 700, 721), (3, 5, 36)], ids=["callee", "constant"]
)
def test_a_changed_callee_is_compiled_into_its_callers(
    write: Callable[..., ModuleType], step: int, more: int, expected: int
) -> None:
    assert write(2, 5).run() == 26
    assert write(step, more).run() == expected


def test_an_index_that_names_a_class_that_moved_is_compiled_again(
    write: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = write(2, 5)
    assert isinstance(found.total._cache, KernelCache)
    index = found.total._cache._cache_file._index_path
    assert found.run() == 26
    with open(index, "wb") as file:  # noqa: PTH123
        pickle.dump(numba.__version__, file)
        file.write(b"cgone_module\nGone\n.")  # what pickle reads as a class of a module that is not there
    again = write(2, 5)
    assert not again.total._cache.is_filled()
    assert again.run() == 26
    assert write(2, 5).total._cache.is_filled()


def test_callees_below_their_caller_count(write: Callable[..., ModuleType]) -> None:
    found = write(2, 5)
    before = kernel_stamp(found.total.py_func)
    assert before == kernel_stamp(found.total.py_func)
    assert kernel_stamp(write(2, 6).total.py_func) != before
