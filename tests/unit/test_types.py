"""The values that flow through the pipeline."""

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
