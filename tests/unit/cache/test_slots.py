"""The slot map: hits and misses, and that corruption is noticed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.cache import SlotMap
from gloader.errors import PlanError


@given(
    cached=st.sets(st.integers(0, 19)),
    nodes=st.lists(st.integers(0, 19), unique=True),
)
def test_split_agrees_with_a_dict(cached: set[int], nodes: list[int]) -> None:
    rows = sorted(cached)
    slot_of = {row: slot for slot, row in enumerate(rows)}
    step = SlotMap(20, np.array(rows, dtype=np.int64)).split(np.array(nodes, dtype=np.int64))
    hits = [(position, slot_of[node]) for position, node in enumerate(nodes) if node in slot_of]
    misses = [(position, node) for position, node in enumerate(nodes) if node not in slot_of]
    assert list(zip(step.hit_pos.tolist(), step.hit_slot.tolist(), strict=True)) == hits
    assert list(zip(step.miss_pos.tolist(), step.miss_row.tolist(), strict=True)) == misses
    assert len(step.admit_pos) == len(step.admit_slot) == 0


@pytest.mark.parametrize("cached", [[0, 20], [-1], [3, 3]])
def test_impossible_contents_are_refused(cached: list[int]) -> None:
    with pytest.raises(PlanError, match="cached ids"):
        SlotMap(20, np.array(cached, dtype=np.int64))


@pytest.mark.reliability("E5")
def test_a_slot_that_holds_another_node_is_an_error_not_a_wrong_row() -> None:
    cached = np.array([2, 5, 7], dtype=np.int64)
    slots = SlotMap(20, cached)
    cached[1] = 6
    with pytest.raises(PlanError, match="corrupted"):
        slots.split(np.array([5], dtype=np.int64))
