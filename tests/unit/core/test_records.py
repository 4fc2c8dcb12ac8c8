"""Records from JSON: what was written comes back, and anything else is refused by the name of its field."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.core.records import Records

if TYPE_CHECKING:
    from collections.abc import Mapping


class Span(NamedTuple):
    """A class that reads itself."""

    first: int
    last: int

    @classmethod
    def from_json(cls, body: object) -> Span:
        if not isinstance(body, list) or len(body) != 2:
            raise ValueError(f"is {body!r}, no span")
        return cls(*body)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A record in a record."""

    name: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A record with every kind of field."""

    count: int
    is_done: bool
    way: Literal["here", "there"]
    span: Span
    parts: tuple[Part, ...] = ()
    pair: tuple[int, str] = (0, "")
    limit: int | None = None
    by_name: Mapping[str, float] = field(default_factory=dict)
    anything: Any = None


RECORDS = Records(Mapping=dict)
PARTS = st.builds(Part, name=st.text(), share=st.floats(allow_nan=False))
WHOLES = st.builds(
    Whole,
    count=st.integers(),
    is_done=st.booleans(),
    way=st.sampled_from(["here", "there"]),
    span=st.builds(Span, st.integers(), st.integers()),
    parts=st.lists(PARTS, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), st.text()),
    limit=st.none() | st.integers(),
    by_name=st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=3),
    anything=st.none() | st.lists(st.integers()),
)
BODY = {"count": 1, "is_done": True, "way": "here", "span": [0, 1]}


@given(whole=WHOLES)
def test_a_record_comes_back_as_it_was_written(whole: Whole) -> None:
    assert RECORDS.read(Whole, json.loads(json.dumps(asdict(whole)))) == whole


def test_a_field_with_a_default_may_be_left_out() -> None:
    assert RECORDS.read(Whole, BODY) == Whole(count=1, is_done=True, way="here", span=Span(0, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": "1"}, "field 'count' is '1', not an integer"),
        ({"count": 1.0}, "field 'count' is 1.0, not an integer"),
        ({"count": True}, "field 'count' is True, not an integer"),
        ({"is_done": 1}, "field 'is_done' is 1, not true or false"),
        ({"way": "away"}, "field 'way' is 'away', not one of here, there"),
        ({"way": []}, r"field 'way' is \[\], not one of here, there"),
        ({"span": [1]}, r"field 'span' is \[1\], no span"),
        ({"parts": {}}, "field 'parts' is {}, not a list"),
        ({"parts": [{"name": "a"}]}, "field 'parts' field 'share' is missing"),
        ({"parts": [{"name": "a", "share": True}]}, "field 'share' is True, not a number"),
        ({"parts": [3]}, "field 'parts' is 3, not an object"),
        ({"pair": [1, "a", 2]}, r"field 'pair' is \[1, 'a', 2\], not a list of 2"),
        ({"pair": ["a", 1]}, "field 'pair' is 'a', not an integer"),
        ({"limit": "1"}, "field 'limit' is '1', not an integer"),
        ({"by_name": {"a": "b"}}, "field 'by_name' is 'b', not a number"),
        ({"surplus": 1}, "field 'surplus' is unknown"),
    ],
)
def test_anything_else_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RECORDS.read(Whole, BODY | change)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValueError, match="field 'way' is missing"):
        RECORDS.read(Whole, {name: value for name, value in BODY.items() if name != "way"})


def test_a_list_is_no_record() -> None:
    with pytest.raises(ValueError, match=r"is \[\], not an object"):
        RECORDS.read(Whole, [])
