"""Scripts as users of DGL and PyG write them, for `gloader migrate`."""

from typing import Final

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

DGL_SAGE_FILE: Final = """\
import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F

(g,), _ = dgl.load_graphs("graph.bin")
train_idx = g.ndata["train_mask"].nonzero().squeeze(1)
sampler = dgl.dataloading.NeighborSampler([5, 5], prefetch_node_feats=["feat"], prefetch_labels=["label"])
loader = dgl.dataloading.DataLoader(g, train_idx, sampler, batch_size=32, shuffle=True, num_workers=0)
layers = torch.nn.ModuleList([dglnn.SAGEConv(8, 16, "mean"), dglnn.SAGEConv(16, 3, "mean")])
opt = torch.optim.Adam(layers.parameters(), lr=0.01)
losses = []
for step, (input_nodes, output_nodes, blocks) in enumerate(loader):
    h = blocks[0].srcdata["feat"]
    for layer, block in zip(layers, blocks):
        h = layer(block, h)
    loss = F.cross_entropy(h, blocks[-1].dstdata["label"])
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    if step == 1:
        break
"""

DGL_GAT_FILE: Final = """\
import dgl
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler
from dgl.nn import GATConv

graphs, _ = dgl.load_graphs("graph.bin")
g = graphs[0]
g = dgl.remove_self_loop(g)
g = dgl.add_self_loop(g)
seeds = torch.nonzero(g.ndata["train_mask"], as_tuple=True)[0]
loader = DataLoader(g, seeds, NeighborSampler([5, 5]), batch_size=32, shuffle=True, drop_last=False)
first, second = GATConv(8, 4, num_heads=2), GATConv(8, 3, num_heads=1)
losses = []
for _, _, blocks in loader:
    h = F.elu(first(blocks[0], blocks[0].srcdata["feat"]).flatten(1))
    h = second(blocks[1], h).mean(1)
    loss = F.cross_entropy(h, blocks[-1].dstdata["label"])
    loss.backward()
    losses.append(loss.item())
    if len(losses) == 2:
        break
"""

DGL_LINK_FILE: Final = """\
import dgl
import dgl.function as fn
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler, as_edge_prediction_sampler, negative_sampler


def to_bidirected_with_reverse_mapping(g):
    g_simple, mapping = dgl.to_simple(
        dgl.add_reverse_edges(g), return_counts="count", writeback_mapping=True
    )
    c = g_simple.edata["count"]
    num_edges = g.num_edges()
    mapping_offset = torch.zeros(g_simple.num_edges() + 1, dtype=g_simple.idtype)
    mapping_offset[1:] = c.cumsum(0)
    idx = mapping.argsort()
    idx_uniq = idx[mapping_offset[:-1]]
    reverse_idx = torch.where(idx_uniq >= num_edges, idx_uniq - num_edges, idx_uniq + num_edges)
    reverse_mapping = mapping[reverse_idx]
    src1, dst1 = g_simple.edges()
    src2, dst2 = g_simple.find_edges(reverse_mapping)
    assert (src1 == dst2).all()
    return g_simple, reverse_mapping


(g,), _ = dgl.load_graphs("graph.bin")
g, reverse_eids = to_bidirected_with_reverse_mapping(g)
seed_edges = torch.arange(g.num_edges())
sampler = NeighborSampler([5, 5], prefetch_node_feats=["feat"])
sampler = as_edge_prediction_sampler(
    sampler, exclude="reverse_id", reverse_eids=reverse_eids, negative_sampler=negative_sampler.Uniform(1)
)
dataloader = DataLoader(g, seed_edges, sampler, batch_size=64, shuffle=True, drop_last=False, num_workers=0)
layers = torch.nn.ModuleList([dglnn.SAGEConv(8, 16, "mean"), dglnn.SAGEConv(16, 16, "mean")])


def score(graph, h):
    with graph.local_scope():
        graph.ndata["h"] = h
        graph.apply_edges(fn.u_dot_v("h", "h", "score"))
        return graph.edata["score"]


losses = []
for input_nodes, pair_graph, neg_pair_graph, blocks in dataloader:
    h = blocks[0].srcdata["feat"]
    for layer, block in zip(layers, blocks):
        h = layer(block, h)
    pos, neg = score(pair_graph, h), score(neg_pair_graph, h)
    labels = torch.cat([torch.ones_like(pos), torch.zeros_like(neg)])
    loss = F.binary_cross_entropy_with_logits(torch.cat([pos, neg]), labels)
    loss.backward()
    losses.append(loss.item())
    if len(losses) == 2:
        break
"""

DGL_TYPED_FILE: Final = """\
import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F

(hg,), _ = dgl.load_graphs("hetero.bin")
labels = hg.nodes["paper"].data["label"]
train_idx = torch.nonzero(hg.nodes["paper"].data["train_mask"], as_tuple=False).squeeze()
embed = torch.nn.ModuleDict({ntype: torch.nn.Embedding(hg.num_nodes(ntype), 8) for ntype in hg.ntypes})
first, second = (
    dglnn.HeteroGraphConv({etype: dglnn.GraphConv(8, 8, norm="right") for etype in hg.etypes}) for _ in range(2)
)
sampler = dgl.dataloading.MultiLayerNeighborSampler([4, 4])
loader = dgl.dataloading.DataLoader(hg, {"paper": train_idx}, sampler, batch_size=16, shuffle=True)
losses = []
for input_nodes, seeds, blocks in loader:
    h = {ntype: embed[ntype](ids) for ntype, ids in input_nodes.items()}
    h = second(blocks[1], first(blocks[0], h))
    loss = F.cross_entropy(h["paper"], labels[seeds["paper"]])
    loss.backward()
    losses.append(loss.item())
    if len(losses) == 2:
        break
"""

PYG_SAGE_FILE: Final = """\
import torch
import torch.nn.functional as F
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

data = torch.load("graph.pt", weights_only=False)
kwargs = {"batch_size": 32, "num_workers": 2}
loader = NeighborLoader(data, num_neighbors=[5, 5], input_nodes=data.train_mask, shuffle=True, **kwargs)
model = GraphSAGE(data.num_features, 16, num_layers=2, out_channels=3)
losses = []
for batch in loader:
    out = model(batch.x, batch.edge_index)[: batch.batch_size]
    loss = F.cross_entropy(out, batch.y[: batch.batch_size])
    loss.backward()
    losses.append(loss.item())
    if len(losses) == 2:
        break
"""

PYG_GAT_LOOP: Final = """\
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GATConv

src, dst, feat, label, split = torch.load("arrays.pt", weights_only=True)
data = Data(x=feat, edge_index=torch.stack([src, dst]), y=label)
for number, name in enumerate(["train_mask", "val_mask", "test_mask"]):
    data[name] = split == number
data = T.NormalizeFeatures()(data)
data = T.ToUndirected()(data)
loader = NeighborLoader(data, [5, 5], data.train_mask, batch_size=32, shuffle=True)
first, second = GATConv(8, 4, heads=2), GATConv(8, 3, heads=1)
losses = []
for batch in loader:
    h = F.elu(first(batch.x, batch.edge_index))
    out = second(h, batch.edge_index)[: batch.batch_size]
    loss = F.cross_entropy(out, batch.y[: batch.batch_size])
    loss.backward()
    losses.append(loss.item())
    if len(losses) == 2:
        break
num_train = int(data.train_mask.sum())
"""

PYG_LINK_FILE: Final = """\
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.loader import LinkNeighborLoader
from torch_geometric.nn import GraphSAGE

data = torch.load("graph.pt", weights_only=False)
data = T.ToUndirected()(data)
split = T.RandomLinkSplit(num_val=0.1, num_test=0.1, is_undirected=True, add_negative_train_samples=False)
train_data, val_data, test_data = split(data)
loader = LinkNeighborLoader(
    train_data,
    num_neighbors=[5, 5],
    edge_label_index=train_data.edge_label_index,
    edge_label=train_data.edge_label,
    neg_sampling="binary",
    batch_size=64,
    shuffle=True,
    num_workers=2,
)
val_loader = LinkNeighborLoader(
    val_data,
    num_neighbors=[5, 5],
    edge_label_index=val_data.edge_label_index,
    edge_label=val_data.edge_label,
    batch_size=64,
    num_workers=2,
)
model = GraphSAGE(8, 16, num_layers=2)
losses = []
for batch in [next(iter(loader)), next(iter(val_loader))]:
    z = model(batch.x, batch.edge_index)
    scores = (z[batch.edge_label_index[0]] * z[batch.edge_label_index[1]]).sum(-1)
    loss = F.binary_cross_entropy_with_logits(scores, batch.edge_label)
    loss.backward()
    losses.append(loss.item())
"""

PYG_TYPED_FILE: Final = """\
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv, to_hetero

data = torch.load("hetero.pt", weights_only=False)
data = T.ToUndirected()(data)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv((-1, -1), 16), SAGEConv((-1, -1), 3)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


model = to_hetero(Net(), data.metadata())
loader = NeighborLoader(
    data, num_neighbors=[5, 5], input_nodes=("paper", data["paper"].train_mask), batch_size=16, shuffle=True
)
losses = []
for batch in loader:
    size = batch["paper"].batch_size
    out = model(batch.x_dict, batch.edge_index_dict)["paper"][:size]
    loss = F.cross_entropy(out, batch["paper"].y[:size])
    loss.backward()
    losses.append(loss.item())
    if len(losses) == 2:
        break
"""

RUN: Final = (
    "DGL_BUILT", "DGL_SAGE_FILE", "DGL_GAT_FILE", "DGL_LINK_FILE", "DGL_TYPED_FILE",
    "PYG_BUILT", "PYG_SAGE_FILE", "PYG_GAT_LOOP", "PYG_LINK_FILE", "PYG_TYPED_FILE",
)  # fmt: skip
"""Those that are changed, and run to their end: a verdict on them is a promise."""

SCRIPTS: Final = {name: text for name, text in list(globals().items()) if name.startswith(("DGL_", "PYG_"))}
