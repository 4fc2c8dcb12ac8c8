"""Sources that are made or held in memory, all the way into a dataset directory and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.dataset import Dataset
from gloader.types import IdArray


def saved_pyg(folder) -> str:
    number = torch.arange(30)
    tensors = {
        "x": torch.rand(30, 3),
        "edge_index": torch.stack([number, (number * 7 + 1) % 30]),
        "y": number % 2,
        "train_mask": number < 10,
        "val_mask": (number >= 10) & (number < 20),
        "test_mask": number >= 20,
    }
    torch.save(tensors, folder / "graph.pt")
    return f"pyg:{folder / 'graph.pt'}"


@pytest.mark.parametrize(
    "spec",
    [
        "builtin:digits",
        "synthetic:community,nodes=500,edges=6000,dim=7,classes=5",
        "synthetic:rmat,nodes=500,edges=6000,dim=7,classes=5",
        "pyg",
    ],
)
def test_a_dataset_holds_what_its_source_streams(tmp_path, spec):
    spec = saved_pyg(tmp_path) if spec == "pyg" else spec
    source = open_source(spec, SourceOptions(seed=1))
    prepare(source, tmp_path / "out", PrepareOptions())
    dataset = Dataset.open(tmp_path / "out")
    assert (dataset.num_nodes, dataset.num_classes) == (source.num_nodes, source.num_classes)
    assert np.array_equal(dataset.labels, source.labels)
    for part in ("train", "valid", "test"):
        assert np.array_equal(getattr(dataset, part), getattr(source.splits, part))
    assert csc_pairs(dataset) == streamed_pairs(source)
    rows = np.concatenate(list(source.features.chunks(100)))
    assert np.array_equal(stored_rows(dataset), rows)


def csc_pairs(dataset) -> list[tuple[int, int]]:
    graph = dataset.load_graph()
    dst = np.repeat(np.arange(dataset.num_nodes), np.diff(graph.indptr))
    return list(zip(dst.tolist(), graph.indices.tolist(), strict=True))


def streamed_pairs(source) -> list[tuple[int, int]]:
    """In-neighbours by destination, each in the order of the stream."""
    chunks = list(source.edges.chunks(1000))
    src: IdArray = np.concatenate([chunk.src for chunk in chunks])
    dst: IdArray = np.concatenate([chunk.dst for chunk in chunks])
    order = np.argsort(dst, kind="stable")
    return list(zip(dst[order].tolist(), src[order].tolist(), strict=True))


def stored_rows(dataset):
    out = np.empty((dataset.num_nodes, dataset.feature_dim), np.float32)
    with dataset.open_features() as store:
        store.read_into(np.arange(dataset.num_nodes), out)
    return out
