"""Opening the one loader of a machine, on the rank that loads and on the others."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gloader.distributed.host import LoaderHost
from gloader.distributed.remote_tier import RemoteTier
from gloader.distributed.team import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.dataset import Dataset
    from gloader.distributed.place import Place
    from gloader.distributed.team import Team
    from gloader.pipeline.open_device_tier import DeviceSettings, OtherDevices
    from gloader.pipeline.open_tiers import FeatureTier
    from gloader.ssd_store import FeatureStore


@contextmanager
def telling_others(place: Place) -> Iterator[None]:
    """Tell the other ranks where this one cannot build its loader: they wait for it in `assemble`."""
    try:
        yield
    except BaseException as error:
        if place.is_collective:
            refuse(place, error)
        raise


def open_shared(
    team: Team,
    dataset: Dataset,
    open_tier: Callable[[OtherDevices], FeatureTier],
    *,
    device: DeviceSettings,
    open_store: Callable[[], FeatureStore],
    stall_timeout_s: float,
) -> tuple[FeatureTier | RemoteTier, LoaderHost | None]:
    """Open the tiers on the rank that loads for ``team``, or the connection to it. Closes ``team``.

    Parameters
    ----------
    open_tier : opens the tiers, with the devices of the other ranks
    device, open_store : of a rank that is loaded for, see `RemoteTier`

    Returns
    -------
    what holds the features, and on the rank that loads, what serves the others

    Raises
    ------
    RankError
        Another rank is gone, or could not open the tiers.
    """
    with team:
        if not team.is_host:
            remote = RemoteTier(
                dataset, team, device=device, open_store=open_store, stall_timeout_s=stall_timeout_s
            )
            return remote, None
        host = LoaderHost(team, stall_timeout_s=stall_timeout_s)
        try:
            tier = open_tier(host.devices)
        except BaseException as error:
            host.refuse(error)
            raise
        try:
            host.welcome(tier, dim=dataset.feature_dim)
        except BaseException:
            host.close()
            tier.close()
            raise
        return tier, host
