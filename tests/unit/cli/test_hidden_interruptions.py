"""A signal whose exception another one hides, as torch's `with device:` does, ends the command as the signal does."""

import sys
import types
from collections.abc import Callable
from typing import NoReturn

import pytest

from gloader.__main__ import main as start
from gloader.cli import main as command


def hide(signalled: Callable[[], object]) -> Callable[[list[str]], NoReturn]:
    def run(_: list[str]) -> NoReturn:
        try:
            signalled()
        finally:
            raise RuntimeError("trying to pop from empty mode stack")

    return run


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("signalled", "status", "said"),
    [(interrupt, 130, "interrupted"), (lambda: sys.exit(143), 143, "terminated")],
)
def test_the_status_is_that_of_the_signal(
    signalled: Callable[[], object],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "build_app", lambda: hide(signalled))
    assert command.main(["train"]) == status
    assert capsys.readouterr().err == f"error: {said}: no result was written; the same command starts again\n"


@pytest.mark.parametrize("signalled", [lambda: None, lambda: sys.exit(1)])
def test_other_errors_are_raised(signalled: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "build_app", lambda: hide(signalled))
    with pytest.raises(RuntimeError, match="mode stack"):
        command.main(["train"])


def test_a_signal_while_the_command_line_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    importing = types.ModuleType("gloader.cli.main")
    importing.__getattr__ = lambda _: interrupt()  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "gloader.cli.main", importing)
    assert start() == 130
    assert capsys.readouterr().err == "error: interrupted before the command began\n"
