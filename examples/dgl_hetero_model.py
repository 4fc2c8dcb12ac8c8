"""Two layers with a convolution for each relation out of DGL's, for both forms of the example."""

import dgl
import torch
import torch.nn.functional as F

HIDDEN = 64


class Net(torch.nn.Module):
    """Types without features have embeddings."""

    def __init__(self, dataset) -> None:
        super().__init__()
        tables = dataset.node_tables
        self.rows = torch.nn.ModuleDict(
            {
                name: torch.nn.Embedding(table.num_nodes, HIDDEN)
                for name, table in tables.items()
                if not table.has_features
            }
        )
        for rows in self.rows.values():
            torch.nn.init.xavier_uniform_(rows.weight)
        widths = {name: table.feature_dim or HIDDEN for name, table in tables.items()}
        hidden = dict.fromkeys(tables, HIDDEN)
        self.layers = torch.nn.ModuleList(
            dgl.nn.HeteroGraphConv(
                {
                    name: dgl.nn.SAGEConv((dims[source], dims[target]), HIDDEN, "mean")
                    for source, name, target in dataset.relations
                },
                aggregate="mean",
            )
            for dims in (widths, hidden)
        )
        self.out = torch.nn.Linear(HIDDEN, dataset.num_classes)

    def forward(self, input_nodes, blocks, x):
        """Return the scores of the seeds, which are papers."""
        x = x | {name: rows(input_nodes[name]) for name, rows in self.rows.items()}
        for layer, block in zip(self.layers, blocks, strict=True):
            x = {name: F.relu(rows) for name, rows in layer(block, x).items()}
        return self.out(F.dropout(x["paper"], training=self.training))
