"""Fan-outs as users write them: a list, by relation, or of all relations together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gloader
from gloader.config import LoaderSettings, SamplingSettings
from gloader.core.fanouts import checked_fanouts, largest_fanout, plain_fanouts
from gloader.errors import ConfigError
from gloader.pipeline.seeds import named_facts, stream_fingerprint
from gloader.samplers.arguments import resolve_fanouts
from gloader.types import CollectiveFanouts, RelationFanouts

WRITES, CITES, OF = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("field", "of", "paper")
BY_RELATION = RelationFanouts(((WRITES, (25, 20)), ("*", (10, 5))))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([15, np.int64(10)], (15, 10)),
        ("15,10", (15, 10)),
        ({WRITES: [25, 20], "*": (10, 5)}, BY_RELATION),
        ({"*": [10, 5], "author:writes:paper": [25, 20]}, BY_RELATION),
        ("author:writes:paper=25,20;*=10,5", BY_RELATION),
        (" * = 10,5 ; author:writes:paper = [25, 20];", BY_RELATION),
        (BY_RELATION, BY_RELATION),
        ({"*": [10, 5]}, (10, 5)),
        ("*=-1", (-1,)),
        ("collective:25,20", CollectiveFanouts((25, 20))),
        (gloader.collective([25, 20]), CollectiveFanouts((25, 20))),
        ("collective:r:collective=3", RelationFanouts(((("collective", "r", "collective"), (3,)),))),
    ],
    ids=str,
)
def test_every_form_is_read_and_written(given: Any, expected: Any) -> None:
    checked = checked_fanouts(given)
    assert checked == expected
    assert type(checked) is type(expected)
    assert checked_fanouts(plain_fanouts(checked)) == checked
    assert checked_fanouts(str(plain_fanouts(checked))) == checked


def test_the_order_in_which_relations_are_named_does_not_matter() -> None:
    one = checked_fanouts({CITES: [3], "*": [1], WRITES: [2]})
    other = checked_fanouts({WRITES: [2], CITES: [3], "*": [1]})
    assert one == other
    assert str(one) == "author:writes:paper=2;paper:cites:paper=3;*=1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({WRITES: [1], "author:writes:paper": [2]}, "fanouts name author:writes:paper twice"),
        ("*=1;*=2", r"fanouts name \* twice"),
        (
            {WRITES: [1, 2], "*": [1]},
            r"different numbers of hops: author:writes:paper 2, \* 1; write equally many",
        ),
        ({"writes": [1]}, "'writes' names no relation; write source:name:destination, such as"),
        ({("a", "b"): [1]}, "names no relation; write source:name:destination"),
        ({"a::b": [1]}, "'a::b' names no relation"),
        ({}, "fanouts is empty; pass one integer per hop, .* or 'author:writes:paper=25,20"),
        ({WRITES: []}, r"fanouts\[author:writes:paper\] is empty"),
        ({WRITES: [1.5]}, r"fanouts\[author:writes:paper\]\[0\] is 1.5; it must be an integer"),
        ({WRITES: [-2]}, r"fanouts\[author:writes:paper\]\[0\] is -2; it must be at least 0"),
        ({WRITES: 3}, r"fanouts\[author:writes:paper\] is 3; pass one integer per hop"),
        ("a:b:c=", "'' is not a fan-out; write one whole number per layer"),
        ("a:b:c=1,x", "'1,x' is not a fan-out"),
        (";", "';' is not a fan-out; .* for several relations, write 'author:writes:paper=25,20;"),
        ("collective:", "'' is not a fan-out"),
        (7, "fanouts is 7; pass one integer per hop"),
    ],
    ids=str,
)
def test_what_is_no_fanout_is_told_what_is(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked_fanouts(given)


def test_collective_fanouts_are_checked_where_they_are_made() -> None:
    with pytest.raises(
        ConfigError, match=r"collective fan-outs\[1\] is -3; it must be at least 0, or -1 for all"
    ):
        gloader.collective([3, -3])


def test_each_relation_gets_its_own_fanouts() -> None:
    relations = (CITES, WRITES, OF)
    assert resolve_fanouts([2, 1], relations) == ((2, 1),) * 3
    assert resolve_fanouts(BY_RELATION, relations) == ((10, 5), (25, 20), (10, 5))
    assert resolve_fanouts({CITES: [1], WRITES: [2], OF: [3]}, relations) == ((1,), (2,), (3,))
    assert resolve_fanouts("collective:4", relations) == ((4,),) * 3
    with pytest.raises(
        ConfigError, match="fanouts name 'a:b:c', and the graph has 'paper:cites:paper', 'author:"
    ):
        resolve_fanouts({("a", "b", "c"): [1], "*": [1]}, relations)
    with pytest.raises(
        ConfigError, match=r"have none for 'author:writes:paper', 'field:of:paper'; add them, or '\*'"
    ):
        resolve_fanouts({CITES: [1]}, relations)


def test_the_largest_fanout() -> None:
    assert largest_fanout((3, 7)) == 7
    assert largest_fanout(BY_RELATION) == 25
    assert largest_fanout(gloader.collective([3, -1])) == -1


def test_a_graph_of_one_type_takes_a_list() -> None:
    assert SamplingSettings(fanouts=(3, 2)).hops == (3, 2)
    with pytest.raises(
        ConfigError, match="fanouts is 'collective:3', and this graph has one node type and one rel"
    ):
        _ = SamplingSettings(fanouts=CollectiveFanouts((3,))).hops


@pytest.mark.parametrize("given", ["author:writes:paper=25,20;*=10,5", "collective:25,20", "4,3"])
def test_a_run_records_what_the_command_line_takes(given: str) -> None:
    fanouts = checked_fanouts(given)
    recorded = LoaderSettings.of(fanouts=given, batch_size=4).recorded()["fanouts"]
    assert checked_fanouts(recorded) == fanouts
    assert isinstance(recorded, tuple | str)  # what YAML holds


class _Data:
    fingerprint = "f"


class _Order:
    shuffle, drop_last, seed_blocks, seeds = True, False, 1, np.arange(5)
    num_items, times, draws, seed_window = 5, None, None, 1


def test_a_stream_of_a_list_keeps_its_fingerprint() -> None:
    dataset: Any = _Data()
    order: Any = _Order()
    # Of version 0.1: saved states hold it.
    assert (
        stream_fingerprint(dataset, order, SamplingSettings(fanouts=(15, 10, 5)))
        == "b43b30f451195625a35d58a422e4c32e"
    )
    assert named_facts(dataset, order, SamplingSettings(fanouts=(15, 10)))["fanouts"] == [15, 10]
    facts = [
        SamplingSettings(fanouts=checked_fanouts(of)) for of in ((25, 20), "collective:25,20", BY_RELATION)
    ]
    assert len({stream_fingerprint(dataset, order, sampling) for sampling in facts}) == 3
    named = [named_facts(dataset, order, sampling)["fanouts"] for sampling in facts]
    assert named == [[25, 20], "collective:25,20", "author:writes:paper=25,20;*=10,5"]
