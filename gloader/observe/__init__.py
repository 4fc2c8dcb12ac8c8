"""The record of what the stages do: sums of an epoch, timeline, watchdog, explanations."""
