"""The text of a script: read with care, changed piece by piece, shown as a diff that `patch` and `git apply` take."""

import ast
import os
import subprocess

import pytest
from diffs import apply_diff

from gloader.bridges.migrate.source_text import (
    MAX_SCRIPT_BYTES,
    Edits,
    parse_script,
    read_script,
    unified_diff,
)
from gloader.errors import ConfigError


def test_a_script_is_read_as_it_is(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes("\ufeffx = 'é'\r\n".encode())
    assert read_script(path) == "\ufeffx = 'é'\r\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x = 1\n\xff\n", "a.py is not UTF-8: line 2 has the byte 0xff"),
        (b"\x7fELF\x02\x01\x00\xd0", "a.py is not UTF-8: line 1 has the byte 0xd0"),
        (b"#" * (MAX_SCRIPT_BYTES + 1), "a.py has more than 1 MB; give a Python script"),
    ],
)
def test_what_is_no_text_is_refused(content, said, tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_script(path)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.py is missing; give a Python script"):
        read_script(tmp_path / "none.py")
    with pytest.raises(ConfigError, match="is no file; give a Python script"):
        read_script(tmp_path)
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(ConfigError, match=r"pipe\.py is no file"):
        read_script(tmp_path / "pipe.py")
    with pytest.raises(ConfigError, match=r"a.ipynb is a notebook: .*jupyter nbconvert --to script"):
        read_script(tmp_path / "a.ipynb")
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        read_script(tmp_path / ("a" * 300 + ".py"))


def nodes(text):
    """Return the statements of a text, and its edits."""
    return ast.parse(text.removeprefix("\ufeff")).body, Edits(text)


def test_pieces_are_put_in_their_places_whatever_stands_before_them():
    text = "\ufeffa = 'é\u2028'; b = call('ü', 1)\r\nc = 2\r\n"
    (_, second, third), edits = nodes(text)
    assert edits.of(second.value) == "call('ü', 1)"
    assert edits.replace_node(third.value, "3")
    assert edits.replace_node(second.value.args[0], "'y'")
    assert not edits.replace_node(second.value, "z")  # overlaps
    edits.insert_line(2, "import x")
    assert edits.changed() == "\ufeffa = 'é\u2028'; b = call('y', 1)\r\nimport x\r\nc = 3\r\n"


@pytest.mark.parametrize(
    ("text", "number", "left"),
    [
        ("a = 1\nb = 2\n", 0, "b = 2\n"),
        ("a = 1  # one\nb = 2\n", 0, "b = 2\n"),
        ("a = (\n  1)\nb = 2", 0, "b = 2"),
        ("a = 1; b = 2\n", 0, None),
        ("a = 1; b = 2\n", 1, None),
        ("a = 1\n", 0, "pass\n"),
        ("if 1: a = 2\nb = 1\n", 0, "b = 1\n"),
    ],
)
def test_statements_go_with_their_lines(text, number, left):
    body, edits = nodes(text)
    assert edits.delete_statement(body[number], body) == (left is not None)
    assert edits.changed() == (text if left is None else left)


def test_the_last_statement_of_a_block_leaves_pass():
    body, edits = nodes("for a in b:\n    a.x = 1  # why\n")
    edits.replace_node(body[0].body[0].value, "2")  # goes, too
    assert edits.delete_statement(body[0].body[0], body[0].body)
    assert edits.changed() == "for a in b:\n    pass  # why\n"


def test_what_overlaps_a_piece_stays():
    text = "a = f(b)\nc = 2\n"
    body, edits = nodes(text)
    assert edits.replace(edits.start(body[0].value), edits.end(body[1].targets[0]), "1\nd")
    assert not edits.delete_statement(body[0], body)
    assert not edits.delete_items([(body[0].value.args[0],) * 2], [0], edits.end(body[0].value) - 1)
    assert edits.changed() == "a = 1\nd = 2\n"


@pytest.mark.parametrize(
    ("given", "numbers", "left"),
    [
        ("a, b, c", [1], "a, c"),
        ("a, b, c", [0], "b, c"),
        ("a, b, c", [2], "a, b"),
        ("a, b, c,", [1, 2], "a,"),
        ("a, b, c,", [0, 1, 2], ""),
        ("a, b, c", [0, 2], "b"),
        ("\n    a,\n    b,  # why\n    c,\n", [1], "\n    a,\n    c,\n"),
        ("\n    a,\n    b,\n    c\n", [2], "\n    a,\n    b\n"),
        ("a, (b), c", [1], None),
        ("a, (b), c", [0], None),
        ("a, b,  # why\n  c", [1], None),
        ("(a), b, c", [1], None),
    ],
)
def test_items_go_with_a_comma_each(given, numbers, left):
    body, edits = nodes(f"f({given})")
    call = body[0].value
    gone = edits.delete_items([(each, each) for each in call.args], numbers, edits.end(call) - 1)
    assert edits.changed() == f"f({given if left is None else left})"
    assert gone == (left is not None)


CHANGES = [
    ("a\nb\nc\n", "a\nB\nc\n"),
    ("a\nb", "a\nB"),
    ("a\nb", "a\nb\n"),
    ("a\r\nb\r\nc", "x\r\nb\r\nc\r\n"),
    ("a\x0cb\u2028c\n" * 9, "a\x0cb\u2028c\n" * 8 + "d\n"),
    ("a\rb\nc\n", "a\rb\nd\n"),
    ("", "a\n"),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_diff_is_applied_by_git(before, after, tmp_path):
    diff = unified_diff(before, after, "my script.py")
    assert apply_diff(before, diff) == after
    (tmp_path / "my script.py").write_bytes(before.encode())
    command = ["git", "apply", "-p0", "--whitespace=nowarn", "-"]
    subprocess.run(command, input=diff.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "my script.py").read_bytes() == after.encode()


def test_equal_texts_have_no_diff_and_odd_names_no_power():
    assert unified_diff("a\n", "a\n", "x") == ""
    diff = unified_diff("a\n", "b\n", "x\n\x1b[2J")
    assert diff.count("\n") == 5
    assert "\x1b" not in diff


def test_warnings_about_a_script_are_not_shown(recwarn):
    assert parse_script("x = '\\d' is 1", "a.py").body
    assert not recwarn.list
