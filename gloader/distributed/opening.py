"""Opening the one loader of a machine, on the rank that loads and on the others."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gloader.distributed.host import LoaderHost
from gloader.distributed.remote_tier import RemoteTier
from gloader.distributed.team import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from gloader.dataset import Dataset
    from gloader.distributed.place import Place
    from gloader.distributed.team import Team
    from gloader.feature_tier import FeatureTier


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
    open_tier: Callable[[], FeatureTier],
    *,
    device: torch.device,
    stall_timeout_s: float,
) -> tuple[FeatureTier | RemoteTier, LoaderHost | None]:
    """Open the tiers on the rank that loads for ``team``, or the connection to it. Closes ``team``.

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
            return RemoteTier(dataset, team, device=device, stall_timeout_s=stall_timeout_s), None
        host = LoaderHost(team, stall_timeout_s=stall_timeout_s)
        try:
            tier = open_tier()
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
