"""Batches, bytes, outputs and names are those that were recorded: an entry changes only with a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from recorded.book import differences, read_book
from recorded.streams import STREAMS
from recorded.worlds import Worlds

if TYPE_CHECKING:
    from pathlib import Path

RECORDED = read_book()


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory.mktemp("worlds"))


def test_every_entry_is_compared_by_a_test() -> None:
    assert {section: [*entries] for section, entries in RECORDED.items()} == {"streams": [*STREAMS]}


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, stream in STREAMS.items() for place in stream.places]
)
def test_batches_are_those_that_were_recorded(worlds: Worlds, tmp_path: Path, name: str, place: str) -> None:
    found = STREAMS[name].digests(worlds, place, tmp_path)
    assert differences(found, RECORDED["streams"][name]) == []
