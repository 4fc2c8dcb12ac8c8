"""The steps that open a loader: measure the first batches, plan the memory, open the tiers."""
