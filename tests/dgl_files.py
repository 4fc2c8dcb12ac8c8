"""Files that `dgl.save_graphs` of DGL 1.1.3 wrote, kept in `saved_graphs/`, so that they are read where DGL is not.

``python tests/dgl_files.py`` writes them again. `version_1` spells out what DGL before 0.5 wrote.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).with_name("saved_graphs")
N, E = 7, 10
# Two edges are parallel, one is a loop, and node 6 has none.
SRC = np.array([3, 0, 5, 3, 2, 4, 4, 1, 0, 3])
DST = np.array([0, 4, 1, 0, 2, 1, 0, 5, 2, 4])
FEAT = np.arange(3 * N, dtype=np.float32).reshape(N, 3) / 8
LABEL = np.array([0, 1, 2, 0, 1, 2, 0])
EDGE_FEAT = np.arange(2 * E, dtype=np.float16).reshape(E, 2)
EDGE_TIME = 1000 - np.arange(E) ** 2
WEIGHT = 1 + np.arange(E, dtype=np.float32) / 4
PARTS = {"train": np.arange(3), "valid": np.arange(3, 5), "test": np.arange(5, 7)}
NAMES = ("pairs", "by_source", "by_destination", "typed")


def content(name: str) -> bytes:
    """Return the bytes of a file."""
    return gzip.decompress((FOLDER / f"{name}.bin.gz").read_bytes())


def written(name: str, folder: Path) -> Path:
    """Write a file into ``folder``."""
    path = folder / f"{name}.bin"
    path.write_bytes(content(name))
    return path


def save(name: str, path: Path) -> None:
    """Write a file with DGL."""
    import torch

    from gloader.convert.sources.dgl import quiet_dgl

    ends = torch.from_numpy(SRC), torch.from_numpy(DST)
    masks = {key: torch.isin(torch.arange(N), torch.from_numpy(ids)) for key, ids in PARTS.items()}
    with quiet_dgl("golden files need") as dgl:
        if name == "typed":
            graph = dgl.heterograph({("a", "to", "a"): ends, ("a", "of", "b"): ends}, {"a": N, "b": N + 2})
            graph.nodes["a"].data["feat"] = torch.from_numpy(FEAT)
            graph.nodes["a"].data["label"] = torch.from_numpy(LABEL)
            dgl.save_graphs(str(path), [graph], formats=["coo", "csc"])
            return
        graph = dgl.graph(ends, num_nodes=N, idtype=torch.int64 if name == "pairs" else torch.int32)
        feat, label = torch.from_numpy(FEAT), torch.from_numpy(LABEL)
        graph.edata["weight"] = torch.from_numpy(WEIGHT)
        graph.edata["edge_time"] = torch.from_numpy(EDGE_TIME)
        graph.edata["feat"] = torch.from_numpy(EDGE_FEAT)
        beside = {}
        if name == "by_destination":
            graph.ndata["feat"], graph.ndata["label"] = feat.bfloat16(), label.float()
            beside = {f"{key}_idx": torch.from_numpy(ids) for key, ids in PARTS.items()}
        else:
            graph.ndata["feat"], graph.ndata["label"] = feat, label
            for key, mask in masks.items():
                graph.ndata[f"{key.replace('valid', 'val')}_mask"] = mask
        forms = {"pairs": ["coo"], "by_source": ["csr"], "by_destination": ["csr", "csc"]}[name]
        dgl.save_graphs(str(path), [graph], beside, formats=forms)


def array(values: np.ndarray[Any, Any]) -> bytes:
    """Return an array as DGL writes it."""
    kind = {"i": 0, "u": 1, "f": 2}[values.dtype.kind]
    head = struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, values.ndim, kind, 8 * values.itemsize, 1)
    return head + struct.pack(f"<{values.ndim}qq", *values.shape, values.nbytes) + values.tobytes()


def columns(**found: np.ndarray[Any, Any]) -> bytes:
    """Return arrays by their names as DGL writes them."""
    named = (struct.pack("<Q", len(name)) + name.encode() + array(values) for name, values in found.items())
    return struct.pack("<Q", len(found)) + b"".join(named)


def version_1() -> bytes:
    """Return the graph as DGL wrote it before 0.5."""
    order = np.argsort(DST, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(DST, minlength=N))])
    head = struct.pack("<QQQ", 0xDD2E4FF046B4A13F, 1, 1).ljust(4096, b"\0")
    sizes = struct.pack("<Q", 1) + b"".join(struct.pack("<QQ", 1, value) for value in (0, N, E))
    edges = array(indptr) + array(SRC[order]) + array(order)
    masks = {f"{key}_mask": np.isin(np.arange(N), ids).astype(np.uint8) for key, ids in PARTS.items()}
    nodes = columns(feat=FEAT, label=LABEL, **masks)
    return head + sizes + columns() + edges + nodes + columns(weight=WEIGHT)


if __name__ == "__main__":
    import tempfile

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for each in NAMES:
            save(each, Path(folder) / "graph.bin")
            data = (Path(folder) / "graph.bin").read_bytes()
            # DGL leaves what was in memory behind the 32 bytes of the header.
            data = data[:32].ljust(4096, b"\0") + data[4096:]
            (FOLDER / f"{each}.bin.gz").write_bytes(gzip.compress(data, mtime=0))
