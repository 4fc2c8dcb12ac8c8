"""Every planner of ours passes the conformance suite: Belady's, and each policy in the form of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.cache import make_planner
from gloader.testing.planner_suite import SuperbatchPlannerSuite

if TYPE_CHECKING:
    from gloader.cache import PlannerName, SuperbatchPlanner


@pytest.mark.reliability("C11")
class OurPlannerSuite(SuperbatchPlannerSuite):
    name: PlannerName
    settings: dict[str, Any] = {}  # noqa: RUF012 - a constant

    def make_planner(self, *, num_nodes: int, capacity: int) -> SuperbatchPlanner:
        hot = np.arange(num_nodes)[::-1]
        return make_planner(self.name, num_nodes=num_nodes, capacity=capacity, hot=hot, **self.settings)


class TestBelady(OurPlannerSuite):
    name = "belady"


class TestBeladyReset(OurPlannerSuite):
    name = "belady"
    settings = {"reset": True}  # noqa: RUF012 - a constant


class TestBeladyHashed(OurPlannerSuite):
    name = "belady"
    settings = {"expected_accesses": 1}  # noqa: RUF012 - a constant


class TestLru(OurPlannerSuite):
    name = "lru"


class TestFifo(OurPlannerSuite):
    name = "fifo"


class TestClock(OurPlannerSuite):
    name = "clock"


class TestSieve(OurPlannerSuite):
    name = "sieve"


class TestS3Fifo(OurPlannerSuite):
    name = "s3fifo"


class TestStatic(OurPlannerSuite):
    name = "static"


class TestNone(OurPlannerSuite):
    name = "none"
