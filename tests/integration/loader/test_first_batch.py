"""The first batch: everybody waits for it, so it waits for no other."""

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import gloader
from gloader.types import BatchId

from .conftest import Written
from .streams import PLACES, SAMPLING, digest, in_memory

_WAIT_S = 20.0


class _Gated:
    """Stands for another object; calls of one method are noted, and wait where ``must_wait`` until the gate opens."""

    def __init__(self, inner: Any, method: str, gate: threading.Event, must_wait: Any) -> None:
        self._inner, self._method, self._gate, self._must_wait = inner, method, gate, must_wait
        self.num_calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.num_calls += 1
            if self._must_wait(*args):
                assert self._gate.wait(_WAIT_S)
            return found(*args, **kwargs)

        return call


def _loader(tiny: Written, spill: Path, place: dict[str, Any]) -> gloader.Loader:
    return gloader.Loader(
        tiny.dataset, **(SAMPLING | {"memory_budget": "200MB", "threads": 2, "spill_dir": spill} | place)
    )


def test_the_first_batch_needs_no_other_to_be_sampled(tiny: Written, tmp_path: Path) -> None:
    expected = in_memory(tiny.dataset, 1)[0]
    for place in PLACES[:4]:
        with _loader(tiny, tmp_path, place) as loader:
            gate = threading.Event()
            second = BatchId(epoch=0, index=1)
            sampler = _Gated(loader._held.tier.sampler, "sample", gate, lambda batch, _: batch == second)  # noqa: B023
            loader._held.tier = dataclasses.replace(loader._held.tier, sampler=sampler)  # type: ignore[arg-type]
            batches = iter(loader)
            found = [digest(next(batches))]
            gate.set()
            found.extend(digest(batch) for batch in batches)
            assert found == expected


def test_nothing_is_swept_while_the_first_batch_is_read(tiny: Written, tmp_path: Path) -> None:
    expected = in_memory(tiny.dataset, 1)[0]
    with _loader(tiny, tmp_path, PLACES[1]) as loader:
        tier = loader._held.tier
        ssd = tier.require_ssd()[0]
        gate = threading.Event()
        ring = _Gated(tier.ring, "acquire", gate, lambda _: True)
        planner = _Gated(ssd.planner, "plan", gate, lambda *_: False)
        retrieval = _Gated(ssd.retrieval, "begin", gate, lambda *_: False)
        loader._held.tier = dataclasses.replace(
            tier,
            ring=ring,  # type: ignore[arg-type]
            ssd=(dataclasses.replace(ssd, planner=planner, retrieval=retrieval),),  # type: ignore[arg-type]
        )
        found: list[str] = []
        consumer = threading.Thread(target=lambda: found.extend(digest(batch) for batch in loader))
        consumer.start()
        try:
            deadline = time.monotonic() + _WAIT_S
            while planner.num_calls < 2 or ring.num_calls < 1:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(0.2)  # the second plan is there; its superbatch could be staged
            assert retrieval.num_calls == 1
        finally:
            gate.set()
            consumer.join(_WAIT_S)
        assert found == expected
        assert retrieval.num_calls > 1
