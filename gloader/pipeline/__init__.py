"""The stages of a loader, a verb a file, and what carries batches from one to the next."""
