"""Batches, bytes, outputs and names are those that were recorded: an entry changes only with a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from recorded.book import differences, read_book
from recorded.faces import FACES
from recorded.networks import NETWORKS
from recorded.prepared import PREPARED
from recorded.streams import STREAMS
from recorded.worlds import Worlds

if TYPE_CHECKING:
    from pathlib import Path

RECORDED = read_book()
SECTIONS = {"streams": STREAMS, "faces": FACES, "prepared": PREPARED, "networks": NETWORKS}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory.mktemp("worlds"))


def test_every_entry_is_compared_by_a_test() -> None:
    assert {name: [*of] for name, of in RECORDED.items()} == {name: [*of] for name, of in SECTIONS.items()}


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, stream in STREAMS.items() for place in stream.places]
)
def test_batches_are_those_that_were_recorded(worlds: Worlds, tmp_path: Path, name: str, place: str) -> None:
    found = STREAMS[name].digests(worlds, place, tmp_path)
    assert differences(found, RECORDED["streams"][name]) == []


@pytest.mark.parametrize("name", FACES)
def test_batches_of_pyg_are_those_that_were_recorded(worlds: Worlds, tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch_geometric")
    assert differences(FACES[name].digests(worlds, tmp_path), RECORDED["faces"][name]) == []


@pytest.mark.parametrize("name", PREPARED)
def test_prepared_bytes_are_those_that_were_recorded(tmp_path: Path, name: str) -> None:
    assert differences(PREPARED[name].digests(tmp_path), RECORDED["prepared"][name]) == []


@pytest.mark.parametrize("name", NETWORKS)
def test_names_and_outputs_are_those_that_were_recorded(worlds: Worlds, tmp_path: Path, name: str) -> None:
    assert differences(NETWORKS[name].parts(worlds, tmp_path), RECORDED["networks"][name]) == []
