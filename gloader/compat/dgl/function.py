"""Messages and sums by their names: what ``update_all`` and ``apply_edges`` of a block take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gloader.compat.advice import SURFACE
from gloader.compat.dgl.missing import missing_from

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULE: Final = "dgl.function"


@dataclass(frozen=True, slots=True)
class Operand:
    """A field of the data of sources, destinations or edges."""

    end: str  # "u", "v" or "e"
    field: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message for each edge, made of one field or of two."""

    op: str  # "copy", "add", "sub", "mul", "div" or "dot"
    operands: tuple[Operand, ...]
    out: str


@dataclass(frozen=True, slots=True)
class Reduction:
    """What becomes of the messages at a destination."""

    op: str  # "sum", "mean", "max" or "min"
    msg: str
    out: str


def copy_u(u: str, out: str) -> Message:
    """Return the message that is the field ``u`` of the source."""
    return Message("copy", (Operand("u", u),), out)


def copy_e(e: str, out: str) -> Message:
    """Return the message that is the field ``e`` of the edge."""
    return Message("copy", (Operand("e", e),), out)


def _reduction(op: str) -> Callable[[str, str], Reduction]:
    def reduction(msg: str, out: str) -> Reduction:
        return Reduction(op, msg, out)

    reduction.__name__ = op
    reduction.__doc__ = f"Return the {op} of the messages ``msg``; 0 at a destination without in-edges."
    return reduction


def _of_two(name: str) -> Callable[[str, str, str], Message]:
    left, op, right = name.split("_")

    def message(lhs_field: str, rhs_field: str, out: str) -> Message:
        return Message(op, (Operand(left, lhs_field), Operand(right, rhs_field)), out)

    message.__name__ = name
    message.__doc__ = f"Return the message {left}[``lhs_field``] {op} {right}[``rhs_field``]."
    return message


sum = _reduction("sum")  # noqa: A001 - as DGL calls it
mean = _reduction("mean")
max = _reduction("max")  # noqa: A001 - as DGL calls it
min = _reduction("min")  # noqa: A001 - as DGL calls it


def __getattr__(name: str) -> Any:
    """Return the message of two operands of that name, such as ``u_mul_e``."""
    if name.count("_") == 2 and name in SURFACE[_MODULE]:
        return _of_two(name)
    return missing_from(_MODULE)(name)
