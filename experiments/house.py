"""Count what the source is made of, beside the goals of the floor plan.

    python experiments/house.py            # a table
    python experiments/house.py --trace    # also the files that a batch enters (trains nothing, reads an SSD store)

Code lines are lines with a token that is neither comment nor docstring. Imports of types alone count as imports.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("gloader", "samplers", "cache", "ssd_store")
LARGEST = "code lines of the largest file"
GOALS = {
    "code lines": 70_000,
    "files": 450,
    "median code lines of a file": None,
    LARGEST: 500,
    "class names that stand twice": 0,
    "file names that stand twice": 12,
    "places that ask: one type or several?": 12,
    "module headlines that begin with a question word": 0,
    "docstrings that begin with a question word": 0,
    "docstrings that say nobody or somebody": 0,
    "import lines, % of code": 9,
    "Protocols": 50,
    "callback parameters": 120,
    "files a batch enters": 60,
}
QUESTION = re.compile(r"\s*(What|How|Where|Which|Who|Whose|Whether)\b")
PERSON = re.compile(r"\b(nobody|somebody|whoever|anybody)\b", re.IGNORECASE)
_ASKS = re.compile(r"\bis_typed\b|\bis_hetero\w*|\bis_homogeneous\b|isinstance\([^()]*\bHetero\w+")
_LAYOUT = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


@dataclass(slots=True)
class Count:
    """Sums over the files of the source."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    imports: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    asks: int = 0
    headlines: list[str] = field(default_factory=list)
    questions: int = 0
    persons: int = 0
    protocols: int = 0
    callbacks: int = 0


def source_files() -> Iterator[Path]:
    """Yield each Python file of the source once: `gloader/` has links to the other folders."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(part.is_symlink() for part in path.parents if part != ROOT):
                yield path


def docstring_nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Expr]]:
    """Yield each docstring with its module, class or function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield node, first


def _span(node: ast.stmt | ast.Expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that hold code."""
    texts = {line for _, node in docstring_nodes(tree) for line in _span(node)}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return code - texts


def _is_callback(argument: ast.arg) -> bool:
    return argument.annotation is not None and "Callable[" in ast.unparse(argument.annotation)


def count_file(path: Path, count: Count) -> None:
    """Add the file ``path`` to ``count``."""
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    lines = code_lines(text, tree)
    count.lines.append((len(lines), str(path.relative_to(ROOT))))
    count.names[path.name] += path.name != "__init__.py"
    imported = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in _span(node)
    }
    count.imports += len(imported & lines)
    count.asks += len(_ASKS.findall(text))
    for node, doc in docstring_nodes(tree):
        words = str(doc.value.value)  # type: ignore[attr-defined]
        if QUESTION.match(words):
            count.questions += 1
            if isinstance(node, ast.Module):
                count.headlines.append(str(path.relative_to(ROOT)))
        count.persons += bool(PERSON.search(words))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            count.classes[node.name] += 1
            count.protocols += any(
                ast.unparse(base).split("[")[0].endswith("Protocol") for base in node.bases
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            count.callbacks += sum(
                map(_is_callback, (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
            )


def measures(count: Count) -> dict[str, float]:
    """Return the figures of the table. Pure."""
    lines = [number for number, _ in count.lines]
    return {
        "code lines": sum(lines),
        "files": len(lines),
        "median code lines of a file": statistics.median(lines),
        LARGEST: max(lines),
        "class names that stand twice": sum(n > 1 for n in count.classes.values()),
        "file names that stand twice": sum(n > 1 for n in count.names.values()),
        "places that ask: one type or several?": count.asks,
        "module headlines that begin with a question word": len(count.headlines),
        "docstrings that begin with a question word": count.questions,
        "docstrings that say nobody or somebody": count.persons,
        "import lines, % of code": round(100 * count.imports / sum(lines), 1),
        "Protocols": count.protocols,
        "callback parameters": count.callbacks,
    }


def files_of_a_batch() -> list[str]:
    """Return the source files of which an epoch over features on the SSD runs a function, all threads counted."""
    import gloader
    from gloader.convert.options import PrepareOptions, SourceOptions
    from gloader.convert.prepared_cache import ensure_dataset

    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    with tempfile.TemporaryDirectory() as folder:
        os.environ["GLOADER_HOME"] = folder  # where a dataset made from a source is kept
        path = ensure_dataset("synthetic:demo", SourceOptions(), PrepareOptions())
        with (
            gloader.Loader(
                gloader.Dataset.open(path), fanouts=[5, 5], batch_size=1024, features="ssd", seed=0
            ) as loader,
        ):
            next(iter(loader))  # what the first batch alone opens and compiles is not counted
            threading.setprofile(note)
            sys.setprofile(note)
            try:
                for _ in loader:
                    pass
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
    files = {str(path.resolve()): str(path.relative_to(ROOT)) for path in source_files()}
    return sorted(files[real] for name in entered if (real := str(Path(name).resolve())) in files)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--trace", action="store_true", help="count the files that a batch enters")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--names", action="store_true", help="list the names that stand twice")
    flags = parser.parse_args()
    count = Count()
    for path in source_files():
        count_file(path, count)
    found = measures(count)
    if flags.trace:
        entered = files_of_a_batch()
        found["files a batch enters"] = len(entered)
    if flags.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        goal = GOALS.get(name)
        print(f"{name:52} {value:>9,} {'' if goal is None else f'goal {goal:,}':>12}")
    if flags.names:
        print("classes:", ", ".join(sorted(n for n, times in count.classes.items() if times > 1)))
        print("files:", ", ".join(sorted(n for n, times in count.names.items() if times > 1)))
        print("longest:", ", ".join(f"{name} {n}" for n, name in sorted(count.lines)[-5:]))


if __name__ == "__main__":
    main()
