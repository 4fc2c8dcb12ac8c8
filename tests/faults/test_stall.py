"""A disk that hangs: the stage that reads from it is named, and its consumer is told."""

import logging
import threading
from pathlib import Path

import numpy as np
import pytest

from gloader.errors import StallError
from gloader.observe.instruments import Instruments
from gloader.observe.watchdog import Watchdog
from gloader.pipeline.threads import Channel
from gloader.ssd_store import FeatureStore
from gloader.testing.faults import FaultyOS
from gloader.types import BatchId

BATCH = BatchId(epoch=2, index=5)


class HangingOS(FaultyOS):
    """Reads that hang from the time `hang` is called until `recover`."""

    def __init__(self) -> None:
        super().__init__()
        self._may_go_on = threading.Event()
        self._may_go_on.set()

    def hang(self) -> None:
        self._may_go_on.clear()

    def recover(self) -> None:
        self._may_go_on.set()

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        assert self._may_go_on.wait(30)
        return super().pread_into(fd, buffer, offset)


@pytest.mark.reliability("D10")
def test_a_read_that_hangs_is_named_with_all_stacks_and_ends_the_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    matrix = np.arange(4096 * 4, dtype=np.float32).reshape(4096, 4)
    FeatureStore.create(tmp_path / "store", matrix).close()
    os_io, ready = HangingOS(), Channel[np.ndarray](1)
    watchdog = Watchdog(0.1, ready.close)
    instruments = Instruments(watchdog=watchdog)
    rows = np.arange(0, 4096, 7)
    out = np.empty((len(rows), 4), dtype=np.float32)

    with FeatureStore.open(tmp_path / "store", os_io=os_io) as store:

        def read_batch() -> None:
            with instruments.working("read", BATCH):
                store.read_into(rows, out)

        os_io.hang()
        reader = threading.Thread(target=read_batch, name="gloader-read")
        watchdog.start()
        with caplog.at_level(logging.ERROR):
            reader.start()
            with pytest.raises(
                StallError, match=r"stage read of epoch 2, batch 5 has not returned .*gloader-read"
            ):
                ready.get()
        os_io.recover()
        reader.join()
        watchdog.close()
    (logged,) = (
        record.getMessage() for record in caplog.records if "has not returned" in record.getMessage()
    )
    assert "in read_batch" in logged
    assert "thread MainThread:" in logged
    assert (out == matrix[rows]).all()  # what hung and came back is as right as ever
