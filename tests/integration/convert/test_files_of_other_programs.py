"""One graph in the files of many programs: every form of it makes the same dataset."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as pafeather
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse
import yaml

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.dataset import Dataset
from gloader.errors import BudgetError

N = 40
DRAW = np.random.default_rng(0)
# Sorted by source, because scipy sorts a matrix that it writes.
SRC, DST = np.divmod(np.sort(DRAW.choice(N * N, 160, replace=False)), N)
WEIGHT = DRAW.integers(1, 9, len(SRC)) / 4
MATRIX = scipy.sparse.coo_array((WEIGHT, (SRC, DST)), shape=(N, N))
X = DRAW.standard_normal((N, 3)).astype(np.float32)
Y = np.arange(N) % 3
TABLE = pa.table({"src": SRC, "dst": DST, "weight": WEIGHT})
BUDGET = 60 * 10**6


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", Y)


def prepared(spec, *, budget=BUDGET):
    options = SourceOptions(features=Path("x.npy"), labels=Path("y.npy"), memory_budget_bytes=budget)
    source = open_source(spec, options)
    prepare(source, Path("out"), PrepareOptions(memory_budget_bytes=budget))
    return Dataset.open("out")


def csv(names="src,dst,weight"):
    rows = zip(SRC, DST, WEIGHT, strict=True)
    return names + "\n" + "".join(f"{src},{dst},{weight}\n" for src, dst, weight in rows)


def write_csv():
    Path("e.csv").write_text(csv())
    return "edges:e.csv"


def write_gzip():
    Path("e.csv.gz").write_bytes(gzip.compress(csv().encode()))
    return "edges:e.csv.gz"


def write_parts():
    Path("e").mkdir()
    for number in range(3):
        pq.write_table(TABLE.slice(50 * number, 50 if number < 2 else None), f"e/part-{number}.parquet")
    return "edges:e"


def write_arrow():
    pafeather.write_feather(TABLE, "e.arrow", compression="zstd", chunksize=33)
    return "edges:e.arrow"


def write_matrix():
    scipy.io.mmwrite("e.mtx", MATRIX)
    return "edges:e.mtx"


def write_graphbolt():
    np.savetxt("edges.csv", np.stack([SRC, DST], 1), "%d", delimiter=",")
    np.save("w.npy", WEIGHT)
    entries = [("node", "feat", "x.npy"), ("node", "label", "y.npy"), ("edge", "weight", "w.npy")]
    description = {
        "graph": {"nodes": [{"num": N}], "edges": [{"format": "csv", "path": "edges.csv"}]},
        "feature_data": [
            {"domain": domain, "name": name, "format": "numpy", "path": path}
            for domain, name, path in entries
        ],
    }
    Path("metadata.yaml").write_text(yaml.safe_dump(description))
    return "graphbolt:."


def write_dgl_csv():
    Path("e.csv").write_text(csv("src_id,dst_id,weight"))
    order = DRAW.permutation(N)
    cells = {node: ", ".join(str(np.float64(value)) for value in X[node]) for node in order}
    rows = "".join(f'{node},{Y[node]},"{cells[node]}"\n' for node in order)
    Path("n.csv").write_text("node_id,label,feat\n" + rows)
    description = {"node_data": [{"file_name": "n.csv"}], "edge_data": [{"file_name": "e.csv"}]}
    Path("meta.yaml").write_text(yaml.safe_dump(description))
    return "dglcsv:."


FORMS = [write_csv, write_gzip, write_parts, write_arrow, write_matrix, write_graphbolt, write_dgl_csv]


@pytest.mark.parametrize("write", FORMS)
def test_every_form_makes_the_same_dataset(write):
    dataset = prepared(write())
    graph, order = dataset.load_graph(), np.argsort(DST, kind="stable")
    np.testing.assert_array_equal(graph.indptr, np.searchsorted(DST[order], np.arange(N + 1)))
    np.testing.assert_array_equal(graph.indices, SRC[order])
    np.testing.assert_array_equal(graph.weights.array, WEIGHT[order])
    np.testing.assert_array_equal(dataset.to_numpy()["features"], X)
    np.testing.assert_array_equal(dataset.to_numpy()["labels"], Y)


def test_a_compressed_batch_beyond_the_budget_is_refused_before_it_is_unpacked():
    zeros = np.zeros(10**7, np.int64)
    pafeather.write_feather(
        pa.table({"src": zeros, "dst": zeros}), "e.arrow", compression="zstd", chunksize=10**7
    )
    with pytest.raises(BudgetError, match="memory budget"):
        prepared("edges:e.arrow")
