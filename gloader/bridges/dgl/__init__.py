"""gloader under DGL's loops. Importing one of the modules imports DGL."""
