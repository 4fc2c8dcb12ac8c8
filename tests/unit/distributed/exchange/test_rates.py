"""The rates of a network, measured while the machine is busy."""

import time
from collections.abc import Sequence

import numpy as np

from gloader.core.signals import NEVER, Cancellation
from gloader.distributed.exchange.transport import measure_rates


class UnsteadyTransport:
    """Two hosts that send the same. What is small takes longer than what is large, as a busy machine may have it."""

    index = 0
    names = ("rank 0 (machine a)", "rank 1 (machine b)")

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []  # bytes and seconds of what was large

    def all_to_all(
        self,
        out: np.ndarray,
        data: np.ndarray,
        out_sizes: Sequence[int],
        sizes: Sequence[int],
        /,
        *,
        cancellation: Cancellation,
    ) -> None:
        began = time.perf_counter()
        out[:] = data
        time.sleep(0.002 if data.shape[0] > 4096 else 0.02)
        if data.shape[0] > 4096:
            self.steps.append((data.shape[0], time.perf_counter() - began))

    def close(self, error: BaseException | None = None) -> None:
        pass


def test_a_step_that_is_quicker_than_an_empty_one_makes_no_endless_rate() -> None:
    transport = UnsteadyTransport()
    rates = measure_rates(transport, seconds=0.15, cancellation=NEVER)
    assert rates.latency_s >= 0.02
    assert rates.bytes_per_s <= 2 * max(num_bytes / seconds for num_bytes, seconds in transport.steps)
