"""A script of DGL: link prediction, the loss of two batches. The seeds are what `edges` of the command says."""

import sys

import dgl
import dgl.function as fn
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler, as_edge_prediction_sampler, negative_sampler
from dgl.nn import SAGEConv
from torch import nn


class Model(nn.Module):
    def __init__(self, in_size, hid_size):
        super().__init__()
        self.layers = nn.ModuleList(
            [SAGEConv(in_size, hid_size, "mean"), SAGEConv(hid_size, hid_size, "mean")]
        )

    def score(self, graph, h):
        with graph.local_scope():
            graph.ndata["h"] = h
            graph.apply_edges(fn.u_dot_v("h", "h", "score"))
            return graph.edata["score"]

    def forward(self, pair_graph, neg_pair_graph, blocks, x):
        h = x
        for number, (layer, block) in enumerate(zip(self.layers, blocks)):
            h = layer(block, h)
            if number == 0:
                h = F.relu(h)
        return self.score(pair_graph, h), self.score(neg_pair_graph, h)


(g,), _ = dgl.load_graphs(sys.argv[1])
seed_edges = sys.argv[2] if len(sys.argv) > 2 else torch.arange(g.num_edges())
sampler = as_edge_prediction_sampler(
    NeighborSampler([5, 5], prefetch_node_feats=["feat"]),
    exclude="self",
    negative_sampler=negative_sampler.Uniform(1),
)
dataloader = DataLoader(g, seed_edges, sampler, device="cpu", batch_size=64, shuffle=True, drop_last=False)
model = Model(g.ndata["feat"].shape[1], 16)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for it, (input_nodes, pair_graph, neg_pair_graph, blocks) in enumerate(dataloader):
    pos_score, neg_score = model(pair_graph, neg_pair_graph, blocks, blocks[0].srcdata["feat"])
    assert len(pos_score) == len(neg_score) == pair_graph.num_edges() == 64
    score = torch.cat([pos_score, neg_score])
    labels = torch.cat([torch.ones_like(pos_score), torch.zeros_like(neg_score)])
    loss = F.binary_cross_entropy_with_logits(score, labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {it} loss {loss.item():.4f}")
    if it == 1:
        break
