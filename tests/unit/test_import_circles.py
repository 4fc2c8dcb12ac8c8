"""No file imports itself by way of others: deferred imports, imports for types and names in texts count as well.

import-linter sees neither circles within a room nor modules that are imported by name.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import gloader


def module_files(package: Path) -> dict[str, Path]:
    """Return the files of the folder ``package`` and of those below it, links followed, by the module's name."""
    found = {}
    for folder, _, names in os.walk(package, followlinks=True):
        for name in names:
            path = Path(folder, name)
            if path.suffix == ".py":
                parts = path.relative_to(package.parent).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def import_graph(files: dict[str, Path]) -> dict[str, set[str]]:
    """Return which modules each module names: in an import anywhere in the file, or as a text (`import_module`)."""
    return {
        module: _named(ast.parse(path.read_text("utf-8")), set(files)) - {module}
        for module, path in files.items()
    }


def _named(tree: ast.Module, modules: set[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"  # a module of its own, or something in the one named
                found.add(inner if inner in modules else node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            found.add(node.value)
    return found & modules


def circles(graph: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Return the groups of modules that reach one another, each sorted."""
    reached = {module: _reached_from(module, graph) for module in graph}
    return sorted(
        {
            tuple(sorted(other for other in reached[module] if module in reached[other]))
            for module in graph
            if module in reached[module]
        }
    )


def _reached_from(start: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = set(graph[start])
    while waiting:
        module = waiting.pop()
        found.add(module)
        waiting |= graph[module] - found
    return found


def test_no_file_of_ours_is_in_a_circle() -> None:
    files = module_files(Path(gloader.__path__[0]))
    assert {"gloader", "gloader.samplers.neighbor", "gloader.ssd_store.os_io"} <= set(files)
    assert not circles(import_graph(files))


def test_circles_of_every_kind_are_found(tmp_path: Path) -> None:
    package = tmp_path / "toy"
    texts = {
        "__init__": "from importlib import import_module\n",
        "plain": "from toy import typed\nimport json\n",
        "typed": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy.plain import Thing\n",
        "late": "def use():\n    from toy.named import act\n    return act\n",
        "named": "from toy import import_module\ndef act():\n    return import_module('toy.last')\n",
        "last": "import toy.late\nimport toy.leaf\n",
        "leaf": "'''toy.leaf names itself and nothing else: toy.last stands in a sentence.'''\n",
        "above": "import toy.plain, toy.last\n",
    }
    package.mkdir()
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    found = circles(import_graph(module_files(package)))
    assert found == [("toy.last", "toy.late", "toy.named"), ("toy.plain", "toy.typed")]
