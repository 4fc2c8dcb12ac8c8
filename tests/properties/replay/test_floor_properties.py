"""The floor against replays of random works, and against the ways that it mixes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.replay.floor import floor_of, floor_of_mixture, needs_of, without_reads
from gloader.replay.replay import replay
from gloader.replay.work import (
    NOTHING,
    BatchWork,
    Demands,
    Machine,
    PassWork,
    PipelineShape,
    RunWork,
    SuperbatchWork,
)

_CLOSE = 1 + 1e-9


def seconds() -> st.SearchStrategy[float]:
    return st.sampled_from([0.0, 0.0, 0.01, 0.1, 0.5, 1.0, 3.0])


@st.composite
def demands(draw: st.DrawFn) -> Demands:
    if draw(st.booleans()):
        return NOTHING
    needs = [draw(seconds()) for _ in range(6)]
    cores = draw(st.sampled_from([0.5, 1.0, 1.0, 3.0]))
    return Demands(needs[0], cores, *needs[1:], draw(seconds()), draw(st.sampled_from([0.0, 0.0, 0.5])))


@st.composite
def runs(draw: st.DrawFn) -> tuple[RunWork, Machine, PipelineShape]:
    ranks = draw(st.sampled_from([1, 1, 2]))
    per_epoch, epochs = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    kinds = {
        name: draw(st.lists(demands(), min_size=1, max_size=3))
        for name in ("trace", "sample", "read", "gather", "transfer", "compute", "inspect", "stage", "sweep")
    }

    def of(name: str, number: int) -> Demands:
        return kinds[name][number % len(kinds[name])]

    count = per_epoch * epochs * ranks
    batches = tuple(
        BatchWork(
            epoch=number // (per_epoch * ranks),
            index=number // ranks % per_epoch,
            **{
                name: of(name, number)
                for name in ("trace", "sample", "read", "gather", "transfer", "compute")
            },
            # Only the first rank does anything but train, as its evaluations are.
            pause_s=draw(st.sampled_from([0.0, 0.0, 2.0])) if number % ranks == 0 else 0.0,
            open_steps=draw(st.sampled_from([None, 0, 2])),
        )
        for number in range(count)
    )
    shape = PipelineShape(
        features=draw(st.sampled_from(["ram", "ssd"])),
        has_embeddings=draw(st.booleans()),
        sampler_threads=draw(st.integers(1, 3)),
        ahead=draw(st.integers(1, 3)),
        num_buffers=draw(st.integers(2, 3)),
        num_ranks=ranks,
        is_sending=draw(st.booleans()),
    )
    size = draw(st.integers(1, 6))
    sizes = [size] * (count // size) + ([count % size] if count % size else [])
    superbatches = tuple(
        SuperbatchWork(num_batches=one, inspect=of("inspect", number), stage=of("stage", number))
        for number, one in enumerate(sizes)
    )
    step = draw(st.integers(1, 8))
    passes = tuple(
        PassWork(sweep=of("sweep", number), completed=end, most_waiting=4 * (step + size))
        for number, end in enumerate(range(step, count + step, step))
    )
    work = RunWork(
        batches=batches,
        superbatches=superbatches if shape.is_planned else (),
        passes=passes if draw(st.booleans()) else (),
    )
    speed = draw(
        st.dictionaries(st.sampled_from(["cpu", "disk", "link"]), st.sampled_from([0.5, 2.0, float("inf")]))
    )
    return work, Machine(cores=draw(st.sampled_from([1.0, 2.0, 4.0])), speed=speed), shape


@given(runs())
def test_no_replay_takes_less_than_the_floor(run: tuple[RunWork, Machine, PipelineShape]) -> None:
    work, machine, shape = run
    replayed = replay(work, machine, shape)
    for first in range(work.num_epochs):
        counted = range(first, work.num_epochs)
        took = sum(replayed.epoch_s[epoch] for epoch in counted) / len(counted)
        for name, least in needs_of(work, machine, shape, epochs=counted).items():
            assert least <= took * _CLOSE + 1e-9, (name, first)


@given(runs())
def test_what_is_left_without_reads_is_a_floor_too(run: tuple[RunWork, Machine, PipelineShape]) -> None:
    work, machine, shape = run
    took = replay(work, machine, shape).seconds / work.num_epochs
    assert floor_of(needs_of(without_reads(work), machine, shape)).seconds <= took * _CLOSE + 1e-9


@given(
    demands().filter(any),
    st.sampled_from(["sample", "gather", "compute"]),
    st.integers(1, 9),
    st.sampled_from([1.0, 4.0]),
)
def test_a_single_stage_takes_its_floor(needs: Demands, stage: str, count: int, cores: float) -> None:
    work = RunWork(
        batches=tuple(BatchWork(epoch=0, index=number, **{stage: needs}) for number in range(count))
    )
    machine, shape = Machine(cores=cores), PipelineShape(features="ram")
    floor = floor_of(needs_of(work, machine, shape)).seconds
    assert replay(work, machine, shape).epoch_s[0] == pytest.approx(floor, rel=1e-9)


ways = st.lists(
    st.dictionaries(
        st.sampled_from(["cpu", "disk", "spill", "loop"]), st.floats(0.01, 100.0), min_size=1, max_size=4
    ),
    min_size=1,
    max_size=6,
)


@given(ways, st.randoms(use_true_random=False))
def test_no_way_and_no_mixture_goes_below_the_floor(found: list[dict[str, float]], random: object) -> None:
    floor = floor_of_mixture(found).seconds
    assert floor <= min(floor_of(way).seconds for way in found) * _CLOSE
    names = {name for way in found for name in way}
    for _ in range(5):
        shares = [random.random() + 1e-9 for _ in found]  # type: ignore[attr-defined]
        mixed = max(
            sum(share * way.get(name, 0.0) for share, way in zip(shares, found, strict=True)) / sum(shares)
            for name in names
        )
        assert floor <= mixed * _CLOSE


@given(ways, ways)
def test_one_more_way_never_raises_the_floor(
    some: list[dict[str, float]], more: list[dict[str, float]]
) -> None:
    assert floor_of_mixture(some + more).seconds <= floor_of_mixture(some).seconds * _CLOSE
