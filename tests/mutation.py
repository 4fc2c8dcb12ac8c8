"""`python tests/mutation.py`: breaks the code one place at a time, runs that place's tests, lists what survived.

A mutant that no test notices is a promise without a proof, or a line that nothing needs. The working tree stays as it
is: mutants are written to a copy. Mutants are drawn by a seed, so that a run can be repeated, one of each file in turn.
A mutant meets the few tests that are nearest to it, in a process forked from one that has imported torch and numba
already. It is killed if a test fails that passes without the change.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
# The folders that hold the package's code; `gloader/` links to the other three.
PACKAGES = ("gloader", "samplers", "cache", "ssd_store")
_KINDS = ("unit", "properties", "faults", "integration")  # the fast ones first
_NEAREST = 3  # files of tests that a mutant meets
_MOST_CPU_S = 90
_FORKS = multiprocessing.get_context("forkserver")
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
    by: str  # the test that failed
    seconds: float


def main() -> int:
    """Run the pass; the status is 1 if a mutant survived."""
    asked = _arguments()
    prepare()
    files = asked.files or changed_files(asked.since)
    draw = random.Random(asked.seed)  # noqa: S311 - a sample, not a secret
    stacks = []
    for file in files:
        lines = None if asked.files else changed_lines(file, asked.since)
        every = mutants_of(file, (ROOT / file).read_text("utf-8"))
        stacks.append([mutant for mutant in every if lines is None or mutant.line in lines])
        draw.shuffle(stacks[-1])
    draw.shuffle(stacks)
    in_turns = [mutant for mutant in chain(*zip_longest(*stacks)) if mutant is not None]
    drawn = in_turns[: asked.mutants]
    print(f"{len(drawn)} of {len(in_turns)} mutants of {len(files)} files", flush=True)
    outcomes = run_all(drawn, jobs=asked.jobs, timeout_s=asked.timeout)
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n", "utf-8")
    killed = sum(one.outcome in ("killed", "timeout") for one in outcomes)
    print(f"{killed} of {len(outcomes)} killed; not killed:")
    for one in outcomes:
        if one.outcome not in ("killed", "timeout"):
            print(f"  {one.file}:{one.line}: {one.change} ({one.outcome})")
    return int(killed < len(outcomes))


def prepare() -> None:
    """Make the processes that run tests start from one that has imported the slow packages."""
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    _FORKS.set_forkserver_preload(["numba", "pytest", "torch"])


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
    """Return the nearest tests: the mirror of ``file``, those that name its module, its room, those that name that."""
    path = Path(file).with_suffix("")
    parts = path.parts[1:] if path.parts[0] == "gloader" else path.parts
    module, room = ".".join(("gloader", *parts)), Path(*parts[:-1])
    tests = ROOT / "tests"
    every = [test for kind in _KINDS for test in sorted((tests / kind).rglob("test_*.py"))]
    texts = {test: test.read_text("utf-8") for test in every}
    rooms = [tests / kind / folder for folder in (Path(*parts), room) for kind in _KINDS]
    found = dict.fromkeys(
        [
            *(test for test in every if test.name == f"test_{parts[-1]}.py" and test.parent in rooms),
            *(test for test in every if re.search(rf"{module}\W", texts[test])),
            *(test for folder in rooms for test in every if test.parent == folder),
            *(test for test in every if f"{module.rpartition('.')[0]} " in texts[test]),
        ]
    )
    return [str(test.relative_to(ROOT)) for test in found][:_NEAREST]


def run_all(
    mutants: Sequence[Mutant], *, jobs: int, timeout_s: float, tests: Callable[[str], list[str]] | None = None
) -> list[Outcome]:
    """Run ``tests`` of every mutant's file, or the nearest, ``jobs`` at a time, each in a copy of the tree."""
    with tempfile.TemporaryDirectory(prefix="gloader-mutation-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(jobs):
            tree = Path(folder) / str(job)
            shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".venv"))
            trees.put(tree)

        def run(mutant: Mutant) -> Outcome:
            tree, began = trees.get(), time.monotonic()
            try:
                outcome, by = _judge(tree, mutant, timeout_s, (tests or tests_of)(mutant.file))
            finally:
                trees.put(tree)
            one = Outcome(
                file=mutant.file,
                line=mutant.line,
                change=mutant.change,
                outcome=outcome,
                by=by,
                seconds=round(time.monotonic() - began, 1),
            )
            print(
                f"  {one.outcome:<9} {one.seconds:6.1f} s  {one.file}:{one.line}: {one.change}  {by}",
                flush=True,
            )
            return one

        with ThreadPoolExecutor(jobs) as pool:
            outcomes = list(pool.map(run, mutants))
        return _confirmed(trees.get(), outcomes)


def _judge(tree: Path, mutant: Mutant, timeout_s: float, tests: list[str]) -> tuple[str, str]:
    """Return what the tests say of ``mutant``, and the one that failed."""
    place = tree / mutant.file
    if not tests:
        return "untested", ""
    original = place.read_text("utf-8")
    place.write_text(mutant.source, "utf-8")
    try:
        ended, failed = _run_tests(tree, ["-x", *tests], timeout_s, changes_kernels="njit" in original)
    finally:
        place.write_text(original, "utf-8")
    if ended in (None, -signal.SIGXCPU, -signal.SIGKILL):
        return "timeout", ""
    return ("killed", failed[0] if failed else "the end of the process") if ended else ("survived", "")


def _confirmed(tree: Path, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return ``outcomes``, where a test that fails without the change too has killed nothing."""
    by = sorted({one.by for one in outcomes if "::" in one.by})
    _, failed = _run_tests(tree, by, None) if by else (0, [])
    return [replace(one, outcome="untested") if one.by in failed else one for one in outcomes]


def _run_tests(
    tree: Path, words: Sequence[str], timeout_s: float | None, *, changes_kernels: bool = False
) -> tuple[int | None, list[str]]:
    """Return the status of pytest, None if the time was up, and the tests that failed."""
    log = tree.with_suffix(".log")
    tests_run = _FORKS.Process(target=_pytest, args=(str(tree), list(words), str(log), changes_kernels))
    tests_run.start()
    tests_run.join(timeout_s)
    ended = tests_run.exitcode
    # Its session ends with it, and so does what the tests started.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(tests_run.pid or 0, signal.SIGKILL)
    tests_run.join()
    said = log.read_text("utf-8", "replace")
    return ended, re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", said, re.MULTILINE)


def _pytest(tree: str, words: list[str], log: str, changes_kernels: bool) -> None:
    """Run pytest over ``tree`` in this process.

    numba compiles what stands in a changed file anew, but not a kernel elsewhere that calls it: a mutant may survive
    that does not. What was compiled with a mutant is thrown away, so that none is killed that should not be.
    """
    import numba
    import pytest

    os.setsid()
    os.chdir(tree)
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))  # of a loop that does not end
    sys.dont_write_bytecode = False  # the next mutant's process reads it
    sys.path[:] = [tree, *(folder for folder in sys.path if Path(folder) not in (ROOT, ROOT / "tests"))]
    os.environ.update(PYTHONPATH=tree, COLUMNS="300")
    with Path(log).open("wb") as out, tempfile.TemporaryDirectory(dir=Path(tree).parent) as own:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        kernels = f"{tree}.kernels"
        if changes_kernels:
            with contextlib.suppress(FileNotFoundError):  # before the first kernel is compiled
                shutil.copytree(kernels, own, dirs_exist_ok=True)
            kernels = own
        os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = kernels
        # A test that is slow on a busy machine hangs no less than it did without the change.
        status = pytest.main(["-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0", *words])
    sys.exit(int(status))


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
