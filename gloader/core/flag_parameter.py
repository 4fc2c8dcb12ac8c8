"""Classes by which a setting describes its flag: those of cyclopts, or stand-ins where cyclopts is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["Group", "Parameter"]

if TYPE_CHECKING:
    from cyclopts import Group, Parameter
else:
    # Loading and training from Python need no command line; `gloader.__main__` says what that one needs.
    try:
        from cyclopts import Group, Parameter
    except ImportError:
        T = TypeVar("T")

        class Parameter:
            """Takes what cyclopts takes and tells nobody."""

            def __init__(self, *_: Any, **__: Any) -> None:
                """Take anything."""

            def __call__(self, decorated: T) -> T:
                """Return what is decorated, as it is."""
                return decorated

        Group = Parameter
