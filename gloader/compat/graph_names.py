"""Names that hold graphs in a script: what they are handed on from, and where they are changed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from gloader.compat.uses import Use

MOVES: Final = ("to", "cuda", "cpu", "contiguous", "pin_memory", "share_memory_")
"""Methods of a graph of PyG that return it, elsewhere."""


def hands_on(use: Use) -> bool:
    """Return whether a call gives the graph that it is given, moved or transformed."""
    if use.held is None:
        return False
    kind, name = use.held.kind, use.name
    return (kind == "transform" and name == "()") or (kind == "data" and name in MOVES)


def sources_of(tree: ast.Module, names: Collection[str], handed_on: Collection[int]) -> set[str]:
    """Return the names of graphs that those of ``names`` are handed on from, by calls of ``handed_on``."""
    found: set[str] = set()
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        bound = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        if not bound & set(names) or not isinstance(node, ast.Assign):
            continue
        value: ast.AST = node.value
        while isinstance(value, ast.Call) and id(value) in handed_on:
            is_move = isinstance(value.func, ast.Attribute) and value.func.attr in MOVES
            value = value.func.value if is_move and isinstance(value.func, ast.Attribute) else value.args[0]
        if isinstance(value, ast.Name):
            found.add(value.id)
    return found


def innermost(node: ast.AST) -> ast.AST:
    """Return what a chain of calls of methods begins with."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if not isinstance(node.func.value, ast.Call):
            return node
        node = node.func.value
    return node


def is_stored(node: ast.AST, name: str) -> bool:
    """Return whether a part of ``name`` is set, or deleted. Pure."""
    is_part = isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
    return is_part and root_of(node) == name


def is_bound(node: ast.AST, name: str) -> bool:
    """Return whether ``name`` is bound to something. Pure."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name


def root_of(node: ast.AST) -> str | None:
    """Return the name that a value begins with; of several values, if they all do."""
    if isinstance(node, ast.Tuple | ast.List):
        names = {root_of(each) for each in node.elts}
        return names.pop() if len(names) == 1 else None
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def parameters_of(tree: ast.Module) -> set[str]:
    """Return the names of all parameters of functions. Pure."""
    return {each.arg for each in ast.walk(tree) if isinstance(each, ast.arg)}
