"""A preparation with link tables and columns of edges that ends anywhere: it leaves nothing, or the whole."""

import resource
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from convert_helpers import write_folder

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.sources.npy import open_npy
from gloader.dataset import Dataset
from gloader.errors import StoreWriteError

NODES, EDGES = 300, 4_000
STEPS = {
    "dealing out edges",
    "ordering edges by time",
    "reading edges",
    "sorting edges",
    "finding link table train",
    "finding link table mine",
    "ordering edge features",
    "writing edge features",
    "writing features",
}


class Stopping:
    """Notes the steps; ends the preparation at the first word of one of them."""

    def __init__(self, at=None):
        self.at, self.steps = at, []

    def advance(self, step, *_):
        self.steps.append(step)
        if step == self.at:
            raise KeyboardInterrupt


@pytest.fixture
def convert(tmp_path):
    """Return a function that prepares one graph with everything; the folder beside its source is returned too."""
    random = np.random.default_rng(0)
    rows = {"src": random.integers(0, NODES, 400), "dst": random.integers(0, NODES, 400)}
    rows |= {"label": np.arange(400), "time": np.arange(400), "negatives": [[1, 2, 3]] * 400}
    write_folder(
        tmp_path / "in",
        num_nodes=NODES,
        edges=random.integers(0, NODES, (EDGES, 2)),
        edge_time=random.integers(0, 10**6, EDGES),
        edge_features=random.random((EDGES, 5)),
    )
    pq.write_table(pa.table(rows), tmp_path / "in" / "mine.parquet")
    out = tmp_path / "out"
    out.mkdir()

    def run(progress=None):
        options = PrepareOptions(
            edge_split=(0.6, 0.2, 0.2),
            edge_split_by="time",
            edge_tables=(f"mine={tmp_path / 'in' / 'mine.parquet'}",),
            edge_dtype="int8",
            symmetrize=True,
            memory_budget_bytes=60 * 10**6,
            overwrite=True,
        )
        source = open_npy(str(tmp_path / "in"), SourceOptions())
        prepare(source, out / "ds", options, progress=progress or Stopping())

    return run, out


def test_ending_at_any_step_leaves_what_was_there(convert):
    run, out = convert
    steps = Stopping()
    run(steps)
    assert set(steps.steps) >= STEPS
    fingerprint = Dataset.open(out / "ds").fingerprint
    for step in dict.fromkeys(steps.steps):
        with pytest.raises(KeyboardInterrupt):
            run(Stopping(step))
        assert [entry.name for entry in out.iterdir()] == ["ds"]
    assert Dataset.open(out / "ds").fingerprint == fingerprint


def test_a_disk_that_fills_up_in_any_file_leaves_nothing(convert, tmp_path):
    """A file size limit stands in for a full disk: files that are larger fail, whichever comes first."""
    run, out = convert
    run()
    sizes = {file.stat().st_size for file in (out / "ds").rglob("*") if file.is_file()}
    (out / "ds").rename(tmp_path / "whole")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for size in sorted(sizes)[::3]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, before[1]))
            with pytest.raises(StoreWriteError):
                run()
            assert not list(out.iterdir())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    run()
    assert Dataset.open(out / "ds").fingerprint == Dataset.open(tmp_path / "whole").fingerprint
