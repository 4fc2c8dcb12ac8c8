"""The helper of DGL's examples that adds reverse edges and numbers them: a dataset knows which edges lead back."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gloader.bridges.migrate.advice import canonical

if TYPE_CHECKING:
    from gloader.bridges.migrate.draft import Draft
    from gloader.bridges.migrate.uses import Use


def leave_out_numbering(draft: Draft) -> tuple[set[str], set[int]]:
    """Take functions out that return ``to_simple(add_reverse_edges(g), writeback_mapping=True)`` and the numbers.

    Returns
    -------
    tuple
        The names that their results were bound to, and the identities of the nodes of their text.
    """
    made: set[str] = set()
    left: set[int] = set()
    for use in draft.script.uses:
        function = _function_around(draft, use) if _numbers_reverse_edges(draft, use) else None
        calls = [] if function is None else _calls(draft, function)
        if function is None or not calls or not draft.edits.delete_statement(function, draft.tree.body):
            continue
        for statement, graph in calls:
            draft.edits.replace_node(statement.value, f"({draft.edits.of(graph)}, None)")
            bound = (each for target in statement.targets for each in ast.walk(target))
            made |= {each.id for each in bound if isinstance(each, ast.Name)}
        left |= {id(each) for each in ast.walk(function)}
        draft.steps.flag("--symmetrize")
        becomes = "prepare the dataset with --symmetrize, which knows the edges that lead back"
        draft.find(use.node, function.name, "changes", becomes)
    draft.replaced |= left
    return made, left


def _numbers_reverse_edges(draft: Draft, use: Use) -> bool:
    call = use.call
    if call is None or canonical(use.name) != "dgl.to_simple" or not call.args:
        return False
    inner = next((each for each in draft.script.uses if each.call is call.args[0]), None)
    has_numbers = "writeback_mapping" in {each.arg for each in call.keywords}
    return has_numbers and inner is not None and canonical(inner.name) == "dgl.add_reverse_edges"


def _function_around(draft: Draft, use: Use) -> ast.FunctionDef | None:
    for each in draft.tree.body:
        if isinstance(each, ast.FunctionDef) and any(node is use.node for node in ast.walk(each)):
            return each
    return None


def _calls(draft: Draft, function: ast.FunctionDef) -> list[tuple[ast.Assign, ast.expr]]:
    """Return the assignments of its results, with the graphs it is given; none where it is used in another way."""
    said = [node for node in ast.walk(draft.tree) if isinstance(node, ast.Name) and node.id == function.name]
    found = []
    for node in ast.walk(draft.tree):
        match node:
            case ast.Assign(value=ast.Call(func=ast.Name(id=name), args=[graph], keywords=[])) if (
                name == function.name
            ):
                found.append((node, graph))
    return found if len(found) == len(said) else []
