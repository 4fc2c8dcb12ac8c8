"""Whatever parses a file that anybody may have written catches all that its parser raises."""

import ast
from pathlib import Path

import pytest

import gloader

PARSERS = {"json.loads", "json.load", "yaml.load", "yaml.safe_load", "tomllib.loads"}
# What a process of this run wrote, and an error of ours around all of it would hide a defect of ours.
OWN_MESSAGES = {
    "gloader/training/first_run.py",  # of its parent
    "gloader/training/group.py",  # of other ranks
    "gloader/distributed/agree.py",
    "gloader/distributed/network/survey.py",
}
# Parts of a reader whose only caller catches MALFORMED.
INNER = {
    ("gloader/lab/report/build_page.py", "_lines"),
    ("gloader/lab/report/timeline_picture.py", "_slices_of"),
    ("gloader/convert/sources/ogb.py", "_read_meta"),
}


def parsed_without_a_net(root, folder):
    """Yield file, function and line of each parser outside of a ``try`` that catches MALFORMED or everything."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text())
        covered = {
            inner
            for block in ast.walk(tree)
            if isinstance(block, ast.Try)
            and any(
                handler.type is None or {"MALFORMED", "Exception"} & names_of(handler.type)
                for handler in block.handlers
            )
            for statement in block.body
            for inner in ast.walk(statement)
        }
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for call in ast.walk(function):
                    is_parser = isinstance(call, ast.Call) and ast.unparse(call.func) in PARSERS
                    if is_parser and call not in covered:
                        yield name, function.name, call.lineno


def names_of(node):
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


@pytest.mark.reliability("J10")
@pytest.mark.parametrize("folder", ["gloader", "ssd_store", "samplers", "cache"])
def test_every_parser_of_a_file_catches_whatever_the_file_may_hold(folder):
    root = Path(gloader.__file__).resolve().parents[1]
    found = [
        f"{name}:{line} in {function}"
        for name, function, line in parsed_without_a_net(root, root / folder)
        if name not in OWN_MESSAGES and (name, function) not in INNER and "/testing/" not in name
    ]
    assert not found
