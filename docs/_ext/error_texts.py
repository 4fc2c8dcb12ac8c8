"""The page of errors: every class of gloader/errors.py, and every text that the code gives it."""

import ast
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import getdoc
from itertools import islice, product
from pathlib import Path

from gloader import errors

ROOT = Path(__file__).parents[2]
ANYTHING = "…"  # stands in a text for what is known when it is raised
_SECTION = re.compile(r"^# --- (.+?) -+$|^class (\w+)\(", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z]{3}")
_MOST = 24  # texts of one call
_DEEPEST = 4  # names and functions behind each other
_MARKS = re.compile(r"([\\`*_\[\]<>&#|~$!])")


@dataclass(frozen=True, slots=True)
class ErrorText:
    """What an error says, and where."""

    text: str
    file: str  # relative to the repository
    line: int


def classes() -> dict[str, list[type[errors.GloaderError]]]:
    """Return the classes below each heading of gloader/errors.py, in its order."""
    found: dict[str, list[type[errors.GloaderError]]] = {}
    heading = "all errors"
    for match in _SECTION.finditer(Path(errors.__file__).read_text()):
        if match[1]:
            heading = match[1]
        else:
            found.setdefault(heading, []).append(getattr(errors, match[2]))
    return found


@cache
def texts() -> Mapping[str, tuple[ErrorText, ...]]:
    """Return the texts of each class by its name, in the order of files and lines."""
    found: dict[str, dict[tuple[str, str], ErrorText]] = {}
    for folder, _, names in os.walk(ROOT / "gloader", followlinks=True):
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            file = path.relative_to(ROOT).as_posix()
            if file.startswith("gloader/testing/"):  # errors on purpose
                continue
            for name, text, line in texts_of(path.read_text()):
                if _WORD.search(text):
                    found.setdefault(name, {}).setdefault((text, file), ErrorText(text, file, line))
    return {
        name: tuple(sorted(ones.values(), key=lambda one: (one.file, one.line, one.text)))
        for name, ones in found.items()
    }


def texts_of(code: str) -> Iterator[tuple[str, str, int]]:
    """Yield class, text and line of each error that a file makes."""
    return _Module(ast.parse(code)).errors()


class _Module:
    """Finds where a file makes errors, and what they are told."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]

    def errors(self) -> Iterator[tuple[str, str, int]]:
        """Yield class, text and line."""
        for scope in (*self._functions, self._tree):
            for node in _walk_own(scope):
                if isinstance(node, ast.Call) and (name := _error_name(node.func)):
                    message = _message(node, name)
                    for text in self._texts_of(message, scope) if message is not None else ():
                        yield name, " ".join(text.split()), node.lineno

    def _texts_of(self, node: ast.expr, scope: ast.AST, depth: int = 0) -> list[str]:
        """Return what an expression can be; what is known only when it runs is ``ANYTHING``."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                options = [self._texts_of(part, scope, depth + 1) for part in parts]
                return ["".join(chosen) for chosen in islice(product(*options), _MOST)]
            case ast.FormattedValue(value=ast.Name() | ast.Call() as value):
                return self._texts_of(value, scope, depth)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                firsts, seconds = self._texts_of(left, scope, depth), self._texts_of(right, scope, depth)
                return [first + second for first in firsts for second in seconds]
            case ast.IfExp(body=body, orelse=other):
                return self._texts_of(body, scope, depth) + self._texts_of(other, scope, depth)
            case ast.Name(id=name) if depth < _DEEPEST:
                found = [(value, scope) for value in _values_of(name, scope)]
                found += [(value, self._tree) for value in _values_of(name, self._tree.body)]
                found += list(self._arguments(name, scope))
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if depth < _DEEPEST:
                found = [
                    (node.value, inner)
                    for inner in self._functions
                    if inner.name == name
                    for node in _walk_own(inner)
                    if isinstance(node, ast.Return) and node.value
                ]
            case _:
                return [ANYTHING]
        texts = [text for value, place in found for text in self._texts_of(value, place, depth + 1)]
        return list(dict.fromkeys(texts))[:_MOST] or [ANYTHING]

    def _arguments(self, name: str, scope: ast.AST) -> Iterator[tuple[ast.expr, ast.AST]]:
        """Yield what the calls in this file give for a parameter of a function, and where they stand."""
        # Of others this file may not have all calls.
        if not isinstance(scope, ast.FunctionDef) or not scope.name.startswith("_"):
            return
        names = [
            argument.arg for argument in (*scope.args.posonlyargs, *scope.args.args) if argument.arg != "self"
        ]
        for holder in (*self._functions, self._tree):
            for call in _walk_own(holder):
                match call:
                    case ast.Call(func=ast.Name(id=scope.name) | ast.Attribute(attr=scope.name), args=args):
                        by_name = [word.value for word in call.keywords if word.arg == name]
                        by_place = args[names.index(name) :][:1] if name in names else []
                        yield from ((value, holder) for value in (*by_name, *by_place))


def _error_name(function: ast.expr) -> str | None:
    """Return the class of ours that a call makes an instance of; None: it makes none."""
    match function:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name), attr="of_extra"):
            kind = getattr(errors, name, None)
            return name if isinstance(kind, type) and issubclass(kind, errors.GloaderError) else None
    return None


def _message(call: ast.Call, name: str) -> ast.expr | None:
    """Return the argument that is the text; an OSError is given its number first."""
    if issubclass(getattr(errors, name), OSError) and len(call.args) > 1:
        return call.args[1]
    return call.args[0] if call.args else None


def _walk_own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or file, without those of functions in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef):
            yield from _walk_own(node)


def _values_of(name: str, scope: ast.AST | list[ast.stmt]) -> Iterator[ast.expr]:
    """Yield what a name is set to in a function, or by statements."""
    for node in scope if isinstance(scope, list) else ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield value
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                yield value


def page(source: str) -> str:
    """Return the page's list as Markdown; ``source`` is the address of the repository's files."""
    lines: list[str] = []
    for heading, ones in classes().items():
        lines += [f"## {heading[:1].upper()}{heading[1:]}", ""]
        for kind in ones:
            bases = " and ".join(f"`{base.__name__}`" for base in kind.__bases__)
            lines += [f"### {kind.__name__}", "", getdoc(kind) or "", "", f"It is a kind of {bases}.", ""]
            for one in texts().get(kind.__name__, ()):
                where = f"[{one.file.removeprefix('gloader/')}]({source}/{one.file}#L{one.line})"
                text = _MARKS.sub(r"\\\1", one.text)
                lines.append(f"- {text} {where}")
            lines.append("")
    return "\n".join(lines)
