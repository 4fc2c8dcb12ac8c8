"""Link tables, which list edges to predict: their rows are read or split off, and found in the graph, out of core."""
