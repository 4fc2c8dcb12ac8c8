"""Ends of a command: its exit status, and the one line that says why."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from cyclopts import CycloptsError, MissingArgumentError, ValidationError

from gloader.cli.views.screen import cell, make_console
from gloader.errors import (
    BudgetError,
    CheckpointError,
    ConfigError,
    FormatError,
    GloaderError,
    GraphError,
    MissingDependencyError,
    ReplayError,
    SeedError,
    ShapeError,
    SourceError,
    StateError,
    StoreExistsError,
    StoreOpenError,
    UnsafeArchiveError,
    VersionError,
)

# 128 + the number of the signal, as shells report it: SIGINT is 2, SIGTERM is 15.
EXIT_OK, EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPT, EXIT_TERMINATED = 0, 1, 2, 130, 143

# What the user can put right by giving something else; every other error is a failure of the run.
_USAGE_ERRORS = (
    CycloptsError,
    BudgetError,
    CheckpointError,
    ConfigError,
    FormatError,
    GraphError,
    MissingDependencyError,
    ReplayError,
    SeedError,
    ShapeError,
    SourceError,
    StateError,
    StoreExistsError,
    StoreOpenError,
    UnsafeArchiveError,
    VersionError,
)
# Expected kinds of failure, which one line explains. Any other exception is a bug and keeps its traceback.
REPORTED_ERRORS = (CycloptsError, GloaderError, OSError, MemoryError)


def exit_status(error: BaseException) -> int:
    """Return the exit status that stands for ``error``. Pure."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPT
    return EXIT_USAGE if isinstance(error, _USAGE_ERRORS) else EXIT_FAILURE


def interruption_behind(error: BaseException) -> int | None:
    """Return the exit status of the Ctrl-C or SIGTERM that was on its way when ``error`` hid it, else None. Pure.

    Leaving a block that a signal cut short can raise something else: torch's `with device:` does.
    """
    # An exception raised while another one passes keeps that one as its context.
    context: BaseException | None = error
    while context is not None:
        if isinstance(context, KeyboardInterrupt):
            return EXIT_INTERRUPT
        if isinstance(context, SystemExit) and context.code == EXIT_TERMINATED:
            return EXIT_TERMINATED
        context = context.__context__
    return None


def describe(error: BaseException) -> str:
    """Return what happened in one paragraph, with the notes that stages and ranks added. Pure."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if isinstance(error, MissingArgumentError):
        text = _missing(error)
    if isinstance(error, ValidationError) and error.argument is not None:
        text = f"{error.argument.name} is {error.argument.value}; {error.exception_message}"
    text = " ".join(text.split()).replace("overwrite=True", "--overwrite") or type(error).__name__
    if isinstance(error, MemoryError):
        text = f"out of memory: {text}; give a smaller --memory-budget or --batch-size"
    notes = getattr(error, "__notes__", ())
    return f"{text} ({'; '.join(notes)})" if notes else text


def _missing(error: MissingArgumentError) -> str:
    """Say what a command needs; a flag that has no value, or is misspelt, is told by cyclopts."""
    text = str(error)
    if error.argument is None or error.keyword is not None or "Did you mean" in text:
        return text
    command = " ".join(("gloader", *(error.command_chain or ())))
    return f"{command} needs {error.argument.name}; {command} --help says what that is"


def report(error: BaseException) -> None:
    """Write `error: ...` to stderr."""
    console = make_console(stderr=True)
    console.print(cell("error: ", "bold red"), cell(describe(error)), sep="", soft_wrap=True)


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    # An exception, so that every file, thread and temporary folder is released on the way out.
    sys.exit(EXIT_TERMINATED)


@contextmanager
def termination_unwinds() -> Iterator[None]:
    """Turn SIGTERM into an orderly exit with status 143 inside the block."""
    # Python lets the main thread alone set signal handlers; a command in another thread leaves them as they are.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
