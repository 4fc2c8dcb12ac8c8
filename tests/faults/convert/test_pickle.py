"""Opening a file never runs what is in it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source
from gloader.errors import SourceError


class Payload:
    """An object whose unpickling creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_the_payload_works(tmp_path):
    """Or else the tests below prove nothing."""
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran")))  # noqa: S301
    assert (tmp_path / "ran").exists()


@pytest.mark.reliability("H3")
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("hidden", [True, False])
def test_a_pickle_in_a_pt_file_is_not_run(tmp_path, zipped, hidden):
    payload = Payload(tmp_path / "ran")
    saved = {"x": torch.ones(2, 2), "edge_index": payload} if hidden else payload
    torch.save(saved, tmp_path / "evil.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(SourceError, match=r"evil\.pt cannot be read as a saved torch_geometric Data"):
        open_source(f"pyg:{tmp_path / 'evil.pt'}", SourceOptions())
    assert not (tmp_path / "ran").exists()


@pytest.mark.reliability("H3")
def test_a_bare_pickle_is_not_run(tmp_path):
    for name, prefix in (("evil.pt", "pyg"), ("evil.bin", "dgl")):
        (tmp_path / name).write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
        with pytest.raises(SourceError):
            open_source(f"{prefix}:{tmp_path / name}", SourceOptions())
    assert not (tmp_path / "ran").exists()


@pytest.mark.reliability("H3")
@pytest.mark.parametrize("evil", ["features", "labels", "edges"])
def test_a_pickle_in_a_npy_file_is_not_run(tmp_path, evil):
    arrays = {
        "features": np.ones((3, 2), np.float32),
        "labels": np.zeros(3, np.int64),
        "edges": np.zeros((4, 2), np.int64),
    }
    folder = tmp_path / "graph"
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    payload = np.array([Payload(tmp_path / "ran")] * 3, dtype=object)
    np.save(folder / f"{evil}.npy", payload, allow_pickle=True)
    with pytest.raises(SourceError, match=rf"{evil}\.npy"):
        read_whole(f"npy:{folder}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.reliability("H3")
def test_a_pickle_in_a_npz_file_is_not_run(tmp_path):
    folder = tmp_path / "graph"
    folder.mkdir()
    np.save(folder / "features.npy", np.ones((3, 2), np.float32))
    np.save(folder / "labels.npy", np.zeros(3, np.int64))
    payload = np.array([Payload(tmp_path / "ran")] * 4, dtype=object)
    np.savez(folder / "graph.npz", indptr=np.arange(4), indices=payload)
    with pytest.raises(SourceError, match=r"graph\.npz"):
        read_whole(f"npy:{folder}")
    assert not (tmp_path / "ran").exists()


def read_whole(spec):
    source = open_source(spec, SourceOptions())
    list(source.edges.chunks(100))
    list(source.features.chunks(100))
