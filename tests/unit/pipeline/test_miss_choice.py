"""The choice of reads for missing rows, and of the holes that they cover."""

from dataclasses import replace

import pytest

from gloader.pipeline.stage import RowsOnDisk
from gloader.ssd_store.cost.io_rates import Calibration, IoRates

# A request costs as much as four pages.
RATES = IoRates(
    random_reads_per_s=10_000.0,
    read_bytes_per_s=4096 / 25e-6,
    write_bytes_per_s=1e9,
    pack_read_bytes_per_s=1e9,
)
ROWS = RowsOnDisk(num_rows=1000, row_bytes=4096, max_extent_bytes=262_144, sweep_gap_bytes=8192)


@pytest.mark.parametrize("asked", [0, 8192])
def test_holes_are_read_as_was_asked(asked: int) -> None:
    assert replace(ROWS, gap_bytes=asked).batch_gap_bytes(RATES, Calibration()) == asked


def test_holes_are_read_as_is_faster_by_now_where_nobody_asked() -> None:
    assert ROWS.batch_gap_bytes(RATES, Calibration()) == 3 * 4096
    # Reads one by one were found to take half of the time: a hole costs more beside them.
    assert ROWS.batch_gap_bytes(RATES, Calibration(direct=0.5)) == 4096
