"""A signal whose exception another one hides, as torch's `with device:` does, ends the command as the signal does."""

import sys
from collections.abc import Callable
from typing import NoReturn

import pytest

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
