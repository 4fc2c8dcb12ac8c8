"""Scripts as users of DGL and PyG write them, for `gloader migrate`."""

from typing import Final

from scripts_that_run import RUNNING

DGL_BUILT: Final = '''\
"""Node classification over a graph that the script makes."""
import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler
from torch import nn

src, dst, feat, label, split = torch.load("arrays.pt", weights_only=True)
g = dgl.graph((src, dst), num_nodes=len(label))
g.ndata["feat"] = feat
g.ndata["label"] = label
g.ndata["train_mask"] = split == 0
g.ndata["val_mask"] = split == 1
g.ndata["test_mask"] = split == 2
g = dgl.remove_self_loop(g)
g = dgl.add_self_loop(g)


class SAGE(nn.Module):
    def __init__(self, in_size, hid_size, out_size):
        super().__init__()
        self.layers = nn.ModuleList(
            [dglnn.SAGEConv(in_size, hid_size, "mean"), dglnn.SAGEConv(hid_size, out_size, "mean")]
        )

    def forward(self, blocks, x):
        h = self.layers[0](blocks[0], x)
        return self.layers[1](blocks[1], F.relu(h))


model = SAGE(g.ndata["feat"].shape[1], 16, 3)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(
    g,
    g.ndata["train_mask"].nonzero().squeeze(1),
    NeighborSampler([10, 5]),
    batch_size=64,
    shuffle=True,
    num_workers=4,
)
losses = []
for epoch in range(5):
    for input_nodes, output_nodes, blocks in loader:
        loss = F.cross_entropy(model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
'''

DGL_PRODUCTS: Final = """\
import dgl
import torch
import tqdm
from dgl.data import AsNodePredDataset
from dgl.dataloading import (
    DataLoader,
    MultiLayerFullNeighborSampler,
    NeighborSampler,
)
from ogb.nodeproppred import DglNodePropPredDataset, Evaluator


def inference(g, layers, device):
    feat = g.ndata["feat"]
    sampler = MultiLayerFullNeighborSampler(1, prefetch_node_feats=["feat"])
    loader = DataLoader(g, torch.arange(g.num_nodes()).to(g.device), sampler, device=device, num_workers=0)
    for layer in layers:
        for input_nodes, output_nodes, blocks in tqdm.tqdm(loader):
            layer(blocks[0], feat[input_nodes])


if __name__ == "__main__":
    dataset = AsNodePredDataset(DglNodePropPredDataset("ogbn-products"))
    g = dataset[0]
    g = g.to("cpu")
    train_idx = dataset.train_idx.to("cpu")
    sampler = NeighborSampler([15, 10, 5], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    loader = DataLoader(g, train_idx, sampler, batch_size=1024, shuffle=True, use_uva=True, use_ddp=True)
    for input_nodes, output_nodes, blocks in loader:
        print(blocks[0].srcdata["feat"].shape, blocks[-1].dstdata["label"], dataset.num_classes)
"""

DGL_LINKS: Final = """\
import dgl
import dgl.function as fn
import torch
from dgl.data import CitationGraphDataset
from dgl.dataloading import as_edge_prediction_sampler, negative_sampler, DataLoader, NeighborSampler

dataset = CitationGraphDataset("cora")
g = dataset[0]
sampler = as_edge_prediction_sampler(
    NeighborSampler([15, 10]),
    exclude="reverse_id",
    reverse_eids=torch.arange(g.num_edges()),
    negative_sampler=negative_sampler.Uniform(1),
)
seeds = torch.arange(g.num_edges())
loader = DataLoader(g, seeds, sampler, batch_size=512, shuffle=True)
for input_nodes, pair_graph, neg_pair_graph, blocks in loader:
    with pair_graph.local_scope():
        pair_graph.ndata["h"] = blocks[0].srcdata["feat"]
        pair_graph.apply_edges(fn.u_dot_v("h", "h", "score"))
"""

DGL_MAG: Final = """\
import dgl
import dgl.nn as dglnn
import torch as th
from dgl import AddReverse, Compose, ToSimple
from dgl.nn import HeteroEmbedding
from ogb.nodeproppred import DglNodePropPredDataset

dataset = DglNodePropPredDataset(name="ogbn-mag")
split_idx = dataset.get_idx_split()
g, labels = dataset[0]
labels = labels["paper"].flatten()
g = Compose([ToSimple(), AddReverse()])(g)
embed = HeteroEmbedding({ntype: g.num_nodes(ntype) for ntype in g.ntypes}, 128)
sampler = dgl.dataloading.MultiLayerNeighborSampler([25, 20])
loader = dgl.dataloading.DataLoader(g, split_idx["train"], sampler, batch_size=1024)
conv = dglnn.HeteroGraphConv({etype: dglnn.GraphConv(128, 8, norm="right") for etype in g.etypes})


def forward(g, h):
    g = g.local_var()
    return conv(g, h)
"""

DGL_GRAPHBOLT: Final = """\
import dgl.graphbolt as gb
import dgl.nn as dglnn

dataset = gb.BuiltinDataset("ogbn-products").load()
pipe = gb.ItemSampler(dataset.tasks[0].train_set, batch_size=1024, shuffle=True)
pipe = pipe.sample_neighbor(dataset.graph, [10, 10])
conv = dglnn.SAGEConv(100, 47, "mean")
for minibatch in gb.DataLoader(pipe):
    conv(minibatch.blocks[0], minibatch.node_features["feat"])
"""

DGL_WHOLE: Final = """\
import dgl.nn as dglnn
from dgl import AddSelfLoop
from dgl.data import CoraGraphDataset

data = CoraGraphDataset(transform=AddSelfLoop())
g = data[0].int().to("cpu")
conv = dglnn.GraphConv(1433, data.num_classes)
print(conv(g, g.ndata["feat"]))
"""

PYG_BUILT: Final = """\
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv

src, dst, feat, label, split = torch.load("arrays.pt", weights_only=True)
data = Data(x=feat, edge_index=torch.stack([src, dst]), y=label)
data.train_mask, data.val_mask = split == 0, split == 1
data.test_mask = split == 2
kwargs = {"batch_size": 64, "num_workers": 6, "persistent_workers": True}
loader = NeighborLoader(data, input_nodes=data.train_mask, num_neighbors=[10, 5], shuffle=True, **kwargs)
subgraph_loader = NeighborLoader(data, input_nodes=None, num_neighbors=[-1], **kwargs)
del subgraph_loader.data.x, subgraph_loader.data.y
subgraph_loader.data.num_nodes = data.num_nodes


class SAGE(torch.nn.Module):
    def __init__(self, in_channels, hidden, out_channels):
        super().__init__()
        self.first, self.last = SAGEConv(in_channels, hidden), SAGEConv(hidden, out_channels)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


model = SAGE(feat.shape[1], 16, 3)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for epoch in range(5):
    for batch in loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
num_rows = sum(batch.batch_size for batch in subgraph_loader)
"""

PYG_PRODUCTS: Final = """\
import torch.nn.functional as F
from ogb.nodeproppred import Evaluator, PygNodePropPredDataset
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

dataset = PygNodePropPredDataset(name="ogbn-products", root="/data")
split_idx = dataset.get_idx_split()
data = dataset[0].to("cuda", "x", "y")
loader = NeighborLoader(data, num_neighbors=[15, 10, 5], input_nodes=split_idx["train"], batch_size=1024,
                        shuffle=True, num_workers=12, persistent_workers=True, disjoint=False)
model = GraphSAGE(dataset.num_features, 256, num_layers=3, out_channels=dataset.num_classes)
for batch in loader:
    out = model(batch.x, batch.edge_index)[: batch.batch_size]
    F.cross_entropy(out, batch.y[: batch.batch_size].squeeze(1).long()).backward()
print(data.x.shape)
"""

PYG_LINKS: Final = """\
import torch_geometric.transforms as T
from torch_geometric.datasets import Planetoid
from torch_geometric.loader import LinkNeighborLoader

split = T.RandomLinkSplit(num_val=0.1, num_test=0.1, is_undirected=True)
dataset = Planetoid("data/planetoid", name="Cora", transform=T.Compose([T.NormalizeFeatures(), split]))
train_data, val_data, test_data = dataset[0]
loader = LinkNeighborLoader(
    train_data,
    num_neighbors=[20, 10],
    edge_label_index=train_data.edge_label_index,
    edge_label=train_data.edge_label,
    neg_sampling_ratio=1.0,
    batch_size=128,
    shuffle=True,
    num_workers=4,
)
val_loader = LinkNeighborLoader(val_data, [20, 10], val_data.edge_label_index, batch_size=128)
"""

PYG_TYPED: Final = """\
import torch_geometric.transforms as T
from torch_geometric.datasets import OGB_MAG
from torch_geometric.loader import HGTLoader, NeighborLoader
from torch_geometric.nn import SAGEConv, to_hetero

transform = T.ToUndirected(merge=True)
dataset = OGB_MAG("data/OGB", preprocess="metapath2vec", transform=transform)
data = dataset[0]
seeds = ("paper", data["paper"].train_mask)
kwargs = {"batch_size": 1024, "num_workers": 6}
loader = NeighborLoader(data, num_neighbors=[10] * 2, shuffle=True, input_nodes=seeds, **kwargs)
other = HGTLoader(data, num_samples=[1024] * 4, shuffle=True, input_nodes=seeds, **kwargs)
model = to_hetero(SAGEConv((-1, -1), 64), data.metadata())
"""

PYG_WHOLE: Final = """\
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GCNConv

dataset = Planetoid("data", "Cora")
data = dataset[0]
print(GCNConv(dataset.num_features, dataset.num_classes)(data.x, data.edge_index))
"""

RUN: Final = ("DGL_BUILT", "PYG_BUILT", *RUNNING)
"""Those that are changed, and run to their end: a verdict on them is a promise."""
SCRIPTS: Final = RUNNING | {
    name: text for name, text in list(globals().items()) if name.startswith(("DGL_", "PYG_"))
}
