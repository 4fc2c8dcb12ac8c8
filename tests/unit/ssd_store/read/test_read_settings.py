"""The settings of reading are those that `FeatureStore.open` takes, and are checked when they are made."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gloader.errors import ConfigError
from gloader.ssd_store.read.lane import ReadKeywords, ReadSettings


def test_every_setting_is_a_keyword_and_every_keyword_a_setting() -> None:
    assert list(ReadKeywords.__annotations__) == [field.name for field in fields(ReadSettings)]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"io": "mmap"}, "io='mmap' is unknown; choose one of auto, uring, threads, buffered"),
        ({"verify": "never"}, "verify='never' is unknown; choose one of read, open, off"),
        ({"direct": "maybe"}, "direct='maybe' is unknown; choose one of auto, require, off"),
        ({"gap_bytes": -1}, "gap_bytes=-1 must be at least 0"),
        ({"queue_depth": 0}, "queue_depth=0 must be at least 1"),
    ],
)
def test_a_wrong_setting_is_refused(setting: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReadSettings(**setting)


def test_buffered_reads_go_through_the_page_cache() -> None:
    assert ReadSettings(io="buffered", direct="require").file_mode == "off"
    assert ReadSettings(direct="require").file_mode == "require"
