"""Records about the stages' work: totals per epoch, timeline, watchdog and explanations."""
