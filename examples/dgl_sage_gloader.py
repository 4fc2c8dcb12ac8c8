"""GraphSAGE for node classification with DGL.

The two files dgl_sage*.py differ in where their mini-batches come from.
"""

import common
import torch
import torch.nn.functional as F
from dgl_model import SAGE

from gloader import Dataset
from gloader.adapters.dgl import BlockLoader

FANOUTS, BATCH = [10, 10], 512
X, Y = "feat", "label"  # node data


def make_loader(dataset: Dataset, seeds: torch.Tensor):
    """Return the mini-batches around ``seeds``."""
    return BlockLoader(dataset, seeds=seeds, fanouts=FANOUTS, batch_size=BATCH, features="ssd")


def main() -> None:
    """Train, then predict the test nodes from sampled neighbourhoods."""
    dataset, epochs = common.parse()
    model = SAGE(dataset.feature_dim, dataset.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train, test = (make_loader(dataset, seeds) for seeds in common.splits(dataset))
    for epoch in range(epochs):
        total = 0.0
        for _, _, blocks in train:
            scores = model(blocks, blocks[0].srcdata[X])
            loss = F.cross_entropy(scores, blocks[-1].dstdata[Y])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: loss {total / len(train):.4f}")
    found = common.accuracy(
        model,
        test,
        lambda batch: (model(batch[2], batch[2][0].srcdata[X]), batch[2][-1].dstdata[Y]),
    )
    print(f"test accuracy {found:.4f}")


if __name__ == "__main__":
    main()
