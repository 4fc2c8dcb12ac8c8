"""What a rank that is loaded for knows of the tiers, which are another rank's."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from gloader.dataset.topology import Topology
from gloader.distributed.client import LoaderClient
from gloader.distributed.client_run import ClientRun
from gloader.distributed.device_agreement import FollowingDevice
from gloader.memory.plan import MemoryPlan
from gloader.pipeline.open_tiers import open_store
from gloader.ssd_store.cost.superbatch_size import SuperbatchSize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.cache import MissCurve
    from gloader.config import LoaderSettings
    from gloader.dataset import Dataset
    from gloader.distributed.team import Team
    from gloader.observe.epoch_stats import EpochStats
    from gloader.observe.timeline import TimelineRecorder
    from gloader.pipeline.feedback import RunFeedback
    from gloader.pipeline.open_device_tier import DryRun
    from gloader.pipeline.positions import BatchStream, SeedLabels
    from gloader.types import FeatureSource


class RemoteTier:
    """Stands for the `FeatureTier` of the rank that loads. Owns its connection until `close`.

    Topology and features are opened when they are asked for: mapped, and read from the SSD.

    Parameters
    ----------
    dataset : where topology and features are
    team : the ranks of this machine
    settings : those of the loader
    dry_run : one step of the model, to see what it takes of this rank's device

    Raises
    ------
    RankError
        Another rank is gone, or could not open its part.
    BaseException
        Whatever opening the device and filling it raises.
    """

    def __init__(
        self,
        dataset: Dataset,
        team: Team,
        settings: LoaderSettings,
        *,
        dry_run: DryRun | None,
    ) -> None:
        self._dataset = dataset
        self._open_store = partial(open_store, dataset, settings.reading)
        self._stall_timeout_s = settings.stages.stall_timeout_s
        self._host = team.ranks[0]
        self._stack = ExitStack()
        following = FollowingDevice(
            settings.device,
            num_nodes=dataset.num_nodes,
            dim=dataset.feature_dim,
            open_store=self._open_store,
            dry_run=dry_run,
        )
        self._client = LoaderClient(
            team,
            dim=dataset.feature_dim,
            place=torch.device(settings.device.device),
            answer=following.answer,
            stall_timeout_s=self._stall_timeout_s,
        )
        self._stack.callback(self._client.close)
        self.device = following.tier
        self.plan = _plan(self._client.welcome["plan"])

    @cached_property
    def topology(self) -> Topology:
        """The graph, mapped."""
        return self._stack.enter_context(Topology(self._dataset.load_graph(in_memory=False)))

    @cached_property
    def source(self) -> FeatureSource:
        """All N feature rows, on the SSD."""
        return self._stack.enter_context(self._open_store())

    def explain(self) -> str:
        """Say which rank loads, and with what, and what the device of this one holds."""
        host = f"rank {self._host} loads for all ranks of this machine:\n{self._client.welcome['text']}"
        return "\n".join(filter(None, [host, self.device.explain()]))

    def miss_curve(self, stats: EpochStats) -> MissCurve | None:  # noqa: ARG002 - as of `FeatureTier`
        """Return None: the rank that loads knows it."""
        return None

    def begin(
        self,
        *,
        stream: BatchStream,
        labels: SeedLabels,
        timeline: TimelineRecorder | None,
        feedback: RunFeedback,
    ) -> ClientRun:
        """Begin a run at the start of ``stream``, together with the other ranks of the machine."""
        return ClientRun(
            self._client,
            stream=stream,
            labels=labels,
            tier=self.device,
            timeline=timeline,
            feedback=feedback,
            stall_timeout_s=self._stall_timeout_s,
        )

    def close(self) -> None:
        """Release everything. Idempotent."""
        self._stack.close()


def _plan(fields: Mapping[str, Any]) -> MemoryPlan:
    size = SuperbatchSize(**fields["superbatch"])
    parts = tuple((str(name), int(num_bytes)) for name, num_bytes in fields["parts"])
    return MemoryPlan(**{**fields, "superbatch": size, "parts": parts})
