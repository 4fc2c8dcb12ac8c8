"""The bottleneck of an epoch, in words."""

from dataclasses import replace
from typing import Any

import pytest

from gloader.observe.bottleneck import find_bottleneck, spinning_advice
from gloader.observe.epoch_stats import OF_TABLES, STAGES, EpochStats

GB = 10**9


def stats(*, seconds: float = 10.0, retrieval_s: float = 0.0, **more: Any) -> EpochStats:
    """Return the sums of an epoch of 10 s; names of stages are their thread-seconds."""
    stage_seconds = {name: more.pop(name, 0.0) for name in STAGES}
    stage_seconds["gather"] += retrieval_s
    known = {"batches": 100, "rows_gathered": 4_000_000, "rows_read": 2_000_000}
    return EpochStats(
        epoch=0, seconds=seconds, retrieval_s=retrieval_s, stage_seconds=stage_seconds, **{**known, **more}
    )


def sentence(epoch: EpochStats, **more: Any) -> str:
    return find_bottleneck(epoch, **{"cores": 4, **more}).sentence


def test_a_loader_that_is_hidden_is_no_bottleneck() -> None:
    found = find_bottleneck(stats(wait=0.3, compute=9.5, retrieval_s=9.9), cores=2)
    assert (found.kind, found.share) == ("compute", 0.95)
    assert found.sentence == "limited by the model: loading costs 3% of the step"


def test_kernels_that_are_compiled_are_no_slow_disk() -> None:
    epoch = stats(wait=8.0, compute=2.0, stage=9.0, compile_seconds=7.0)
    found = find_bottleneck(epoch, cores=4)
    assert (found.kind, found.share) == ("compile", 0.7)
    assert found.sentence == "kernels are compiled: 70% of the step (7.0 s); later runs load them"
    assert find_bottleneck(replace(epoch, compile_seconds=3.9), cores=4).kind == "stage"
    assert find_bottleneck(stats(wait=0.5, compute=9.5, compile_seconds=7.0), cores=4).kind == "compute"


def test_a_store_that_readers_wait_for_is_named() -> None:
    epoch = stats(wait=8.0, compute=2.0, stage=3.0)
    found = find_bottleneck(epoch, cores=4, store_s=7.0)
    assert (found.kind, found.share) == ("store", 0.8)
    assert found.sentence == (
        "the loop waits for the object store: 80% of the step (readers wait 70% of the time; what came is read from "
        "the mirror from now on)"
    )
    assert find_bottleneck(epoch, cores=4, store_s=5.0).kind != "store"
    assert find_bottleneck(stats(wait=0.5, compute=9.5), cores=4, store_s=9.0).kind == "compute"


def test_the_copy_to_the_device_can_be_slower_than_the_model() -> None:
    epoch = stats(wait=0.3, compute=3.0, transfer=6.0)
    assert sentence(epoch) == "the transfer to the device takes 60% of the step: loading costs 3% of the step"


def test_the_ssd() -> None:
    found = find_bottleneck(stats(wait=6.2, compute=3.8, retrieval_s=9.5), cores=4)
    assert (found.kind, found.share) == ("read", 0.62)
    assert found.sentence == "reading features waits for the SSD: 62% of the step"


def test_the_sweep() -> None:
    epoch = stats(wait=4.0, compute=6.0, stage=9.8, retrieval_s=1.0, bytes_read=20 * GB, bytes_written=8 * GB)
    found = find_bottleneck(epoch, cores=4)
    assert found.kind == "stage"
    assert found.sentence == (
        "reading features waits for the SSD: 40% of the step (sweeps write 8 GB of 20 GB read)"
    )


def test_sweep_and_read_share_one_disk() -> None:
    found = find_bottleneck(stats(wait=4.0, compute=6.0, stage=5.0, retrieval_s=4.5), cores=4)
    assert found.kind == "stage"


def test_passes_over_the_edges_are_apart_from_the_sweep_of_features() -> None:
    found = find_bottleneck(stats(wait=4.0, compute=6.0, sweep=9.5, sample=1.0), cores=4)
    assert found.kind == "sweep"
    assert found.sentence == ("the samplers wait for passes over the edges: 40% of the step")
    # Three that share one disk fill it together.
    assert (
        find_bottleneck(stats(wait=4.0, compute=6.0, sweep=5.0, stage=2.0, retrieval_s=2.0), cores=4).kind
        == "sweep"
    )


def test_sampling_counts_by_the_thread() -> None:
    epoch = stats(wait=4.0, compute=6.0, sample=19.0, retrieval_s=7.0)
    found = find_bottleneck(epoch, cores=4, sampler_threads=2)
    assert found.sentence == ("the loop waits for the samplers: 40% of the step")
    assert find_bottleneck(epoch, cores=4, sampler_threads=8).kind == "read"


def test_planning() -> None:
    assert sentence(stats(wait=4.0, compute=6.0, inspect=9.0)) == (
        "the loop waits for the cache plan: 40% of the step"
    )


def test_copying_in_memory() -> None:
    epoch = stats(wait=4.0, compute=6.0, gather=8.0)
    found = find_bottleneck(epoch, cores=4)
    assert found.kind == "gather"
    assert found.sentence == ("the loop waits for gather: 40% of the step (500 k rows/s)")
    assert find_bottleneck(replace(epoch, retrieval_s=7.0), cores=4).kind == "read"


@pytest.mark.parametrize(("cpu_seconds", "kind"), [(19.4, "cpu"), (17.9, "sample"), (0.0, "sample")])
def test_cores_that_are_all_busy_come_before_the_stage_that_is(cpu_seconds: float, kind: str) -> None:
    epoch = stats(wait=4.0, compute=6.0, sample=9.0, gather=4.0, cpu_seconds=cpu_seconds)
    found = find_bottleneck(epoch, cores=2)
    assert found.kind == kind
    if kind == "cpu":
        assert found.sentence == (
            "the loop waits for the CPU cores: 40% of the step (2 busy 97% of the time, most with sample and compute)"
        )


def test_a_start_up_that_nothing_hides() -> None:
    epoch = stats(wait=7.0, compute=3.0, sample=4.1, inspect=1.0)
    assert sentence(epoch) == (
        "loading is slower than the model: 70% of the step (no single stage is the cause)"
    )


@pytest.mark.parametrize("epoch", [EpochStats(epoch=0), EpochStats(epoch=0, seconds=1.0)])
def test_an_epoch_without_batches(epoch: EpochStats) -> None:
    assert sentence(epoch) == "no batch was computed"


OF_ONE = dict.fromkeys(OF_TABLES, 0)


def typed(*, rows_read: int, **more: Any) -> EpochStats:
    """Return the sums of an epoch that read so many rows of each of two tables."""
    counts = OF_ONE | {"rows_read": rows_read}
    return stats(
        rows_gathered=600_000,
        rows_read=2 * rows_read,
        bytes_read=4_000,
        tables={
            "paper": counts | {"rows_gathered": 200_000, "bytes_read": 3_000},
            "author": counts | {"rows_gathered": 400_000, "bytes_read": 1_000},
        },
        **more,
    )


def test_the_table_that_most_is_read_of_is_named() -> None:
    epoch = typed(rows_read=200_000, wait=6.2, compute=3.8, retrieval_s=9.5)
    assert (
        sentence(epoch) == "reading features waits for the SSD: 62% of the step (75% of the bytes for paper)"
    )


def test_threads_that_spin_on_a_crowded_machine_are_named_where_the_model_computes() -> None:
    def advice(kind: Any = "compute", *, load: float = 7.0, policy: str | None = None) -> str:
        return spinning_advice(kind, load=load, cores=2, wait_policy=policy)

    assert advice() == (
        "7 threads want 2 cores: set OMP_WAIT_POLICY=PASSIVE before Python starts, so that torch's threads do not spin "
        "while they wait"
    )
    assert advice(policy="active") == advice()
    assert advice("read") == advice(load=4.0) == advice(policy="passive") == ""
