"""Link prediction with DGL: GraphSAGE and a dot product.

The two files dgl_links*.py differ in where their mini-batches come from.
"""

import common
import torch
import torch.nn.functional as F
from dgl_model import HIDDEN, SAGE

from gloader import Dataset, Uniform
from gloader.adapters.dgl import BlockLoader, LinkBlockLoader

FANOUTS, BATCH = [10, 10], 512
X = "feat"  # node data


def make_loader(dataset: Dataset, edges: str):
    """Return the mini-batches of the link table ``edges``, with a negative for each edge, which pass no message."""
    how = {"negatives": Uniform(1), "exclude": "self", "fanouts": FANOUTS, "batch_size": BATCH}
    return LinkBlockLoader(dataset, edges=edges, features="ssd", **how)


def make_node_loader(dataset: Dataset, nodes: torch.Tensor):
    """Return the mini-batches around ``nodes``, in their order."""
    how = {"fanouts": FANOUTS, "batch_size": BATCH, "shuffle": False}
    return BlockLoader(dataset, seeds=nodes, features="ssd", **how)


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
