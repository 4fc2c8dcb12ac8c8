"""The import lines of a script, changed."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.bridges.migrate.draft import Draft
    from gloader.bridges.migrate.uses import Import, Use


_FROM: Final = re.compile(r"from[\s\\]+([\w.]+)[\s\\]+import")


def grouped(imports: Sequence[Import]) -> list[list[Import]]:
    """Return the names of each import statement. Pure."""
    groups: dict[int, list[Import]] = {}
    for one in imports:
        groups.setdefault(id(one.statement), []).append(one)
    return list(groups.values())


def uses_of(draft: Draft, one: Import) -> list[Use]:
    """Return where the script says what ``one`` brings, or something below it. Pure."""
    return [
        use for use in draft.script.uses if use.held is None and f"{use.name}.".startswith(f"{one.dotted}.")
    ]


def is_needed(draft: Draft, one: Import) -> bool:
    """Return whether the changed script still says ``one``, or the script never did."""
    if id(one.alias) in draft.replaced:
        return False
    uses = uses_of(draft, one)
    return not uses or any(id(use.node) not in draft.replaced for use in uses)


def change_from(
    draft: Draft,
    group: Sequence[Import],
    *,
    module_of: Callable[[Import], str | None],
    also: dict[str, list[str]] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Have each name of ``from A import ...`` come from the module that ``module_of`` says.

    None leaves the name where it is; names that the changed script does not say any more go. Names of ``also``, by
    their modules, come along with the first that is imported from there, and are taken out of it. Names of ``renamed``
    are imported by others, as what the script calls them.
    """
    also, renamed = {} if also is None else also, renamed or {}
    statement = group[0].statement
    if not isinstance(statement, ast.ImportFrom):
        return
    edits, old = draft.edits, statement.module or ""
    lines: dict[str, list[str]] = {}
    for one in group:
        if is_needed(draft, one):
            lines.setdefault(module_of(one) or old, []).append(_words(one.alias, renamed))
    if list(lines) == [old] and len(lines[old]) == len(group):
        return
    extra = [name for module in lines for name in also.get(module, ()) if statement in draft.tree.body]
    for module in lines if extra else ():
        lines[module] = sorted({*lines[module], *also.pop(module, ())})
    # The list of names may stay as it is.
    stays = len(lines) == 1 and not any(one.alias.name in renamed for one in group)
    if stays and not extra and sum(map(len, lines.values())) == len(group):
        start = edits.start(statement)
        found = _FROM.match(edits.text(start, edits.end(statement)))
        if found is not None:
            # Positions are in bytes, and module names may be of any letters.
            begin = start + len(found.string[: found.start(1)].encode())
            edits.replace(begin, begin + len(found.group(1).encode()), next(iter(lines)))
            return
    if not lines:
        if not edits.delete_statement(statement, group[0].place.body):
            edits.replace_node(statement, "pass")
        return
    # Statements after one another need the margin of the first, or share its line.
    margin = edits.text(edits.start(statement) - statement.col_offset, edits.start(statement))
    between = f"\n{margin}" if not margin.strip() else "; "
    texts = [f"from {module} import {', '.join(names)}" for module, names in lines.items()]
    edits.replace_node(statement, between.join(texts))


def _words(alias: ast.alias, renamed: Mapping[str, str]) -> str:
    name, local = renamed.get(alias.name, alias.name), alias.asname or alias.name
    return name if name == local else f"{name} as {local}"
