"""Machines for a run: budgets of memory, what an epoch is on each, and the choice among them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from replayed_runs import header
from tunable_run import BUDGET, LEAST, PACKS, PER_BATCH, ROW_BYTES, TunableRun

from gloader.errors import ReplayError
from gloader.lab.analyze.machines import (
    MachineOffer,
    MachineType,
    Offers,
    RunMemory,
    find_offers,
    stored_bytes,
)
from gloader.replay.changes import parse_changes

if TYPE_CHECKING:
    from pathlib import Path

ALL = RunMemory(total_bytes=BUDGET, loader_bytes=BUDGET)
SMALL = MachineType(name="small", cores=2, memory_bytes=2 * 10**9, ssd_bytes=10**12, dollars_per_hour=3.6)
NEEDED = LEAST + 2 * PER_BATCH


def test_each_machine_is_tried_from_the_least_memory_that_works_to_most_of_its_own() -> None:
    run = TunableRun()
    offers = find_offers(run, [SMALL], memory=ALL)
    assert (offers.num_predicted, offers.left_out) == (6, {})
    budgets = sorted(
        int(parse_changes(text).values["memory"])  # type: ignore[arg-type]
        for text in run.asked
        if text.startswith("cores")
    )
    assert budgets[-1] == 0.8 * SMALL.memory_bytes
    assert NEEDED <= budgets[0] <= 1.1 * NEEDED
    steps = [after / before for before, after in pairwise(budgets)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)


def test_an_offer_says_what_an_epoch_takes_and_costs() -> None:
    run = TunableRun()
    (fastest, *_) = find_offers(run, [SMALL], memory=ALL).best
    assert (
        fastest.seconds
        == run.predict(parse_changes(f"cores=2,threads=2,memory={fastest.budget_bytes}")).replayed_s
    )
    assert fastest.dollars == pytest.approx(fastest.seconds / 1000)
    assert fastest.ssd_bytes == ROW_BYTES + PACKS  # of a dataset that is not here, its rows
    assert fastest.to_json() == {
        "machine": "small",
        "epoch_s": fastest.seconds,
        "memory_bytes": fastest.budget_bytes,
        "ssd_bytes": fastest.ssd_bytes,
        "dollars_per_epoch": fastest.dollars,
    }


def test_what_is_nowhere_better_is_not_offered() -> None:
    dear = replace(SMALL, name="dear", dollars_per_hour=7.2)
    fast = replace(SMALL, name="fast", disk="4x", dollars_per_hour=7.2)
    offers = find_offers(TunableRun(), [SMALL, dear, fast], memory=ALL)
    assert {offer.machine.name for offer in offers.best} == {"small", "fast"}
    assert offers.num_predicted == 18
    seconds = [offer.seconds for offer in offers.best]
    assert seconds == sorted(seconds)
    for offer in offers.best:
        assert not any(
            other is not offer and all(a <= b for a, b in zip(other.costs, offer.costs, strict=True))
            for other in offers.best
        )


def test_memory_that_gains_nothing_is_not_offered() -> None:
    # Beyond a cache of all rows.
    offers = find_offers(TunableRun(), [replace(SMALL, memory_bytes=10**12)], memory=ALL)
    assert max(offer.budget_bytes for offer in offers.best) < 10**11


def test_a_machine_that_is_too_small_is_left_out_and_told() -> None:
    tight = replace(SMALL, name="tight", memory_bytes=NEEDED)
    no_disk = replace(SMALL, name="no disk", ssd_bytes=10**8)
    offers = find_offers(TunableRun(), [tight, no_disk, SMALL], memory=ALL)
    assert offers.left_out == {
        "tight": "140 MB of memory are too little",
        "no disk": "dataset and packs take 517 MB of disk, and it has 100 MB",
    }
    assert {offer.machine.name for offer in offers.best} == {"small"}
    alone = find_offers(TunableRun(), [tight], memory=ALL)
    assert (alone.best, alone.num_predicted, list(alone.left_out)) == ((), 0, ["tight"])


def test_a_run_that_cannot_be_planned_again_keeps_the_memory_that_it_had() -> None:
    run = TunableRun(can_plan=False)
    tiny = replace(SMALL, name="tiny", memory_bytes=BUDGET)
    offers = find_offers(run, [SMALL, tiny], memory=ALL)
    assert [(offer.machine.name, offer.budget_bytes) for offer in offers.best] == [("small", BUDGET)]
    assert offers.left_out == {"tiny": "500 MB of memory are too little"}


def test_a_run_that_predicts_nothing_is_planned_for_no_machine() -> None:
    with pytest.raises(ReplayError, match="12% that it cannot explain"):
        find_offers(TunableRun(is_trusted=False), [SMALL], memory=ALL)


def offer(name: str, seconds: float, dollars: float) -> MachineOffer:
    return MachineOffer(
        machine=replace(SMALL, name=name), budget_bytes=1, seconds=seconds, ssd_bytes=1, dollars=dollars
    )


OFFERS = Offers(
    best=(offer("fast", 1.0, 9.0), offer("middle", 2.0, 3.0), offer("slow", 8.0, 1.0)),
    num_predicted=3,
    left_out={},
)


@pytest.mark.parametrize(
    ("bounds", "name"),
    [
        ({}, "slow"),
        ({"most_seconds": 8.0}, "slow"),
        ({"most_seconds": 7.9}, "middle"),
        ({"most_seconds": 1.0}, "fast"),
        ({"most_seconds": 0.9}, None),
        ({"most_dollars": 9.0}, "fast"),
        ({"most_dollars": 8.9}, "middle"),
        ({"most_dollars": 0.9}, None),
        ({"most_dollars": 8.0, "most_seconds": 9.0}, "slow"),
        ({"most_dollars": 2.0, "most_seconds": 2.0}, None),
    ],
)
def test_the_cheapest_within_seconds_and_the_fastest_within_dollars(
    bounds: dict[str, float], name: str | None
) -> None:
    chosen = OFFERS.choose(**bounds)
    assert (None if chosen is None else chosen.machine.name) == name


def test_the_loader_has_what_evaluations_the_model_and_the_slack_leave() -> None:
    # A quarter for evaluations, 100 MB for the model and what nobody accounts for.
    memory = RunMemory(total_bytes=2_000_000_000, loader_bytes=1_400_000_000)
    assert memory.of_loader(2_000_000_000) == 1_400_000_000
    assert memory.of_loader(4_000_000_000) == 2_900_000_000
    # Less than a quarter: evaluations had to do with less.
    tight = RunMemory(total_bytes=2_000_000_000, loader_bytes=1_600_000_000)
    assert tight.of_loader(2_000_000_000) == 1_600_000_000
    assert tight.of_loader(4_000_000_000) == 3_200_000_000


def test_the_memory_of_a_run_is_in_its_result(tmp_path: Path) -> None:
    run = header(budget_bytes=700)
    assert RunMemory.of_run(tmp_path, run) == RunMemory(total_bytes=700, loader_bytes=700)
    for text in ("no JSON", "[]", json.dumps({"memory_budget_bytes": None})):
        (tmp_path / "result.json").write_text(text)
        assert RunMemory.of_run(tmp_path, run).total_bytes == 700
    (tmp_path / "result.json").write_text(json.dumps({"memory_budget_bytes": 1000}))
    assert RunMemory.of_run(tmp_path, run) == RunMemory(total_bytes=1000, loader_bytes=700)


def test_a_dataset_in_a_folder_takes_what_its_files_take(tmp_path: Path) -> None:
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "rows").write_bytes(b"1" * 300)
    (tmp_path / "meta").write_bytes(b"1" * 25)
    assert stored_bytes(header(dataset=str(tmp_path))) == 325
    assert stored_bytes(header()) == 512_000
