"""Link tables: edges to predict, given or from an edge split, which are located in the graph out of core."""
