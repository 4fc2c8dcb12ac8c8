"""Threads that take from one iterator: each batch once and whole."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import gloader
from gloader.bridges.loader_view import LoaderView

from .conftest import Written

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def _eager_threads() -> Iterator[None]:
    """Let threads interrupt each other wherever they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.reliability("J5")
@pytest.mark.usefixtures("_eager_threads")
@pytest.mark.parametrize("through", ["loader", "view"])
def test_each_batch_goes_whole_to_one_of_the_threads(tiny: Written, through: str) -> None:
    with gloader.Loader(
        tiny.dataset, fanouts=[3], batch_size=1, memory_budget="200MB", threads=2, features="ram"
    ) as loader:
        batches = (
            iter(loader) if through == "loader" else iter(LoaderView(loader, convert=lambda batch: batch))
        )
        taken: list[Any] = []
        failed: list[BaseException] = []

        def take() -> None:
            try:
                for batch in batches:
                    np.testing.assert_array_equal(batch.x.numpy(), tiny.features[batch.nodes])
                    np.testing.assert_array_equal(
                        batch.y.numpy(), tiny.labels[batch.nodes[: batch.num_seeds]]
                    )
                    taken.append(batch.id)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=take) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert sorted(batch.index for batch in taken) == list(range(len(loader)))
        assert loader.state_dict()["next"] == [1, 0]
        assert loader.stats.batches == len(loader)
