"""GraphSAGE out of DGL's layers, for both forms of the example."""

import dgl
import torch
import torch.nn.functional as F

HIDDEN = 64


class SAGE(torch.nn.Module):
    """Two mean-aggregating layers."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [dgl.nn.SAGEConv(dim, HIDDEN, "mean"), dgl.nn.SAGEConv(HIDDEN, num_classes, "mean")]
        )

    def forward(self, blocks, x):
        """Return the scores of the last block's destinations."""
        x = F.relu(self.layers[0](blocks[0], x))
        return self.layers[1](blocks[1], F.dropout(x, training=self.training))
