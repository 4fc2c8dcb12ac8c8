"""The values that flow through the pipeline."""

from copy import copy
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch

from gloader.types import DeviceBlock


def test_edge_index_pairs_every_source_with_its_destination() -> None:
    block = DeviceBlock(
        indptr=torch.tensor([0, 2, 2, 5], dtype=torch.int32),
        indices=torch.tensor([3, 0, 4, 4, 1], dtype=torch.int32),
        edge_ids=torch.tensor([7, 8, 20, 21, 22]),
        src_degree=torch.ones(5),
        num_src=5,
        num_dst=3,
    )
    assert block.edge_index.tolist() == [[3, 0, 4, 4, 1], [0, 0, 2, 2, 2]]
    assert block.edge_index.dtype == torch.int64


def _block(edge_ids: Any) -> DeviceBlock:
    offsets = torch.tensor([0, 1], dtype=torch.int32)
    return DeviceBlock(
        indptr=offsets,
        indices=offsets[:1],
        edge_ids=edge_ids,
        src_degree=torch.ones(1),
        num_src=1,
        num_dst=1,
    )


def test_edge_ids_are_made_when_they_are_asked_for_and_once() -> None:
    calls = []
    block = _block(lambda: calls.append(1) or torch.tensor([7]))
    assert block.edge_index.tolist() == [[0], [0]]
    assert calls == []
    assert block.edge_ids is block.edge_ids
    assert (block.edge_ids.tolist(), calls) == ([7], [1])


def test_edge_ids_are_a_field_like_others() -> None:
    given = torch.tensor([7])
    block = _block(given)
    assert block.edge_ids is given
    assert replace(block, num_src=3).edge_ids is given
    assert copy(block).edge_ids is given
    with pytest.raises(FrozenInstanceError):
        block.edge_ids = given  # type: ignore[misc]
    with pytest.raises(TypeError, match="edge_ids"):
        DeviceBlock(indptr=given, indices=given, src_degree=given, num_src=1, num_dst=1)
