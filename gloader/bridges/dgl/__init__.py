"""gloader under the loops of DGL. Importing a module of it imports DGL."""
