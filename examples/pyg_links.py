"""Link prediction with PyTorch Geometric: GraphSAGE and a dot product.

The two files pyg_links*.py differ in where their mini-batches come from.
"""

import common
import torch
import torch.nn.functional as F
import torch_geometric as pyg

FANOUTS, BATCH, HIDDEN = [10, 10], 512, 64


def make_loader(dataset, edges):
    """Return the mini-batches of the link table ``edges``, with a negative for each edge."""
    pairs = common.links(dataset, edges)
    index = torch.stack([torch.from_numpy(pairs.sources), torch.from_numpy(pairs.destinations)])
    how = {"batch_size": BATCH, "shuffle": True, "neighbor_sampler": common.sampler_for(dataset, FANOUTS)}
    return pyg.loader.LinkNeighborLoader(dataset.to_pyg(), FANOUTS, index, neg_sampling="binary", **how)


def outputs(model, batch):
    """Return the scores and the labels of the pairs."""
    found = model(
        batch.x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    source, destination = batch.edge_label_index
    return (found[source] * found[destination]).sum(dim=1), batch.edge_label


@torch.no_grad()
def evaluate(model, batches) -> float:
    """Return how often an edge has a higher score than a pair that is none."""
    model.eval()
    found = [torch.cat(parts) for parts in zip(*(outputs(model, batch) for batch in batches), strict=True)]
    model.train()
    scores, labels = found
    return common.auc(scores[labels > 0], scores[labels == 0])


def main() -> None:
    """Train, then score the edges that were held out."""
    dataset, epochs = common.parse_links()
    model = pyg.nn.GraphSAGE(dataset.feature_dim, HIDDEN, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train, test = (make_loader(dataset, edges) for edges in ("train", "test"))
    for epoch in range(epochs):
        total = 0.0
        for batch in train:
            loss = F.binary_cross_entropy_with_logits(*outputs(model, batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: loss {total / len(train):.4f}")
    print(f"test AUC {evaluate(model, test):.4f}")


if __name__ == "__main__":
    main()
