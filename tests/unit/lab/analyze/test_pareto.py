"""The points that nothing beats."""

from __future__ import annotations

from gloader.lab.analyze.machines import non_dominated


def test_what_is_nowhere_better_is_left_out() -> None:
    # Seconds and dollars: the third is slower and dearer than the second.
    assert non_dominated([(1.0, 9.0), (2.0, 3.0), (4.0, 5.0), (8.0, 1.0)]) == (0, 1, 3)


def test_equal_points_all_stay_and_one_that_ties_in_a_part_goes() -> None:
    assert non_dominated([(1.0, 2.0), (1.0, 2.0), (1.0, 3.0)]) == (0, 1)


def test_nothing_beats_nothing() -> None:
    assert non_dominated([]) == ()
    assert non_dominated([(5.0, 5.0)]) == (0,)
