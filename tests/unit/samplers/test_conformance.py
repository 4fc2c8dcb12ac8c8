"""Every sampler of ours passes the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gloader.errors import ConfigError
from gloader.samplers import make_sampler, swept_words
from gloader.testing.sampler_suite import SamplerSuite

if TYPE_CHECKING:
    from gloader.samplers import CscGraph, Topology
    from gloader.types import Sampler


class OurSamplerSuite(SamplerSuite):
    takes_batch_seeds = True
    spec: str
    fanouts = (10, 5)
    settings: dict[str, Any] = {}  # noqa: RUF012 - a constant

    def make_sampler(self, graph: Topology, *, seed: int) -> Sampler:
        return make_sampler(self.spec, graph, self.fanouts, seed, **self.settings)

    def test_the_table_says_whether_it_can_be_swept(self, graph: CscGraph) -> None:
        sampler: Any = self.make_sampler(graph, seed=0)
        try:
            can_be_swept = sampler.rule.num_hops == len(self.fanouts)
        except (AttributeError, ConfigError):
            can_be_swept = False
        assert can_be_swept == (swept_words(self.spec) > 0)


class TestNeighbor(OurSamplerSuite):
    spec = "neighbor"


class TestNeighborWithReplacement(OurSamplerSuite):
    spec = "neighbor:replace=true"


class TestNeighborMerged(OurSamplerSuite):
    spec = "neighbor"
    settings = {"layout": "merged"}  # noqa: RUF012 - a constant


class TestAllNeighbors(OurSamplerSuite):
    spec = "neighbor"
    fanouts = (-1, -1)
    is_random = False


class TestWeighted(OurSamplerSuite):
    spec = "weighted"


class TestWeightedWithReplacement(OurSamplerSuite):
    spec = "weighted:replace=true"


class TestWeightedMerged(OurSamplerSuite):
    spec = "weighted"
    settings = {"layout": "merged"}  # noqa: RUF012 - a constant


class TestLabor(OurSamplerSuite):
    spec = "labor"


class TestLaborIterated(OurSamplerSuite):
    spec = "labor:iterations=1"


class TestLadies(OurSamplerSuite):
    spec = "ladies"
    fanouts = (200, 100)


class TestFastGcn(OurSamplerSuite):
    spec = "fastgcn"
    fanouts = (200, 100)
