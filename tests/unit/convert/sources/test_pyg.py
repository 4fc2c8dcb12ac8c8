from __future__ import annotations

import warnings
import zipfile

import numpy as np
import pytest
import torch

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source
from gloader.errors import ShapeError, SourceError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data, HeteroData

N, E = 40, 120


def tensors(**changes):
    generator = torch.Generator().manual_seed(0)
    number = torch.arange(N)
    found = {
        "x": torch.randn(N, 5, generator=generator),
        "edge_index": torch.randint(0, N, (2, E), generator=generator),
        "y": number % 3,
        "train_mask": number < 20,
        "val_mask": (number >= 20) & (number < 30),
        "test_mask": number >= 30,
    } | changes
    return {key: value for key, value in found.items() if value is not None}


def opened(tmp_path, saved, **how):
    torch.save(saved, tmp_path / "graph.pt", **how)
    return open_source(f"pyg:{tmp_path / 'graph.pt'}", SourceOptions())


def check(source, expected):
    (chunk,) = source.edges.chunks(1000)
    (rows,) = source.features.chunks(1000)
    assert np.array_equal(chunk.src, expected["edge_index"][0])
    assert np.array_equal(chunk.dst, expected["edge_index"][1])
    assert np.array_equal(rows, expected["x"])
    assert np.array_equal(source.labels, expected["y"])
    assert np.array_equal(source.splits.train, np.arange(20))
    assert np.array_equal(source.splits.valid, np.arange(20, 30))
    assert np.array_equal(source.splits.test, np.arange(30, 40))
    assert (source.name, source.num_nodes, source.num_classes) == ("graph", N, 3)


@pytest.mark.parametrize(
    "wrap",
    [lambda t: Data(**t), dict, lambda t: (t, None, Data), lambda t: (Data(**t), None)],
    ids=["data", "dict", "in-memory-dataset", "old-dataset"],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_saves_is_read(tmp_path, wrap, zipped):
    source = opened(tmp_path, wrap(tensors()), _use_new_zipfile_serialization=zipped)
    check(source, tensors())


def test_masks_may_be_ids_and_several_splits(tmp_path):
    ids = tensors(train_mask=None, val_mask=None, test_mask=None) | {
        "train_idx": torch.arange(20), "valid_idx": torch.arange(20, 30), "test_idx": torch.arange(30, 40)
    }  # fmt: skip
    check(opened(tmp_path, Data(**ids)), tensors())
    masks = {key: torch.stack([value, ~value], 1) for key, value in tensors().items() if key.endswith("mask")}
    check(opened(tmp_path, Data(**tensors(**masks))), tensors())


def test_without_splits_the_seed_draws_them(tmp_path):
    source = opened(tmp_path, Data(**tensors(train_mask=None, val_mask=None, test_mask=None)))
    assert [len(ids) for ids in (source.splits.train, source.splits.valid, source.splits.test)] == [24, 8, 8]


@pytest.mark.parametrize("key", ["edge_weight", "edge_attr"])
def test_one_number_per_edge_is_a_weight(tmp_path, key):
    weight = torch.rand(E, 1)
    (chunk,) = opened(tmp_path, Data(**tensors(), **{key: weight})).edges.chunks(1000)
    assert np.array_equal(chunk.weight, weight[:, 0])
    assert not opened(tmp_path, Data(**tensors(), **{key: torch.rand(E, 2)})).edges.has_weights


def test_labels_may_be_columns_and_missing(tmp_path):
    labels = (torch.arange(N) % 3).double()
    labels[7] = float("nan")
    source = opened(tmp_path, Data(**tensors(y=labels[:, None])))
    assert source.labels[7] == -1
    assert np.array_equal(np.delete(source.labels, 7), np.delete(np.arange(N) % 3, 7))


def test_bfloat16_features_are_widened(tmp_path):
    source = opened(tmp_path, Data(**tensors(x=tensors()["x"].bfloat16())))
    assert source.features.dtype == np.float32


@pytest.mark.reliability("C13")
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": None}, SourceError, r"has no features \(x\); it has edge_index, test_mask, train_mask"),
        ({"edge_index": None}, SourceError, r"has no edges \(edge_index or adj_t\)"),
        ({"y": None}, SourceError, r"has no labels \(y\)"),
        ({"train_mask": None}, SourceError, r"has no train split \(train_mask"),
        ({"x": torch.ones(N)}, ShapeError, r"x has shape \(40,\)"),
        ({"edge_index": torch.zeros(3, 5, dtype=torch.int64)}, ShapeError, r"edge_index has shape \(3, 5\)"),
        ({"edge_index": torch.zeros(2, 5)}, ShapeError, "dtype float32"),
        ({"y": torch.zeros(N, 2, 1)}, ShapeError, r"shape \(40, 2, 1\)"),
        ({"y": torch.full((N,), -2)}, SourceError, r"row 0 has label -2"),
        ({"train_mask": torch.ones(3, dtype=torch.bool)}, ShapeError, "mask of 3 nodes; there are 40"),
    ],
)
def test_a_wrong_tensor_is_named(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        opened(tmp_path, Data(**tensors(**changes)))


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (torch.ones(3), "holds a Tensor; expected a torch_geometric Data"),
        ((tensors(), {"x": torch.arange(3)}), "holds several graphs"),
        (HeteroData(), "has no labels on any node type"),
    ],
)
def test_other_objects_are_refused(tmp_path, saved, message):
    with pytest.raises(SourceError, match=message):
        opened(tmp_path, saved)


def test_what_torch_quotes_of_a_damaged_file_is_cut_short(tmp_path):
    torch.save(tensors(), tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "odd.pt", "w") as odd:
        for name in whole.namelist():
            odd.writestr(name, b"9" * 5000 if name.endswith("byteorder") else whole.read(name))
    with pytest.raises(SourceError, match="Unknown endianness type: 999") as caught:
        open_source(f"pyg:{tmp_path / 'odd.pt'}", SourceOptions())
    assert len(str(caught.value)) < 1000


def test_a_damaged_or_missing_file_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"nothing\.pt does not exist"):
        open_source(f"pyg:{tmp_path / 'nothing.pt'}", SourceOptions())
    torch.save(Data(**tensors()), tmp_path / "whole.pt")
    content = (tmp_path / "whole.pt").read_bytes()
    cut = tmp_path / "cut.pt"
    for size in (0, 10, 100, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:size])
        with pytest.raises(SourceError, match=r"cut\.pt cannot be read"):
            open_source(f"pyg:{cut}", SourceOptions())
    # Python's own question whether a file is a zip archive raises at this one.
    disks = tmp_path / "disks.pt"
    disks.write_bytes(b"PK\x06\x07" + bytes(12) + (9).to_bytes(4, "little") + b"PK\x05\x06" + bytes(18))
    with pytest.raises(SourceError, match=r"disks\.pt"):
        open_source(f"pyg:{disks}", SourceOptions())


def test_an_archive_that_unpacks_to_more_than_it_has_is_refused(tmp_path):
    torch.save(Data(**tensors(x=torch.zeros(N, 500))), tmp_path / "plain.pt")
    packing = zipfile.ZipFile(tmp_path / "graph.pt", "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, packing as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(SourceError, match=r"graph\.pt has \d+ bytes and declares records of \d+; torch"):
        open_source(f"pyg:{tmp_path / 'graph.pt'}", SourceOptions())


def test_parts_that_are_not_there_are_empty(tmp_path):
    source = opened(tmp_path, Data(**tensors(test_mask=None)))
    assert len(source.splits.test) == 0
    assert min(len(source.splits.train), len(source.splits.valid)) > 0
