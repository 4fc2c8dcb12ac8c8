"""The settings of a recorded run, read back, and the keywords that make a change."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from replayed_runs import SHAPE, header

from gloader.config import LoaderSettings
from gloader.errors import ConfigError, ReplayError
from gloader.lab.analyze.recorded_run import changed_keywords, recorded_settings
from gloader.replay.changes import parse_changes
from gloader.replay.recording import RecordedTable, RunHeader

GIVEN: dict[str, Any] = {
    "fanouts": {"a:to:b": [3, 2], "*": [1, 0]},
    "batch_size": 32,
    "seed": 4,
    "cache": 0.25,
    "policy": "sieve",
    "spill_dir": Path("packs"),
    "max_gap": 8192,
    "epochs": 7,
    "sampler": "labor:iterations=1",
    "time_strategy": "none",
    "sharing": "private",
}
TABLES = tuple(
    RecordedTable(name=name, num_rows=100, row_bytes=row_bytes, cache_rows=rows)
    for name, row_bytes, rows in (("a", 8, 50), ("b", 100, 6))
)


def _header(settings: LoaderSettings, **values: Any) -> RunHeader:
    state = {"stream": {"shuffle": False, "drop_last": True}, "global_batch_size": 64}
    known = {"settings": settings.recorded() | {"epochs": settings.stages.epochs}, "state": state}
    return header(**({"tables": TABLES, "superbatch": 5, "budget_bytes": 1000} | known | values))


def test_settings_come_back_from_what_a_run_recorded() -> None:
    given = LoaderSettings.of(**GIVEN, features="ssd", memory_budget=2**40)
    found = recorded_settings(_header(given))
    assert asdict(found) == asdict(
        given.changed(
            # What the loader had, and what no flag has.
            memory_budget=1000,
            threads=SHAPE.sampler_threads,
            shuffle=False,
            drop_last=True,
            rank=0,
            world_size=2,
        )
    )


def test_what_no_loader_of_this_version_takes_is_refused() -> None:
    given = LoaderSettings.of(fanouts=[2], batch_size=32)
    recorded = _header(given)
    with pytest.raises(ReplayError, match="the settings hyper, warp, which this version does not know"):
        recorded_settings(replace(recorded, settings=recorded.settings | {"warp": 1, "hyper": 2}))
    with pytest.raises(ReplayError, match="cannot be read: policy"):
        recorded_settings(replace(recorded, settings=recorded.settings | {"policy": "magic"}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ("cache=2x", {"cache": 2000}),  # of 50 rows of 8 bytes, and 6 of 100
        ("cache=10%", {"cache": 0.1}),
        ("cache=3KB,policy=lru", {"cache": 3000, "policy": "lru"}),
        ("superbatch=0.5x", {"superbatch": 2}),
        ("superbatch=0.01x", {"superbatch": 1}),
        ("S=128", {"superbatch": 128}),
        ("memory=1.5x", {"memory_budget": 1500}),
        ("memory=2KB", {"memory_budget": 2000}),
        ("strategy=packed,threads=3", {"io_strategy": "packed", "threads": 3}),
        ("fanout=4/2,batch-size=8", {"fanouts": (4, 2), "batch_size": 8}),
        ("disk=2x,cores=8,gpu=4x,ranks=2,network=2x", {}),
        ("buffers=2", {"buffers": 2}),
        ("buffers=auto,cache=auto,S=auto", {"buffers": None, "cache": None, "superbatch": None}),
        ("dtype=int8,order=degree", {}),
    ],
)
def test_a_change_is_made_by_keywords_of_a_loader(changes: str, expected: dict[str, Any]) -> None:
    settings = LoaderSettings.of(fanouts=[2, 2], batch_size=32)
    found = changed_keywords(settings, _header(settings), parse_changes(changes))
    assert found == expected
    settings.changed(**found)


@pytest.mark.parametrize(
    ("changes", "given", "values", "message"),
    [
        ("cache=2x", {"policy": "none"}, {}, "with policy=none nothing is cached: add another policy"),
        ("cache=2x,policy=none", {}, {}, "with policy=none nothing is cached: add another policy"),
        ("cache=2x", {}, {"tables": ()}, "no host cache to be compared with: give a size, such as cache=2GB"),
        ("S=2x", {}, {"shape": replace(SHAPE, features="ram")}, "no superbatches: give a number, such as"),
    ],
)
def test_what_the_run_had_not_cannot_be_scaled(
    changes: str, given: dict[str, Any], values: dict[str, Any], message: str
) -> None:
    settings = LoaderSettings.of(fanouts=[2, 2], batch_size=32, **given)
    with pytest.raises(ConfigError, match=message):
        changed_keywords(settings, _header(settings, **values), parse_changes(changes))
