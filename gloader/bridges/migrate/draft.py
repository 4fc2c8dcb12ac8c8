"""The draft for a migrated script: findings, changed lines, changed imports, and the steps that prepare data.

`dgl_script` and `pyg_script` fill a `Draft` while they go through a script, and `migration` shows it to the user. A
finding is the verdict on one name: it maps to a name of gloader, stays, changes, is ignored, or is missing. A change is
an edit of the script's text. An edit may fail, for example if another edit overlaps it. The user must then change the
line by hand.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gloader.bridges.migrate.prepare_steps import (
    OGB_CLASSES,
    OGB_UNFIT,
    PrepareSteps,
    folder_of,
    idx_split,
    table_of,
)
from gloader.bridges.migrate.source_text import Edits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.bridges.migrate.prepare_steps import Folder
    from gloader.bridges.migrate.uses import Import, Place, Script, Use


# "maps": gloader has the name. "stays": the name remains DGL's or PyG's. "changes": the draft replaces it. "ignored":
# it has no effect. "missing", "perhaps missing": the user must act.
Verdict: TypeAlias = Literal["maps", "stays", "changes", "ignored", "missing", "perhaps missing"]
MISSING: Final[frozenset[Verdict]] = frozenset({"missing", "perhaps missing"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one name, with its line."""

    line: int
    name: str
    verdict: Verdict
    # The module or class that has the name ("maps", "stays"), the replacement, or the reason why there is none.
    text: str
    page: str = ""  # documentation page for a missing name


_FROM: Final = re.compile(r"from[\s\\]+([\w.]+)[\s\\]+import")  # the group is the module's name


def grouped(imports: Sequence[Import]) -> list[list[Import]]:
    """Group imported names by their import statement. Pure."""
    groups: dict[int, list[Import]] = {}
    for one in imports:
        groups.setdefault(id(one.statement), []).append(one)
    return list(groups.values())


def uses_of(draft: Draft, one: Import) -> list[Use]:
    """Return the script's uses of an imported name, or of names below it. Pure."""
    return [
        use for use in draft.script.uses if use.held is None and f"{use.name}.".startswith(f"{one.dotted}.")
    ]


def is_needed(draft: Draft, one: Import) -> bool:
    """Return True if an import must stay: the changed script uses it, or even the original script did not use it."""
    if id(one.alias) in draft.replaced:
        return False
    uses = uses_of(draft, one)
    return not uses or any(id(use.node) not in draft.replaced for use in uses)


def change_from(
    draft: Draft,
    group: Sequence[Import],
    *,
    modules: Mapping[str, str],
    also: dict[str, list[str]] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Change ``from A import ...``, so that each name comes from its module in ``modules``, by full name.

    A name without a module is still imported from A. Names that the changed script does not use any more are removed.
    ``also`` maps modules to further names, which are added to the first import from their module, and removed from
    ``also``. ``renamed`` maps names to new names; ``import NEW as OLD`` keeps the script's own name.
    """
    also, renamed = {} if also is None else also, renamed or {}
    statement = group[0].statement
    if not isinstance(statement, ast.ImportFrom):
        return
    edits, old = draft.edits, statement.module or ""
    lines: dict[str, list[str]] = {}  # for each module of the new statements, the names to import
    for one in group:
        if is_needed(draft, one):
            lines.setdefault(modules.get(one.dotted, old), []).append(_words(one.alias, renamed))
    if list(lines) == [old] and len(lines[old]) == len(group):
        return
    extra = [name for module in lines for name in also.get(module, ()) if statement in draft.tree.body]
    for module in lines if extra else ():
        lines[module] = sorted({*lines[module], *also.pop(module, ())})
    # If only the module's name changes, the rest of the statement is kept.
    stays = len(lines) == 1 and not any(one.alias.name in renamed for one in group)
    if stays and not extra and sum(map(len, lines.values())) == len(group):
        start = edits.start(statement)
        found = _FROM.match(edits.text(start, edits.end(statement)))
        if found is not None:
            # Positions are in bytes, and module names may contain non-ASCII letters.
            begin = start + len(found.string[: found.start(1)].encode())
            edits.replace(begin, begin + len(found.group(1).encode()), next(iter(lines)))
            return
    if not lines:
        if not edits.delete_statement(statement, group[0].place.body):
            edits.replace_node(statement, "pass")
        return
    # Further statements get the first one's indent. After other code in its line, all share this line.
    margin = edits.text(edits.start(statement) - statement.col_offset, edits.start(statement))
    between = f"\n{margin}" if not margin.strip() else "; "
    texts = [f"from {module} import {', '.join(names)}" for module, names in lines.items()]
    edits.replace_node(statement, between.join(texts))


def _words(alias: ast.alias, renamed: Mapping[str, str]) -> str:
    """Return an imported name as it stands after ``import``, such as "NEW as OLD"."""
    name, local = renamed.get(alias.name, alias.name), alias.asname or alias.name
    return name if name == local else f"{name} as {local}"


_UNKNOWN_ARGUMENTS: Final = (
    "its content is not known before the script runs; remove keywords of worker processes, such as "
    "num_workers"
)
_NOT_CALLED: Final = (
    "its calls cannot be followed: check their arguments like those of a loader that is called directly"
)


class Draft:
    """A script's findings and changes, collected during the reading."""

    def __init__(self, text: str, tree: ast.Module, script: Script, page: str) -> None:
        self.text = text
        self.edits = Edits(text)
        self.findings: dict[Finding, None] = {}
        self.steps = PrepareSteps()
        self.replaced: set[int] = set()  # identities of removed nodes: uses and imports
        self.script = script
        self.tree = tree
        self._page = page
        # Nodes inside f-strings, see `look_at`.
        strings = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
        self._in_strings = {id(node) for string in strings for node in ast.walk(string)}
        self._new_imports: list[str] = []

    def find(self, node: ast.expr | ast.stmt, name: str, verdict: Verdict, text: str) -> None:
        """Note the verdict on ``name`` at ``node``."""
        page = self._page if verdict in MISSING else ""
        self.findings[Finding(line=node.lineno, name=name, verdict=verdict, text=text, page=page)] = None

    def note_unknown(self, use: Use) -> None:
        """Note a loader as perhaps missing if its arguments are not all written in the script."""
        call = use.call
        if call is not None and not use.is_written:
            star = "*" if any(isinstance(each, ast.Starred) for each in call.args) else "**"
            self.find(use.node, star, "perhaps missing", _UNKNOWN_ARGUMENTS)
        calls = (node for node in ast.walk(use.place.statement) if isinstance(node, ast.Call))
        is_checked = any(
            getattr(node.func, "id", "") == "isinstance" and use.node in node.args for node in calls
        )
        if call is None and not is_checked:
            self.find(use.node, use.name, "perhaps missing", _NOT_CALLED)

    def module(self, dotted: str, line: str) -> str:
        """Return the script's name for the module ``dotted``; add the import ``line`` if there is none."""
        for one in self.script.imports:
            is_module = isinstance(one.statement, ast.Import) and "." not in one.local
            if one.dotted == dotted and is_module and one.place.body is self.tree.body:
                return one.local
        self.add_import(line)
        return line.rpartition(" ")[2]

    def add_import(self, line: str) -> None:
        """Add an import line to the beginning of the changed script."""
        if line not in self._new_imports:
            self._new_imports.append(line)

    def write_imports(self, roots: Sequence[str]) -> None:
        """Put the new import lines before the first import from a module in ``roots``."""
        body = self.tree.body[1:] if ast.get_docstring(self.tree) is not None else self.tree.body
        future = [each for each in body if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
        ours = [
            one.statement
            for one in self.script.imports
            if one.dotted.partition(".")[0] in roots and one.statement in body
        ]
        others = [each for each in body if each not in future]
        for node in (ours or others)[:1]:
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
            # The lines after imports from __future__, with which the first import may share a line.
            after_future = [(each.end_lineno or each.lineno) + 1 for each in future]
            for line in self._new_imports:
                self.edits.insert_line(max([first, *after_future]), line)

    def wrap(self, node: ast.expr, inner: ast.expr, name: str) -> bool:
        """Replace ``node``, which begins with ``inner``, by ``name(inner)``; changes within ``inner`` are kept."""
        start = self.edits.start(node)
        return self.replace_tail(node, inner, ")") and self.edits.replace(start, start, f"{name}(")

    def replace_tail(self, node: ast.expr, inner: ast.expr, text: str) -> bool:
        """Replace the text after ``inner`` in ``node`` by ``text``; ``node`` begins with ``inner``.

        Returns False if the edit is not possible.
        """
        start, end = self.edits.end(inner), self.edits.end(node)
        try:
            ast.parse(f"(_{self.edits.text(start, end)})", mode="eval")
        except SyntaxError:  # the text contains a bracket that belongs to ``inner``
            return False
        return self.edits.replace(start, end, text)

    def open_instead(self, use: Use, call: ast.Call, opened: str) -> bool:
        """Replace ``call`` by ``opened``, which opens a prepared dataset, and note it; return True on success."""
        if not self.edits.replace_node(call, opened):
            self.by_hand(use.node, use.name)
            return False
        self.replaced.add(id(use.node))
        self.find(use.node, use.name, "changes", opened)
        return True

    def open_folder(self, use: Use, call: ast.Call, made: ast.Call, name: str) -> Folder | None:
        """Replace ``call`` by code that opens the prepared folder for data set ``name``, and note it.

        ``made`` is the call that loads the data set. Returns the folder, or None if the data set cannot be prepared or
        ``call`` cannot be replaced.
        """
        folder = folder_of(made, name, self.edits)
        if folder.name in OGB_UNFIT:
            self.find(use.node, use.name, "missing", f"{folder.name} {OGB_UNFIT[folder.name]}")
            return None
        opened = f"{self.module('gloader', 'import gloader')}.Dataset.open({folder.expression})"
        if not self.open_instead(use, call, opened):
            return None
        if name in OGB_CLASSES:
            self.steps.add("in a shell:", f"gloader prepare ogb:{folder.name} {folder.path}")
        return folder

    def name_table(self, edges: ast.expr, name: str, use: Use, others: Sequence[ast.expr]) -> None:
        """Replace the ``edges`` that a loader predicts by a link table's name.

        Parameters
        ----------
        edges : the loader's argument ``name``
        name : the argument's name
        use : the loader's use
        others : expressions whose text also hints at the table, as the loader's name does
        """
        node = use.place.statement
        targets = node.targets if isinstance(node, ast.Assign) else []
        table = table_of([self.edits.of(each) for each in (*others, edges, *targets)])
        can_go = self.edits.replace_node(edges, f'"{table}"')
        self.note(edges, name, f'the link table "{table}" (tables are train, valid and test)', can_go=can_go)

    def split_of_ogb(self, use: Use, call: ast.Call, owner: ast.expr, *, ntype: str | None) -> None:
        """Replace OGB's ``get_idx_split()`` on ``owner`` by the dataset's splits."""
        splits = idx_split(self.edits.of(owner), self.module("torch", "import torch"), ntype=ntype)
        can_go = self.edits.replace_node(call, splits)
        self.note(use.node, "dataset.get_idx_split", "the splits of the dataset", can_go=can_go)

    def look_at(self, node: ast.AST) -> None:
        """Refuse all edits until the next call if ``node`` is inside an f-string. Call it before a node's edits.

        Before Python 3.12 such a node has no position of its own.
        """
        self.edits.is_frozen = id(node) in self._in_strings

    def note(self, node: ast.expr, name: str, becomes: str, *, can_go: bool) -> None:
        """Note that ``name`` changes. If ``can_go`` is False, the edit failed, and the user must change it by hand."""
        if can_go:
            self.find(node, name, "changes", becomes)
        else:
            self.by_hand(node, name)

    def by_hand(self, node: ast.expr, name: str) -> None:
        """Note that ``node`` cannot be replaced as text."""
        self.find(
            node, name, "missing", "change it by hand: the line is written in a way that a diff cannot follow"
        )

    def strip_call(self, call: ast.Call, inner: ast.expr, place: Place, root: ast.expr | None = None) -> bool:
        """Replace a call by its receiver or argument ``inner``. Return True on success.

        A statement ``x = f(x)`` or ``f(x)`` is removed completely, if it has lines of its own. ``root`` is the part of
        ``inner`` that remains after its own calls are stripped, such as x in ``f(g(x))``; None means ``inner``.
        """
        edits, node, root = self.edits, place.statement, inner if root is None else root
        if edits.is_replaced(edits.start(call), edits.end(call)):
            return True
        if isinstance(root, ast.Name):
            is_same = (
                isinstance(node, ast.Assign)
                and node.value is call
                and [each.id for each in node.targets if isinstance(each, ast.Name)] == [root.id]
                and len(node.targets) == 1
            )
            if (is_same or (isinstance(node, ast.Expr) and node.value is call)) and edits.delete_statement(
                node, place.body
            ):
                return True
        if edits.start(inner) == edits.start(call):
            return self.replace_tail(call, inner, "")
        return edits.replace(edits.start(call), edits.start(inner), "") and edits.replace(
            edits.end(inner), edits.end(call), ""
        )
