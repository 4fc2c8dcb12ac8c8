"""The replay of runs that train embeddings: their loads are a part of the reads, and wait for steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gloader
from gloader.errors import ConfigError, ReplayError
from gloader.lab.analyze.analysis import verify_stalls
from gloader.lab.analyze.predict import Predictor
from gloader.replay.changes import parse_changes
from gloader.replay.recording import Recording, read_recording

from .recorded import EPOCHS, NUM_NODES, SSD, open_loader

DIM, SLOTS_BYTES = 16, 120_000


def _record(dataset: gloader.Dataset, spill: Path, **settings: Any) -> Recording:
    with (
        gloader.NodeEmbedding(dataset, None, dim=DIM, cache=SLOTS_BYTES) as embedding,
        open_loader(dataset, spill, embeddings=embedding, **settings) as loader,
    ):
        for _ in range(EPOCHS):
            for batch in loader:
                batch.x.square().sum().backward()
                embedding.step(batch)
        loader.write_trace(spill.parent / "trace.json")
        assert loader.advice() == ""
    return read_recording(spill.parent / "trace.json")


@pytest.fixture(params=["ram", "ssd"])
def recording(request: pytest.FixtureRequest, dataset: gloader.Dataset, spill: Path) -> Recording:
    settings = SSD if request.param == "ssd" else {"features": "ram", "superbatch": 4}
    return _record(dataset, spill, **settings)


@pytest.fixture
def predictor(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Predictor]:
    for name in ("MOST_UNEXPLAINED", "MOST_LAGS"):
        monkeypatch.setattr(f"gloader.replay.calibrate.{name}", 10.0)
    with Predictor(recording) as predictor:
        yield predictor


def test_a_recording_has_the_embeddings_and_one_read_for_each_batch(recording: Recording) -> None:
    header = recording.header
    (embedding,) = header.embeddings
    assert (embedding.name, embedding.num_rows) == ("node", NUM_NODES)
    assert embedding.row_bytes == 4 * (DIM + 1)
    assert 0 < embedding.slots < NUM_NODES
    assert header.shape.has_embeddings
    reads = [event for event in recording.events if event.stage == "read"]
    assert sorted((event.epoch, event.batch) for event in reads) == [
        (epoch, index) for epoch in range(EPOCHS) for index in range(header.num_batches)
    ]
    open_steps = [event.notes["open_steps"] for event in reads]
    # The first two batches find empty slots. All later ones evict rows of the last steps but one or two.
    assert open_steps[:2] == [0, 1]
    assert set(open_steps[2:]) <= {1, 2}


def test_a_replay_has_the_bytes_of_the_embedding_and_a_disk_moves_them(predictor: Predictor) -> None:
    events = [event for event in predictor.recording.events if event.stage in ("stage", "read")]
    assert sum(event.bytes_written for event in events) > 0

    def disk_s(changes: str) -> float:
        found = predictor.predict(parse_changes(changes)) if changes else predictor.base
        work = found.work
        demands = [*(one.stage for one in work.superbatches), *(one.read for one in work.batches)]
        return sum(one.disk_s + one.spill_s for one in demands)

    before = disk_s("")
    assert before > 0
    assert disk_s("disk=0.5x") == pytest.approx(2 * before)
    assert disk_s("threads=4,cores=8") == pytest.approx(before)
    slow = predictor.predict(parse_changes("disk=0.001x"))
    assert slow.replayed_s > 1.5 * predictor.base.replayed_s


@pytest.mark.parametrize(
    "change", ["cache=2x", "superbatch=2x", "memory=2x", "ranks=2", "disk=2x,fanout=5/5"]
)
def test_changes_that_move_other_rows_are_refused_by_name(predictor: Predictor, change: str) -> None:
    name = change.rsplit(",", maxsplit=1)[-1].split("=", maxsplit=1)[0]
    with pytest.raises(ConfigError) as caught:
        predictor.predict(parse_changes(change))
    assert str(caught.value) == (
        f"{name}= cannot be answered: the run trains embeddings (node), and the loads of their rows are not planned "
        "again. Leave it out; `gloader inspect --embed` shows the reads and writes at other sizes of their cache"
    )


def test_nothing_is_planned_or_trained_again(predictor: Predictor, tmp_path: Path) -> None:
    with pytest.raises(
        ReplayError, match=r"^the run trains embeddings \(node\), and the loads of their rows are not"
    ):
        predictor.memory_bytes(predictor.base)
    with pytest.raises(ConfigError, match="only runs without them can be verified; leave --verify out"):
        verify_stalls(tmp_path, predictor.recording.header)
