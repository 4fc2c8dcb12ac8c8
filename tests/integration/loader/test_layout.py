"""The merged layout through the whole loader: one stream whatever the settings, exact resume, states told apart."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import gloader
from gloader.errors import ConfigError, StateError
from gloader.samplers import NeighborSampler

from .conftest import Written
from .streams import PLACES, SAMPLING, digest

MERGED: dict[str, Any] = SAMPLING | {"layout": "merged", "memory_budget": "200MB"}


def _loader(written: Written, **settings: Any) -> gloader.Loader:
    return gloader.Loader(written.dataset, **(MERGED | {"threads": 2} | settings))


def _stream(written: Written, **settings: Any) -> list[str]:
    with _loader(written, **settings) as loader:
        return [digest(batch) for _ in range(2) for batch in loader]


def test_batches_are_the_merged_ones_of_their_address(tiny: Written) -> None:
    with _loader(tiny, fanouts=[4, 3, 2]) as loader:
        sampler = NeighborSampler(loader.graph, [4, 3, 2])
        for batch in loader:
            merged = sampler.sample_merged(batch.id, batch.nodes[: batch.num_seeds])
            assert batch.nodes.tolist() == merged.nodes.tolist()
            assert batch.blocks[0].edge_index.tolist() == merged.edge_index.tolist()
            assert batch.blocks[0].edge_ids.tolist() == merged.edge_ids.tolist()
            for below, block in pairwise(batch.blocks):
                assert below.edge_ids[: len(block.edge_ids)].tolist() == block.edge_ids.tolist()
            np.testing.assert_array_equal(batch.x.numpy(), tiny.features[batch.nodes])


@pytest.mark.reliability("F3")
def test_one_stream_whatever_the_threads_and_the_place_of_the_features(tiny: Written) -> None:
    expected = _stream(tiny, features="ram", threads=1)
    assert len(set(expected)) == 14
    for place in PLACES:
        assert _stream(tiny, **place) == expected, place
    assert _stream(tiny, features="ssd", policy="none", threads=8) == expected
    with gloader.Loader(tiny.dataset, **SAMPLING, memory_budget="200MB") as layered:
        assert expected[0] not in [digest(batch) for batch in layered]


@pytest.mark.reliability("F1")
def test_resume_at_every_step(tiny: Written) -> None:
    place = {"features": "ssd", "cache": 9600, "superbatch": 3, "io_strategy": "packed"}
    states, stream = [], []
    with _loader(tiny, **place) as loader:
        for _ in range(2):
            for batch in loader:
                stream.append(digest(batch))
                states.append(loader.state_dict())
    for step in range(0, 14, 2):
        with _loader(tiny, **place, threads=1) as resumed:
            resumed.load_state_dict(states[step])
            rest = [digest(batch) for _ in range(2) for batch in resumed]
        assert rest[: 13 - step] == stream[step + 1 :]


@pytest.mark.reliability("F5")
@pytest.mark.parametrize(("saved", "loaded"), [("layered", "merged"), ("merged", "layered")])
def test_a_state_of_the_other_layout_is_refused(tiny: Written, saved: str, loaded: str) -> None:
    with _loader(tiny, layout=saved) as loader:
        state = loader.state_dict()
    with _loader(tiny, layout=loaded) as other, pytest.raises(StateError, match="saved with layout"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layout": "coo"}, "layout='coo' is not one of 'layered', 'merged'"),
        (
            {"sampler": "labor"},
            "layout='merged' with sampler 'labor', which chooses for all nodes of a layer",
        ),
    ],
)
def test_layouts_that_cannot_be_are_refused(tiny: Written, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _loader(tiny, **settings)


def test_configurations_carry_it(tiny: Written) -> None:
    config = gloader.config.LoaderSettings.of(
        fanouts=(4, 3), batch_size=16, layout="merged", memory_budget="200MB"
    )
    with _loader(tiny) as loader:
        expected = loader.state_dict()
    with gloader.Loader.from_settings(tiny.dataset, config) as loader:
        assert loader.state_dict() == expected
