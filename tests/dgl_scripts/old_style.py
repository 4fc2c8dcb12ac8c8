"""A script of DGL as of 2020: the loop takes features and labels of the nodes by itself."""

import sys

import dgl
import dgl.nn.pytorch as dglnn
import torch
from torch import nn


class SAGE(nn.Module):
    def __init__(self, in_feats, n_hidden, n_classes, activation):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                dglnn.SAGEConv(in_feats, n_hidden, "mean", activation=activation),
                dglnn.SAGEConv(n_hidden, n_classes, "mean"),
            ]
        )

    def forward(self, blocks, x):
        h = x
        for layer, block in zip(self.layers, blocks):
            h_dst = h[: block.number_of_dst_nodes()]
            h = layer(block, (h, h_dst))
        return h


def load_subtensor(nfeat, labels, seeds, input_nodes, device):
    return nfeat[input_nodes].to(device), labels[seeds].to(device)


(g,), _ = dgl.load_graphs(sys.argv[1])
device = torch.device("cpu")
nfeat, labels = g.ndata.pop("feat"), g.ndata.pop("label")
g.create_formats_()
train_nid = torch.nonzero(g.ndata["train_mask"], as_tuple=True)[0]
sampler = dgl.dataloading.MultiLayerNeighborSampler([5, 10])
dataloader = dgl.dataloading.DataLoader(
    g, train_nid, sampler, batch_size=32, shuffle=True, drop_last=False, num_workers=0
)
model = SAGE(nfeat.shape[1], 16, int(labels.max()) + 1, torch.relu).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for step, (input_nodes, seeds, blocks) in enumerate(dataloader):
    batch_inputs, batch_labels = load_subtensor(nfeat, labels, seeds, input_nodes, device)
    blocks = [block.int().to(device) for block in blocks]
    loss = nn.functional.cross_entropy(model(blocks, batch_inputs), batch_labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f} edges {sum(block.number_of_edges() for block in blocks)}")
    if step == 1:
        break
