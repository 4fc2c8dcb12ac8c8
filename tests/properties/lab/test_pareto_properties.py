"""The points that nothing beats, against all pairs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gloader.lab.analyze.machines import non_dominated

Points = list[tuple[float, ...]]
# Few values, so that points tie.
values = st.sampled_from([0.0, 1.0, 2.5, 4.0])
points = st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[values] * width), max_size=12))


def dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


@given(points)
def test_they_are_those_that_no_pair_rules_out(found: Points) -> None:
    kept = [
        number for number, point in enumerate(found) if not any(dominates(other, point) for other in found)
    ]
    assert list(non_dominated(found)) == kept


@given(points)
def test_whatever_is_left_out_is_beaten_by_what_stays(found: Points) -> None:
    kept = non_dominated(found)
    for number, point in enumerate(found):
        assert number in kept or any(dominates(found[other], point) for other in kept)


@given(points, st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(found: Points, random: object) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sorted(found[number] for number in non_dominated(found)) == sorted(
        shuffled[number] for number in non_dominated(shuffled)
    )
