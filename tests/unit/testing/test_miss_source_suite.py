"""Each check of the miss source suite passes a toy source, and fails one that is broken in that way."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from unit.testing.broken import must_fail

from gloader.errors import PlanError, ShapeError, StoreError
from gloader.ssd_store import DirectMisses, FeatureStore
from gloader.testing.source_suites import DIM, NUM_ROWS, MissSourceSuite, make_features, make_misses
from gloader.types import ReadStats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.ssd_store import MissSource
    from gloader.types import IdArray

MISSES = make_misses()


class ToySource:
    """The rows of each batch, kept in memory; a batch's are dropped when it is released."""

    strategy = "staged"
    cost = DirectMisses.cost

    def __init__(self, store: FeatureStore, misses: Sequence[IdArray]) -> None:
        self.rows = [rows.tolist() for rows in misses]
        self.store = store
        self.is_closed = False

    def check(self, batch: int, rows: IdArray, out: NDArray[Any], at: IdArray) -> None:
        if not 0 <= batch < len(self.rows):
            raise ShapeError(f"batch {batch} is not one of the superbatch's {len(self.rows)}")
        if len(rows) and (rows.min() < 0 or rows.max() >= NUM_ROWS):
            raise ShapeError("rows are out of range")
        if (np.diff(rows) <= 0).any():
            raise ShapeError("missing rows must ascend")
        if out.shape[1:] != (DIM,) or out.dtype.kind != "f" or len(at) != len(rows):
            raise ShapeError("out does not fit")
        if len(at) and at.max() >= len(out):
            raise ShapeError("at is out of range")
        if rows.tolist() != self.rows[batch]:
            raise PlanError(f"batch {batch} asks for other rows than those that were staged")

    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        self.check(batch, rows, out, at)
        return self.store.read_into(rows, out, at=at)

    def release(self, batch: int) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def suite_of(kind: type[ToySource]) -> type[MissSourceSuite]:
    class Suite(MissSourceSuite):
        @contextmanager
        def open_source(
            self, store: FeatureStore, misses: Sequence[IdArray], tmp_path: Path
        ) -> Iterator[MissSource]:
            source = kind(store, misses)
            yield source
            source.close()

    return Suite


class TestToy(suite_of(ToySource)):  # type: ignore[misc]
    pass


class IgnoresWhereRowsGo(ToySource):
    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        return super().read_into(batch, rows, out, at=np.arange(len(rows)))


class ClearsTheRest(ToySource):
    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        out[:] = 0
        return super().read_into(batch, rows, out, at=at)


class CountsNothing(ToySource):
    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        super().read_into(batch, rows, out, at=at)
        return ReadStats(rows=0, requests=0, bytes_read=0)


class HasAnotherName(ToySource):
    strategy = "mirrored"


class WritesUncounted(ToySource):
    cost = DirectMisses.cost.__class__(read=DirectMisses.cost.read, writes=0, bytes_written=4096)


class ReleasesAll(ToySource):
    def release(self, batch: int) -> None:
        self.is_closed = True

    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        if self.is_closed:
            raise StoreError("the rows were given back")
        return super().read_into(batch, rows, out, at=at)


class ReleasesOnce(ToySource):
    def release(self, batch: int) -> None:
        self.rows.remove(self.rows[batch])


class ClosesOnce(ToySource):
    def close(self) -> None:
        if self.is_closed:
            raise StoreError("closed")
        super().close()


class ChecksNothing(ToySource):
    def check(self, batch: int, rows: IdArray, out: NDArray[Any], at: IdArray) -> None:
        pass

    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        for row, place in zip(rows.tolist(), at.tolist(), strict=False):
            if row < NUM_ROWS and place < len(out) and out.shape[1] == DIM:
                out[place] = 1
        return ReadStats(rows=len(rows), requests=0, bytes_read=0)


class ServesOtherRows(ToySource):
    def check(self, batch: int, rows: IdArray, out: NDArray[Any], at: IdArray) -> None:
        self.rows = [rows.tolist() for _ in self.rows]
        super().check(batch, rows, out, at)


ROWS = MissSourceSuite.test_every_batch_gets_its_rows
COST = MissSourceSuite.test_says_how_it_works_and_what_that_took
RELEASE = MissSourceSuite.test_a_released_batch_takes_no_other_with_it
CLOSE = MissSourceSuite.test_closing_twice_is_closing_once
SHAPES = MissSourceSuite.test_what_does_not_fit_is_refused
RANGE = MissSourceSuite.test_rows_that_do_not_exist_are_refused
OTHERS = MissSourceSuite.test_rows_of_another_plan_are_refused

MUTANTS = [
    (ROWS, IgnoresWhereRowsGo, "mf"),
    (ROWS, ClearsTheRest, "mf"),
    (ROWS, CountsNothing, "mf"),
    (COST, HasAnotherName, ""),
    (COST, WritesUncounted, ""),
    (RELEASE, ReleasesAll, "mf"),
    (RELEASE, ReleasesOnce, "mf"),
    (CLOSE, ClosesOnce, ""),
    (SHAPES, ChecksNothing, "m"),
    (RANGE, ChecksNothing, ""),
    (OTHERS, ServesOtherRows, "m"),
]


@pytest.mark.parametrize(("check", "kind", "takes"), MUTANTS)
def test_a_broken_source_fails(check: Any, kind: type[ToySource], takes: str, tmp_path: Path) -> None:
    features = make_features(NUM_ROWS, DIM, "float32")
    arguments = [{"m": MISSES, "f": features}[letter] for letter in takes]
    with FeatureStore.create(tmp_path / "store", features) as store:
        must_fail(check, suite_of(kind)(), kind(store, MISSES), *arguments)


def test_every_check_has_a_mutant() -> None:
    checks = {name for name in vars(MissSourceSuite) if name.startswith("test_")}
    assert {check.__name__ for check, _, _ in MUTANTS} == checks
