"""Predictions of a recorded run: what a change changes, and what it leaves."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replay_recordings import RATES

import gloader
from gloader.lab.analyze.predict import Predictor
from gloader.replay.changes import NO_CHANGES, parse_changes
from gloader.ssd_store.cost.io_rates import IoRates

from .recorded import SSD, open_loader, record


@pytest.fixture
def predictor_of(
    dataset: gloader.Dataset, spill: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Predictor]]:
    """What records a run with some settings, and lets its replay, beside other tests, be as far off as it is."""
    for name in ("MOST_UNEXPLAINED", "MOST_LAGS"):
        monkeypatch.setattr(f"gloader.replay.calibrate.{name}", 10.0)
    opened: list[Predictor] = []

    def predictor(rates: IoRates | None = None, **settings: Any) -> Predictor:
        with open_loader(dataset, spill, **(SSD | settings)) as loader:
            recording = record(loader, spill.parent / "trace.json")
        header = replace(recording.header, rates=rates or recording.header.rates)
        opened.append(Predictor(replace(recording, header=header)))
        return opened[-1]

    yield predictor
    for one in opened:
        one.close()


def _swept_s(predictor: Predictor, changes: str) -> float:
    work = predictor.predict(parse_changes(changes) if changes else NO_CHANGES).work
    return sum(one.sweep.disk_s for one in work.passes)


def test_passes_over_the_edges_meet_another_disk_whether_reads_are_planned_again_or_not(
    predictor_of: Callable[..., Predictor],
) -> None:
    # Reads of 16 KiB on are as good as in file order: a pass may be so small that it is made of those.
    rates = replace(RATES, medium_reads_per_s=1e9 / 16_384, wide_reads_per_s=1e9 / 65_536)
    predictor = predictor_of(rates, topology="sweep", io_strategy="direct")
    before = _swept_s(predictor, "")
    assert before > 0
    assert _swept_s(predictor, "disk=0.5x") == pytest.approx(2 * before)
    assert _swept_s(predictor, "cache=2x") == pytest.approx(before)
    assert _swept_s(predictor, "cache=2x,disk=0.5x") == pytest.approx(2 * before)
    # A disk twice as good at reads at random alone: passes are in file order.
    assert _swept_s(predictor, "disk.random=2x") == pytest.approx(before, rel=0.05)


def test_the_packs_of_a_prediction_are_those_of_its_plan(predictor_of: Callable[..., Predictor]) -> None:
    predictor = predictor_of(io_strategy="packed")
    before = predictor.spill_bytes(predictor.base)
    assert before > 0
    assert predictor.spill_bytes(predictor.predict(parse_changes("threads=1"))) == before
    assert predictor.spill_bytes(predictor.predict(parse_changes("strategy=direct"))) == 0
    larger = predictor.spill_bytes(predictor.predict(parse_changes("superbatch=8")))
    assert 1.3 * before < larger < 2.5 * before


def test_a_prediction_for_another_dtype_says_how_to_prepare_it(
    predictor_of: Callable[..., Predictor],
) -> None:
    found = predictor_of(io_strategy="direct").predict(parse_changes("dtype=float16"))
    assert found.note == "the dataset prepared again: gloader prepare --dtype float16"


def test_buffers_that_are_asked_for_are_planned_for_and_are_a_setting(
    predictor_of: Callable[..., Predictor],
) -> None:
    predictor = predictor_of(io_strategy="direct")
    found = [predictor.predict(parse_changes(f"buffers={count}")) for count in (2, 5)]
    assert [one.shape.num_buffers for one in found] == [2, 5]
    assert [one.settings for one in found] == [{"buffers": 2}, {"buffers": 5}]
    assert predictor.memory_bytes(found[1]) > predictor.memory_bytes(found[0])
