from __future__ import annotations

import numpy as np
import torch

from gloader.models import LinkNetwork, build_decoder, encoder_of
from gloader.types import NODE, BatchId, LinkBatch, ReadyBatch


class Rows(torch.nn.Module):
    """An encoder that has learned what it returns."""

    def __init__(self, num_rows: int, width: int) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(
            torch.randn(num_rows, width, generator=torch.Generator().manual_seed(0))
        )

    def embed(self, batch: ReadyBatch) -> dict[str, torch.Tensor]:
        return {NODE: self.rows}


def _batch(pairs: torch.Tensor) -> LinkBatch:
    labels = torch.zeros(len(pairs))
    inner = ReadyBatch(
        id=BatchId(epoch=0, index=0),
        x=torch.zeros(0, 1),
        y=labels,
        blocks=(),
        nodes=np.arange(0),
        num_seeds=0,
    )
    return LinkBatch(
        batch=inner,
        pairs=pairs,
        labels=labels,
        edge_ids=np.zeros(len(pairs), np.int64),
        num_positives=len(pairs),
    )


def _network(num_rows: int, width: int) -> LinkNetwork:
    decoder = build_decoder("dot", dim=width, hidden=width, dropout=0.0)
    return LinkNetwork(Rows(num_rows, width), decoder, ends=("node", "node"))


def test_pairs_are_scored_by_the_rows_of_their_ends() -> None:
    network = _network(4, 3)
    rows = network.encoder.rows
    found = network(_batch(torch.tensor([[0, 3], [2, 2]])))
    assert torch.allclose(found, torch.stack([rows[0] @ rows[3], rows[2] @ rows[2]]))
    assert encoder_of(network) is network.encoder
    assert encoder_of(network.encoder) is network.encoder


def test_gradients_of_shared_ends_are_the_same_each_time_on_several_threads() -> None:
    """Or a run would not be resumed bit for bit: many pairs have the same node, and threads add up in any order."""
    network = _network(2000, 64)
    batch = _batch(torch.randint(0, 50, (40_000, 2), generator=torch.Generator().manual_seed(1)))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = []
        for _ in range(4):
            network.zero_grad()
            network(batch).sum().backward()
            found.append(network.encoder.rows.grad.clone())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])
