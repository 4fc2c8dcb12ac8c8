"""Scripts of each kind, of DGL and of PyG: `gloader migrate` changes them, and they run to their end."""

from typing import Final

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

DGL_TYPED_LINKS: Final = """\
import dgl
import dgl.function as fn
import dgl.nn as dglnn
import torch
import torch.nn.functional as F

(hg,), _ = dgl.load_graphs("hetero.bin")
etype = ("author", "writes", "paper")
sampler = dgl.dataloading.NeighborSampler([4, 4])
sampler = dgl.dataloading.as_edge_prediction_sampler(
    sampler, negative_sampler=dgl.dataloading.negative_sampler.Uniform(2)
)
seeds = {("author", "writes", "paper"): torch.arange(hg.num_edges("writes"))}
loader = dgl.dataloading.DataLoader(
    hg, {("author", "writes", "paper"): seeds[etype]}, sampler, batch_size=32, shuffle=True
)
embed = torch.nn.ModuleDict({ntype: torch.nn.Embedding(hg.num_nodes(ntype), 8) for ntype in hg.ntypes})
first, second = (
    dglnn.HeteroGraphConv({etype: dglnn.SAGEConv(8, 8, "mean") for etype in hg.etypes}) for _ in range(2)
)


def score(graph, h):
    with graph.local_scope():
        for ntype in graph.ntypes:
            if ntype in h:
                graph.nodes[ntype].data["h"] = h[ntype]
        graph.apply_edges(fn.u_dot_v("h", "h", "score"), etype=etype)
        return graph.edges[etype].data["score"]


losses = []
for input_nodes, pair_graph, neg_pair_graph, blocks in loader:
    h = {ntype: embed[ntype](ids) for ntype, ids in input_nodes.items()}
    h = second(blocks[1], first(blocks[0], h))
    loss = F.softplus(-score(pair_graph, h)).mean() + F.softplus(score(neg_pair_graph, h)).mean()
    loss.backward()
    losses.append(loss.item())
    if len(losses) == 2:
        break
"""

PYG_TYPED_LINKS: Final = """\
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.loader import LinkNeighborLoader
from torch_geometric.nn import SAGEConv, to_hetero

data = torch.load("hetero.pt", weights_only=False)
data = T.ToUndirected()(data)
train_data, val_data, test_data = T.RandomLinkSplit(
    num_val=0.1,
    num_test=0.2,
    neg_sampling_ratio=0.0,
    edge_types=[("author", "writes", "paper")],
    rev_edge_types=[("paper", "rev_writes", "author")],
)(data)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv((-1, -1), 16), SAGEConv((-1, -1), 16)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


model = to_hetero(Net(), train_data.metadata())
edge_type = ("author", "writes", "paper")
loader = LinkNeighborLoader(
    data=train_data,
    num_neighbors=[5, 5],
    neg_sampling_ratio=2.0,
    edge_label_index=(("author", "writes", "paper"), train_data["author", "writes", "paper"].edge_label_index),
    edge_label=train_data["author", "writes", "paper"].edge_label,
    batch_size=32,
    shuffle=True,
)
losses = []
for batch in loader:
    z = model(batch.x_dict, batch.edge_index_dict)
    source, destination = batch[edge_type].edge_label_index
    scores = (z["author"][source] * z["paper"][destination]).sum(-1)
    loss = F.binary_cross_entropy_with_logits(scores, batch[edge_type].edge_label)
    loss.backward()
    losses.append(loss.item())
    if len(losses) == 2:
        break
"""

PYG_FUNCTIONS: Final = """\
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv


def load():
    src, dst, feat, label, split = torch.load("arrays.pt", weights_only=True)
    graph = Data(x=feat, edge_index=torch.stack([src, dst]), y=label)
    for number, name in enumerate(["train", "val", "test"]):
        setattr(graph, f"{name}_mask", split == number)
    return T.Compose([T.ToUndirected(), T.AddSelfLoops()])(graph), 3


def make_loader(graph):
    return NeighborLoader(graph, [5, 5], input_nodes=graph.train_mask, batch_size=32, shuffle=True, num_workers=2)


data, num_classes = load()
first, second = SAGEConv(data.num_features, 16), SAGEConv(16, num_classes)
losses = []
for batch in make_loader(data):
    out = second(first(batch.x, batch.edge_index).relu(), batch.edge_index)[: batch.batch_size]
    loss = F.cross_entropy(out, batch.y[: batch.batch_size])
    loss.backward()
    losses.append(loss.item())
split = torch.load("arrays.pt", weights_only=True)[4]
num_train = int(data.train_mask.sum())
"""

DGL_FUNCTIONS: Final = """\
import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F


def build():
    src, dst, feat, label, split = torch.load("arrays.pt", weights_only=True)
    hg = dgl.heterograph({("item", "leads", "item"): (src, dst), ("item", "back", "item"): (dst, src)})
    hg.nodes["item"].data["feat"] = feat
    hg.nodes["item"].data["label"] = label
    for number, name in enumerate(["train", "val", "test"]):
        hg.nodes["item"].data[name + "_mask"] = split == number
    # made
    return hg


graph = build()
seeds = torch.nonzero(graph.nodes["item"].data["train_mask"], as_tuple=False).squeeze()
first, second = (
    dglnn.HeteroGraphConv({etype: dglnn.SAGEConv(8, 8, "mean") for etype in graph.etypes}) for _ in range(2)
)
sampler = dgl.dataloading.NeighborSampler([4, 4])
loader = dgl.dataloading.DataLoader(graph, {"item": seeds}, sampler, batch_size=32, shuffle=True)
losses = []
for input_nodes, output_nodes, blocks in loader:
    h = second(blocks[1], first(blocks[0], {"item": blocks[0].srcdata["feat"]}))
    loss = F.cross_entropy(h["item"], blocks[-1].dstdata["label"])
    loss.backward()
    losses.append(loss.item())
"""

RUNNING: Final = {name: text for name, text in list(globals().items()) if name.startswith(("DGL_", "PYG_"))}
