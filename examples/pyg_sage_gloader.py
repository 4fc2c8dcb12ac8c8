"""GraphSAGE for node classification with PyTorch Geometric.

The two files pyg_sage*.py differ in where their mini-batches come from.
"""

import common
import torch
import torch.nn.functional as F
import torch_geometric as pyg

from gloader.adapters.pyg import NodeLoader

FANOUTS, BATCH, HIDDEN = [10, 10], 512, 64


def make_loader(dataset, seeds):
    """Return the mini-batches around ``seeds``."""
    return NodeLoader(dataset, seeds=seeds, fanouts=FANOUTS, batch_size=BATCH, features="ssd")


def outputs(model, batch):
    """Return the scores of the seeds, which are the first nodes, and their labels."""
    scores = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    return scores[: batch.batch_size], batch.y[: batch.batch_size]


def main() -> None:
    """Train, then predict the test nodes from sampled neighbourhoods."""
    dataset, epochs = common.parse()
    model = pyg.nn.GraphSAGE(
        dataset.feature_dim, HIDDEN, num_layers=2, out_channels=dataset.num_classes, dropout=0.5
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train, test = (make_loader(dataset, seeds) for seeds in common.splits(dataset))
    for epoch in range(epochs):
        total = 0.0
        for batch in train:
            loss = F.cross_entropy(*outputs(model, batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: loss {total / len(train):.4f}")
    found = common.accuracy(model, test, lambda batch: outputs(model, batch))
    print(f"test accuracy {found:.4f}")


if __name__ == "__main__":
    main()
