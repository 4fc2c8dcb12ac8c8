"""An embedding table against a dictionary: appends, commits, reads, merges and reopenings in any order."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gloader.ssd_store.embedding import run_merge, run_set
from gloader.ssd_store.embedding.embedding_table import EmbeddingTable
from gloader.ssd_store.embedding.initial_rows import InitialRows

NAMES = st.sampled_from(["last", "best", "a.b"])


class TableMachine(RuleBasedStateMachine):
    """A table and, as the oracle, its rows as a matrix; and those of each record."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp()) / "table"
        self.table = None
        self.records = {}
        self.part = None  # the next merge
        self.plan = pytest.MonkeyPatch()
        self.plan.setattr(run_set, "plan_merge", self.plan_merge)

    def plan_merge(self, sizes, num_rows):
        """Merge what a rule has asked for, then nothing."""
        part, self.part = self.part, None
        if part is None or len(sizes) < 2:
            return None
        first = part[0] % (len(sizes) - 1)
        return first, first + 2 + part[1] % (len(sizes) - first - 1)

    @initialize(
        num_rows=st.sampled_from([1, 7, 600, 1500]),
        dim=st.integers(1, 3),
        state=st.integers(0, 2),
        kind=st.sampled_from(["uniform", "normal", "zeros"]),
        buffer=st.sampled_from([1, 30, 400]),
    )
    def create(self, num_rows, dim, state, kind, buffer):
        self.num_rows, self.width = num_rows, dim + state
        self.initial = InitialRows(seed=num_rows, dim=dim, kind=kind, scale=0.5, state=(0.25,) * state)
        self.buffer_bytes = buffer * (4 * self.width + 32)
        self.rows = np.empty((num_rows, self.width), np.float32)
        self.initial.fill(np.arange(num_rows), self.rows)
        self.facts = {"made": [1]}
        self.table = EmbeddingTable.create(
            self.folder,
            num_rows=num_rows,
            initial=self.initial,
            facts=self.facts,
            buffer_bytes=self.buffer_bytes,
        )
        self.steps = 0

    @rule(seed=st.integers(0, 2**32), share=st.sampled_from([0.0, 0.01, 0.3, 0.9, 1.0]))
    def append(self, seed, share):
        random = np.random.default_rng(seed)
        ids = random.permutation(self.num_rows)[: int(self.num_rows * share)]
        rows = random.standard_normal((len(ids), self.width)).astype(np.float32)
        self.table.append(ids, rows)
        self.rows[ids] = rows

    @rule(name=NAMES)
    def commit(self, name):
        self.steps += 1
        self.table.commit(name, num_steps=self.steps, facts={"name": name})
        self.records[name] = (self.steps, self.rows.copy())
        assert self.table.records == tuple(sorted(self.records))
        assert self.table.facts == {"made": [1], "name": name}

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def forget(self, data):
        name = data.draw(st.sampled_from(sorted(self.records)))
        self.table.forget(name)
        del self.records[name]

    @rule(first=st.integers(0, 100), count=st.integers(0, 100))
    def merge(self, first, count):
        self.part = (first, count)
        self.table._runs.merge_if_due()

    @precondition(lambda self: self.records)
    @rule(data=st.data(), is_newest=st.booleans())
    def reopen(self, data, is_newest):
        newest = max(self.records, key=lambda name: self.records[name][0])
        name = newest if is_newest else data.draw(st.sampled_from(sorted(self.records)))
        self.table.close()
        self.table = EmbeddingTable.open(
            self.folder, record=None if is_newest else name, buffer_bytes=self.buffer_bytes
        )
        steps, rows = self.records[name]
        assert (self.table.num_steps, self.table.facts["name"]) == (steps, name)
        assert (self.table.initial, self.table.num_rows) == (self.initial, self.num_rows)
        self.rows = rows.copy()

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def read_another_record(self, data):
        name = data.draw(st.sampled_from(sorted(self.records)))
        with EmbeddingTable.open(self.folder, record=name, is_read_only=True) as reader:
            rows = np.concatenate([rows for _, rows in reader.pieces(333)])
        assert np.array_equal(rows, self.records[name][1])

    @rule(seed=st.integers(0, 2**32), share=st.sampled_from([0.01, 0.5, 1.0]))
    def read(self, seed, share):
        random = np.random.default_rng(seed)
        ids = np.flatnonzero(random.random(self.num_rows) < share)
        at = random.permutation(self.num_rows)[: len(ids)]
        out = np.full((self.num_rows, self.width), 9, np.float32)
        stats = self.table.read_into(ids, out, at=at)
        assert stats.rows == len(ids)
        assert np.array_equal(out[at], self.rows[ids])
        assert (np.delete(out, at, axis=0) == 9).all()

    @rule(max_rows=st.sampled_from([1, 100, 10**6]))
    def pieces(self, max_rows):
        if max_rows == 1 and self.num_rows > 100:
            return
        firsts, rows = zip(*self.table.pieces(max_rows), strict=True)
        assert list(firsts) == list(range(0, self.num_rows, max_rows))
        assert np.array_equal(np.concatenate(rows), self.rows)

    @invariant()
    def no_other_files(self):
        if self.table is None:
            return
        self.table._runs.join()
        live = {run.name for run in self.table._runs.runs}.union(*self.table._runs._named.values())
        found = {path.name.partition(".")[0] for path in self.folder.glob("run-*")}
        assert found == live
        assert {path.stem for path in self.folder.glob("*.json*")} == set(self.records)

    def teardown(self):
        if self.table is not None:
            self.table.close()
        self.plan.undo()
        shutil.rmtree(self.folder.parent)


TestTable = TableMachine.TestCase
TestTable.settings = settings(
    settings(), max_examples=max(1, settings().max_examples // 2), stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


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
        buffer_bytes=12_000,
    )
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
        for version in range(1, 200):
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
