"""The source triples: files of any format, keys of any kind, splits, repeated rows, and what is refused."""

from __future__ import annotations

import gzip
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from knowledge_worlds import random_parts, write_parts

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source, source_files
from gloader.dataset import Dataset
from gloader.errors import ConfigError, SourceError
from gloader.types import TRIPLE

PARTS = random_parts()


def made(spec, tmp_path, **options):
    """Return the dataset and the receipt of a source."""
    options = {"memory_budget_bytes": 64 << 20, "overwrite": True} | options
    report = prepare(open_source(spec, SourceOptions()), tmp_path / "out", PrepareOptions(**options))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("gloader-keys")) == []
    return Dataset.open(tmp_path / "out"), report.receipt


def triples_of(dataset, name):
    """Return a table's triples by their keys."""
    entities, relations = (dataset.node_tables[each] for each in ("entity", "relation"))
    with dataset.link_table(name).open(max_bytes=1 << 20) as rows:
        found = rows.read(np.arange(rows.num_rows))
    assert (found.positions == -1).all()
    columns = (
        entities.keys_of(found.sources),
        relations.keys_of(found.labels),
        entities.keys_of(found.destinations),
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("form", ["folder", "named", "gz"])
def test_three_files_become_three_tables(tmp_path, form):
    folder = write_parts(tmp_path / "kg", PARTS)
    spec = f"triples:{folder}"
    if form == "named":
        spec = "triples:" + ",".join(f"{part}={folder}/{part}.txt" for part in ("test", "train", "valid"))
    if form == "gz":
        text = (folder / "train.txt").read_bytes()
        (folder / "train.txt").unlink()
        (folder / "train.tsv.gz").write_bytes(gzip.compress(text))
        (folder / "readme.md").write_text("not a part")
    dataset, receipt = made(spec, tmp_path)
    assert dataset.node_types == ("entity", "relation")
    assert dataset.relations == ()
    assert list(dataset.link_tables) == ["train", "valid", "test"]
    for part, triples in PARTS.items():
        assert triples_of(dataset, part) == triples
        assert dataset.link_table(part).relation == TRIPLE
    assert receipt["triples"] == "train 90, valid 20, test 25"
    assert "entity: of the triples, in order of first appearance, text, 23" in receipt["keys"]
    assert "isolated nodes" not in receipt
    assert len(source_files(spec, SourceOptions())) == 3
    assert dataset.name == "kg"


@pytest.mark.parametrize(
    "header", ["head\trelation\ttail", "Subject\tpredicate\tobject", "tail\trel\thead", ""]
)
def test_columns_are_found_by_name_or_by_their_order(tmp_path, header):
    rows = [("Head", "is", "tail"), ("a", "like", "a"), ("New York", "in", "a,b"), ("7", "8", "007")]
    places = (2, 1, 0) if header.startswith("tail") else (0, 1, 2)
    text = "".join("\t".join(row[place] for place in places) + "\n" for row in rows)
    (tmp_path / "g.tsv").write_text((header + "\n" if header else "") + text)
    dataset, receipt = made(f"triples:{tmp_path / 'g.tsv'}", tmp_path)
    assert triples_of(dataset, "train") == rows
    assert list(dataset.link_tables) == ["train"]
    assert receipt["triples"] == "train 4"
    assert ("without a header" in receipt["columns"]) == (not header)


def test_other_columns_are_named_as_unused(tmp_path):
    table = pa.table({"h": ["a"], "score": [0.5], "r": ["x"], "t": ["b"]})
    pq.write_table(table, tmp_path / "g.parquet")
    _, receipt = made(f"triples:{tmp_path / 'g.parquet'}", tmp_path)
    assert receipt["not used"] == "score (number) of g.parquet"


@pytest.mark.parametrize(
    ("entities", "kind"),
    [
        ([5, -3, 5, 9], "int64"),
        ([uuid.UUID(int=i).bytes for i in (1, 2, 1, 3)], "uuid"),
        (["ü", "b", "ü", "x"], "text"),
    ],
)
def test_keys_of_every_kind(tmp_path, entities, kind):
    column = pa.array(entities, pa.binary(16) if kind == "uuid" else None)
    table = pa.table(
        {"head": column, "relation": pa.array([7, 7, 8, 7], pa.int64()), "tail": column.take([3, 2, 1, 0])}
    )
    pq.write_table(table, tmp_path / "g.parquet")
    dataset, _ = made(f"triples:{tmp_path / 'g.parquet'}", tmp_path)
    assert dataset.node_tables["entity"].key_kind == kind
    assert dataset.node_tables["relation"].key_kind == "int64"
    given = [str(uuid.UUID(bytes=each)) if kind == "uuid" else each for each in entities]
    wanted = list(zip(given, [7, 7, 8, 7], [given[i] for i in (3, 2, 1, 0)], strict=True))
    assert triples_of(dataset, "train") == wanted


def test_n_triples(tmp_path):
    (tmp_path / "g.nt").write_text('<a:x> <p:q> <a:y> .\n<a:x> <p:n> "x" .\n<a:y> <p:q> _:b .\n')
    dataset, receipt = made(f"triples:{tmp_path / 'g.nt'}", tmp_path)
    assert triples_of(dataset, "train") == [("a:x", "p:q", "a:y"), ("a:y", "p:q", "_:b")]
    assert receipt["triples"] == "train 2; train is N-Triples, 1 with a literal left out, first in line 2"
    with pytest.raises(ConfigError, match=r"has triples, and is no source: it is one as triples:.*g\.nt"):
        open_source(str(tmp_path / "g.nt"), SourceOptions())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("budget", [34 << 20, 64 << 20])
def test_one_table_is_divided_by_pairs_of_entities(tmp_path, seed, budget):
    triples = [triple for part in PARTS.values() for triple in part]
    triples += [(t, f"inverse {r}", h) for h, r, t in triples]
    (tmp_path / "g.tsv").write_text("".join("\t".join(triple) + "\n" for triple in triples))
    dataset, receipt = made(
        f"triples:{tmp_path / 'g.tsv'}",
        tmp_path,
        edge_split=(0.6, 0.2, 0.2),
        edge_split_seed=seed,
        memory_budget_bytes=budget,
    )
    parts = {name: triples_of(dataset, name) for name in ("train", "valid", "test")}
    assert sorted(triple for part in parts.values() for triple in part) == sorted(triples)
    for part in parts.values():
        assert part == [triple for triple in triples if triple in set(part)]  # in the order of the file
    pairs = {name: {frozenset((h, t)) for h, _, t in part} for name, part in parts.items()}
    assert not pairs["train"] & pairs["test"]
    assert not pairs["train"] & pairs["valid"]
    assert "all triples of a pair are in one part" in receipt["triples"]
    assert dataset.metadata["options"]["edge_split"] == "60/20/20"


def test_repeated_rows_go_and_rows_of_two_tables_are_told(tmp_path):
    train = [("a", "r", "b"), ("b", "r", "c"), ("a", "r", "b"), ("a", "s", "b"), ("a", "r", "b")]
    test = [("b", "r", "c"), ("x", "r", "a"), ("b", "r", "c"), ("y", "r", "x")]
    folder = write_parts(tmp_path / "kg", {"train": train, "test": test})
    dataset, receipt = made(f"triples:{folder}", tmp_path)
    assert triples_of(dataset, "train") == [train[0], train[1], train[3]]
    assert triples_of(dataset, "test") == [test[0], test[1], test[3]]
    assert receipt["triples"] == (
        "train 3, test 3; train: 2 repeated rows left out; test: 1 repeated rows left out; 1 rows of test are in an "
        "earlier table too; 2 of 5 entities are in no triple of train, and are not learned"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n", r"g\.tsv has 1 column without names; name its columns head, relation and tail"),
        ("a\tb\n", r"g\.tsv has 2 columns without names; name its columns head, relation and tail"),
        ("a\tb\tc\td\n", "has 4 columns without names"),
        ("", r"g\.tsv is empty"),
        ("a\tr\tb\nc\tr\n", r"row 1 \(line 2\) has 2 fields; the first row has 3"),
        ("a\tr\tb\nc\t\td\n", r"column 'c1': row 1 has no key"),
    ],
)
def test_a_malformed_table_is_refused(tmp_path, text, message):
    (tmp_path / "g.tsv").write_text(text)
    with pytest.raises(SourceError, match=message):
        made(f"triples:{tmp_path / 'g.tsv'}", tmp_path)
    assert not (tmp_path / "out").exists()


def test_columns_of_parquet_need_names(tmp_path):
    pq.write_table(pa.table({"a": ["x"], "b": ["y"], "c": ["z"]}), tmp_path / "g.parquet")
    with pytest.raises(
        SourceError, match=r"has the columns a, b, c; name its columns head, relation and tail"
    ):
        made(f"triples:{tmp_path / 'g.parquet'}", tmp_path)


def test_places_of_parts_are_checked(tmp_path):
    write_parts(tmp_path / "kg", {"valid": [("a", "r", "b")]})
    with pytest.raises(SourceError, match=r"kg has valid, and no file of training triples"):
        open_source(f"triples:{tmp_path / 'kg'}", SourceOptions())
    (tmp_path / "kg" / "valid.csv").write_text("a,r,b\n")
    with pytest.raises(SourceError, match=r"has valid.* and valid.*; which has the triples of valid"):
        open_source(f"triples:{tmp_path / 'kg'}", SourceOptions())
    for spec in ("valid=a.tsv", "train=a.tsv,train=b.tsv", "x,train=a.tsv"):
        with pytest.raises(SourceError, match="must name a file of training triples, and each part once"):
            open_source(f"triples:{spec}", SourceOptions())
    with pytest.raises(SourceError, match="is missing"):
        open_source("triples:nowhere.tsv", SourceOptions())


def test_a_folder_of_part_files_is_one_table(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "part-2.tsv").write_text("b\tr\tc\n")
    (folder / "part-10.tsv").write_text("c\tr\td\n")
    dataset, _ = made(f"triples:{folder}", tmp_path)
    assert triples_of(dataset, "train") == [("b", "r", "c"), ("c", "r", "d")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"symmetrize": True}, "--symmetrize is about edges"),
        ({"add_reverse": True}, "--add-reverse is about edges"),
        ({"deduplicate": True}, "--deduplicate is about edges"),
        ({"dtype": "float16"}, "--dtype is about edges"),
        ({"edge_split_by": "time", "edge_split": (0.8, 0.1, 0.1)}, "--edge-split-by time needs times"),
        ({"edge_split": (0.8, 0.1, 0.1)}, r"--edge-split divides one table of triples, and .* has 3: train"),
    ],
)
def test_options_of_edges_are_refused(tmp_path, options, message):
    folder = write_parts(tmp_path / "kg", PARTS)
    with pytest.raises(ConfigError, match=message):
        made(f"triples:{folder}", tmp_path, **options)


def test_options_of_other_sources_are_refused(tmp_path):
    folder = write_parts(tmp_path / "kg", PARTS)
    with pytest.raises(ConfigError, match=r"--edge-time 'when' does not go with triples:"):
        open_source(f"triples:{folder}", SourceOptions(edge_time="when"))
    with pytest.raises(ConfigError, match="--nodes, --keys and --dangling are about edges:FILE"):
        open_source(f"triples:{folder}", SourceOptions(keys=True))


def test_an_empty_part_is_refused(tmp_path):
    (tmp_path / "g.tsv").write_text("a\tr\tb\n")
    with pytest.raises(ConfigError, match=r"the table 'valid' has no triples; give it a larger share"):
        made(f"triples:{tmp_path / 'g.tsv'}", tmp_path, edge_split=(0.98, 0.01, 0.01))
