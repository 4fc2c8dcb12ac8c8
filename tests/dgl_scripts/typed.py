"""A script of DGL: classes of the nodes of one type, by a layer for each relation."""

import sys

import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from torch import nn

(g,), _ = dgl.load_graphs(sys.argv[1])
category = sys.argv[2]
fanouts = [4, dict.fromkeys(g.canonical_etypes, 3)]


class RGCN(nn.Module):
    def __init__(self, in_sizes, hid_size, out_size):
        super().__init__()
        self.project = nn.ModuleDict({ntype: nn.Linear(size, hid_size) for ntype, size in in_sizes.items()})
        self.embed = nn.ModuleDict(
            {ntype: nn.Embedding(g.num_nodes(ntype), hid_size) for ntype in g.ntypes if ntype not in in_sizes}
        )
        self.layers = nn.ModuleList(
            dglnn.HeteroGraphConv(
                {etype: dglnn.GraphConv(hid_size, size, norm="right") for etype in g.etypes}, aggregate="sum"
            )
            for size in (hid_size, out_size)
        )

    def forward(self, blocks, input_nodes, x):
        h = {ntype: self.project[ntype](rows) for ntype, rows in x.items()}
        h |= {ntype: table(input_nodes[ntype]) for ntype, table in self.embed.items()}
        for layer, block in zip(self.layers, blocks):
            h = layer(block, h)
        return h


x_sizes = {ntype: g.nodes[ntype].data["feat"].shape[1] for ntype in g.ntypes if "feat" in g.nodes[ntype].data}
labels = g.nodes[category].data["label"]
train_idx = torch.nonzero(g.nodes[category].data["train_mask"], as_tuple=False).squeeze()
model = RGCN(x_sizes, 16, int(labels.max()) + 1)
sampler = dgl.dataloading.MultiLayerNeighborSampler(fanouts)
loader = dgl.dataloading.DataLoader(
    g, {category: train_idx}, sampler, batch_size=32, shuffle=True, num_workers=0
)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for step, (input_nodes, seeds, blocks) in enumerate(loader):
    seeds = seeds[category]
    y_hat = model(blocks, input_nodes, blocks[0].srcdata["feat"])[category]
    assert torch.equal(blocks[-1].dstnodes[category].data["label"], labels[seeds])
    loss = F.cross_entropy(y_hat, labels[seeds])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.4f}")
    if step == 1:
        break
