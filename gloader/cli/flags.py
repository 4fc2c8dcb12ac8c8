"""How the values of flags are written: sizes, fan-outs, and what every command shares."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter, Token

from gloader.core.units import parse_bytes
from gloader.errors import ConfigError

_PERCENT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%\s*$")


def parse_fanout(text: str) -> tuple[int, ...]:
    """Return the fan-outs that ``text`` ("15,10,5", "[15, 10]" or "-1") stands for. Pure.

    Raises
    ------
    ConfigError
        The text is not a list of whole numbers >= -1.
    """
    parts = [part for part in re.split(r"[\s,]+", text.strip().strip("[]()")) if part]
    try:
        fanout = tuple(int(part) for part in parts)
    except ValueError:
        fanout = ()
    if not fanout or min(fanout) < -1:
        raise ConfigError(
            f"{text!r} is not a fan-out; write one whole number per layer, the hop next to the seeds first, "
            "such as 15,10,5 (-1 takes all neighbours)"
        )
    return fanout


def parse_share(text: str) -> float | int:
    """Return bytes for a size ("2GB") or a share in [0, 1] for a percentage ("10%"), as a float. Pure.

    Raises
    ------
    ConfigError
        The text is neither, or the percentage is above 100.
    """
    match = _PERCENT.match(text)
    if match is None:
        return parse_bytes(text)
    if float(match[1]) > 100:
        raise ConfigError(f"{text!r} is more than all of it; write 0% to 100%, or a size such as 2GB")
    return float(match[1]) / 100


def _text(tokens: Sequence[Token]) -> str:
    return ",".join(token.value for token in tokens)


def _convert_size(_type: Any, tokens: Sequence[Token]) -> int:
    return parse_bytes(_text(tokens))


def _convert_share(_type: Any, tokens: Sequence[Token]) -> float | int:
    return parse_share(_text(tokens))


def _convert_fanout(_type: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    return parse_fanout(_text(tokens))


Size = Annotated[int | None, Parameter(converter=_convert_size, n_tokens=1, metavar="SIZE")]
SizeOrShare = Annotated[int | float | None, Parameter(converter=_convert_share, n_tokens=1, metavar="SIZE|%")]
Fanout = Annotated[
    tuple[int, ...],
    Parameter(
        converter=_convert_fanout,
        n_tokens=1,
        allow_leading_hyphen=True,
        negative=(),
        metavar="N,N,...",
        show_default=lambda value: ",".join(map(str, value)),
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    """What every command accepts about its own output."""

    json: Annotated[bool, Parameter(negative=())] = False
    """Write one JSON document to stdout; messages and progress go to stderr."""
    debug: Annotated[bool, Parameter(negative=())] = False
    """Show the traceback of an error."""


DEFAULT_OUTPUT = OutputFlags()
