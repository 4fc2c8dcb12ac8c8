"""N-Triples: terms, literals, comments, escapes, malformed lines with their numbers, and bounded batches."""

from __future__ import annotations

import gzip

import pytest

from gloader.convert.readers import ntriples
from gloader.convert.readers.ntriples import NTriples
from gloader.convert.readers.open_table import is_table, open_table
from gloader.errors import GraphError, SourceError

LINES = r"""# people
<http://a/Anna> <http://p/knows> <http://a/Bert> .
_:b0 <http://p/knows> <http://a/Anna> . # a blank node

<http://a/Anna> <http://p/name> "Anna \"the\" first"@en .
<http://a/Anna><http://p/age>"3"^^<http://www.w3.org/2001/XMLSchema#int>.
   <http://a/J\u00FCrgen>	<http://p/knows>   _:x.y .
<http://a/Jürgen> <http://p/knows> <http://a/\U0001F600> .
<http://a/Anna> <http://p/name> "no newline, and a . > inside" .
"""
ROWS = [
    ("http://a/Anna", "http://p/knows", "http://a/Bert"),
    ("_:b0", "http://p/knows", "http://a/Anna"),
    ("http://a/Jürgen", "http://p/knows", "_:x.y"),
    ("http://a/Jürgen", "http://p/knows", "http://a/😀"),
]


def rows_of(table):
    columns = [[], [], []]
    for batch in table.read_arrow(table.names, error=SourceError):
        for column, values in zip(columns, batch.columns, strict=True):
            column.extend(values.to_pylist())
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("name", ["a.nt", "a.nt.gz"])
@pytest.mark.parametrize("batch", [1, 3, 1 << 13])
def test_terms_become_keys_and_literals_are_counted(tmp_path, monkeypatch, name, batch):
    monkeypatch.setattr(ntriples, "_BATCH_LINES", batch)
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINES.encode()) if name.endswith("gz") else LINES.encode())
    table = open_table(path)
    assert isinstance(table, NTriples)
    assert is_table(path)
    assert table.remark == "N-Triples"
    assert rows_of(table) == ROWS
    assert table.count_rows() == 4
    assert table.remark == "N-Triples, 3 with a literal left out, first in line 5"
    assert table.names == ("subject", "predicate", "object")
    only = [
        value
        for batch in table.read_arrow(["object"], error=SourceError)
        for value in batch.column(0).to_pylist()
    ]
    assert only == [row[2] for row in ROWS]


def test_no_literal_leaves_no_remark(tmp_path):
    path = tmp_path / "a.nt"
    path.write_text("<a:b> <p:q> <c:d> .\n")
    table = open_table(path)
    assert table.count_rows() == 1
    assert table.remark == "N-Triples"


@pytest.mark.parametrize(
    "line",
    [
        "<http://a> <http://b> <http://c>",
        "<http://a> <http://b> .",
        '"a" <http://b> <http://c> .',
        "<http://a> _:b <http://c> .",
        "<http://a> <http://b> <http://c d> .",
        "<http://a> <http://b> http://c .",
        '<http://a> <http://b> "open .',
        "<http://a> <http://b> <http://c> <http://g> .",
        r"<http://\x> <http://b> <http://c> .",
        "<http://a> <http://b> _:c. d",
    ],
)
def test_a_malformed_line_is_named_with_its_number(tmp_path, line):
    path = tmp_path / "a.nt"
    path.write_text(f"<a:b> <p:q> <c:d> .\n# comment\n{line}\n")
    with pytest.raises(SourceError, match=r"a\.nt: line 3 is .* which is no triple: a line is <subject>"):
        rows_of(open_table(path))


def test_turtle_is_told_apart(tmp_path):
    path = tmp_path / "a.nt"
    path.write_text("@prefix a: <http://a/> .\n")
    with pytest.raises(SourceError, match=r"line 1 is '@prefix .*this is Turtle"):
        rows_of(open_table(path))


def test_bytes_that_are_no_text_and_endless_lines_are_refused(tmp_path):
    path = tmp_path / "a.nt"
    path.write_bytes(b"<http://\xff> <p:q> <c:d> .\n")
    with pytest.raises(SourceError, match="is not UTF-8; save the file as UTF-8"):
        rows_of(open_table(path))
    path.write_text("<a:" + "b" * (1 << 20) + "> <p:q> <c:d> .\n")
    with pytest.raises(SourceError, match="line 1 has more than"):
        rows_of(open_table(path))


def test_batches_end_with_many_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(ntriples, "_BATCH_BYTES", 100)
    path = tmp_path / "a.nt"
    path.write_text("".join(f"<a:{'b' * 60}{i}> <p:q> <c:d> .\n" for i in range(9)))
    sizes = [batch.num_rows for batch in open_table(path).read_arrow(["subject"], error=SourceError)]
    assert sum(sizes) == 9
    assert max(sizes) == 2


def test_terms_are_no_numbers(tmp_path):
    path = tmp_path / "a.nt"
    path.write_text("<a:b> <p:q> <c:d> .\n")
    table = open_table(path)
    with pytest.raises(GraphError, match=r"column 'subject' has IRIs, which are keys and no numbers"):
        list(table.read({"subject": "int64"}, error=GraphError))
    assert list(table.read({}, error=GraphError)) == []
    assert (table.kind("object"), table.width("object"), str(table.arrow_type("object"))) == (
        "string",
        1,
        "string",
    )
