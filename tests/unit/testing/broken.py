"""Runs one check of a suite on an implementor that is broken in one way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def must_fail(check: Callable[..., None], *arguments: Any) -> None:
    """Require that ``check`` finds a fault: by an assertion, or because an error is missing or another one."""
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        check(*arguments)
    # A mutant that does not even run would prove nothing.
    assert not isinstance(caught.value, (NameError, NotImplementedError)), caught.value
