"""A consumer or a disk that is slow: everybody else waits, without memory and without a processor."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gloader
from gloader import Dataset
from gloader.testing.faults import FaultyOS

from .conftest import Written
from .streams import PLACES, SAMPLING, digest, in_memory

_IDLE_S = 1.0
_MOST_BUSY = 0.05  # of the time, on all threads together


class GatedOS(FaultyOS):
    """Reads of features that wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(60)
        return super().pread_into(fd, buffer, offset)


def busy_share() -> float:
    """Return the processor seconds per second of this process, once it has nothing left to prepare."""
    for _ in range(100):
        before = time.process_time()
        time.sleep(0.1)
        if time.process_time() - before < 0.1 * _MOST_BUSY:
            break
    before, began = time.process_time(), time.perf_counter()
    time.sleep(_IDLE_S)
    return (time.process_time() - before) / (time.perf_counter() - began)


def loader_of(dataset: Dataset, spill: Path, **settings: Any) -> gloader.Loader:
    return gloader.Loader(
        dataset, **(SAMPLING | {"memory_budget": "200MB", "threads": 3, "spill_dir": spill} | settings)
    )


@pytest.mark.reliability("D7")
@pytest.mark.parametrize("place", PLACES[:4], ids=["ram", "packed", "staged", "direct"])
def test_a_slow_consumer_costs_neither_memory_nor_a_processor(
    tiny: Written, tmp_path: Path, place: dict[str, Any]
) -> None:
    expected = in_memory(tiny.dataset, 2)
    with loader_of(tiny.dataset, tmp_path, **place) as loader:
        ring = loader._held.tier.ring
        found = []
        for batch in loader:
            found.append(digest(batch))
            if batch.id.index == 3:
                assert busy_share() < _MOST_BUSY
                held = sum(lease() is not None for lease in ring._leases.values())
        for batch in loader:
            found.append(digest(batch))
        del batch
        assert found == expected[0] + expected[1]
        # In the consumer's hands, ready, being gathered, filled, being read: no stage holds two.
        assert 2 <= held <= 6
        assert ring._total_bytes <= ring._max_bytes


@pytest.mark.reliability("D7")
@pytest.mark.parametrize("strategy", ["direct", "staged", "packed"])
def test_a_slow_disk_is_waited_for_without_a_processor(tiny: Written, tmp_path: Path, strategy: str) -> None:
    os_io = GatedOS()
    dataset = Dataset.open(tiny.path, os_io=os_io)
    expected = in_memory(tiny.dataset, 1)[0]
    found: list[str] = []
    with loader_of(dataset, tmp_path, features="ssd", cache=0, superbatch=2, io_strategy=strategy) as loader:

        def consume() -> None:
            found.extend(digest(batch) for batch in loader)

        os_io.gate.clear()
        consumer = threading.Thread(target=consume, name="consumer")
        consumer.start()
        try:
            assert os_io.waiting.wait(30)
            assert busy_share() < _MOST_BUSY
            assert found == []
        finally:
            os_io.gate.set()
            consumer.join(60)
    assert found == expected
