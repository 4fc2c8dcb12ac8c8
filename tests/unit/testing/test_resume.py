"""The resume harness passes a loader that resumes, and fails each that does not."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gloader.testing.resume import check_resume

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BATCHES = 3  # of an epoch


class Counter:
    """A loader whose batches are numbers."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        end = (self.next // BATCHES + 1) * BATCHES
        while self.next < end:
            self.next += 1
            yield self.next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.next = state["next"]


class Forgets(Counter):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class Repeats(Counter):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.next = max(state["next"] - 1, 0)


class StartsTheEpochAnew(Counter):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.next = state["next"] // BATCHES * BATCHES


class EndsTooSoon(Counter):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.next = state["next"]
        self.is_over = state["next"] == 2

    def __iter__(self) -> Iterator[int]:
        return iter(()) if getattr(self, "is_over", False) else super().__iter__()


class KeepsItsLastEpoch(Counter):
    """Right when it is fresh, wrong when it was used before."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.next = max(self.next, state["next"])


class HasNoJson(Counter):
    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "loader": self}


class HandsOutItsOwnState(Counter):
    """Only a copy of the state keeps the position."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"next": 0}

    def state_dict(self) -> dict[str, Any]:
        self.state["next"] = self.next
        return self.state


def run(kind: type[Counter], **settings: Any) -> list[str]:
    @contextmanager
    def open_loader() -> Iterator[Counter]:
        yield kind()

    return check_resume(open_loader, epochs=2, digest=str, **settings)


@pytest.mark.parametrize("kind", [Counter, HandsOutItsOwnState])
def test_a_loader_that_resumes_passes(kind: type[Counter]) -> None:
    assert run(kind, returns_to=(5, 0, 6, 2)) == [str(number) for number in range(4 * BATCHES)]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Forgets, "resumed before step 1, the loader gives other batches, the first at step 1"),
        (Repeats, "resumed before step 1, the loader gives other batches"),
        (StartsTheEpochAnew, "resumed before step 1, the loader gives other batches"),
        (EndsTooSoon, "resumed before step 2, the loader gives 0 of 4 batches"),
    ],
)
def test_a_loader_that_does_not_resume_fails(kind: type[Counter], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        run(kind)


def test_a_loader_that_keeps_what_it_did_before_fails_where_it_is_sent_back() -> None:
    run(KeepsItsLastEpoch)
    with pytest.raises(AssertionError, match="sent back to step 2, the loader gives other batches"):
        run(KeepsItsLastEpoch, returns_to=(2,))


def test_a_state_is_json() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        run(HasNoJson)
