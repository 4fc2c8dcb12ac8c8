"""Arguments of a call: those that are written in it, and those of a mapping that it is given by ``**``."""

from __future__ import annotations

import ast
from typing import NamedTuple, TypeAlias

Arguments: TypeAlias = "ast.Call | ast.Dict"
"""What arguments are written in: a call, of ``dict`` among them, or a mapping."""


class Item(NamedTuple):
    """An argument of a call, or an item of a mapping."""

    name: object  # None without one
    value: ast.expr
    first: ast.expr | ast.keyword  # where its text begins

    @property
    def last(self) -> ast.expr | ast.keyword:
        """Where its text ends: a keyword knows of brackets around its value."""
        return self.first if isinstance(self.first, ast.keyword) else self.value


def literal(node: ast.AST | None) -> object:
    """Return the value of a constant, None of anything else. Pure."""
    return node.value if isinstance(node, ast.Constant) else None


def items_of(node: Arguments) -> list[Item]:
    """Return what a call is given, or what a mapping holds. Pure."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return [Item(literal(key), value, value if key is None else key) for key, value in pairs]
    items = [Item(None, each, each) for each in node.args]
    return items + [Item(each.arg, each.value, each) for each in node.keywords]


def are_written(node: Arguments) -> bool:
    """Return whether a call, or a mapping, says all names of what it holds. Pure."""
    if isinstance(node, ast.Dict):
        return all(isinstance(key, ast.Constant) for key in node.keys)
    is_dict = isinstance(node.func, ast.Name) and node.func.id == "dict"
    return is_dict and all(isinstance(item.name, str) for item in items_of(node))


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return an argument of a call, given by its position or by its name. Pure."""
    if len(call.args) > position and not any(
        isinstance(each, ast.Starred) for each in call.args[: position + 1]
    ):
        return call.args[position]
    return next((each.value for each in call.keywords if each.arg == name), None)
