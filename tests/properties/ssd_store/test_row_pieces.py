"""Random orders of calls on waiting rows against a dictionary."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gloader.ssd_store.embedding.row_pieces import RowPieces, least_staging_bytes
from gloader.ssd_store.spill.folder import SpillFolder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

WIDTH = 2


@given(data=st.data(), places=st.integers(16, 60), budget=st.sampled_from([None, 1 << 13, 1 << 20]))
def test_every_row_is_taken_once_with_its_value(data: st.DataObject, places: int, budget: int | None) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    table: dict[int, float] = {}

    def append(ids: IdArray, rows: NDArray[np.float32]) -> None:
        table.update(zip(ids.tolist(), rows[:, 1].tolist(), strict=True))

    with ExitStack() as stack:
        spill = None
        if budget is not None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            spill = stack.enter_context(SpillFolder(folder, budget_bytes=budget))
        pieces = RowPieces(
            WIDTH, num_bytes=places * least_staging_bytes(WIDTH) // 16, append=append, spill=spill
        )
        waiting: dict[int, dict[int, float]] = {}  # by batch: the value of each row
        is_dirty: dict[int, bool] = {}
        next_id, version = 0, 0.0
        for batch in range(30):
            for _ in range(random.integers(0, 6)):
                count = int(random.integers(0, pieces.chunk_rows + 1))
                ids = np.arange(next_id, next_id + count)
                random.shuffle(ids)
                next_id += count
                batches = batch + random.integers(0, 12, count)
                values = version + np.arange(count)
                version += count
                flags = random.random(count) < 0.6

                def fill(
                    rows: NDArray[np.float32], at: IdArray, values: NDArray[np.float64] = values
                ) -> IdArray:
                    rows[at] = values[:, None]
                    return np.empty(0, np.int64)

                pieces.add(ids, batches, flags, fill)
                for row, target, value, flag in zip(
                    ids.tolist(), batches.tolist(), values, flags.tolist(), strict=True
                ):
                    waiting.setdefault(target, {})[row] = value
                    is_dirty[row] = flag
                    if not flag:
                        table[row] = value
            everything = {row: value for rows in waiting.values() for row, value in rows.items()}
            if random.random() < 0.2:
                pieces.save()
                assert everything.items() <= table.items()
                is_dirty = dict.fromkeys(is_dirty, False)
            wanted = np.flatnonzero(random.random(next_id + 1) < 0.3)
            rows, found = np.zeros((len(wanted), WIDTH), np.float32), np.zeros(len(wanted), np.bool_)
            pieces.copy_held(wanted, rows, found)
            for row, values_of, here in zip(wanted.tolist(), rows, found, strict=True):
                if row in everything:
                    assert here or table[row] == everything[row]
                assert not here or (values_of == everything[row]).all()
            planned = waiting.pop(batch, {})
            ids = np.array(sorted(planned), np.int64)
            slots = random.permutation(max(100, 2 * len(ids)))[: len(ids)]
            target = np.full((max(100, 2 * len(ids)), WIDTH), -1, np.float32)
            dirty = np.zeros(len(target), np.bool_)
            found = pieces.take(batch, ids, target, slots, dirty)
            for row, slot, here in zip(ids.tolist(), slots.tolist(), found, strict=True):
                if here:
                    assert (target[slot] == planned[row]).all()
                    assert dirty[slot] == is_dirty[row]
                else:
                    assert table[row] == planned[row]
            assert np.count_nonzero(target[:, 0] >= 0) == np.count_nonzero(found)
        pieces.close()
        assert spill is None or spill.used_bytes == 0
