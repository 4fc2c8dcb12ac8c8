"""The conditions of every test: a leak guard, private temporary folders and fixed hypothesis profiles."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

import pytest
import torch
from hypothesis import HealthCheck, settings

from gloader.observe import compile_clock
from gloader.training import first_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

# Read when Triton is imported, which torch does in some tests. With a GPU the kernels themselves are run: `tests/gpu`.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# OGB asks the network for updates in a thread when it is imported, by whichever test is first: tests ask nobody.
sys.modules.setdefault("outdated", cast("ModuleType", SimpleNamespace(check_outdated=lambda *_: (False, ""))))

# Under nohup or cron Ctrl-C is ignored, and every child inherits that: tests that interrupt one would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["durations", "reliability_report"]
pytest.register_assert_rewrite("gloader.testing")

_SLOW_MACHINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
_COMMON = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": _SLOW_MACHINE}
settings.register_profile("ci", max_examples=40, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("tiny", max_examples=5, **_COMMON)  # type: ignore[arg-type]
settings.register_profile(
    "long", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=_SLOW_MACHINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# What is compiled first depends on which tests ran before: no test may find the line of it in a log.
compile_clock._CLOCK.has_warned = True

_GRACE_S = 2.0  # a thread that was told to stop may need a moment


def pytest_collectstart() -> None:
    """Leave the garbage alone while tests are collected: there are objects by the million, and hardly garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Hide the collected tests from the garbage collector: a test that calls it would search them, for a second."""
    gc.enable()
    gc.freeze()


class Residue(NamedTuple):
    """What a test must not leave behind."""

    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[str, str]]
    folders: frozenset[str]


def _descriptors(watched: str) -> Iterator[tuple[str, str]]:
    """Yield the open descriptors that point below ``watched`` or at an io_uring."""
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only, and cheap
        try:
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - a link to no path
        except FileNotFoundError:  # the descriptor of listdir itself
            continue
        if target.startswith(watched) or "io_uring" in target:
            yield number, target


def _residue(base: Path, scratch: Path) -> Residue:
    return Residue(
        frozenset(thread for thread in threading.enumerate() if thread.name.startswith("gloader")),
        frozenset(_descriptors(str(base))),
        frozenset(name for name in os.listdir(scratch) if "gloader" in name),  # noqa: PTH208
    )


def _new_residue(before: Residue, base: Path, scratch: Path) -> list[str]:
    after = _residue(base, scratch)
    return [
        *(f"thread {thread.name}" for thread in after.threads - before.threads),
        *(f"descriptor {number} of {target}" for number, target in after.descriptors - before.descriptors),
        *(f"temporary folder {name}" for name in after.folders - before.folders),
    ]


@pytest.fixture(scope="session")
def private_tmpdir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Send every temporary file of this session and its children to one folder, away from other runs."""
    scratch = tmp_path_factory.getbasetemp() / "tmpdir"
    scratch.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(scratch))
        patch.setattr(tempfile, "tempdir", str(scratch))
        yield scratch


@pytest.fixture(scope="session", autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the session its own $GLOADER_HOME, so that tests neither read nor fill the user's."""
    home = tmp_path_factory.getbasetemp() / "gloader-home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOADER_HOME", str(home))
        yield home


@pytest.fixture(scope="session", autouse=True)
def no_rehearsals() -> Iterator[None]:
    """Start no processes that compile a command's kernels first: this process compiles those that it lacks, once.

    `tests/unit/training/test_first_run.py` starts them, and so do the commands that run in a process of their own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_run, "run_all", lambda *_, **__: False)
        yield


@pytest.fixture(autouse=True)
def leak_guard(private_tmpdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a test that leaves a gloader thread, an open file of its folders or a temporary folder."""
    base = tmp_path_factory.getbasetemp()
    before = _residue(base, private_tmpdir)
    yield
    left = _new_residue(before, base, private_tmpdir)
    if left:
        gc.collect()
        deadline = time.monotonic() + _GRACE_S
        while (left := _new_residue(before, base, private_tmpdir)) and time.monotonic() < deadline:
            time.sleep(0.01)
    if left:
        pytest.fail("the test left behind: " + "; ".join(sorted(left)), pytrace=False)
