"""The migration of a DGL or PyG script, for `gloader migrate`: a verdict on each name, and a diff of the changed lines.

The script is read, never executed, and no file is written. `migrate_text` parses the script, finds the libraries that
it imports, has `draft_dgl` or `draft_pyg` make the draft, and returns it as a `Migration`.
"""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from gloader.bridges.migrate.dgl_script import draft_dgl
from gloader.bridges.migrate.draft import MISSING
from gloader.bridges.migrate.pyg_script import draft_pyg
from gloader.bridges.migrate.source_text import parse_script, read_script, unified_diff
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.bridges.migrate.draft import Finding
    from gloader.bridges.migrate.prepare_steps import PrepareStep


_DRAFTS: Final = {"dgl": draft_dgl, "torch_geometric": draft_pyg}  # by the library's module
_WORDS: Final = {"dgl": "DGL", "torch_geometric": "PyG"}  # the libraries' names for the user


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The findings for a script, its changed text, and the steps that prepare its data."""

    name: str  # the script's name for messages, such as its path
    libraries: tuple[str, ...]  # "DGL", "PyG" or both
    findings: tuple[Finding, ...]  # in line order
    steps: tuple[PrepareStep, ...]  # to do once, so that features come from the SSD
    others: tuple[str, ...]  # imported scripts in the same folder that use these libraries
    changed: str  # the changed text
    diff: str  # empty without changes

    @property
    def is_complete(self) -> bool:
        """True if no name is missing or perhaps missing, so that nothing is left to change by hand."""
        return not any(each.verdict in MISSING for each in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return all fields but the changed text, for programs."""
        return {
            "script": self.name,
            "libraries": list(self.libraries),
            "complete": self.is_complete,
            "findings": [asdict(each) for each in self.findings],
            "once": [asdict(each) for each in self.steps],
            "also": list(self.others),
            "diff": self.diff,
        }


def migrate_file(path: Path) -> Migration:
    """Return the migration of the script at ``path``.

    Raises
    ------
    ConfigError
        The file cannot be read, is not Python, or uses neither DGL nor PyG.
    """
    return migrate_text(read_script(path), str(path), folder=path.parent)


def migrate_text(text: str, name: str, *, folder: Path | None = None) -> Migration:
    """Return a script's migration.

    Parameters
    ----------
    text : the script's text
    name : the script's name in messages and in the diff
    folder : folder for modules that the script imports by plain names, or None

    Raises
    ------
    ConfigError
        The text is not Python, or uses neither DGL nor PyG.
    """
    tree = parse_script(text, name)
    try:
        modules = _imported(tree)
        used = [root for root in _DRAFTS if any(each.split(".")[0] == root for each in modules)]
        others = _others(modules, folder)
        if not used:
            raise ConfigError(_nothing(name, modules, others))
        drafts = [_DRAFTS[root](text, tree) for root in used]
        changed = drafts[0].edits.changed()
        # A script that uses both libraries is changed twice. The findings have the original script's lines.
        if len(used) == 2:
            changed = _DRAFTS[used[1]](changed, parse_script(changed, name)).edits.changed()
        parse_script(changed, f"{name}, changed,")  # raises if the changed text is no Python
    except RecursionError as error:
        raise ConfigError(f"{name} has expressions nested too deeply to be read") from error
    findings = [each for draft in drafts for each in draft.findings]
    return Migration(
        name=name,
        libraries=tuple(_WORDS[each] for each in used),
        findings=tuple(sorted(findings, key=lambda each: each.line)),
        steps=tuple(each for draft in drafts for each in draft.steps.complete()),
        others=others,
        changed=changed,
        diff=unified_diff(text, changed, name),
    )


def _imported(tree: ast.Module) -> frozenset[str]:
    """Return the modules that a script imports. Pure."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found.update(each.name for each in node.names if node.level and not node.module)
    return frozenset(found)


def _nothing(name: str, modules: frozenset[str], others: tuple[str, ...]) -> str:
    """Return the message for a script that imports neither library."""
    if any(each.startswith("gloader.") for each in modules):
        return f"{name} imports gloader, and neither dgl nor torch_geometric: there is nothing left to change"
    hint = f"; it imports {', '.join(others)}: give those" if others else ""
    return f"{name} imports neither dgl nor torch_geometric: give a script of DGL or PyG{hint}"


def _others(modules: frozenset[str], folder: Path | None) -> tuple[str, ...]:
    """Return the imported scripts in ``folder`` that contain a library's name."""
    if folder is None:
        return ()
    found = []
    for module in modules:
        name = f"{module.replace('.', '/')}.py"
        try:
            text = read_script(folder / name)
        except ConfigError:  # most modules lie elsewhere
            continue
        if any(root in text for root in _DRAFTS):
            found.append(name)
    return tuple(sorted(found))
