"""A system that allows no more threads: an error that says so, whichever of them it refuses."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import gloader
from gloader.config import ModelConfig
from gloader.core.order import EpochOrder
from gloader.core.signals import thread_errors
from gloader.device.hot_rows import presampled_counts
from gloader.errors import ThreadStartError
from gloader.lab.inspect import sample_trace
from gloader.models import build_model
from gloader.samplers import NeighborSampler
from gloader.ssd_store import RamFeatures
from gloader.training.inference.layer_rows import InputRows
from gloader.training.inference.layerwise_inference import HeteroInference

if TYPE_CHECKING:
    from .conftest import Written


def _infer(tiny: Written) -> None:
    model = build_model(ModelConfig(hidden=8), in_dim=tiny.dataset.feature_dim, out_dim=5, num_layers=1)
    inference = HeteroInference.of_one_type(
        graph=tiny.dataset.load_graph(), features=RamFeatures(tiny.features), memory_budget_bytes=2**26
    )
    for _ in inference.logits(model, np.arange(600)):
        pass


def _order(tiny: Written) -> EpochOrder:
    return EpochOrder(seeds=tiny.dataset.train, num_nodes=600, batch_size=16, seed=0)


def _sampler(tiny: Written) -> NeighborSampler:
    return NeighborSampler(tiny.dataset.load_graph(), [4, 3], seed=0)


BESIDE_A_LOADER: dict[str, Callable[[Written], object]] = {
    "inspect": lambda tiny: sample_trace(_sampler(tiny), _order(tiny), threads=2),
    "presample": lambda tiny: presampled_counts(_sampler(tiny), _order(tiny), num_nodes={0: 600}, threads=2),
    "infer": _infer,
}


@pytest.mark.parametrize("what", BESIDE_A_LOADER)
def test_so_does_what_samples_or_reads_without_a_loader(
    tiny: Written, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(ThreadStartError, match="no further thread"):
        BESIDE_A_LOADER[what](tiny)


@pytest.mark.reliability("D4")
@pytest.mark.parametrize("what", BESIDE_A_LOADER)
def test_ctrl_c_ends_it_between_two_batches(
    tiny: Written, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(owner: Any, name: str) -> None:
        act = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(threading.current_thread())
            if calls[-1] is not threading.main_thread():
                os.kill(os.getpid(), signal.SIGINT)
            return act(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    interrupted(NeighborSampler, "sample")
    interrupted(InputRows, "read")
    with pytest.raises(KeyboardInterrupt):
        BESIDE_A_LOADER[what](tiny)
    assert not any(thread.is_alive() for thread in calls if thread is not threading.main_thread())


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
    assert "no further thread: use fewer threads (threads=, OMP_NUM_THREADS), or raise the limit" in text


def _take_an_epoch(tiny: Written, settings: dict[str, Any]) -> None:
    with gloader.Loader(
        tiny.dataset, fanouts=[4, 3], batch_size=16, memory_budget="200MB", threads=2, epochs=1, **settings
    ) as loader:
        for batch in loader:
            del batch


def test_another_error_of_a_thread_keeps_its_name() -> None:
    with pytest.raises(RuntimeError, match=r"^of another kind$"), thread_errors():
        raise RuntimeError("of another kind")
