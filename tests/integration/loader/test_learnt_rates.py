"""A loader that is closed has taught the next one what the disk does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from forking import in_child

import gloader
from gloader.ssd_store.cost import device_rates as learner_module
from gloader.ssd_store.cost.device_profile import DeviceProfile
from gloader.ssd_store.cost.device_rates import rates_of
from gloader.ssd_store.cost.profile import remember_profile, remembered_profile
from gloader.ssd_store.cost.strategy import predict_seconds

from .conftest import Written

if TYPE_CHECKING:
    from pathlib import Path

PROFILE = DeviceProfile(
    random_reads_per_s=80_000.0,
    read_bytes_per_s=1e9,
    write_bytes_per_s=2e9,
    queue_depth=256,
    is_direct=True,
    medium_reads_per_s=60_000.0,
    wide_reads_per_s=14_000.0,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, tiny: Written, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLOADER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(learner_module, "_LEAST_S", 0.0)  # so small a dataset is read in a blink
    remember_profile(tiny.path, PROFILE)
    return tmp_path / "home"


def _loader(tiny: Written, **settings: Any) -> gloader.Loader:
    defaults: dict[str, Any] = {"features": "ssd", "cache": 4800, "superbatch": 2, "spill_budget": "64MB"}
    return gloader.Loader(
        tiny.dataset, fanouts=[4, 3], batch_size=8, memory_budget="200MB", **(defaults | settings)
    )


def _lessons(tiny: Written) -> list[set[str]]:
    profile = remembered_profile(tiny.path)
    assert profile is not None
    return [set(lesson.known) for lesson in profile.learnt.lessons]


@pytest.mark.parametrize(
    ("strategy", "learnt"),
    [("direct", set()), ("staged", {"dealt"}), ("packed", {"write", "pack_read", "dealt"})],
)
def test_the_next_loader_predicts_by_what_this_one_saw(
    strategy: str, learnt: set[str], tiny: Written
) -> None:
    for number in range(2):
        with _loader(tiny, io_strategy=strategy) as loader:
            rates = loader._held.tier.load.files.rates  # type: ignore[union-attr]
            assert rates == rates_of(tiny.dataset.features_path, tiny.path.parent)
            for _ in loader:
                pass
            first = loader.reports[0].choice
        assert first.counts is not None
        assert first.predicted == predict_seconds(first.counts, rates)
        lessons = _lessons(tiny)
        assert len(lessons) == number + 1
        assert lessons[0] > learnt
        assert lessons[0] & {"small", "medium", "wide", "in_order"}
        assert (rates.random_reads_per_s == PROFILE.random_reads_per_s) is (number == 0)


@pytest.mark.parametrize("settings", [{"io": "threads"}, {"io": "buffered"}, {"features": "ram"}])
def test_what_is_not_read_as_a_probe_reads_teaches_nothing(settings: dict[str, Any], tiny: Written) -> None:
    with _loader(tiny, **settings) as loader:
        for _ in loader:
            pass
    assert _lessons(tiny) == []


def test_a_forked_child_that_ends_teaches_nothing(tiny: Written) -> None:
    with _loader(tiny, io_strategy="direct") as loader:
        for _ in loader:
            pass
        assert in_child(loader.close) == 0
        assert _lessons(tiny) == []
    assert len(_lessons(tiny)) == 1
