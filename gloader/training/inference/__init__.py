"""Layer-wise inference over all neighbours, out of core."""
