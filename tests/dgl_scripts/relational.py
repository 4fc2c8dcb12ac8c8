"""A script of DGL: RGCN over one graph whose edges have types, which a loop takes from the blocks' edge data."""

import sys

import dgl
import torch
import torch.nn.functional as F
from dgl.nn.pytorch import RelGraphConv
from torch import nn

(g,), _ = dgl.load_graphs(sys.argv[1])
num_rels = 4
g.edata[dgl.ETYPE] = torch.arange(g.num_edges()) % num_rels
g.ndata["type_id"] = g.nodes()


class RGCN(nn.Module):
    def __init__(self, num_nodes, h_dim, out_dim):
        super().__init__()
        self.emb = nn.Embedding(num_nodes, h_dim)
        self.conv1 = RelGraphConv(h_dim, h_dim, num_rels, regularizer="basis", num_bases=2, self_loop=False)
        self.conv2 = RelGraphConv(h_dim, out_dim, num_rels, regularizer="basis", num_bases=2, self_loop=False)

    def forward(self, blocks, nids):
        x = self.emb(nids)
        h = self.conv1(blocks[0], x, blocks[0].edata[dgl.ETYPE], blocks[0].edata["norm"])
        return self.conv2(blocks[1], F.relu(h), blocks[1].edata[dgl.ETYPE], blocks[1].edata["norm"])


labels = g.ndata.pop("label")
train_idx = torch.nonzero(g.ndata.pop("train_mask"), as_tuple=False).squeeze()
sampler = dgl.dataloading.MultiLayerNeighborSampler([4, 4])
loader = dgl.dataloading.DataLoader(
    g, train_idx.to(g.device), sampler, device="cpu", batch_size=50, shuffle=True
)
model = RGCN(g.num_nodes(), 8, int(labels.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for step, (input_nodes, output_nodes, blocks) in enumerate(loader):
    for block in blocks:
        in_degrees = block.in_degrees().float().clamp(min=1)
        block.edata["norm"] = (1 / in_degrees)[block.edges()[1]].unsqueeze(1)
    logits = model(blocks, blocks[0].srcdata["type_id"])
    loss = F.cross_entropy(logits, labels[output_nodes])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
    if step == 1:
        break
