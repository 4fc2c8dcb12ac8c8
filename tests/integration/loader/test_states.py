"""Any order of taking batches, saving, loading, breaking off, closing and opening again, against a list of digests."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import gloader
from gloader.errors import LoaderBusyError, LoaderClosedError

from .conftest import Written
from .streams import PLACES, SAMPLING, digest, in_memory

EPOCHS = 6
State = tuple[dict[str, Any], int, int]  # a saved state, and the place that it stands for


class LoaderStates(RuleBasedStateMachine):
    """A loader beside a model of it: the next batch, whether an epoch was left unfinished, whether one is running."""

    dataset: ClassVar[gloader.Dataset]
    spill: ClassVar[Path]
    expected: ClassVar[list[list[str]]]

    states = Bundle("states")

    def __init__(self) -> None:
        super().__init__()
        self.loader: gloader.Loader | None = None
        self.batches: Any = None

    def teardown(self) -> None:
        self.batches = None
        if self.loader is not None:
            self.loader.close()

    @initialize(place=st.sampled_from(PLACES), threads=st.integers(1, 3))
    def open(self, place: dict[str, Any], threads: int) -> None:
        self.loader = gloader.Loader(
            self.dataset,
            **(
                SAMPLING
                | {"memory_budget": "200MB", "threads": threads, "spill_dir": self.spill}
                | {"epochs": EPOCHS}
                | place
            ),
        )
        self.per_epoch = len(self.loader)
        self.epoch, self.index = 0, 0
        self.is_mid_epoch = False  # left there: the next iteration starts another epoch
        self.batches = None

    def _start(self) -> None:
        assert self.loader is not None
        if self.is_mid_epoch or self.index == self.per_epoch:
            self.epoch, self.index = self.epoch + 1, 0
        self.is_mid_epoch = False
        self.batches = iter(self.loader)

    def _can_go_on(self) -> bool:
        starts_next = self.batches is None and (self.is_mid_epoch or self.index == self.per_epoch)
        return self.epoch + starts_next < EPOCHS

    @precondition(lambda self: self._can_go_on())
    @rule(target=states, count=st.integers(1, 9))
    def take(self, count: int) -> State:
        self._take(count)
        return self.save()

    def _take(self, count: int) -> None:
        if self.batches is None:
            self._start()
        for _ in range(count):
            batch = next(self.batches, None)
            if batch is None:
                assert self.index == self.per_epoch
                self.batches = None
                self.epoch, self.index = self.epoch + 1, 0
                return
            assert digest(batch) == self.expected[self.epoch][self.index]
            self.index += 1

    @rule(target=states)
    def save(self) -> State:
        assert self.loader is not None
        return self.loader.state_dict(), self.epoch, self.index

    @precondition(lambda self: self.batches is None)
    @rule(state=states)
    def load(self, state: State) -> None:
        assert self.loader is not None
        saved, epoch, index = state
        self.loader.load_state_dict(saved)
        self.epoch, self.index, self.is_mid_epoch = epoch, index, False

    @precondition(lambda self: self.batches is not None)
    @rule(state=states)
    def refuse_while_running(self, state: State) -> None:
        assert self.loader is not None
        with pytest.raises(LoaderBusyError):
            self.loader.load_state_dict(state[0])
        with pytest.raises(LoaderBusyError):
            iter(self.loader)

    @precondition(lambda self: self.batches is not None)
    @rule(drops=st.booleans())
    def leave(self, drops: bool) -> None:
        """As `break` does, or `del`."""
        if not drops:
            self.batches.close()
        self.batches = None
        self.is_mid_epoch = True

    @rule(place=st.sampled_from(PLACES), threads=st.integers(1, 3))
    def reopen(self, place: dict[str, Any], threads: int) -> None:
        assert self.loader is not None
        iterator, self.batches = self.batches, None
        self.loader.close()
        self.loader.close()
        with pytest.raises(LoaderClosedError):
            iter(self.loader)
        if iterator is not None:
            assert next(iterator, None) is None
        self.open(place=place, threads=threads)

    @rule()
    def agree_on_the_place(self) -> None:
        assert self.loader is not None
        assert len(self.loader) == self.per_epoch
        assert self.loader.epoch == self.epoch
        assert self.loader.state_dict()["next"] == [self.epoch, self.index]


@pytest.mark.reliability("F1")
@pytest.mark.reliability("D6")
@pytest.mark.reliability("D9")
def test_any_order_of_calls(tiny: Written, tmp_path: Path) -> None:
    LoaderStates.dataset = tiny.dataset
    LoaderStates.spill = tmp_path
    LoaderStates.expected = in_memory(tiny.dataset, EPOCHS)
    run_state_machine_as_test(
        LoaderStates,
        settings=settings(
            max_examples=min(settings().max_examples // 4, 100),  # more would outlast the time of a test
            stateful_step_count=20,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],  # so would shrinking
        ),
    )
