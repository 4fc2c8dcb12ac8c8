"""Times and features of edges in OGB's folders, graph.yaml and on the command line, through whole conversions."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from convert_helpers import write_folder
from ogb_layout import write_csv, write_ogb, write_ogbn_mag

from gloader.cli.main import main
from gloader.convert.readers.csv_table import CsvTable
from gloader.dataset import Dataset
from gloader.types import Relation

BUDGET = ["--memory-budget", "60MB"]
WRITES: Relation = ("author", "writes", "paper")


def rows_of(src, dst, time, features):
    return sorted(zip(src.tolist(), dst.tolist(), time.tolist(), map(tuple, features.tolist()), strict=True))


def stored(path, relation=None):
    held = Dataset.open(path).to_numpy()
    if relation is not None:
        src, dst = held["edges"][relation]
        return rows_of(src, dst, held["edge_time"][relation], held["edge_features"][relation])
    dst = np.repeat(np.arange(len(held["labels"])), np.diff(held["indptr"]))
    return rows_of(held["indices"], dst, held["edge_time"], held["edge_features"])


def columns(count, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 50, count), random.integers(0, 100, (count, 2)).astype(np.float32)


def read_pairs(path):
    table = CsvTable.open(path)
    return np.concatenate(
        [np.stack(chunk) for chunk in table.read(dict.fromkeys(table.names, "int64"), error=OSError)],
        axis=1,
    )


@pytest.mark.parametrize("adds_inverse", [False, True])
def test_ogbs_files_beside_the_edges(tmp_path, adds_inverse):
    folder = write_ogb(tmp_path, "ogbn-arxiv").rename(tmp_path / "mine")
    meta = {"num classes": "40", "add_inverse_edge": str(adds_inverse), "split": "time", "is hetero": "False"}
    (folder / "meta_dict.json").write_text(json.dumps(meta))
    time, features = columns(300)
    write_csv(folder / "raw" / "edge_time.csv.gz", time)
    write_csv(folder / "raw" / "edge-feat.csv.gz", features)
    assert main(["prepare", f"ogb:mine@{tmp_path}", str(tmp_path / "out"), *BUDGET]) == 0
    src, dst = read_pairs(folder / "raw" / "edge.csv.gz")
    expected = rows_of(src, dst, time, features)
    if adds_inverse:
        expected = sorted(expected + rows_of(dst, src, time, features))
    assert stored(tmp_path / "out") == expected


def test_ogbs_typed_folders(tmp_path):
    folder = write_ogbn_mag(tmp_path)
    of_writes = folder / "raw" / "relations" / "author___writes___paper"
    src, dst = read_pairs(of_writes / "edge.csv.gz")
    time, features = columns(len(src))
    write_csv(of_writes / "edge_time.csv.gz", time)
    write_csv(of_writes / "edge-feat.csv.gz", features)
    assert main(["prepare", f"ogb:ogbn-mag@{tmp_path}", str(tmp_path / "out"), "--add-reverse", *BUDGET]) == 0
    assert stored(tmp_path / "out", WRITES) == rows_of(src, dst, time, features)
    assert stored(tmp_path / "out", ("paper", "rev_writes", "author")) == rows_of(dst, src, time, features)
    tables = Dataset.open(tmp_path / "out").edge_tables
    assert [
        relation for relation, table in tables.items() if table.has_edge_features and relation[1] == "cites"
    ] == []
    with gzip.open(of_writes / "edge-feat.csv.gz", "at") as file:
        file.write("1,2\n")
    assert main(["prepare", f"ogb:ogbn-mag@{tmp_path}", str(tmp_path / "more"), *BUDGET]) == 2


@pytest.mark.parametrize(
    ("of_edges", "has_both"), [("time: day, features: [kind, place]", True), ("time: day", False)]
)
def test_graph_yaml_names_columns(tmp_path, of_edges, has_both):
    random = np.random.default_rng(0)
    src, dst, (time, features) = random.integers(0, 9, 80), random.integers(0, 20, 80), columns(80)
    table = {
        "src": src,
        "dst": dst,
        "day": time.astype("datetime64[s]"),
        "kind": features[:, 0],
        "place": features[:, 1],
    }
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(table), tmp_path / "in" / "w.parquet")
    np.save(tmp_path / "in" / "y.npy", np.zeros(20, int))
    (tmp_path / "in" / "graph.yaml").write_text(
        "nodes:\n  paper: {labels: y.npy}\n  author: {num_nodes: 9}\n"
        f"edges:\n  author:writes:paper: {{file: w.parquet, {of_edges}}}\n"
    )
    assert main(["prepare", f"tables:{tmp_path / 'in'}", str(tmp_path / "out"), *BUDGET]) == 0
    found = Dataset.open(tmp_path / "out").edge_tables[WRITES]
    assert (found.has_times, found.has_edge_features) == (True, has_both)
    if has_both:
        assert stored(tmp_path / "out", WRITES) == rows_of(src, dst, time, features)


def test_both_directions_have_the_columns_of_their_edge(tmp_path, capsys):
    pairs = np.array([(u, v) for u in range(12) for v in range(u, 12)])  # each pair once, with loops
    time, features = columns(len(pairs))
    write_folder(tmp_path / "in", num_nodes=12, edges=pairs, edge_time=time, edge_features=features)
    words = [
        "prepare",
        f"npy:{tmp_path / 'in'}",
        str(tmp_path / "out"),
        "--symmetrize",
        "--edge-dtype",
        "float16",
        *BUDGET,
    ]
    assert main(words) == 0
    assert "edge features  2 x float16" in capsys.readouterr().out
    both = np.concatenate([pairs, pairs[pairs[:, 0] != pairs[:, 1]][:, ::-1]])
    of = {(min(pair), max(pair)): row for row, pair in enumerate(pairs.tolist())}
    at = np.array([of[min(pair), max(pair)] for pair in both.tolist()])
    assert stored(tmp_path / "out") == rows_of(both[:, 0], both[:, 1], time[at], features[at])


def test_columns_can_be_left_out(tmp_path):
    time, features = columns(40)
    write_folder(tmp_path / "in", edge_time=time, edge_features=features)
    words = ["prepare", f"npy:{tmp_path / 'in'}", str(tmp_path / "out"), *BUDGET]
    assert main([*words, "--edge-time", "none", "--edge-features", "none"]) == 0
    assert not {"edge_time", "edge_features"} & set(Dataset.open(tmp_path / "out").to_numpy())


def test_features_of_edges_that_stay_are_those_of_the_source(tmp_path):
    random = np.random.default_rng(0)
    pairs, (time, features) = random.integers(0, 30, (300, 2)), columns(300)
    write_folder(tmp_path / "in", num_nodes=30, edges=pairs, edge_time=time, edge_features=features)
    split = ["--edge-split", "60/20/20", "--edge-split-by", "time"]
    assert main(["prepare", f"npy:{tmp_path / 'in'}", str(tmp_path / "out"), *split, *BUDGET]) == 0
    cut = np.sort(time)[179]
    kept = time <= cut
    assert stored(tmp_path / "out") == rows_of(pairs[kept, 0], pairs[kept, 1], time[kept], features[kept])
