"""From a gathered batch in host memory to tensors on the compute device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gloader.types import Block, DeviceBlock, IdArray, ReadyBatch

if TYPE_CHECKING:
    from gloader.gather import HostBatch


def to_device_block(block: Block, src_degree: torch.Tensor, device: torch.device) -> DeviceBlock:
    """Return ``block`` as tensors on ``device``; ``src_degree`` (U,) float32 is there already."""
    return DeviceBlock(
        indptr=torch.from_numpy(block.indptr).to(device),
        indices=torch.from_numpy(block.indices).to(device),
        edge_ids=torch.from_numpy(block.edge_ids).to(device),
        src_degree=src_degree[: block.num_src],
        num_src=block.num_src,
        num_dst=block.num_dst,
    )


def transfer(batch: HostBatch, labels: IdArray, device: torch.device) -> ReadyBatch:
    """Return ``batch`` with the labels of its seeds on ``device``; on the CPU without copying the features.

    Parameters
    ----------
    labels : (N,) int64
    """
    sampled = batch.sampled
    src_degree = torch.from_numpy(batch.src_degree).to(device=device, dtype=torch.float32)
    return ReadyBatch(
        id=sampled.id,
        x=torch.from_numpy(batch.x).to(device),
        y=torch.from_numpy(labels[sampled.nodes[: sampled.num_seeds]]).to(device),
        blocks=tuple(to_device_block(block, src_degree, device) for block in sampled.blocks),
        nodes=sampled.nodes,
        num_seeds=sampled.num_seeds,
    )
