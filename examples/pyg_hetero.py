"""Node classification on a graph of several types with PyTorch Geometric.

The two files pyg_hetero*.py differ in where their mini-batches come from.
"""

import common
import torch
import torch.nn.functional as F
import torch_geometric as pyg

FANOUTS, BATCH, HIDDEN = [10, 10], 512, 64


def make_loader(dataset, seeds):
    """Return the mini-batches around ``seeds``, which are papers."""
    how = {"batch_size": BATCH, "shuffle": True, "neighbor_sampler": common.sampler_for(dataset, FANOUTS)}
    return pyg.loader.NeighborLoader(dataset.to_pyg(), FANOUTS, ("paper", seeds), **how)


class Net(torch.nn.Module):
    """Two layers with a convolution for each relation; types without features have embeddings."""

    def __init__(self, dataset):
        super().__init__()
        bare = [name for name, table in dataset.node_tables.items() if not table.has_features]
        self.rows = torch.nn.ModuleDict(
            {name: torch.nn.Embedding(dataset.node_tables[name].num_nodes, HIDDEN) for name in bare}
        )
        self.convs = torch.nn.ModuleList(
            pyg.nn.HeteroConv({name: pyg.nn.SAGEConv((-1, -1), HIDDEN) for name in dataset.relations})
            for _ in FANOUTS
        )
        self.out = torch.nn.Linear(HIDDEN, dataset.num_classes)

    def forward(self, batch):
        """Return the scores of the seeds, which are the first papers, and their labels."""
        x = batch.x_dict | {name: rows(batch[name].n_id) for name, rows in self.rows.items()}
        for conv in self.convs:
            x = {name: F.relu(rows) for name, rows in conv(x, batch.edge_index_dict).items()}
        seeds = batch["paper"].batch_size
        return self.out(F.dropout(x["paper"][:seeds], training=self.training)), batch["paper"].y[:seeds]


def main() -> None:
    """Train, then predict the test papers from sampled neighbourhoods."""
    dataset, epochs = common.parse_typed()
    model = Net(dataset)
    train, test = (make_loader(dataset, seeds) for seeds in common.splits(dataset))
    model(next(iter(train)))  # the convolutions learn their widths
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        total = 0.0
        for batch in train:
            loss = F.cross_entropy(*model(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: loss {total / len(train):.4f}")
    found = common.accuracy(model, test, model)
    print(f"test accuracy {found:.4f}")


if __name__ == "__main__":
    main()
