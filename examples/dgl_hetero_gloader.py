"""Node classification on a graph of several types with DGL.

The two files dgl_hetero*.py differ in where their mini-batches come from.
"""

import common
import torch
import torch.nn.functional as F
from dgl_hetero_model import Net

from gloader import Dataset
from gloader.adapters.dgl import BlockLoader

FANOUTS, HOW = [10, 10], {"batch_size": 512, "shuffle": True}
X, Y = "feat", "label"  # node data


def make_loader(dataset: Dataset, seeds: torch.Tensor):
    """Return the mini-batches around ``seeds``, which are papers."""
    return BlockLoader(dataset, seeds=seeds, fanouts=FANOUTS, features="ssd", **HOW)


def outputs(model: Net, batch):
    """Return the scores of the seeds and their labels."""
    input_nodes, _, blocks = batch
    return model(input_nodes, blocks, blocks[0].srcdata[X]), blocks[-1].dstdata[Y]["paper"]


def main() -> None:
    """Train, then predict the test papers from sampled neighbourhoods."""
    dataset, epochs = common.parse_typed()
    model = Net(dataset)
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
