"""The soak: half an hour of epochs that are left in every way; memory, descriptors and threads stay flat."""

import faulthandler
import os
import time
from pathlib import Path
from statistics import median

import pytest

from .conftest import Written
from .soak import EPOCHS, Held, soak
from .streams import in_memory

_LONGEST_ROUND_S = 100.0
_SLACK_BYTES = 16 * 2**20  # of a heap whose blocks are freed in another order each time


def require_flat(held: Held) -> None:
    """Compare the last quarter of a run with the second."""
    quarter = len(held.resident) // 4
    assert quarter, held
    second, last = slice(quarter, 2 * quarter), slice(-quarter, None)
    assert max(held.threads[last]) <= max(held.threads[second]), held.threads
    assert max(held.descriptors[last]) <= max(held.descriptors[second]), held.descriptors
    grown = median(held.resident[last]) - median(held.resident[second])
    assert grown <= _SLACK_BYTES, (grown, held.resident[:: max(1, quarter // 8)])


@pytest.mark.reliability("D6")
@pytest.mark.reliability("D8")
def test_a_short_soak(tiny: Written, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    expected = in_memory(tiny.dataset, EPOCHS + 4)
    held = soak(tiny.dataset, expected, spill, seed=0, is_over=lambda held: held.rounds == 20)
    require_flat(held)


@pytest.mark.long
@pytest.mark.reliability("D6")
@pytest.mark.reliability("D7")
def test_soak(tiny: Written, tmp_path: Path) -> None:
    """As long as GLOADER_SOAK_S says; a round that hangs is ended with all stacks."""
    spill = tmp_path / "spill"
    spill.mkdir()
    ends = time.monotonic() + float(os.environ.get("GLOADER_SOAK_S", "1800"))

    def is_over(held: Held) -> bool:
        # The timeout of a test, which pytest set for the whole of it, becomes one of each round.
        faulthandler.dump_traceback_later(_LONGEST_ROUND_S, exit=True)
        return time.monotonic() > ends and held.rounds >= 80

    try:
        held = soak(tiny.dataset, in_memory(tiny.dataset, EPOCHS + 4), spill, seed=int(ends), is_over=is_over)
    finally:
        faulthandler.cancel_dump_traceback_later()
    print(f"{held.rounds} rounds, {held.batches} batches, {held.resident[-1] / 1e6:.0f} MB")
    require_flat(held)
