"""What a cache of any size would save: samples an epoch and evaluates every policy on it."""

from gloader.inspector.access_trace import Trace, sample_trace
from gloader.inspector.evaluate import Inspection, inspect_trace

__all__ = ["Inspection", "Trace", "inspect_trace", "sample_trace"]
