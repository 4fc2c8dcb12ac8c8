"""Arguments of a call."""

from __future__ import annotations

import ast
from typing import Final

UNKNOWN_KEYWORDS: Final = (
    "what it holds is not known before the script runs; keywords of worker processes, such as num_workers, go"
)


def literal(node: ast.AST | None) -> object:
    """Return the value of a constant, None of anything else. Pure."""
    return node.value if isinstance(node, ast.Constant) else None


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return an argument of a call, given by its position or by its name. Pure."""
    if len(call.args) > position and not any(
        isinstance(each, ast.Starred) for each in call.args[: position + 1]
    ):
        return call.args[position]
    return next((each.value for each in call.keywords if each.arg == name), None)
