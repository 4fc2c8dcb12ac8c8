"""Link tables: edges that are predicted, dealt out or given, and found in the graph outside of memory."""
