"""Types of settings as users write them: sizes, shares, fan-outs and counts.

A flag is a setting on the command line, which the library cyclopts reads. `Size` and the other annotated types at the
end tell cyclopts how to convert and check a flag's text. The functions ``_convert_...`` and ``_require_...`` above them
have the arguments that cyclopts passes. `as_flags` rewrites messages for the command line: Python's ``cache="2GB"``
becomes ``--cache 2GB``.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from gloader.core.fanouts import MAX_COUNT, parse_fanout, parse_fanouts
from gloader.core.flag_parameter import Parameter
from gloader.core.malformed import shown
from gloader.core.object_traffic import ObjectPrice
from gloader.core.units import parse_bytes
from gloader.errors import ConfigError
from gloader.types import Fanouts

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from cyclopts import Token

# A percentage, such as "10%" or "2.5 %".
_PERCENT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%\s*$")
# `_KEYWORD` matches ``keyword=value`` in a sentence. It does not match a keyword directly after a comma, as ``b`` in
# ``a=1,b=2``, nor a keyword after "in Python", because that sentence already names the flag. `_CALL` matches a text
# that ends inside a call, such as "use Loader(". The keywords of a call stay as they are.
_KEYWORD = re.compile(
    r"""(?<![\w.,:(=/-])(?<!in Python )(?P<name>[a-z_]+)=(?P<value>'[^']*'|"[^"]*"|[\w.:/+-]*[\w%]|)(?![\w=])"""
)
_CALL = re.compile(r"\w\([^()]*$")
# Flags whose names differ from the keyword.
_OTHER_FLAGS: Final = {"fanouts": "--fanout", "sharing": "--loader", "stall_timeout_s": "--stall-timeout"}


def parse_share(size: str | int) -> float | int:
    """Return a size ("2GB") as bytes, and a percentage ("10%") as a float in [0, 1]. Pure.

    Raises
    ------
    ConfigError
        The text is neither a size nor a percentage, or the percentage is above 100.
    """
    match = _PERCENT.match(size) if isinstance(size, str) else None
    if match is None:
        return parse_bytes(size)
    if float(match[1]) > 100:
        raise ConfigError(f"{shown(size)} is more than 100%; write 0% to 100%, or a size such as 2GB")
    return float(match[1]) / 100


def as_flags(text: str, keywords: Container[str]) -> str:
    """Return ``text`` with Python's keyword settings rewritten as command-line flags. Pure.

    ``cache="2GB"`` becomes ``--cache 2GB``, and ``resume=True`` becomes ``--resume``.

    Parameters
    ----------
    text : a message of the library
    keywords : the keywords with a flag; other keywords stay unchanged
    """

    def flag(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"].strip("'\"")
        if name not in keywords or _CALL.search(text[: match.start()]):
            return match[0]
        flag_name = _OTHER_FLAGS.get(name, "--" + name.replace("_", "-"))
        return flag_name if value in ("", "True") else f"{flag_name} {value}"

    return _KEYWORD.sub(flag, text)


def parse_size_or_auto(size: str | int) -> int | Literal["auto"]:
    """Return the bytes of a size such as "4GB", or "auto". Pure. Raise ConfigError for anything else."""
    return "auto" if size == "auto" else parse_bytes(size)


def require_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise ConfigError if ``value`` is not among ``allowed``. Pure.

    Parameters
    ----------
    name : the setting's name, for the message
    value : the given value
    allowed : the allowed values
    """
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))} in this version")


def _text(tokens: Sequence[Token]) -> str:
    """Return cyclopts' tokens as one text."""
    # A list in a recipe, which is a YAML file of settings, is one token per item. A flag is one token for all items.
    return ",".join(token.value for token in tokens)


def _convert_size(_type: Any, tokens: Sequence[Token]) -> int:
    return parse_bytes(_text(tokens))


def _convert_share(_type: Any, tokens: Sequence[Token]) -> float | int:
    return parse_share(_text(tokens))


def _convert_size_or_auto(_type: Any, tokens: Sequence[Token]) -> int | Literal["auto"]:
    return parse_size_or_auto(_text(tokens))


def _convert_fanout(_type: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    return parse_fanout(_text(tokens))


def _convert_fanouts(_type: Any, tokens: Sequence[Token]) -> Fanouts:
    return parse_fanouts(_text(tokens))


def _convert_names(_type: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    return tuple(name.strip() for name in _text(tokens).split(","))


# The key of `parse_embed` that stands for all types without features, as in fan-outs by relation.
EVERY_TYPE: Final = "*"
# Numbers of a row, at most; a wider row is a typing error.
_MOST_COLUMNS: Final = 1 << 16


def parse_embed(words: Sequence[str]) -> dict[str, int]:
    """Return the widths of embeddings by node type, from words such as "64" and "author=64". Pure.

    Raises
    ------
    ConfigError
        A width is no whole number of at least 1, or a type is named twice.
    """
    dims: dict[str, int] = {}
    for word in (part.strip() for each in words for part in each.split(",")):
        name, sign, width = word.rpartition("=")
        name = name.strip() or ("" if sign else EVERY_TYPE)
        if not name or not width.strip().isdecimal() or not 1 <= int(width) <= _MOST_COLUMNS:
            raise ConfigError(
                f"{shown(word)} is no width of an embedding; write a whole number from 1 to {_MOST_COLUMNS:,} for all "
                "types without features, such as 64, or a type and a number, such as author=64"
            )
        if name in dims:
            named = "a width for all types" if name == EVERY_TYPE else f"the type {shown(name)}"
            raise ConfigError(f"{named} is given twice; give it once")
        dims[name] = int(width)
    return dims


def _convert_embed(_type: Any, tokens: Sequence[Token]) -> dict[str, int]:
    return parse_embed([token.value for token in tokens])


# The command line puts "--FLAG is VALUE; " before the messages of these checks, see `gloader.cli.failure.describe`.
def _require_count(_type: Any, value: Any) -> None:
    """Raise ConfigError if ``value`` is not in 1..MAX_COUNT. None, an unset flag, is valid."""
    if value is not None and value < 1:
        raise ConfigError("it must be 1 or more")
    if value is not None and value > MAX_COUNT:
        raise ConfigError(f"it must be at most {MAX_COUNT:,}")


def _require_share(_type: Any, value: Any) -> None:
    """Raise ConfigError if ``value`` is not in [0, 1)."""
    if not 0 <= value < 1:
        raise ConfigError("it must be at least 0 and below 1")


def _require_duration(_type: Any, value: Any) -> None:
    """Raise ConfigError if ``value`` is not a positive, finite number of seconds."""
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError("it must be a number of seconds above 0")


def _require_price(_type: Any, value: Any) -> None:
    """Raise ConfigError if ``value`` is not the text of an `ObjectPrice`."""
    if value is not None:
        ObjectPrice.parse(value)


# For settings without a flag. They are set in Python, or computed by the training command.
NOT_A_FLAG: Final = Parameter(parse=False)
SWITCH: Final = Parameter(negative=())  # for flags without a negative form: --compile, but no --no-compile
# For flags that may be given several times. Other flags may be given once.
REPEATED: Final = Parameter(negative=(), show_default=False, allow_repeating=True)

# `Share` is a number in [0, 1). `SizeOrShare` is a size, or a percentage. `Price` is the text of an `ObjectPrice`.
# `EmbedDims` are widths by type, see `parse_embed`.
Count = Annotated[int, Parameter(validator=_require_count)]
Share = Annotated[float, Parameter(validator=_require_share)]
Duration = Annotated[float, Parameter(validator=_require_duration)]
Price = Annotated[str, Parameter(validator=_require_price, metavar="PRICE")]
Size = Annotated[int | None, Parameter(converter=_convert_size, n_tokens=1, metavar="SIZE")]
SizeOrShare = Annotated[int | float | None, Parameter(converter=_convert_share, n_tokens=1, metavar="SIZE|%")]
SizeOrAuto = Annotated[
    int | Literal["auto"],
    Parameter(converter=_convert_size_or_auto, n_tokens=1, metavar="SIZE|auto", show_choices=False),
]
Names = Annotated[
    tuple[str, ...], Parameter(converter=_convert_names, n_tokens=1, negative=(), metavar="NAME,NAME")
]
EmbedDims = Annotated[
    dict[str, int],
    REPEATED,
    Parameter(converter=_convert_embed, n_tokens=-1, accepts_keys=False, metavar="DIM|TYPE=DIM"),
]
# The common options of both fan-out types.
_FANOUT: Final[dict[str, Any]] = {
    "name": "fanout",
    "n_tokens": 1,
    "allow_leading_hyphen": True,
    "negative": (),
    "show_default": lambda value: ",".join(map(str, value)),
}
Fanout = Annotated[tuple[int, ...], Parameter(**_FANOUT, converter=_convert_fanout, metavar="N,N,...")]
AnyFanout = Annotated[
    Fanouts,
    Parameter(**_FANOUT, converter=_convert_fanouts, metavar="N,N,...|REL=N,N;...", accepts_keys=False),
]
