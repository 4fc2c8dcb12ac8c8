"""Records of the stages' work: an epoch's sums, timeline, watchdog, explanations."""
