"""Flags that every command has: those about its own output."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from gloader.core.flag_values import SWITCH


@Parameter(name="*", group=Group("Output", sort_key=99))
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    """What every command accepts about its own output."""

    json: Annotated[bool, SWITCH] = False
    """Write one JSON document to stdout; messages and progress go to stderr."""
    debug: Annotated[bool, SWITCH] = False
    """Show the traceback of an error."""


DEFAULT_OUTPUT = OutputFlags()
