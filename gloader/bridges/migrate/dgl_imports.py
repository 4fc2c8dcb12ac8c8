"""The import lines of a script of DGL, changed."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from gloader.bridges.migrate.advice import SURFACE, advice_of, canonical, is_here
from gloader.bridges.migrate.dgl_names import LOADERS
from gloader.bridges.migrate.imports import change_from, is_needed, uses_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.bridges.migrate.draft import Draft
    from gloader.bridges.migrate.uses import Import


OURS: Final = "gloader.compat."
COMPAT: Final = "import gloader.compat.dgl as dgl"


def change_import(draft: Draft, group: Sequence[Import], *, has_loader: bool) -> None:
    """Change an import statement, given by its names, and judge those that nothing uses.

    Parameters
    ----------
    draft : of the script
    group : the names of the statement
    has_loader : whether the script has a loader: it is then meant to run without DGL
    """
    statement = group[0].statement
    if isinstance(statement, ast.ImportFrom):
        if group[0].dotted.startswith(("dgl.", "ogb.")):
            for one in group:
                _judge(draft, one, has_loader=has_loader)
            change_from(draft, group, module_of=_module_of, renamed={"NodeDataLoader": "DataLoader"})
        return
    for one in group:
        if not f"{one.dotted}.".startswith("dgl."):
            continue
        alias, name, is_alone = one.alias, canonical(one.dotted), len(group) == 1
        if alias.asname is None:  # `import dgl.nn` is for the name dgl
            if not (
                is_alone and _is_twice(draft, one) and draft.edits.delete_statement(statement, one.place.body)
            ):
                draft.edits.replace_node(alias, COMPAT.removeprefix("import "))
        elif name in SURFACE:
            draft.edits.replace_node(alias, f"{OURS}{name} as {alias.asname}")
        else:
            _judge(draft, one, has_loader=has_loader)
            if is_alone and not is_needed(draft, one):
                draft.edits.delete_statement(statement, one.place.body)


def _judge(draft: Draft, one: Import, *, has_loader: bool) -> None:
    """Note what becomes of a name that is imported, and not used by itself."""
    name = canonical(one.dotted)
    if uses_of(draft, one) or not name.startswith("dgl.") or name in SURFACE:
        return
    if is_here(name) or name in LOADERS:
        draft.find(one.statement, one.dotted, "maps", OURS + name.rpartition(".")[0])
    elif one.alias.name == "*":
        if not is_here(name.removesuffix(".*")):
            draft.find(one.statement, one.dotted, "missing", advice_of(name))
    elif has_loader:
        draft.replaced.add(id(one.alias))
        draft.find(one.statement, one.dotted, "changes", "it is not used: its import goes")
    else:
        draft.find(one.statement, one.dotted, "missing", advice_of(name))


def _is_twice(draft: Draft, one: Import) -> bool:
    """Return whether another statement of the same block brings the name dgl before."""
    plain = (
        each
        for each in draft.script.imports
        if isinstance(each.statement, ast.Import) and each.alias.asname is None
        and each.place.body is one.place.body and re.match(r"dgl(\.|$)", each.dotted)
    )  # fmt: skip
    return next(plain) is not one


def _module_of(one: Import) -> str | None:
    name = canonical(one.dotted)
    if name.endswith(".*"):
        return OURS + name.removesuffix(".*") if is_here(name.removesuffix(".*")) else None
    return OURS + name.rpartition(".")[0] if is_here(name) or name in LOADERS else None
