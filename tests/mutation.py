"""`python tests/mutation.py`: breaks the code one place at a time, runs that place's tests, lists what survived.

A mutant that no test notices is a promise without a proof, or a line that nothing needs. The working tree stays as it
is: mutants are written to a copy. Mutants are drawn by a seed, so that a run can be repeated.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
# The folders that hold the package's code; `gloader/` links to the other three.
PACKAGES = ("gloader", "samplers", "cache", "ssd_store")
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One changed place of one file."""

    file: str
    line: int
    change: str
    source: str  # of the whole file, changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the tests said of a mutant."""

    file: str
    line: int
    change: str
    outcome: str  # "killed", "timeout", "survived", or "untested" where the tests fail without the change too
    seconds: float


def main() -> int:
    """Run the pass; the status is 1 if a mutant survived."""
    asked = _arguments()
    files = asked.files or changed_files(asked.since)
    mutants = [
        mutant
        for file in files
        for lines in [None if asked.files else changed_lines(file, asked.since)]
        for mutant in mutants_of(file, (ROOT / file).read_text("utf-8"))
        if lines is None or mutant.line in lines
    ]
    random.Random(asked.seed).shuffle(mutants)  # noqa: S311 - a sample, not a secret
    drawn = mutants[: asked.mutants]
    print(f"{len(drawn)} of {len(mutants)} mutants of {len(files)} files", flush=True)
    outcomes = run_all(drawn, jobs=asked.jobs, timeout_s=asked.timeout)
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n", "utf-8")
    killed = sum(one.outcome in ("killed", "timeout") for one in outcomes)
    print(f"{killed} of {len(outcomes)} killed; not killed:")
    for one in outcomes:
        if one.outcome not in ("killed", "timeout"):
            print(f"  {one.file}:{one.line}: {one.change} ({one.outcome})")
    return int(killed < len(outcomes))


def changed_files(since: str) -> list[str]:
    """Return the package's files that differ from commit ``since``."""
    named = _git("diff", "--name-only", "--diff-filter=AMR", since, "--", *PACKAGES).split()
    return [name for name in named if name.endswith(".py")]


def changed_lines(file: str, since: str) -> set[int]:
    """Return the lines of ``file`` that commit ``since`` did not have."""
    lines: set[int] = set()
    for row in _git("diff", "--unified=0", since, "--", file).splitlines():
        if row.startswith("@@"):
            first, _, count = row.split("+")[1].split(" ")[0].partition(",")
            lines.update(range(int(first), int(first) + int(count or 1)))
    return lines


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Yield the mutants of ``file``: the text around a changed place stays as it is. Pure."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    data = source.encode()
    for node in _places(ast.parse(source)):
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before = data[first:last].decode()
        for after in _changes(node):
            changed = data[:first] + after.encode() + data[last:]
            change = f"{_short(before)} -> {_short(after)}"
            yield Mutant(file=file, line=node.lineno, change=change, source=changed.decode())


def _places(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield what may be changed, but no annotation, message or text: no test should depend on those."""
    if isinstance(node, (ast.expr, ast.stmt)):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(
            node, (ast.Raise, ast.JoinedStr)
        ):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _places(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[str]:
    """Yield the texts that ``node`` is replaced by. Pure."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield "pass"
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARED:
            yield f"({ast.unparse(ast.Compare(left, [_COMPARED[type(operator)]()], [right]))})"
        case ast.BoolOp(op=ast.And(), values=values):
            yield f"({ast.unparse(ast.BoolOp(ast.Or(), values))})"
        case ast.BoolOp(values=values):
            yield f"({ast.unparse(ast.BoolOp(ast.And(), values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _COMPUTED:
            yield f"({ast.unparse(ast.BinOp(left, _COMPUTED[type(operator)](), right))})"
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value):
            yield str(value + 1)
        case ast.Dict(keys=keys, values=values) if len(keys) > 1:
            for gone in range(len(keys)):
                kept = [at for at in range(len(keys)) if at != gone]
                yield ast.unparse(ast.Dict([keys[at] for at in kept], [values[at] for at in kept]))
        case ast.IfExp(body=body, orelse=other):
            yield f"({ast.unparse(body)})"
            yield f"({ast.unparse(other)})"


def tests_of(file: str) -> list[str]:
    """Return the tests of ``file``, the nearest first: its mirror, those that name its module, those of its room."""
    path = Path(file).with_suffix("")
    parts = path.parts[1:] if path.parts[0] == "gloader" else path.parts
    module = ".".join(("gloader", *parts))
    room = Path(*parts[:-1])
    every = sorted((ROOT / "tests").rglob("test_*.py"))
    mirror = [ROOT / "tests" / "unit" / room / f"test_{parts[-1]}.py"]
    naming = [test for test in every if module in test.read_text("utf-8")]
    rooms = [ROOT / "tests" / kind / room for kind in ("unit", "properties", "faults", "integration")]
    nearby = [test for test in every if test.parent in rooms]
    found = dict.fromkeys(test for test in mirror + naming + nearby if test.exists())
    return [str(test.relative_to(ROOT)) for test in found]


def run_all(mutants: Sequence[Mutant], *, jobs: int, timeout_s: float) -> list[Outcome]:
    """Run the tests of every mutant, ``jobs`` at a time, each in a copy of the tree."""
    with tempfile.TemporaryDirectory(prefix="gloader-mutation-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(jobs):
            tree = Path(folder) / str(job)
            shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv"))
            trees.put(tree)
        sound: dict[str, bool] = {}

        def run(mutant: Mutant) -> Outcome:
            tree, began = trees.get(), time.monotonic()
            try:
                outcome = _judge(tree, mutant, sound, timeout_s)
            finally:
                trees.put(tree)
            seconds = round(time.monotonic() - began, 1)
            print(
                f"  {outcome:<9} {seconds:6.1f} s  {mutant.file}:{mutant.line}: {mutant.change}", flush=True
            )
            return Outcome(
                file=mutant.file, line=mutant.line, change=mutant.change, outcome=outcome, seconds=seconds
            )

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(run, mutants))


def _judge(tree: Path, mutant: Mutant, sound: dict[str, bool], timeout_s: float) -> str:
    """Return what the tests say of ``mutant``; ``sound`` remembers whose tests pass without a change."""
    tests, place = tests_of(mutant.file), tree / mutant.file
    if mutant.file not in sound:
        # Twice the time: kernels compile on first use.
        sound[mutant.file] = bool(tests) and _run_tests(tree, tests, 2 * timeout_s) == "survived"
    if not sound[mutant.file]:
        return "untested"
    original = place.read_text("utf-8")
    place.write_text(mutant.source, "utf-8")
    try:
        return _run_tests(tree, tests, timeout_s)
    finally:
        place.write_text(original, "utf-8")


def _run_tests(tree: Path, tests: Sequence[str], timeout_s: float) -> str:
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_WAIT_POLICY": "PASSIVE"}
    # A session of its own, so that what the tests started ends with them.
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as tests_run:
        try:
            return "killed" if tests_run.wait(timeout_s) else "survived"
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tests_run.pid, signal.SIGKILL)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="files to mutate; default: what changed since --since")
    parser.add_argument("--since", default="HEAD~1", help="commit that is compared with")
    parser.add_argument("--mutants", type=int, default=100, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the tests of one mutant")
    parser.add_argument("--out", type=Path, help="where the outcomes are written, as JSON")
    return parser.parse_args()


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:67] + "..."


def _git(*words: str) -> str:
    return subprocess.run(("git", *words), cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
