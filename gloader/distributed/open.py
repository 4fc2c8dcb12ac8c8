"""Opening what a rank loads with: tiers of its own, or those of the one loader of its machine."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from gloader.distributed.agree import Facts, assemble, refuse
from gloader.distributed.client_run import RemoteTier
from gloader.distributed.host import LoaderHost
from gloader.distributed.loader_parts import LoaderParts
from gloader.pipeline.open_tiers import open_feature_tier
from gloader.pipeline.seed_order import named_facts
from gloader.pipeline.table_files import feature_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.config import LoaderSettings
    from gloader.dataset import Dataset
    from gloader.distributed.agree import Membership, Team
    from gloader.pipeline.device_room import DryRun
    from gloader.pipeline.seed_order import SeedPlan
    from gloader.pipeline.tiers import FeatureTier


@contextmanager
def telling_others(membership: Membership) -> Iterator[None]:
    """Tell the other ranks if the block, which builds the loader, fails: they wait for this rank in `assemble`."""
    try:
        yield
    except BaseException as error:
        if membership.is_collective:
            refuse(membership, error)
        raise


def open_for_rank(
    membership: Membership,
    dataset: Dataset,
    seeds: SeedPlan,
    settings: LoaderSettings,
    *,
    dry_run: DryRun | None = None,
) -> LoaderParts:
    """Open what a rank loads with: tiers of its own, or those that the ranks of its machine share.

    Collective where all ranks of the process group build their loaders together.

    Parameters
    ----------
    membership : this rank's part of every step
    dataset : what is sampled, and where the features are
    seeds : those of the batches of this rank
    settings : those of the loader
    dry_run : one step of the model, to see what it takes of this rank's device

    Raises
    ------
    BudgetError
        The budget is too small.
    RankSettingsError
        Ranks differ in what has to be the same.
    RankError
        Another rank is gone, or could not open its part.
    """
    open_tier = partial(open_feature_tier, dataset, seeds, settings, dry_run=dry_run)
    if not membership.is_collective:
        return LoaderParts(open_tier())
    # What bounds the batches on their way to another rank are the buffers of their rows: without any, each loads alone.
    has_rows = bool(feature_rows(dataset, settings))
    membership = replace(membership, is_shared=membership.is_shared and has_rows)
    team = assemble(membership, _facts(dataset, seeds, settings))
    num_ranks = len(team.ranks)
    if num_ranks == 1:
        team.close()
        return LoaderParts(open_tier(num_loaders=team.num_local))
    remote = partial(RemoteTier, dataset, team, settings, dry_run=dry_run, is_typed=seeds.is_typed)
    with team:
        if not team.is_host:
            return LoaderParts(remote(), num_ranks=num_ranks)
        return _open_as_host(team, partial(open_tier, num_ranks=num_ranks), settings)


def _open_as_host(team: Team, open_tier: Callable[..., FeatureTier], settings: LoaderSettings) -> LoaderParts:
    """Open the tiers on the rank that loads for ``team``, together with the devices of the other ranks."""
    # Connected before the tiers are opened, so that the devices of all ranks can be asked while they are.
    host = LoaderHost(team, stall_timeout_s=settings.stages.stall_timeout_s)
    try:
        tier = open_tier(others=host.devices)
    except BaseException as error:
        host.refuse(error)
        raise
    try:
        host.welcome(tier)
    except BaseException:
        host.close()
        tier.close()
        raise
    return LoaderParts(tier, host, num_ranks=len(team.ranks))


def _facts(dataset: Dataset, seeds: SeedPlan, settings: LoaderSettings) -> Facts:
    """Return what has to be the same on every rank. Threads may differ: those of the rank that loads count."""
    order, links = seeds.order, seeds.links
    kind = "HeteroLoader" if seeds.is_typed else "Loader"
    batches = {
        **named_facts(dataset, order, settings.sampling, None if links is None else links.facts()),
        "batch_size": order.batch_size,
        "loader": kind if links is None else f"LinkLoader over a {kind}",
        "seed": order.seed,
        "epochs": settings.stages.epochs,
    }
    machine = {
        **asdict(settings.memory),
        **asdict(settings.reading),
        "device_hotness": settings.device.device_hotness,
        "sampling_device": settings.device.sampling_device,
        "stall_timeout_s": settings.stages.stall_timeout_s,
    }
    return Facts(
        batches=batches,
        machine=machine,
        place=torch.device(settings.device.device),
        is_cache_sized=settings.device.device_cache != "auto",
    )
