"""Signs of life of ranks, with a store in this process; whole runs are in `integration/distributed`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from torch import distributed

from gloader.distributed.exchange import notes
from gloader.errors import RankError
from gloader.training import rank_signs
from gloader.training.rank_signs import RankSigns

Show = Callable[[int], RankSigns]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Iterator[Show]:
    """Return a function that shows signs of one of three ranks."""
    store = distributed.HashStore()
    monkeypatch.setattr(rank_signs, "group_store", lambda: store)
    monkeypatch.setattr(notes, "PATIENCE_S", 1.2)
    with ExitStack() as stack:
        yield lambda rank: stack.enter_context(
            closing(RankSigns(rank=rank, machines=["a", "a", "b"], key="x", timeout_s=0.0))
        )


@pytest.mark.reliability("J13")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("boom"), "rank 2 (machine b) failed: OSError: boom"),
        (KeyboardInterrupt(), "rank 2 (machine b) was ended by a signal"),
        (RankError("rank 1 ..."), "rank 1 (machine a) is gone or does not answer"),
    ],
)
def test_what_ends_a_rank_is_told_to_all_soon(show: Show, error: BaseException, text: str) -> None:
    first, silent, other = map(show, range(3))
    assert not first.are_missed()
    if isinstance(error, RankError):
        silent.close()  # without a word
    other.fail(error)
    started = time.monotonic()
    while not first.are_missed():
        assert time.monotonic() < started + 5
        time.sleep(0.02)
    assert str(first.explain("cut")).startswith(text)
