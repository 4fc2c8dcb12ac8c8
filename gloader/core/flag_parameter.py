"""The classes that describe a setting's flag: cyclopts' own, or stand-ins if cyclopts is not installed.

cyclopts is the library that reads the command line. The settings are annotated with its classes, and also used without
a command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["Group", "Parameter"]

if TYPE_CHECKING:
    from cyclopts import Group, Parameter
else:
    # Python code that loads and trains needs no command line. `gloader.__main__` reports a missing cyclopts.
    try:
        from cyclopts import Group, Parameter
    except ImportError:
        T = TypeVar("T")

        class Parameter:
            """Accepts cyclopts' arguments and ignores them."""

            def __init__(self, *_: Any, **__: Any) -> None:
                """Accept any arguments."""

            def __call__(self, decorated: T) -> T:
                """Return ``decorated`` unchanged."""
                return decorated

        Group = Parameter
