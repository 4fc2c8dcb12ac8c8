"""A file of a source that is cut while it is prepared: an error, never a signal."""

from __future__ import annotations

import mmap
import os
import resource
import signal
from typing import TYPE_CHECKING

import pytest
import torch
from forking import in_child

from gloader.convert.options import SourceOptions
from gloader.convert.readers import npy_file
from gloader.convert.readers.npy_file import MappedFile, tell_where_cut
from gloader.convert.readers.torch_file import load_mapping
from gloader.convert.registry import open_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N, E = 40_000, 60_000


def save(folder: Path) -> Path:
    path = folder / "graph.pt"
    edges = torch.randint(0, N, (2, E))
    torch.save({"x": torch.ones(N, 8), "edge_index": edges, "y": torch.zeros(N, dtype=torch.int64)}, path)
    return path


def rows_of_a_source(path: Path) -> Callable[[], object]:
    source = open_source(f"pyg:{path}", SourceOptions())
    return lambda: [chunk.sum() for chunk in source.features.chunks(1000)]


def edges_of_a_source(path: Path) -> Callable[[], object]:
    source = open_source(f"pyg:{path}", SourceOptions())
    return lambda: [chunk.src.sum() for chunk in source.edges.chunks(1000)]


def tensor_of_a_file(path: Path) -> Callable[[], object]:
    found = load_mapping(path, missing="make one")
    return found["x"].numpy().sum


def part_of_a_file(path: Path) -> Callable[[], object]:
    return MappedFile(path).part(0, path.stat().st_size).sum


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests had mapped and cut."""
    monkeypatch.setattr(npy_file, "_mapped", {})


@pytest.mark.reliability("J2")
@pytest.mark.parametrize("opened", [rows_of_a_source, edges_of_a_source, tensor_of_a_file, part_of_a_file])
def test_a_mapped_source_that_is_cut_ends_the_process_with_a_sentence(
    opened: Callable[[Path], Callable[[], object]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path)

    read = opened(path)  # which a forked child of a process with torch's threads could not

    def act() -> None:
        os.truncate(path, mmap.PAGESIZE)
        read()

    assert in_child(act) == 1
    assert capfd.readouterr().err.endswith(
        f"\nerror: {path} became shorter while it was read; copy it again\n"
    )


def test_another_mapping_that_is_cut_ends_it_as_before(tmp_path: Path) -> None:
    ours, other = save(tmp_path), tmp_path / "other"
    other.write_bytes(bytes(2 * mmap.PAGESIZE))

    def act() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        tell_where_cut(ours)
        with other.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        os.truncate(other, 0)
        bytes(mapping)

    assert in_child(act) == -signal.SIGBUS
