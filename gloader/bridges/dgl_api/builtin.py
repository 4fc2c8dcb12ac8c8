"""Messages and sums by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.bridges.dgl_api.messages import Message, Operand, Reduction

if TYPE_CHECKING:
    from collections.abc import Callable


def copy_u(u: str, out: str) -> Message:
    """Return the message that is the field ``u`` of the source."""
    return Message("copy", (Operand("u", u),), out)


def copy_e(e: str, out: str) -> Message:
    """Return the message that is the field ``e`` of the edge."""
    return Message("copy", (Operand("e", e),), out)


def reduction(op: str) -> Callable[[str, str], Reduction]:
    """Return the function ``op`` of the messages ``msg`` into ``out``; 0 at a destination without in-edges."""

    def made(msg: str, out: str) -> Reduction:
        return Reduction(op, msg, out)

    made.__name__ = op
    return made


def of_two(name: str) -> Callable[[str, str, str], Message]:
    """Return the function ``name``, such as u_mul_e, of the message of two fields."""
    left, op, right = name.split("_")

    def made(lhs_field: str, rhs_field: str, out: str) -> Message:
        return Message(op, (Operand(left, lhs_field), Operand(right, rhs_field)), out)

    made.__name__ = name
    return made
