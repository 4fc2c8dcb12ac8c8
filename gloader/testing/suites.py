"""Conformance suites, one per interface that others can implement, for test classes to inherit.

See ``docs/extending.md``.
"""

from gloader.testing.device_suite import DeviceSuite
from gloader.testing.hetero_sampler_suite import HeteroSamplerSuite
from gloader.testing.planner_suite import SuperbatchPlannerSuite
from gloader.testing.sampler_suite import SamplerSuite
from gloader.testing.source_suites import FeatureSourceSuite, MissSourceSuite, make_features, same_bits, widen

__all__ = [
    "DeviceSuite",
    "FeatureSourceSuite",
    "HeteroSamplerSuite",
    "MissSourceSuite",
    "SamplerSuite",
    "SuperbatchPlannerSuite",
    "make_features",
    "same_bits",
    "widen",
]
