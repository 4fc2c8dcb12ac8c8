"""Wanted nodes are found among the rows that stream past, whatever their order."""

from __future__ import annotations

import numpy as np
import torch

from gloader.training.inference.layer_rows import Targets

CPU = torch.device("cpu")


def test_each_chunk_has_the_positions_and_rows_of_its_nodes() -> None:
    nodes = np.array([7, 2, 9, 2, 0])
    targets = Targets(nodes, 10, CPU)
    found = torch.full((5,), -1)
    for start in range(0, 10, 4):
        among = targets.among(start, min(start + 4, 10))
        assert among is not None
        positions, rows = among
        found[positions] = start + rows
    assert found.tolist() == nodes.tolist()
    assert len(targets) == 5
    assert targets.among(3, 7) is None


def test_all_nodes_are_slices() -> None:
    for nodes in (range(6), np.arange(6)):
        targets = Targets(nodes, 6, CPU)
        assert targets.among(2, 4) == (slice(2, 4), slice(None))
        assert targets.nodes == range(6)
