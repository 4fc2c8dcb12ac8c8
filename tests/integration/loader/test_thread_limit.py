"""A system that allows no more threads: an error that says so, whichever of them it refuses."""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import gloader
from gloader.errors import ThreadStartError

if TYPE_CHECKING:
    from .conftest import Written


@pytest.mark.parametrize(
    "settings", [{"features": "ram"}, {"features": "ssd", "cache": 9600, "superbatch": 2, "io": "threads"}]
)
def test_a_loader_that_gets_no_thread_says_so(
    tiny: Written, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start
    texts = set()
    for allowed in count():
        left = iter(range(allowed))
        refused = []

        def start(thread: threading.Thread, left: Any = left, refused: Any = refused) -> None:
            if next(left, None) is None:
                refused.append(thread.name)
                raise RuntimeError("can't start new thread")
            begin(thread)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            try:
                _take_an_epoch(tiny, settings)
            except ThreadStartError as error:
                texts.add(str(error))
            else:
                assert refused == []
                break
    assert allowed > 4
    (text,) = texts
    assert "no further thread: give fewer (threads=, OMP_NUM_THREADS), or raise the limit" in text


def _take_an_epoch(tiny: Written, settings: dict[str, Any]) -> None:
    with gloader.Loader(
        tiny.dataset, fanouts=[4, 3], batch_size=16, memory_budget="200MB", threads=2, epochs=1, **settings
    ) as loader:
        for batch in loader:
            del batch
