"""Rows of the tables as a what-if has them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gloader.lab.analyze.replan_counts import Alteration
from gloader.pipeline.open.disk import FeatureFile
from gloader.pipeline.stage import RowsOnDisk
from gloader.replay.recording import RecordedTable
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.cost.device_profile import MIN_GAP_BYTES, DeviceProfile
from gloader.ssd_store.cost.io_rates import Calibration, IoRates
from gloader.ssd_store.cost.profile import DEFAULT_GAP_BYTES

SLOW: dict[str, Any] = {"random_reads_per_s": 5e3, "medium_reads_per_s": 4e3, "wide_reads_per_s": 3e3}
FAST: dict[str, Any] = {"random_reads_per_s": 1e6, "medium_reads_per_s": 2.5e5, "wide_reads_per_s": 6e4}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FeatureFile]:
    """2,000 rows of 100 float32, on a disk without a profile."""
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))
    rows: Any = SimpleNamespace(name="node", num_rows=2000)
    with FeatureStore.create(tmp_path / "store", np.zeros((2000, 100), np.float32)) as store:
        yield FeatureFile(rows=rows, store=store, is_of_edges=False)


def test_nothing_altered_is_what_a_run_reads(table: FeatureFile) -> None:
    assert Alteration().rows_on_disk(table) == RowsOnDisk.of(table.store)
    assert Alteration().gap_bytes(table) == table.store.stored_rows.gap_bytes


def test_holes_are_those_of_the_run_though_the_profile_has_learnt_since(table: FeatureFile) -> None:
    known = RecordedTable(
        name="node", num_rows=2000, row_bytes=400, cache_rows=0, gap_bytes=12288, sweep_gap_bytes=40960
    )
    other = replace(known, name="author", gap_bytes=0, sweep_gap_bytes=0)
    altered = Alteration(recorded=(other, known))
    assert (altered.gap_bytes(table), altered.rows_on_disk(table).sweep_gap_bytes) == (12288, 40960)
    # Not of another disk, and not of rows of another length.
    rates = IoRates(read_bytes_per_s=1e9, write_bytes_per_s=1e9, pack_read_bytes_per_s=1e9, **FAST)
    faster = replace(altered, rates=rates)
    assert (
        faster.gap_bytes(table) == faster.rows_on_disk(table).batch_gap_bytes(rates, Calibration()) != 12288
    )
    assert faster.rows_on_disk(table).sweep_gap_bytes == MIN_GAP_BYTES
    assert replace(altered, dtype="int8").gap_bytes(table) == DEFAULT_GAP_BYTES


@pytest.mark.parametrize(
    ("dtype", "row_bytes"), [("float32", 400), ("float16", 200), ("bfloat16", 200), ("int8", 100)]
)
def test_rows_of_another_dtype_take_other_bytes(table: FeatureFile, dtype: str, row_bytes: int) -> None:
    altered = Alteration(dtype=dtype)
    assert altered.rows_on_disk(table).row_bytes == altered.row_bytes(table) == row_bytes
    of_edges = FeatureFile(rows=table.rows, store=table.store, is_of_edges=True)
    assert altered.row_bytes(of_edges) == 400  # `gloader prepare --dtype` is about nodes


@pytest.mark.parametrize("reads", [SLOW, FAST])
def test_a_sweep_reads_through_the_holes_that_the_profile_of_such_a_disk_says(
    table: FeatureFile, reads: dict[str, Any]
) -> None:
    rates = IoRates(read_bytes_per_s=1e9, write_bytes_per_s=1e9, pack_read_bytes_per_s=1e9, **reads)
    profile = DeviceProfile(
        read_bytes_per_s=1e9, write_bytes_per_s=1e9, queue_depth=64, is_direct=True, **reads
    )
    found = Alteration(rates=rates).rows_on_disk(table).sweep_gap_bytes
    assert found == profile.sweep_gap_bytes
    assert (found == MIN_GAP_BYTES) == (reads is FAST)
