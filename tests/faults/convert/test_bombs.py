"""Small files that stand for much: refused by their shape, before memory or disk is taken."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch
from ogb_layout import write_mag240m, write_ogb
from parser_guard import within_limits

from gloader.cli.recipe import load_recipe
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.readers.csv_text import MAX_LINE_CHARACTERS
from gloader.convert.readers.npy_file import MAX_HEADER_BYTES, NpyFile
from gloader.convert.registry import open_source
from gloader.convert.sources import pyg
from gloader.errors import BudgetError, ConfigError, GloaderError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.reliability("J19")
N = 10
MANY = 30_000_000  # bytes of zeros, and eight times as many as int64
BUDGET = 40 * 10**6
LIMITS = {"seconds": 5.0, "num_bytes": 100 * 10**6}


def npy_folder(path: Path, **arrays: np.ndarray) -> str:
    """Write a folder of a small graph, some arrays of it replaced, as one archive."""
    path.mkdir()
    plain = {
        "edges": np.zeros((5, 2), np.int64),
        "labels": np.zeros(N, np.int64),
        "train": np.arange(4),
        "valid": np.arange(4, 6),
        "test": np.arange(6, 8),
    }
    np.save(path / "features.npy", np.zeros((N, 2), np.float32))
    plain |= arrays
    if "indptr" in plain:
        del plain["edges"]
    np.savez_compressed(path / "graph.npz", **plain)
    return f"npy:{path}"


def zeros() -> np.ndarray:
    return np.zeros(MANY, np.int8)


def labels_of_npz(path: Path) -> str:
    return npy_folder(path / "ds", labels=zeros())


def split_of_npz(path: Path) -> str:
    return npy_folder(path / "ds", test=zeros())


def mask_of_npz(path: Path) -> str:
    return npy_folder(path / "ds", test=zeros().view(np.bool_))


def offsets_of_npz(path: Path) -> str:
    return npy_folder(path / "ds", indptr=zeros(), indices=np.zeros(0, np.int32))


def sparse_features(path: Path) -> str:
    spec = npy_folder(path / "ds")
    (path / "ds" / "features.npy").unlink()
    arrays = {
        "format": b"csr",
        "shape": [MANY - 1, 3],
        "indptr": zeros(),
        "indices": [0][:0],
        "data": [0.0][:0],
    }
    np.savez_compressed(path / "ds" / "features_csr.npz", **{k: np.array(v) for k, v in arrays.items()})
    return spec


def sparse_format(path: Path) -> str:
    spec = npy_folder(path / "ds")
    (path / "ds" / "features.npy").unlink()
    np.savez_compressed(path / "ds" / "features_csr.npz", format=zeros().view(f"S{MANY}"))
    return spec


def header(path: Path) -> str:
    spec = npy_folder(path / "ds")
    with (path / "ds" / "labels.npy").open("wb") as file:
        file.write(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 16))
        file.truncate(4 * MANY)
    return spec


def label_table(path: Path) -> str:
    write_ogb(path, "ogbn-arxiv")
    with gzip.open(path / "ogbn_arxiv" / "raw" / "node-label.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"0\n" * (MANY // 2))
    return f"ogb:ogbn-arxiv@{path}"


def endless_line(path: Path) -> str:
    write_ogb(path, "ogbn-arxiv")
    with gzip.open(path / "ogbn_arxiv" / "raw" / "node-label.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"1" * 4 * MANY)
    return f"ogb:ogbn-arxiv@{path}"


def endless_second_line(path: Path) -> str:
    write_ogb(path, "ogbn-arxiv")
    with gzip.open(path / "ogbn_arxiv" / "raw" / "node-label.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"1\n" + b"1" * 4 * MANY)
    return f"ogb:ogbn-arxiv@{path}"


def split_tensor(path: Path) -> str:
    folder = write_mag240m(path, num_papers=N)
    splits = {name: torch.zeros(1, dtype=torch.int64).expand(MANY) for name in ("train", "valid", "test-dev")}
    torch.save(splits, folder / "split_dict.pt")
    return f"mag240m-papers:{folder}"


def graph(**tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    plain = {"x": torch.zeros(N, 2), "edge_index": torch.zeros(2, 3, dtype=torch.int64), "y": torch.zeros(N)}
    return {**plain, **tensors}


def expanded_rows(path: Path) -> str:
    torch.save(graph(x=torch.zeros(1, 1).expand(MANY, 100), y=torch.zeros(1).expand(MANY)), path / "g.pt")
    return f"pyg:{path / 'g.pt'}"


def packed_records(path: Path) -> str:
    torch.save(graph(x=torch.zeros(MANY // 400, 100)), path / "plain.pt")
    with (
        zipfile.ZipFile(path / "plain.pt") as plain,
        zipfile.ZipFile(path / "g.pt", "w", 8, compresslevel=1) as out,
    ):
        for info in plain.infolist():
            out.writestr(info.filename, plain.read(info))
    return f"pyg:{path / 'g.pt'}"


BOMBS: dict[str, tuple[Callable[[Path], str], type[GloaderError], str]] = {
    "labels of an npz": (
        labels_of_npz,
        ShapeError,
        r"graph\.npz\[labels\] has shape \(30000000,\); labels must be",
    ),
    "split of an npz": (split_of_npz, ShapeError, r"graph\.npz\[test\] holds 30000000 ids for 10 nodes"),
    "mask of an npz": (
        mask_of_npz,
        ShapeError,
        r"graph\.npz\[test\] is a mask of 30000000 nodes; there are 10",
    ),
    "offsets of an npz": (
        offsets_of_npz,
        ShapeError,
        "indptr has offsets for 29999999 nodes, features have 10 rows",
    ),
    "offsets of a matrix": (
        sparse_features,
        BudgetError,
        r"\[indptr\] has shape .* the memory budget is 40 MB",
    ),
    "format of a matrix": (
        sparse_format,
        SourceError,
        r"csr\.npz\[format\] has shape \(1,\) and dtype .S30000000",
    ),
    "header": (
        header,
        SourceError,
        rf"labels\.npy .*header has 4294967280 bytes; at most {MAX_HEADER_BYTES}",
    ),
    "rows of a table": (label_table, ShapeError, r"node-label\.csv\.gz has more than 60 rows"),
    "endless line": (
        endless_line,
        SourceError,
        rf"csv\.gz: line 1 has more than {MAX_LINE_CHARACTERS} characters",
    ),
    "endless second line": (endless_second_line, SourceError, r"csv\.gz: line 2 has more than"),
    "ids of a tensor": (split_tensor, ShapeError, r"split_dict\.pt\[train\] holds 30000000 ids for 10 nodes"),
    "expanded rows": (expanded_rows, SourceError, r"'x' has shape \(30000000, 100\) over 4 stored bytes"),
    "packed records": (packed_records, SourceError, "declares records of .* torch.save never compresses"),
}


@pytest.fixture(scope="module", autouse=True)
def imports() -> None:
    """Load what readers import first, which takes more than any of them."""
    pyg._data_classes()
    pacsv.read_csv(io.BytesIO(b"a\n1\n"))


@pytest.mark.parametrize("kind", BOMBS)
def test_sources_are_refused_by_their_shapes(tmp_path: Path, kind: str) -> None:
    make, error, text = BOMBS[kind]
    spec = make(tmp_path)
    options = SourceOptions(memory_budget_bytes=BUDGET)
    with within_limits(kind, **LIMITS), pytest.raises(error, match=text):
        prepare(open_source(spec, options), tmp_path / "out", PrepareOptions(memory_budget_bytes=BUDGET))
    assert not [entry.name for entry in tmp_path.iterdir() if "out" in entry.name]


def test_a_line_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_bytes(b"1,2\n" * 3)
    os.truncate(tmp_path / "e.csv", 4 * MANY)  # zeros up to the end
    np.save(tmp_path / "x.npy", np.zeros((N, 2), np.float32))
    np.save(tmp_path / "y.npy", np.zeros(N, np.int64))
    options = SourceOptions(
        features=tmp_path / "x.npy", labels=tmp_path / "y.npy", memory_budget_bytes=BUDGET
    )
    with (
        within_limits("a line of a CSV file", **LIMITS),
        pytest.raises(SourceError, match=r"e\.csv: line 4 has more than"),
    ):
        list(open_source(f"edges:{tmp_path / 'e.csv'}", options).edges.chunks(100))


def test_a_column_of_one_repeated_value(tmp_path: Path) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3_000_000, np.int8)), pa.array([1]))
    pq.write_table(pa.table({"y": column}).cast(pa.schema([("y", pa.int64())])), tmp_path / "y.parquet")
    np.save(tmp_path / "x.npy", np.zeros((N, 2), np.float32))
    (tmp_path / "e.csv").write_text("1,2\n")
    options = SourceOptions(features=tmp_path / "x.npy", labels=tmp_path / "y.parquet")
    with pytest.raises(ShapeError, match=r"y\.parquet has 3000000 rows for 10 nodes"):
        open_source(f"edges:{tmp_path / 'e.csv'}", options)


def test_only_the_compressions_that_numpy_writes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(1000))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.write(tmp_path / "a.npy", "a.npy")
    with pytest.raises(SourceError, match="compression method 14 is not one that numpy writes"):
        NpyFile.open(tmp_path / "a.npz", "a")


@pytest.mark.parametrize(
    "text",
    [
        "fanout: &a [" + ", ".join(["1"] * 64) + "]\nlr: [" + ", ".join(["*a"] * 1000) + "]",
        "lr: &a " + "9" * 30_000 + "\nfanout: [" + ", ".join(["*a"] * 5_000) + "]",
        "lr: " + "[" * 30_000,
        "lr: 0x" + "f" * 30_000,
        "lr: " + "x" * 70_000,
    ],
)
def test_recipes_that_grow(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with within_limits("a recipe", seconds=2), pytest.raises(ConfigError, match=r"r\.yaml"):
        load_recipe(tmp_path / "r.yaml", {"lr", "fanout"})
