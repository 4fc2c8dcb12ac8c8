"""A script of DGL: node classification in mini-batches, accuracy by layer-wise inference over all neighbours."""

import argparse
import json

import dgl
import dgl.function as fn
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, MultiLayerFullNeighborSampler, NeighborSampler
from torch import nn


class MeanConv(nn.Module):
    """A layer that passes messages by itself."""

    def __init__(self, in_size, out_size):
        super().__init__()
        self.linear = nn.Linear(2 * in_size, out_size)

    def forward(self, block, h):
        with block.local_scope():
            block.srcdata["h"] = h
            block.dstdata["h"] = h[: block.num_dst_nodes()]
            block.apply_edges(fn.u_dot_v("h", "h", "alike"))
            block.edata["alike"] = torch.sigmoid(block.edata["alike"])
            block.update_all(fn.u_mul_e("h", "alike", "m"), fn.mean("m", "neigh"))
            return self.linear(torch.cat([block.dstdata["h"], block.dstdata["neigh"]], dim=1))


def make_layer(model, in_size, out_size, *, is_last):
    if model == "sage":
        return dglnn.SAGEConv(in_size, out_size, "mean")
    if model == "gcn":
        return dglnn.GraphConv(in_size, out_size, norm="right", allow_zero_in_degree=True)
    if model == "gat":
        heads = 1 if is_last else 4
        return dglnn.GATConv(in_size, out_size // heads, heads, allow_zero_in_degree=True)
    return MeanConv(in_size, out_size)


class Network(nn.Module):
    def __init__(self, model, in_size, hid_size, out_size):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                make_layer(model, in_size, hid_size, is_last=False),
                make_layer(model, hid_size, out_size, is_last=True),
            ]
        )
        self.dropout = nn.Dropout(0.5)
        self.hid_size, self.out_size = hid_size, out_size

    def layer(self, number, block, h):
        h = self.layers[number](block, h).flatten(1)
        return h if number == len(self.layers) - 1 else self.dropout(F.relu(h))

    def forward(self, blocks, x):
        h = x
        for number, block in enumerate(blocks):
            h = self.layer(number, block, h)
        return h

    def inference(self, g, device, batch_size):
        """Layer after layer, all nodes, all of their neighbours."""
        feat = g.ndata["feat"]
        sampler = MultiLayerFullNeighborSampler(1, prefetch_node_feats=["feat"])
        dataloader = DataLoader(
            g,
            torch.arange(g.num_nodes()).to(g.device),
            sampler,
            device=device,
            batch_size=batch_size,
            shuffle=False,
            drop_last=False,
            num_workers=0,
        )
        for number in range(len(self.layers)):
            is_last = number == len(self.layers) - 1
            y = torch.empty(g.num_nodes(), self.out_size if is_last else self.hid_size)
            feat = feat.to(device)
            for input_nodes, output_nodes, blocks in dataloader:
                h = self.layer(number, blocks[0], feat[input_nodes])
                # Seeds come one after another.
                y[output_nodes[0] : output_nodes[-1] + 1] = h.to(y.device)
            feat = y
        return y


def train(args, g):
    device = torch.device("cpu")
    train_idx = g.ndata["train_mask"].nonzero().squeeze(1)
    num_classes = int(g.ndata["label"].max()) + 1
    model = Network(args.model, g.ndata["feat"].shape[1], args.hidden, num_classes).to(device)
    sampler = NeighborSampler([10, 10], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    loader = DataLoader(
        g,
        train_idx.to(g.device),
        sampler,
        device=device,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=False,
        num_workers=0,
        use_uva=False,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=5e-4)
    losses = []
    for _ in range(args.epochs):
        model.train()
        for step, (input_nodes, output_nodes, blocks) in enumerate(loader):
            blocks = [block.int().to(device) for block in blocks]
            x, y = blocks[0].srcdata["feat"], blocks[-1].dstdata["label"]
            assert len(x) == len(input_nodes) == blocks[0].number_of_src_nodes()
            assert len(y) == len(output_nodes)
            loss = F.cross_entropy(model(blocks, x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step + 1 == args.steps:
                break
    return model, losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("graph")
    parser.add_argument("--model", choices=["sage", "gcn", "gat", "own"], default="sage")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=0, help="of an epoch; 0 are all")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    dgl.seed(args.seed)
    (g,), _ = dgl.load_graphs(args.graph)
    model, losses = train(args, g)
    model.eval()
    with torch.no_grad():
        predicted = model.inference(g, torch.device("cpu"), 4096).argmax(1)
    is_right = (predicted == g.ndata["label"]).float()
    accuracy = {name: is_right[g.ndata[f"{name}_mask"]].mean().item() for name in ("val", "test")}
    print(json.dumps({"losses": losses, **accuracy}))


if __name__ == "__main__":
    main()
