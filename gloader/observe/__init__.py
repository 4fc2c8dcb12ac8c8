"""Observation of a loader: totals per epoch, timeline, watchdog, peak memory, and explanations as text."""
