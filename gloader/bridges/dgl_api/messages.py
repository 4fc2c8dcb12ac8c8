"""What a message is, and what becomes of messages: the values that a block's ``update_all`` takes."""

from __future__ import annotations

from dataclasses import dataclass


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
