"""What a rank that is loaded for knows of the tiers, which are another rank's."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gloader.budget import MemoryPlan
from gloader.distributed.client import LoaderClient
from gloader.distributed.client_run import ClientRun
from gloader.ssd_store.superbatch_size import SuperbatchSize
from gloader.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from gloader.cache import MissCurve
    from gloader.dataset import Dataset
    from gloader.distributed.team import Team
    from gloader.reports import RunReports
    from gloader.stats import EpochStats
    from gloader.stream import BatchStream
    from gloader.trace import Tracer
    from gloader.types import FeatureSource, IdArray


class RemoteTier:
    """Stands for the `FeatureTier` of the rank that loads. Owns its connection until `close`.

    Topology and features are opened when they are asked for: mapped, and read from the SSD.
    """

    def __init__(self, dataset: Dataset, team: Team, *, device: torch.device, stall_timeout_s: float) -> None:
        self._dataset = dataset
        self._host = team.ranks[0]
        self._stack = ExitStack()
        self._client = LoaderClient(
            team, dim=dataset.feature_dim, device=device, stall_timeout_s=stall_timeout_s
        )
        self._stack.callback(self._client.close)
        self.plan = _plan(self._client.welcome["plan"])

    @cached_property
    def topology(self) -> Topology:
        """The graph, mapped."""
        return self._stack.enter_context(Topology(self._dataset.load_graph(in_memory=False)))

    @cached_property
    def source(self) -> FeatureSource:
        """All N feature rows, on the SSD."""
        return self._stack.enter_context(self._dataset.open_features())

    def explain(self) -> str:
        """Say which rank loads, and with what."""
        return f"rank {self._host} loads for all ranks of this machine:\n{self._client.welcome['text']}"

    def miss_curve(self, stats: EpochStats) -> MissCurve | None:  # noqa: ARG002 - as of `FeatureTier`
        """Return None: the rank that loads knows it."""
        return None

    def begin(
        self,
        *,
        stream: BatchStream,
        labels: IdArray,
        device: torch.device,
        tracer: Tracer | None,
        reports: RunReports,
    ) -> ClientRun:
        """Begin a run at the start of ``stream``, together with the other ranks of the machine."""
        return ClientRun(
            self._client, stream=stream, labels=labels, device=device, tracer=tracer, reports=reports
        )

    def close(self) -> None:
        """Release everything. Idempotent."""
        self._stack.close()


def _plan(fields: Mapping[str, Any]) -> MemoryPlan:
    size = SuperbatchSize(**fields["superbatch"])
    parts = tuple((str(name), int(num_bytes)) for name, num_bytes in fields["parts"])
    return MemoryPlan(**{**fields, "superbatch": size, "parts": parts})
