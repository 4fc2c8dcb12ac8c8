"""Loaders of several machines, rehearsed on this one: the same batches whatever is exchanged, and no harm by a loss."""

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines import LOADING, Ending, Leaving, Network, load_on, results_of, write_parts
from rank_scenarios import build, digest
from rank_server import Ended

from gloader import Dataset

Run = Callable[..., list[Ended]]


def _alone(dataset: Path, rank: int, world: int, *, epochs: int = 1, **settings: Any) -> list[list[str]]:
    with build(str(dataset), rank=rank, world_size=world, **(LOADING | settings)) as loader:
        return [[digest(batch) for batch in loader] for _ in range(epochs)]


@pytest.mark.parametrize("exchange", ["never", "always"])
def test_machines_with_copies_load_what_each_would_alone_and_spill_apart(
    run: Run, dataset: Path, tmp_path: Path, exchange: str
) -> None:
    copies = [tmp_path / name for name in ("first", "second")]
    for copy in copies:
        shutil.copytree(dataset, copy)
    results = results_of(load_on(run, copies, exchange=exchange))
    for rank, found in enumerate(results):
        assert found["digests"] == _alone(dataset, rank, 2)
        assert found["bytes_read"][0] > 0
        assert found["left"] == []
        assert ("common sweeps" in found["text"]) == (exchange == "always")
        if exchange == "always":
            assert re.search(
                r"exchanges: [1-9]\d* common sweeps, 0 own ones; .* sent, .* received\n", found["text"]
            )
            assert "the last: requested by exchange='always'" in found["text"]
            assert re.search(r"network between machines: .*/s, \d+ us for a collective\n", found["text"])


@pytest.mark.reliability("N13")
def test_machines_with_parts_of_the_rows_load_what_copies_would(run: Run, tmp_path: Path) -> None:
    spec = "synthetic:rmat,nodes=3000,edges=9000,dim=24,classes=5,seed=5"
    (whole,) = write_parts(tmp_path / "whole", spec, 1)
    parts = write_parts(tmp_path / "parts", spec, 3)
    # The edges, of which every machine has all, are swept there; the batches are those of edges in memory.
    for rank, found in enumerate(results_of(load_on(run, parts, topology="sweep"))):
        assert found["digests"] == _alone(whole, rank, 3)
        assert "a range of the rows on each" in found["text"]
        assert "on the SSD, read in sweeps" in found["text"]


@pytest.mark.reliability("N15")
def test_a_slow_network_takes_its_time_and_changes_no_batch(run: Run, dataset: Path) -> None:
    fast, slow = (
        load_on(run, [dataset] * 2, exchange="always", network=network)
        for network in (None, Network(bytes_per_s=1e6, latency_s=0.02))
    )
    assert [found["digests"] for found in results_of(fast)] == [
        found["digests"] for found in results_of(slow)
    ]
    for how in slow:
        (latency_us,) = re.findall(r"/s, (\d+) us for a collective\n", how.result["text"])
        assert int(latency_us) >= 20_000


# As all choose, in the plan of an exchange, and in a round of it. The notes take longer than the time-out, and a stage
# that waits for them is no stall.
@pytest.mark.reliability("N1")
@pytest.mark.reliability("N2")
@pytest.mark.parametrize(
    ("collective", "signal_number"), [(11, signal.SIGKILL), (13, signal.SIGSTOP), (17, signal.SIGKILL)]
)
def test_a_machine_that_ends_or_hangs_in_an_exchange_is_named_whatever_the_time_out(
    run: Run, dataset: Path, collective: int, signal_number: int
) -> None:
    ending = Ending(rank=1, group=1, collective=collective, signal_number=signal_number)
    first, second = load_on(
        run, [dataset] * 2, exchange="always", ending=ending, stall_timeout_s=1.5, timeout_s=6.0
    )
    assert second.status == -9  # at once, or as it hangs, when the test gives it up
    assert first.status == 1
    assert first.error.startswith("gloader.errors.RankError: rank 1 (machine m1) is gone or does not answer")


@pytest.mark.reliability("N12")
@pytest.mark.reliability("N13")
def test_machines_with_few_or_no_rows_of_a_table_and_unequal_numbers_of_ranks_load_what_copies_would(
    run: Run, tmp_path: Path
) -> None:
    whole, *parts = [tmp_path / name for name in ("whole", "0", "1", "2")]
    for path, ranges in zip([whole, *parts], [None, "0/3", "1/3", "2/3"], strict=True):
        rng = np.random.default_rng(5)
        Dataset.from_numpy_hetero(
            path,
            edges={
                "venue:prints:paper": np.stack([np.arange(400) % 2, np.arange(400)]),
                "paper:cites:paper": rng.integers(0, 400, (2, 2500)),
            },
            # Of two venues the first machine has none.
            features={
                "paper": rng.standard_normal((400, 12)).astype(np.float32),
                "venue": rng.standard_normal((2, 5)).astype(np.float32),
            },
            labels={"paper": rng.integers(0, 3, 400)},
            add_reverse=True,
            ranges=ranges,
        )
    datasets = [parts[0], parts[0], parts[1], parts[2]]
    settings = {"cache": 4000, "batch_size": 4}
    results = results_of(load_on(run, datasets, names=["a", "a", "b", "c"], **settings))
    for rank, found in enumerate(results):
        assert found["digests"] == _alone(whole, rank, 4, **settings)


@pytest.mark.reliability("N6")
def test_machines_that_leave_a_loop_together_begin_anew_and_go_on_alone_when_one_does_so(
    run: Run, dataset: Path
) -> None:
    leaving = [Leaving(ranks=[0, 1, 2], epoch=0, batches=1), Leaving(ranks=[2], epoch=1, batches=1)]
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 4}
    datasets, names = [dataset] * 3, ["a", "a", "b"]
    results = results_of(load_on(run, datasets, names=names, exchange="always", leaving=leaving, **settings))
    for rank, found in enumerate(results):
        first, second = _alone(dataset, rank, 3, **settings)
        assert found["digests"] == [first[:1], second[:1] if rank == 2 else second]
        assert rank == 1 or found["left"] == []  # whose machine's loader may not have ended yet


@pytest.mark.reliability("N7")
def test_a_loader_that_cannot_be_opened_on_one_machine_is_told_on_all(run: Run, dataset: Path) -> None:
    first, second = load_on(
        run, [dataset] * 2, exchange="always", odd={"m1": {"memory_budget": 1000}}, timeout_s=12
    )
    assert [first.status, second.status] == [1, 1]
    assert second.error.startswith("gloader.errors.BudgetError")
    assert first.error.startswith("gloader.errors.RankError: rank 1 (machine m1) failed: BudgetError")
    assert first.seconds < 10
