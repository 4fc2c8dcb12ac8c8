"""A short life of an embedding table, for tests that end it at any point, and the check of what is left."""

from __future__ import annotations

import os
import re
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.errors import IncompleteStoreError, StoreOpenError
from gloader.ssd_store.embedding import run_merge
from gloader.ssd_store.embedding.embedding_table import EmbeddingTable
from gloader.ssd_store.embedding.initial_rows import InitialRows
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

NUM_ROWS, WIDTH = 1500, 3  # three pages of ids
INITIAL = InitialRows(seed=5, dim=WIDTH - 1, kind="uniform", scale=1.0, state=(0.0,))

ABSENT = re.compile("has no record|nothing here")

Records = dict[str, "NDArray[np.float32]"]


def memory_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder in memory where there is one: what is left on a disk does not depend on the device."""
    memory = "/dev/shm"  # noqa: S108 - a private folder is made in it
    return tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None)


def first_rows() -> NDArray[np.float32]:
    rows = np.empty((NUM_ROWS, WIDTH), np.float32)
    INITIAL.fill(np.arange(NUM_ROWS), rows)
    return rows


class Story:
    """A run of the story, and the records that the disk must hold after each of its commits.

    Parameters
    ----------
    on_commit : called before each commit or removal of a record
    """

    def __init__(self, on_commit: Callable[[], object] = lambda: None) -> None:
        self.states: list[Records] = [{}]
        self.begun = 0  # commits and removals
        self._on_commit = on_commit

    def run(self, folder: Path, os_io: OsIO = REAL_OS) -> None:
        """Create a table in ``folder / "t"``; append, merge, commit, forget; at the end close it."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_merge, "MAX_RUNS", 4)
            self._run(folder, os_io)

    def _run(self, folder: Path, os_io: OsIO) -> None:
        random = np.random.default_rng(7)
        rows = first_rows()
        with EmbeddingTable.create(
            folder / "t",
            num_rows=NUM_ROWS,
            initial=INITIAL,
            facts={},
            os_io=os_io,
        ) as table:
            table.resize_buffer(250)

            def append(count: int) -> None:
                ids = random.permutation(NUM_ROWS)[:count]
                rows[ids] = random.standard_normal((count, WIDTH)).astype(np.float32)
                table.append(ids, rows[ids])
                table._runs.join()  # one thread at a time: the order of the calls is the same in each run

            def commit(name: str) -> None:
                self._begin({**self.states[-1], name: rows.copy()})
                table.commit(name, num_steps=0, facts={})
                table._runs.join()

            append(100)
            commit("last")
            for count in (150, 120, 200, 60, 220):
                append(count)
            commit("last")
            commit("best")
            for _ in range(3):
                append(240)
            commit("last")
            self._begin({"last": self.states[-1]["last"]})
            table.forget("best")
            append(200)

    def _begin(self, state: Records) -> None:
        self.states.append(state)
        self.begun += 1
        self._on_commit()


def check(folder: Path, allowed: Sequence[Records]) -> None:
    """Require that the table has exactly the records of an allowed state, and that a writer leaves no other file."""
    path = folder / "t"
    found: dict[str, Any] = {}
    for name in set().union(*allowed):
        try:
            with EmbeddingTable.open(path, record=name, is_read_only=True) as table:
                found[name] = np.concatenate([rows for _, rows in table.pieces(400)])
        except StoreOpenError as error:
            if isinstance(error, IncompleteStoreError) or not ABSENT.search(str(error)):
                raise
    assert any(same(found, records) for records in allowed), sorted(found)
    if not found:
        EmbeddingTable.create(path, num_rows=NUM_ROWS, initial=INITIAL, facts={}).close()
        assert not list(path.iterdir())
        return
    with EmbeddingTable.open(path) as table:
        named = {run for runs in table._runs._named.values() for run in runs}
    assert {name.name.partition(".")[0] for name in path.iterdir()} == named | set(found)


def same(found: Records, expected: Records) -> bool:
    return found.keys() == expected.keys() and all(
        np.array_equal(rows, expected[name]) for name, rows in found.items()
    )
