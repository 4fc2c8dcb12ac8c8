"""The words of a what-if: each knob takes its forms and refuses others, by a message that says what it takes."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from gloader.cache.planner import PlannerName
from gloader.config import IoStrategy, Policy
from gloader.convert.options import OrderName
from gloader.core.malformed import shown
from gloader.errors import ConfigError
from gloader.replay.changes import (
    KNOBS,
    NO_CHANGES,
    REPLANNED,
    Changes,
    Ratio,
    parse_changes,
)
from gloader.types import CollectiveFanouts, RelationFanouts

A_FACTOR = "a factor such as 2x, of all reads and writes"
KNOBS_TEXT = ", ".join(f"{knob}=" for knob in KNOBS)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("disk=2x", "disk", Ratio(factor=2.0)),
        ("disk=2", "disk", Ratio(factor=2.0)),
        ("disk.random=0.5x", "disk.random", Ratio(factor=0.5)),
        ("disk.write=1000x", "disk.write", Ratio(factor=1000.0)),
        ("gpu=0.001x", "gpu", Ratio(factor=0.001)),
        ("compute=1.5x", "compute", Ratio(factor=1.5)),
        ("network=2x", "network", Ratio(factor=2.0)),
        ("network=25Gb/s", "network", 25e9 / 8),
        ("network=2.5Gbps", "network", 2.5e9 / 8),
        ("network=800Mb", "network", 1e8),
        ("network=8Kb/s", "network", 1e3),
        ("network=1Tb/s", "network", 1.25e11),
        ("cores=8", "cores", 8),
        ("threads=1", "threads", 1),
        ("buffers=5", "buffers", 5),
        ("ranks=10000", "ranks", 10_000),
        ("memory=8GB", "memory", 8 * 10**9),
        ("memory=0.5x", "memory", Ratio(factor=0.5)),
        ("cache=512MiB", "cache", 2**29),
        ("cache=20%", "cache", 0.2),
        ("cache=0%", "cache", 0.0),
        ("cache=2x", "cache", Ratio(factor=2.0)),
        ("superbatch=128", "superbatch", 128),
        ("superbatch=2x", "superbatch", Ratio(factor=2.0)),
        ("S=64", "superbatch", 64),
        ("fanout=10/10/5", "fanout", (10, 10, 5)),
        ("fanouts=-1", "fanout", (-1,)),
        ("fanout=collective:25/20", "fanout", CollectiveFanouts((25, 20))),
        (
            "fanout=a:to:b=5/4;*=3/2",
            "fanout",
            RelationFanouts(((("a", "to", "b"), (5, 4)), ("*", (3, 2)))),
        ),
        ("batch-size=2147483647", "batch-size", 2**31 - 1),
        ("batch_size=1024", "batch-size", 1024),
        *((f"policy={one}", "policy", one) for one in get_args(Policy)),
        *((f"strategy={one}", "strategy", one) for one in get_args(IoStrategy)),
        *((f"dtype={one}", "dtype", one) for one in ("float32", "float16", "bfloat16", "int8")),
        *((f"order={one}", "order", one) for one in get_args(OrderName)),
    ],
)
def test_each_knob_takes_its_forms(text: str, name: str, value: Any) -> None:
    changes = parse_changes(text)
    assert changes == Changes(values={name: value}, text=text)
    assert type(changes.values[name]) is type(value)
    assert changes.needs_plan == (name in REPLANNED)


@pytest.mark.parametrize(
    ("texts", "takes"),
    [
        (
            ["disk=", "disk=x", "disk=fast", "disk=0x", "disk=-2x", "disk=1001x", "disk=nanx", "disk=infx"],
            A_FACTOR,
        ),
        (["disk.random=0.0009x", "disk.random=2xx"], "a factor such as 2x, of reads at random"),
        (["disk.write=8GB"], "a factor such as 2x"),
        (["gpu=", "gpu=1e9x"], "a factor such as 4x, of the speed at which the model is computed"),
        (["compute=two"], "a factor such as 2x, of what the model has to compute"),
        (
            [
                *(
                    "network=",
                    "network=25",
                    "network=25GB/s",
                    "network=25Gb/h",
                    "network=Gb/s",
                    "network=0Gb/s",
                ),
                *("network=-1Gb/s", "network=0x", f"network={'9' * 400}Gb/s"),
            ],
            "a factor such as 2x, or a rate such as 25Gb/s",
        ),
        (["cores=", "cores=0", "cores=-1", "cores=2x", "cores=1.5", "cores=10001", "cores=1e3"], "a number"),
        (["threads=0", "threads=auto", f"threads={'9' * 5000}"], "a number, of sampling threads"),
        (["buffers=none"], "a number, of feature buffers, or auto"),
        (["ranks=0"], "a number"),
        (
            ["memory=", "memory=-8GB", "memory=20%", "memory=0x", "memory=8 Gb/s"],
            "a size such as 8GB, or a factor such as 2x, of the budget",
        ),
        (
            ["cache=", "cache=101%", "cache=-1%", "cache=big", "cache=2000x"],
            "a size such as 2GB, a share of the features such as 20%, a factor such as 2x, or auto",
        ),
        (
            ["superbatch=0", "superbatch=8GB", "superbatch=2147483648"],
            "a number of batches, a factor such as 2x, or auto",
        ),
        (["policy=best", "policy=", "policy=LRU"], "belady, static, lru, fifo, clock, sieve, s3fifo or none"),
        (["strategy=direct or staged", "strategy="], "auto, direct, staged or packed"),
        (["dtype=float64"], "float32, float16, bfloat16 or int8"),
        (["order=", "order=random"], "none, degree or community"),
        (
            ["fanout=", "fanout=ten", "fanout=-2", "fanout=5.5/3", "fanout=a=5"],
            "neighbours by hop, such as 10/10/5",
        ),
        (["batch-size=0", "batch-size=2147483648"], "a number"),
    ],
)
def test_each_knob_refuses_what_it_does_not_take(texts: list[str], takes: str) -> None:
    for text in texts:
        with pytest.raises(ConfigError) as caught:
            parse_changes(text)
        name, _, value = text.partition("=")
        assert (
            str(caught.value) == f"{name}={shown(value.replace(' ', ''))} is not understood; it takes {takes}"
        )
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["disks=2x", "disk", "2x", "=2x", "x=1", "Disk=2x"])
def test_what_is_no_knob_is_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_changes(text)
    assert str(caught.value) == f"a what-if of {text!r} is not understood; use one of {KNOBS_TEXT}"


@pytest.mark.parametrize("text", ["", " ", ",", " , ,"])
def test_no_change_is_no_what_if(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_changes(text)
    assert str(caught.value) == f"the what-if {text!r} changes nothing; use one of {KNOBS_TEXT}"


@pytest.mark.parametrize("text", ["disk=2x,disk=3x", "S=8,superbatch=9", "batch-size=4,batch_size=4"])
def test_a_knob_is_turned_once(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_changes(text)
    name = {"d": "disk", "S": "superbatch", "b": "batch-size"}[text[0]]
    assert str(caught.value) == f"the what-if {text!r} names {name} twice"


def test_several_knobs_are_turned_together() -> None:
    changes = parse_changes(" cache = 2x , S=128,, threads=4 ")
    assert changes.values == {"cache": Ratio(factor=2.0), "superbatch": 128, "threads": 4}
    assert changes.text == "cache=2x,S=128,threads=4"
    assert (changes.ratio("cache"), changes.ratio("threads"), changes.ratio("disk")) == (2.0, 1.0, 1.0)
    assert changes.needs_plan
    assert not parse_changes("threads=4,disk=2x").needs_plan
    assert not NO_CHANGES.needs_plan
    assert parse_changes(changes.text) == changes


def test_policies_are_those_of_planners() -> None:
    assert set(get_args(Policy)) == set(get_args(PlannerName))
