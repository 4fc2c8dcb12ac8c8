"""The opening of the one loader of a machine, on the host and on the other ranks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gloader.distributed.agree import refuse
from gloader.distributed.client_run import RemoteTier
from gloader.distributed.host import LoaderHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.dataset import Dataset
    from gloader.distributed.agree import Membership, Team
    from gloader.pipeline.open_device import DeviceSettings, OtherDevices
    from gloader.pipeline.open_tiers import FeatureTier
    from gloader.ssd_store import FeatureStore


@contextmanager
def telling_others(membership: Membership) -> Iterator[None]:
    """Tell the other ranks if the block, which builds the loader, fails: they wait for this rank in `assemble`."""
    try:
        yield
    except BaseException as error:
        if membership.is_collective:
            refuse(membership, error)
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
    team : the ranks of this machine
    dataset : the same on all of them
    open_tier : opens the tiers on the host, given the devices of the other ranks
    device, open_store, stall_timeout_s : of the other ranks, see `RemoteTier`

    Returns
    -------
    What holds the features; and on the host, what serves the others.

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
        # Connected before the tiers are opened, so that the devices of all ranks can be asked while they are.
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
