"""A command's end after an error or a signal: its exit status, and one line with the reason.

`exit_status` and `describe` turn an exception into both, and `report` writes the line. `termination_unwinds` turns
SIGTERM into an exception. Errors of the command line come from cyclopts, the library that parses it; the functions
below `_of_words` replace their texts by clearer ones.
"""

import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from types import FrameType
from typing import NoReturn

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from gloader import errors
from gloader.cli.screen import cell, make_console
from gloader.core.flag_values import as_flags

# 128 + the signal's number, as shells report it: SIGINT is 2, SIGTERM is 15.
EXIT_OK, EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPT, EXIT_TERMINATED = 0, 1, 2, 130, 143

# Errors that a user corrects by other input. Every other error is a failure of the run.
_USAGE_ERRORS = (
    CycloptsError,
    errors.BudgetError,
    errors.CheckpointError,
    errors.ConfigError,
    errors.FormatError,
    errors.GraphError,
    errors.MissingDependencyError,
    errors.ReplayError,
    errors.SeedError,
    errors.ShapeError,
    errors.SourceError,
    errors.StateError,
    errors.StoreExistsError,
    errors.StoreOpenError,
    errors.UnsafeArchiveError,
    errors.VersionError,
)
_FEW_FLAGS = 10  # an error lists a command's flags if there are at most this many
# cyclopts' text for a misspelt flag.
_MISSPELT = re.compile(r"Did you mean (?P<meant>\S+) instead of (?P<typed>\S+)\?")
# Expected kinds of failure, explained by one line. Any other exception is a bug and keeps its traceback.
REPORTED_ERRORS = (CycloptsError, errors.GloaderError, OSError, MemoryError)


def exit_status(error: BaseException) -> int:
    """Return the exit status for ``error``. Pure."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPT
    return EXIT_USAGE if isinstance(error, _USAGE_ERRORS) else EXIT_FAILURE


def interruption_behind(error: BaseException) -> int | None:
    """Return the exit status of a Ctrl-C or SIGTERM hidden behind ``error``, else None. Pure.

    Leaving a block after a signal can raise another error: torch's `with device:` does.
    """
    # An exception raised during another exception keeps the earlier one as its context.
    context: BaseException | None = error
    while context is not None:
        if isinstance(context, KeyboardInterrupt):
            return EXIT_INTERRUPT
        if isinstance(context, SystemExit) and context.code == EXIT_TERMINATED:
            return EXIT_TERMINATED
        context = context.__context__
    return None


def describe(error: BaseException, command: App | None = None) -> str:
    """Return a paragraph about the error, with the notes that stages and ranks added. Pure.

    Parameters
    ----------
    error : the error that ended a command
    command : the command, whose flags replace the library's keywords in the text; None if no command had begun
    """
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if isinstance(error, CycloptsError):
        text = _of_words(error)
    if isinstance(error, ValidationError) and error.argument is not None:
        text = f"{error.argument.name} is {error.argument.value}; {error.exception_message}"
    text = as_flags(" ".join(text.split()), _keywords_of(command)) or type(error).__name__
    if isinstance(error, MemoryError):
        text = f"out of memory: {text}; give a smaller --memory-budget or --batch-size"
    return text + _notes(error)


def _ended(error: BaseException) -> str:
    """Return the text after a Ctrl-C or SIGTERM, with the notes on ``error``, such as the command that continues.

    Without such a note no result was written, because results are complete or absent.
    """
    word = "terminated" if interruption_behind(error) == EXIT_TERMINATED else "interrupted"
    # Notes on the stage and batch during the signal are left out, because these did not fail.
    return word + (_notes(error, but="in stage ") or ": no result was written; the same command starts again")


def _keywords_of(command: App | None) -> set[str]:
    """Return the Python names of a command's flags."""
    # A group of commands has no flags.
    if command is None or command.default_command is None:
        return set()
    arguments = command.assemble_argument_collection()
    return {
        argument.keys[-1] if argument.keys else argument.name.removeprefix("--").replace("-", "_")
        for argument in arguments
        if argument.parse and argument.name.startswith("--")
    }


def _notes(error: BaseException, *, but: str | None = None) -> str:
    """Return the notes on ``error`` in brackets, without those that begin with ``but``. Pure."""
    notes = [note for note in getattr(error, "__notes__", ()) if but is None or not note.startswith(but)]
    return f" ({'; '.join(notes)})" if notes else ""


def _of_words(error: CycloptsError) -> str:
    """Return the text for wrong words on the command line, with a correction; cyclopts' own text in other cases."""
    words = error.root_input_tokens or []
    if "--resume" in words and isinstance(error, MissingArgumentError | UnusedCliTokensError):
        folder = words[words.index("--resume") + 1 :][:1]
        if folder and not folder[0].startswith("-"):
            return (
                f"--resume takes no value: write --out {folder[0]} --resume; the other flags stand in "
                f"{folder[0]}/config.yaml, so this is enough: gloader train --config {folder[0]}/config.yaml "
                f"--out {folder[0]} --resume"
            )
    if isinstance(error, MissingArgumentError):
        return _missing(error)
    if isinstance(error, RepeatArgumentError) and error.app is not None:
        return _repeated(error.app, error.token.keyword)
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return _left_over(words, error.unused_tokens)
    if isinstance(error, UnknownOptionError) and "Did you mean" not in str(error):
        return f"{error} {_flags_of(error)}"
    if isinstance(error, UnknownCommandError) and error.unused_tokens and error.app is not None:
        return _unknown_command(error.app, error.unused_tokens[0])
    return str(error)


def _repeated(command: App, flag: str | None) -> str:
    """Return advice for a repeated flag: give it once, or put a list flag's values into one word."""
    takes_list = any(
        flag in each.names and each.token_count()[1] for each in command.assemble_argument_collection()
    )
    return f"{flag} is given twice: " + (
        "write its values as one word, such as A,B" if takes_list else "leave one out"
    )


def _command_of(error: CycloptsError) -> str:
    """Return the command of the error, such as "gloader bench epoch"."""
    return " ".join(("gloader", *(error.command_chain or ())))


def _missing(error: MissingArgumentError) -> str:
    """Return the text for a missing argument or a misspelt flag, which cyclopts reports as a flag without a value."""
    text, command = str(error), _command_of(error)
    if misspelt := _MISSPELT.search(text):
        return f"{command} has no {misspelt['typed']}. Did you mean {misspelt['meant']}?"
    if error.argument is None or error.keyword is not None:
        return text
    return f"{command} needs {error.argument.name}; {command} --help says what that is"


def _left_over(words: list[str], unused: list[str]) -> str:
    """Return the text for words that belong to no flag, with the flag that they may belong to. Pure."""
    flags = [i for i, word in enumerate(words) if word.startswith("--") and unused[0] in words[i:]]
    if not flags:
        return f"{' '.join(unused)}: what are these words for? Each flag takes one value"
    flag, values = words[flags[-1]], []  # the last flag before the words, and all words after it
    for word in words[flags[-1] + 1 :]:
        if word.startswith("--"):
            break
        values.append(word)
    if all(value.lstrip("-").isdecimal() for value in values):
        return f"{flag} takes its numbers as one word: write {flag} {','.join(values)}"
    return f"{unused[0]} belongs to no flag: {flag} takes {values[0] if len(values) > 1 else 'no value'}"


def _flags_of(error: UnknownOptionError) -> str:
    """Return the flags of a command with few flags, or the command that lists them."""
    command = _command_of(error)
    names = [argument.name for argument in error.argument_collection if argument.name.startswith("--")]
    if len(names) > _FEW_FLAGS:
        return f"{command} --help lists its flags"
    return f"{command} takes {', '.join(names)}"


def _unknown_command(app: App, word: str) -> str:
    """Return the existing commands, the nearest first. Recognises a flag of `gloader train`. Pure."""
    commands = [name for name in app if not name.startswith("-")]
    flags = app["train"].assemble_argument_collection() if "train" in commands else ()
    if any(f"--{word}" in flag.names for flag in flags):
        return f"{word} is no command, but a flag: gloader train --{word}"
    near = get_close_matches(word, commands, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f'there is no command "{word}".{meant} Commands: {", ".join(sorted(commands))}'


def report(error: BaseException, command: App | None = None) -> None:
    """Write `error: ...` to stderr, see `describe`. After a signal, write the state and the next command."""
    console = make_console(stderr=True)
    text = describe(error, command) if isinstance(error, REPORTED_ERRORS) else _ended(error)
    console.print(cell("error: ", "bold red"), cell(text), sep="", soft_wrap=True)


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM."""
    # The exit is an exception, so that every file, thread and temporary folder is released on the way out.
    sys.exit(EXIT_TERMINATED)


@contextmanager
def termination_unwinds() -> Iterator[None]:
    """Turn SIGTERM into an orderly exit with status 143 inside the block."""
    # In Python only the main thread may set signal handlers. A command in another thread leaves them unchanged.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
