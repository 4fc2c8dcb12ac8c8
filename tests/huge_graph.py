"""A dataset of few nodes and more edges than a machine has room for: its edges are a hole, but for pages asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.offsets import Offsets, offsets_of
from gloader.dataset import Dataset
from gloader.samplers.graph import in_degrees
from gloader.ssd_store.format.checksum import PAGE_BYTES, checksum_pages, digest_of
from gloader.ssd_store.format.format import DATA_OFFSET, seal_manifest
from gloader.ssd_store.format.manifest import npy_header

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import IdArray

_PER_PAGE = PAGE_BYTES // 4


class HugeGraph:
    """A `Topology` whose edges are nowhere: the source of each follows from its position. Keeps the pages asked for."""

    weights = None
    held_bytes = 0

    def __init__(self, offsets: Offsets) -> None:
        self.offsets = offsets
        self.num_nodes = self.num_sources = len(offsets.low) - 1
        self.num_edges = int(offsets_of(offsets, np.array([self.num_nodes]))[0])
        self.sources = self
        self.pages: set[int] = set()

    def in_degrees(self, nodes: IdArray) -> IdArray:
        return in_degrees(self.offsets, nodes)

    def source_of(self, positions: IdArray) -> NDArray[Any]:
        """Return one of the last nodes for each of ``positions``."""
        back = (positions ^ (positions >> 17)) % min(self.num_nodes, 300)
        return (self.num_nodes - 1 - back).astype(np.int32 if self.num_nodes < 2**31 else np.int64)

    def at(self, positions: IdArray) -> tuple[NDArray[Any], IdArray]:
        self.pages.update((positions // _PER_PAGE).tolist())
        values = self.source_of(positions)
        values.flags.writeable = False
        return values, np.arange(len(positions))

    def write(self, path: Path) -> Dataset:
        """Write the dataset with the pages that were asked for so far; all others would fail their checksum."""
        ids = np.arange(self.num_nodes)
        with Dataset.create(path, name="huge", num_nodes=self.num_nodes, num_classes=2) as writer:
            with writer.indptr() as column:
                column.append(offsets_of(self.offsets, np.arange(self.num_nodes + 1)))
            with writer.indices(1, "int32") as column:
                column.append(np.zeros(1, np.int32))
            with writer.features(1, "float32") as column:
                column.append(np.zeros((self.num_nodes, 1), np.float32))
            writer.labels(ids % 2)
            writer.splits(train=ids, valid=ids[:0], test=ids[:0])
        num_pages = -(-self.num_edges // _PER_PAGE)
        checksums = np.zeros(num_pages, np.uint64)
        pages = sorted(self.pages)
        _open_hole(path / "indices.npy", "int32", self.num_edges)
        with (path / "indices.npy").open("r+b") as file:
            for page in pages:
                content = np.zeros(_PER_PAGE, np.int32)
                positions = np.arange(page * _PER_PAGE, min((page + 1) * _PER_PAGE, self.num_edges))
                content[: len(positions)] = self.source_of(positions)
                checksum_pages(content.view(np.uint8), page, checksums[page : page + 1])
                file.seek(DATA_OFFSET + page * PAGE_BYTES)
                file.write(content.tobytes())
        _open_hole(path / "indices.pages", "uint64", num_pages)
        with (path / "indices.pages").open("r+b") as file:
            for page in pages:
                file.seek(DATA_OFFSET + page * 8)
                file.write(checksums[page].tobytes())
        body = json.loads((path / "dataset.json").read_text())
        del body["checksum"]
        body["arrays"]["indices"] |= {
            "shape": [self.num_edges],
            "num_bytes": 4 * self.num_edges,
            "digest": digest_of(checksums),
        }
        (path / "dataset.json").write_bytes(seal_manifest(body))
        return Dataset.open(path)


def _open_hole(path: Path, dtype: str, length: int) -> None:
    """Make the file of an array of ``length`` zeros, none of which is on the disk."""
    with path.open("wb") as file:
        file.write(npy_header(dtype, (length,)))
        num_bytes = length * np.dtype(dtype).itemsize
        file.truncate(DATA_OFFSET + -(-num_bytes // PAGE_BYTES) * PAGE_BYTES)
