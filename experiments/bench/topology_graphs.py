"""The datasets of the edge benchmark: made once, and as a view whose rows have one column, for sampling alone."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gloader import Dataset
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.ssd_store import FeatureWriter
from gloader.ssd_store.format.format import DATASET_MANIFEST, STORE_MANIFEST, load_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.ssd_store.format.format import ArrayRecord

NODES, EDGES = 30_000_000, 900_000_000  # at scale 1: of papers100M, undirected, a little more than a quarter
_CHUNK_ROWS = 1 << 22


def make_graph(workdir: Path, *, scale: float, dim: int, memory_budget: int) -> Path:
    """Return a community graph of ``scale`` times 30 M nodes and 900 M edges, made where it is missing.

    Its batches in an epoch are papers100M's at scale 1.
    """
    nodes, edges = round(scale * NODES), round(scale * EDGES)
    folder = workdir / f"community-{nodes}-{edges}-{dim}"
    if not folder.exists():
        # No fewer than batches can be made of, however small the graph is.
        train = max(0.040240, min(0.5, 20_000 / nodes))
        spec = (
            f"synthetic:community,nodes={nodes},edges={edges},dim={dim},classes=172,seed=1,train={train:.6f},"
            "valid=0.01"
        )
        source = open_source(spec, SourceOptions(memory_budget_bytes=memory_budget))
        prepare(source, folder, PrepareOptions(memory_budget_bytes=memory_budget))
    return folder


def thin_view(path: Path, workdir: Path) -> Path:
    """Return a dataset of the same edges, seeds and labels whose rows have one column: files of ``path``, linked."""
    dataset = Dataset.open(path)
    folder = workdir / f"thin-{dataset.fingerprint}"
    if (folder / DATASET_MANIFEST).exists():
        return folder
    with tempfile.TemporaryDirectory(prefix="gloader-thin-", dir=workdir) as name:
        scratch, store = Path(name) / "view", Path(name) / "rows"
        with FeatureWriter(store, num_rows=dataset.num_nodes, dim=1, dtype="float16") as writer:
            for rows in _zeros(dataset.num_nodes):
                writer.append(rows)
        scratch.mkdir()
        rows_of = load_manifest(store, STORE_MANIFEST).arrays
        manifest = load_manifest(path, DATASET_MANIFEST)
        arrays = {name: record for name, record in manifest.arrays.items() if not name.startswith("features")}
        for record in rows_of.values():
            _link(store, scratch, record)
        for record in arrays.values():
            _link(path, scratch, record)
        view = replace(manifest, arrays=arrays | dict(rows_of), required_features=())
        (scratch / DATASET_MANIFEST).write_bytes(view.to_bytes())
        scratch.rename(folder)
    return folder


def _zeros(num_rows: int) -> Iterator[np.ndarray]:
    for start in range(0, num_rows, _CHUNK_ROWS):
        yield np.zeros((min(_CHUNK_ROWS, num_rows - start), 1), np.float16)


def _link(source: Path, target: Path, record: ArrayRecord) -> None:
    for name in filter(None, (record.file, record.pages_file)):
        os.link(source / name, target / name)
