"""A PyTorch Geometric loop like that of PyG's ``examples/reddit.py``: sampled training, layer-wise evaluation.

The two files pyg_layerwise*.py differ in where their mini-batches come from.
"""

import common
import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

from gloader.adapters.pyg import GraphData, NeighborLoader

dataset, epochs = common.parse()
data = GraphData(dataset)
seeds = {"input_nodes": data.train_mask, "batch_size": 512, "shuffle": True}
train_loader = NeighborLoader(data, [10, 10], **seeds, features="ssd")
every_node = NeighborLoader(data, [-1], batch_size=1024, features="ssd")


class Sage(torch.nn.Module):
    """Two layers, which see the sampled hops in training and all in-edges in evaluation."""

    def __init__(self, width_in, hidden, width_out):
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(width_in, hidden), SAGEConv(hidden, width_out)])

    def layer(self, depth, x, edge_index):
        """Return the outputs of one layer."""
        x = self.convs[depth](x, edge_index)
        return x if depth == len(self.convs) - 1 else F.dropout(F.relu(x), 0.5, self.training)

    def forward(self, x, edge_index):
        """Return the outputs of the last layer; those of the seeds come first."""
        for depth in range(len(self.convs)):
            x = self.layer(depth, x, edge_index)
        return x

    @torch.no_grad()
    def inference(self, loader):
        """Return the scores of all nodes, computed a layer at a time."""
        hidden = None
        for depth in range(len(self.convs)):
            parts = []
            for batch in loader:
                x = batch.x if hidden is None else hidden[batch.n_id]
                parts.append(self.layer(depth, x, batch.edge_index)[: batch.batch_size])
            hidden = torch.cat(parts)
        return hidden


def train(model, optimizer):
    """Do one epoch, and return its loss and its accuracy."""
    model.train()
    loss_sum = right = 0
    for batch in train_loader:
        labels = batch.y[: batch.batch_size]
        scores = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += float(loss.detach()) * batch.batch_size
        right += int((scores.argmax(dim=1) == labels).sum())
    return loss_sum / len(train_loader.dataset), right / len(train_loader.dataset)


def evaluate(model):
    """Return the accuracies on the training, validation and test nodes."""
    model.eval()
    is_right = model.inference(every_node).argmax(dim=1) == data.y
    return [float(is_right[mask].float().mean()) for mask in (data.train_mask, data.val_mask, data.test_mask)]


model = Sage(data.num_features, 64, dataset.num_classes)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, epochs + 1):
    loss, seen = train(model, optimizer)
    print(f"epoch {epoch}: loss {loss:.4f}, accuracy of the batches {seen:.4f}")
print("train {:.4f}, valid {:.4f}, test accuracy {:.4f}".format(*evaluate(model)))
