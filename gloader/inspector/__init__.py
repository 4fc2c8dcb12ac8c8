"""The misses of a cache of any size: an epoch is sampled, and every policy is evaluated on it."""

from gloader.inspector.access_trace import AccessTrace, sample_trace
from gloader.inspector.policy_misses import Inspection, inspect_trace

__all__ = ["AccessTrace", "Inspection", "inspect_trace", "sample_trace"]
