"""A loader, training, evaluation and inspection of a graph whose edges do not fit: as in memory, nothing is mapped."""

from __future__ import annotations

import json
import mmap
import os
import re
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import gloader
from gloader.cli.main import main
from gloader.config import LoaderSettings, ModelConfig, OptimConfig, StepConfig, TopologyHome, TrainSettings
from gloader.core.order import EpochOrder
from gloader.dataset.topology import open_topology
from gloader.device.hot_rows import heat_of_tables
from gloader.errors import ChecksumError, TruncatedStoreError
from gloader.samplers import HeteroGraph, NeighborSampler
from gloader.training import train
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.predict import predict
from gloader.training.train import RunFiles

NODES, EDGES, DIM = 2_000, 40_000, 8
DATA_OFFSET, PAGE_BYTES = 4096, 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    path = tmp_path / "graph"
    gloader.Dataset.from_numpy(
        path,
        features=random.standard_normal((NODES, DIM)).astype(np.float32),
        labels=np.arange(NODES) % 3,
        edge_index=random.integers(0, NODES, (2, EDGES)),
        train=np.arange(0, NODES, 2),
        valid=np.arange(1, 400, 2),
        test=np.arange(401, NODES, 2),
    )
    return path


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that Python maps."""
    names: list[str] = []

    class Recording(mmap.mmap):
        def __new__(cls, fileno: int, *arguments: Any, **keywords: Any) -> Self:
            if fileno >= 0:
                names.append(os.readlink(f"/proc/self/fd/{fileno}"))  # noqa: PTH115 - what a descriptor names
            return super().__new__(cls, fileno, *arguments, **keywords)

    monkeypatch.setattr(mmap, "mmap", Recording)
    return names


@pytest.fixture
def read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """No topology fits, and no page of one is kept."""
    monkeypatch.setattr("gloader.plan.topology_home.topology_share", lambda _: 0)
    monkeypatch.setattr("gloader.training.open_model.topology_share", lambda _: 0)
    monkeypatch.setattr("gloader.training.step_memory.FEW_BYTES", 0)


@pytest.mark.reliability("J1", "J2")
@pytest.mark.parametrize("features", ["ram", "ssd"])
@pytest.mark.parametrize("damage", ["overwritten", "cut"])
@pytest.mark.usefixtures("read_page_by_page")
def test_damage_between_two_epochs_ends_the_stream_with_an_error_that_names_file_and_page(
    path: Path, damage: str, features: str
) -> None:
    settings: dict[str, Any] = {"batch_size": 100, "fanouts": [4, 4], "seed": 3, "features": features}
    settings |= {"topology": "direct"} | ({"superbatch": 2} if features == "ssd" else {})
    with gloader.Loader(gloader.Dataset.open(path), **settings) as loader:
        assert "on the SSD, read page by page (as asked for)" in loader.explain()
        assert len(list(loader)) == 10
        file = path / "indices.npy"
        if damage == "cut":
            os.truncate(file, DATA_OFFSET + 20 * PAGE_BYTES)
        else:
            with file.open("r+b") as opened:
                opened.seek(DATA_OFFSET + 20 * PAGE_BYTES)
                opened.write(bytes(10 * PAGE_BYTES))
        kind, text = {
            "cut": (TruncatedStoreError, r"bytes \d+ to \d+ are needed, but the file now has 86016"),
            "overwritten": (ChecksumError, r"page 2\d at byte \d+, with rows \d+ to \d+, does not match"),
        }[damage]
        # Batches that were sampled before the damage, ahead of the loop, are right.
        with pytest.raises(kind, match=rf"indices\.npy: {text}") as caught:
            for _ in range(50):
                list(loader)
        assert any("in stage sample, epoch" in note for note in caught.value.__notes__)


@pytest.mark.reliability("J2")
def test_training_evaluation_and_prediction_are_those_of_a_graph_in_memory_and_map_nothing(
    path: Path, tmp_path: Path, mapped: list[str], request: pytest.FixtureRequest
) -> None:
    def run(out: Path, topology: TopologyHome) -> tuple[list[float], Any, bytes]:
        settings = TrainSettings(
            model=ModelConfig(name="graphsage", hidden=8),
            optim=OptimConfig(epochs=2),
            step=StepConfig(),
            loader=LoaderSettings.of(
                fanouts=(4, 4), batch_size=200, threads=2, memory_budget=200_000_000, features="ssd", cache=4000,
                policy="static", topology=topology, spill_budget=10**8,
            ),
            runs=1,
        )  # fmt: skip
        dataset = gloader.Dataset.open(path)
        result = train.fit(dataset, settings, files=RunFiles(out=out)).runs[0]
        predicted = predict(dataset, load_checkpoint(out / "checkpoint.pt"), on_progress=look)
        return [record.loss for record in result.epochs], result.test_acc, predicted.tobytes()

    def look(_: float) -> None:
        assert str(path) not in Path("/proc/self/maps").read_text()

    held = run(tmp_path / "held", "ram")
    request.getfixturevalue("read_page_by_page")
    for topology in ("direct", "sweep"):
        assert run(tmp_path / topology, topology) == held
    assert not [name for name in mapped if str(path) in name]


@pytest.mark.reliability("J2")
def test_no_file_of_a_dataset_is_mapped_by_any_part_of_the_product() -> None:
    root = Path(gloader.__file__).parent
    ways = re.compile(r"memmap\(|mmap_mode|mmap\.mmap\(|mmap=|\bfrom_file\(")
    # Anonymous memory, that which ranks share, the rings of io_uring; and sources that are prepared, not datasets.
    known = {
        "core/aligned_memory",
        "distributed/shared_memory",
        "ssd_store/read/uring",
        "convert/sources/pyg",
        "convert/readers/npy_file",
        "convert/readers/torch_file",
    }
    rooms = [root, *(path.resolve() for path in root.iterdir() if path.is_symlink())]
    files = {
        f"{'' if room == root else f'{room.name}/'}{path.relative_to(room).with_suffix('')}": path
        for room in rooms
        for path in room.rglob("*.py")
    }
    assert len(files) > 300
    assert {name for name, path in files.items() if ways.search(path.read_text())} == known


@pytest.mark.reliability("J2")
def test_inspection_reads_page_by_page_and_maps_nothing(
    path: Path, mapped: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["inspect", "--dataset", str(path), "--fanout", "4,4", "--batch-size", "200", "--json"]

    def report(budget: str) -> Any:
        assert main([*words, "--memory-budget", budget]) == 0
        return json.loads(capsys.readouterr().out)

    assert report("300KB") == report("100MB")
    assert not [name for name in mapped if str(path) in name]


@pytest.mark.parametrize("hotness", ["degree", "vip"])
def test_hot_rows_are_those_of_a_graph_in_memory(path: Path, hotness: Any) -> None:
    dataset = gloader.Dataset.open(path)
    order = EpochOrder(seeds=dataset.train, num_nodes=NODES, batch_size=100, seed=3)
    held = dataset.load_graph()
    sampler = NeighborSampler(held, [4, 4])
    with open_topology(dataset, max_bytes=0) as read:
        found = [
            heat.plan(50).rows
            for topology in (held, read)
            for heat in heat_of_tables(
                hotness,
                (0,),
                graph=HeteroGraph.of_one_type(topology),
                sampler=sampler,
                order=order,
                fanouts=[(4, 4)],
                is_collective=False,
            )
        ]
    assert found[0].tolist() == found[1].tolist()
    assert len(found[0]) == 50
