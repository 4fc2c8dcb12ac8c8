"""An embedding table against a dictionary: appends, commits, reads, merges and reopenings in any order."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from embedding_story import memory_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from gloader.ssd_store.embedding import run_merge, run_set
from gloader.ssd_store.embedding.embedding_table import EmbeddingTable
from gloader.ssd_store.embedding.initial_rows import InitialRows

NAMES = ["last", "best", "a.b"]
CALLS = (
    ["append"] * 4 + ["commit", "merge"] * 2 + ["forget", "reopen", "read_another_record", "read", "pieces"]
)


class Played:
    """A table and, as the oracle, its rows as a matrix; and those of each record."""

    def __init__(self, folder, num_rows, dim, state, kind, buffer):
        self.num_rows, self.width = num_rows, dim + state
        self.initial = InitialRows(seed=num_rows, dim=dim, kind=kind, scale=0.5, state=(0.25,) * state)
        self.rows = np.empty((num_rows, self.width), np.float32)
        self.initial.fill(np.arange(num_rows), self.rows)
        self.records = {}
        self.steps = 0
        self.folder = folder / "table"
        self.buffer = buffer
        self.table = EmbeddingTable.create(
            self.folder,
            num_rows=num_rows,
            initial=self.initial,
            facts={"made": [1]},
        )
        self.table.resize_buffer(buffer)
        self.part = (0, 0, 0)  # the next merge: number of runs, the first to merge, and the last plus one

    def plan_merge(self, sizes, num_rows):
        """Merge what was asked for, while there are so many runs as then."""
        count, *part = self.part
        return tuple(part) if count == len(sizes) else None

    def play(self, call, random):
        if self.records or call not in {"forget", "reopen", "read_another_record"}:
            getattr(self, call)(random)
            self.table._runs.join()
            self.check_files()

    def append(self, random):
        ids = random.permutation(self.num_rows)[: int(self.num_rows * random.choice([0, 0.01, 0.3, 0.9, 1]))]
        rows = random.standard_normal((len(ids), self.width)).astype(np.float32)
        self.table.append(ids, rows)
        self.rows[ids] = rows

    def commit(self, random):
        self.steps += 1
        name = random.choice(NAMES)
        self.table.commit(name, num_steps=self.steps, facts={"name": name})
        self.records[name] = (self.steps, self.rows.copy())
        assert self.table.records == tuple(sorted(self.records))
        assert self.table.facts == {"made": [1], "name": name}

    def forget(self, random):
        name = random.choice(sorted(self.records))
        self.table.forget(name)
        del self.records[name]

    def merge(self, random):
        count = len(self.table._runs.runs)
        if count >= 2:
            first = int(random.integers(count - 1))
            self.part = (count, first, int(random.integers(first + 2, count + 1)))
            self.table._runs.merge_if_due()
            self.table._runs.join()
            assert len(self.table._runs.runs) < count
            self.part = (0, 0, 0)

    def reopen(self, random):
        name = random.choice(sorted(self.records))
        is_newest = self.records[name][0] == self.steps
        self.table.close()
        self.table = EmbeddingTable.open(self.folder, record=None if is_newest else name)
        self.table.resize_buffer(self.buffer)
        steps, rows = self.records[name]
        assert (self.table.num_steps, self.table.facts) == (steps, {"made": [1], "name": name})
        assert (self.table.initial, self.table.num_rows) == (self.initial, self.num_rows)
        self.rows = rows.copy()
        self.pieces(random)

    def read_another_record(self, random):
        name = random.choice(sorted(self.records))
        with EmbeddingTable.open(self.folder, record=name, is_read_only=True) as reader:
            rows = np.concatenate([rows for _, rows in reader.pieces(333)])
        assert np.array_equal(rows, self.records[name][1])

    def read(self, random):
        ids = np.flatnonzero(random.random(self.num_rows) < random.choice([0.01, 0.5, 1]))
        at = random.permutation(self.num_rows)[: len(ids)]
        out = np.full((self.num_rows, self.width), 9, np.float32)
        assert self.table.read_into(ids, out, at=at).rows == len(ids)
        assert np.array_equal(out[at], self.rows[ids])
        assert (np.delete(out, at, axis=0) == 9).all()

    def pieces(self, random):
        max_rows = int(random.integers(1, self.num_rows + 3))
        max_rows = max(max_rows, self.num_rows // 20)
        firsts, rows = zip(*self.table.pieces(max_rows), strict=True)
        assert list(firsts) == list(range(0, self.num_rows, max_rows))
        assert np.array_equal(np.concatenate(rows), self.rows)

    def check_files(self):
        """Require the files of the runs in use and of those that a record names, and no others."""
        live = {run.name for run in self.table._runs.runs}.union(*self.table._runs._named.values())
        assert {path.name.partition(".")[0] for path in self.folder.glob("run-*")} == live
        assert {path.stem for path in self.folder.glob("*.json*")} == set(self.records)


@settings(max_examples=max(3, settings().max_examples // 2))
@given(
    num_rows=st.sampled_from([1, 7, 600, 1500]),
    dim=st.integers(1, 3),
    state=st.integers(0, 2),
    kind=st.sampled_from(["uniform", "normal", "zeros"]),
    buffer=st.sampled_from([1, 30, 400]),
    calls=st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 2**32)), min_size=8, max_size=20),
)
def test_a_table_has_the_newest_rows_and_those_of_its_records(num_rows, dim, state, kind, buffer, calls):
    with memory_folder() as folder, pytest.MonkeyPatch.context() as patch:
        played = Played(Path(folder), num_rows, dim, state, kind, max(buffer, num_rows // 20))
        patch.setattr(run_set, "plan_merge", played.plan_merge)
        patch.setattr(run_merge, "MERGE_BYTES", 1)  # many steps
        try:
            for call, seed in calls:
                played.play(call, np.random.default_rng(seed))
            played.pieces(np.random.default_rng(0))
        finally:
            played.table.close()


@pytest.mark.parametrize("max_runs", [4, 64])
def test_reads_beside_appends_merges_and_commits(tmp_path, monkeypatch, max_runs):
    """Each row holds its id and a version; a reader never sees an older version than before, or half a row."""
    monkeypatch.setattr(run_merge, "MAX_RUNS", max_runs)
    num_rows, width = 3000, 6
    table = EmbeddingTable.create(
        tmp_path / "t",
        num_rows=num_rows,
        initial=InitialRows(seed=0, dim=width, kind="zeros", scale=0.0, state=()),
        facts={},
    )
    table.resize_buffer(200)
    finished = threading.Event()
    failures = []

    def read(seed):
        random = np.random.default_rng(seed)
        seen = np.zeros(num_rows, np.float32)
        try:
            while not finished.is_set():
                ids = np.flatnonzero(random.random(num_rows) < 0.3)
                out = np.empty((len(ids), width), np.float32)
                table.read_into(ids, out)
                assert (out == out[:, :1]).all()
                assert (out[:, 0] >= seen[ids]).all()
                seen[ids] = out[:, 0]
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
    for reader in readers:
        reader.start()
    random = np.random.default_rng(9)
    rows = np.zeros((num_rows, width), np.float32)
    try:
        for version in range(1, 120):
            ids = random.permutation(num_rows)[: random.integers(1, 400)]
            rows[ids] = version
            table.append(ids, rows[ids])
            if version % 20 == 0:
                table.commit("last", num_steps=version, facts={})
    finally:
        finished.set()
        for reader in readers:
            reader.join()
    assert not failures
    assert np.array_equal(np.concatenate([piece for _, piece in table.pieces(700)]), rows)
    table.close()
