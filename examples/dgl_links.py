"""Link prediction with DGL: GraphSAGE and a dot product.

The two files dgl_links*.py differ in where their mini-batches come from.
"""

import common
import dgl
import torch
import torch.nn.functional as F
from dgl_model import HIDDEN, SAGE

from gloader import Dataset

FANOUTS, BATCH = [10, 10], 512
X = "feat"  # node data


def make_loader(dataset: Dataset, edges: str):
    """Return the mini-batches of the link table ``edges``, with a negative for each edge, which pass no message."""
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler(FANOUTS, prefetch_node_feats=[X]),
        exclude="self",
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
    )
    positions = torch.from_numpy(common.links(dataset, edges).positions)
    return dgl.dataloading.DataLoader(dataset.to_dgl(), positions, sampler, batch_size=BATCH, shuffle=True)


def make_node_loader(dataset: Dataset, nodes: torch.Tensor):
    """Return the mini-batches around ``nodes``, in their order."""
    sampler = dgl.dataloading.NeighborSampler(FANOUTS, prefetch_node_feats=[X])
    return dgl.dataloading.DataLoader(dataset.to_dgl(), nodes, sampler, batch_size=BATCH)


def score(graph, found):
    """Return the score of each pair of ``graph``, of what was found for its nodes."""
    source, destination = graph.edges(order="eid")
    return (found[source] * found[destination]).mean(dim=1)


@torch.no_grad()
def evaluate(model, dataset: Dataset) -> float:
    """Return how often an edge that was held out has a higher score than a pair of its source and any node."""
    model.eval()
    batches = make_node_loader(dataset, torch.arange(dataset.num_nodes))
    found = torch.cat([model(blocks, blocks[0].srcdata[X]) for _, _, blocks in batches])
    model.train()
    pairs = common.links(dataset, "test")
    sources = torch.from_numpy(pairs.sources)
    ends = torch.from_numpy(pairs.destinations), torch.randint(dataset.num_nodes, sources.shape)
    return common.auc(*((found[sources] * found[destinations]).sum(dim=1) for destinations in ends))


def main() -> None:
    """Train, then score the edges that were held out."""
    dataset, epochs = common.parse_links()
    model = SAGE(dataset.feature_dim, HIDDEN)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train = make_loader(dataset, "train")
    for epoch in range(epochs):
        total = 0.0
        for _, pair_graph, neg_graph, blocks in train:
            found = model(blocks, blocks[0].srcdata[X])
            right, wrong = score(pair_graph, found), score(neg_graph, found)
            labels = torch.cat([torch.ones_like(right), torch.zeros_like(wrong)])
            loss = F.binary_cross_entropy_with_logits(torch.cat([right, wrong]), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: loss {total / len(train):.4f}")
    print(f"test AUC {evaluate(model, dataset):.4f}")


if __name__ == "__main__":
    main()
