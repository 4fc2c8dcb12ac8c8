"""The parts behind a rank's loader: its own tiers, or the tiers that its machine's ranks share.

`open_for_rank` opens a loader in three steps. First all ranks agree on their settings (`assemble`). Then the host opens
its tiers and the clients connect to it; without a shared loader, each rank opens its own tiers. Last, the host sends
its plan to the clients.

- A rank is a process of torch's process group. A team is the ranks of one machine that share a loader. A collective
  call is made by all ranks, and waits for all of them.
- The host is a team's first rank, which loads for the team. The other ranks are its clients.
- A tier is the opened parts of a loader: topology, sampler, caches and buffers.
- In an exchange, machines send each other missing feature rows. A part is the range of rows that a machine stores.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import torch

from gloader.core.ids import RowRanges, hosts_by_part, require_all_rows
from gloader.core.signals import close_in_finalizer, uninterrupted
from gloader.distributed.agree import Facts, assemble, refuse
from gloader.distributed.client_run import RemoteTier
from gloader.distributed.exchange.host_group import Launch
from gloader.distributed.exchange.run_exchange import LaunchMachines
from gloader.distributed.host import LoaderHost
from gloader.errors import ConfigError
from gloader.pipeline.link_task import LinkTask
from gloader.pipeline.open.disk import feature_rows
from gloader.pipeline.open.load_plan import LoadRequest
from gloader.pipeline.open.row_slots import NO_EMBEDDINGS
from gloader.pipeline.open.tiers import open_feature_tier
from gloader.pipeline.seeds import named_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.config import LoaderSettings
    from gloader.dataset import Dataset
    from gloader.distributed.agree import Membership, Team
    from gloader.pipeline.consumer import Run
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.open.row_slots import GivenEmbeddings
    from gloader.pipeline.open.tiers import FeatureTier
    from gloader.pipeline.seeds import SeedPlan


_CLOSER = "gloader-close"  # name of a thread that closes a loader


class LoaderParts:
    """A loader's tier, its service for other ranks, and the current run. Owns them until `close`.

    It holds no reference to the loader: a finalizer with such a reference would keep the loader alive.

    Parameters
    ----------
    tier : makes the batches
    host : serves the other ranks; None without other ranks, or if another rank loads
    num_ranks : ranks that share this loader
    """

    def __init__(
        self, tier: FeatureTier | RemoteTier, host: LoaderHost | None = None, *, num_ranks: int = 1
    ) -> None:
        self.tier = tier
        self.host = host
        self.num_ranks = num_ranks
        self.run: Run | None = None
        self._is_whole = True  # False if a thread of an ended run is stuck
        self._pid = os.getpid()
        self._is_closed = False

    def end_run(self) -> None:
        """Stop the current run. Idempotent."""
        if self.run is not None:
            with uninterrupted():
                self._is_whole = self.run.close() and self._is_whole
                self.run = None

    def close(self) -> None:
        """Stop the run and release the tier, unless a stuck thread still uses it. Idempotent."""
        if os.getpid() != self._pid:
            self._is_closed = True
            return  # a forked child owns neither threads nor descriptors
        name = threading.current_thread().name
        if name.startswith("gloader-") and name != _CLOSER:
            # The garbage collector dropped the loader on one of the loader's threads, which cannot wait for itself.
            threading.Thread(target=self.close, name=_CLOSER).start()
            return
        with uninterrupted():
            self.end_run()
            if self.host is not None:
                self._is_whole = self.host.close() and self._is_whole
            if self._is_whole:
                self.tier.close()
            self._is_closed = True

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._is_closed


class PartsGuard:
    """Closes a loader's parts when it is dropped, if they are still open.

    A loader keeps the guard only while its parts are open. Python runs a signal's handler at the first line of
    ``__del__``, too, and ignores its exception there. So the loader drops the guard of closed parts inside
    `uninterrupted`, and a closed loader has no finalizer in which a Ctrl-C could be lost.

    Parameters
    ----------
    parts : the open parts
    """

    def __init__(self, parts: LoaderParts) -> None:
        self.parts = parts

    def finalize(self) -> None:
        """Close the parts; for finalizers, in which an error cannot be raised."""
        close_in_finalizer(self.parts.close)

    def __del__(self) -> None:
        # A signal may have dropped the finalizer's call before it began. At the end of the process, the guard of closed
        # parts may be dropped after the interpreter has cleared this module.
        if hasattr(self, "parts") and not self.parts.is_closed:
            self.finalize()


@contextmanager
def telling_others(membership: Membership) -> Iterator[None]:
    """Report an error of the block to the other ranks. While the block builds the loader, they wait in `assemble`."""
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
    embeddings: GivenEmbeddings = NO_EMBEDDINGS,
) -> PartsGuard:
    """Open the parts of a rank's loader: its own tiers, or the tiers that its machine's ranks share.

    Collective if all ranks of the process group build their loaders together.

    Parameters
    ----------
    membership : this rank's share of the seeds, and whether other ranks take part
    dataset : graph and features
    seeds : the seeds of this rank's batches
    settings : the loader's settings
    dry_run : one step of the model, to measure its memory on this rank's device
    embeddings : trained rows

    Raises
    ------
    BudgetError
        The budget is too small.
    ConfigError
        Trained rows were given, and the ranks have no loader in common.
    RankSettingsError
        Ranks differ in a required setting.
    RankError
        Another rank is gone, or could not open its part.
    """
    request = LoadRequest(
        dataset=dataset, seeds=seeds, settings=settings, dry_run=dry_run, embeddings=embeddings
    )
    if embeddings.trained and membership.world_size > 1 and not membership.is_collective:
        raise ConfigError(
            f"this loader is for rank {membership.rank} of {membership.world_size} without a process group, and ranks "
            "train an embedding together; call torch.distributed.init_process_group first, or give the loader all seeds"
        )
    if not membership.is_collective:
        require_all_rows([dataset.ranges])
        return PartsGuard(LoaderParts(open_feature_tier(request)))
    # Row buffers bound the number of batches in flight to another rank. Without rows, each rank loads for itself.
    # Steps bound it with trained rows.
    has_rows = bool(feature_rows(dataset, settings) or embeddings.trained)
    membership = replace(membership, is_shared=membership.is_shared and has_rows)
    team = assemble(membership, _facts(dataset, seeds, settings, embeddings))
    num_ranks = len(team.ranks)
    try:
        if embeddings.trained:
            _require_one_table(team)
        machines = _machines_of(team, dataset, settings, membership)
    except BaseException:  # all ranks get the same error
        team.close()
        raise
    request = replace(request, machines=machines, num_loaders=team.num_loaders, num_ranks=num_ranks)
    if num_ranks == 1:
        team.close()
        with _telling_machines(machines):
            return PartsGuard(LoaderParts(open_feature_tier(request)))
    with team:
        if not team.is_host:
            remote = RemoteTier(dataset, team, settings, dry_run=dry_run, seeds=seeds, embeddings=embeddings)
            return PartsGuard(LoaderParts(remote, num_ranks=num_ranks))
        with _telling_machines(machines):
            # The host connects before the tiers are opened, which sends requests to the devices of all ranks.
            host = LoaderHost(team, stall_timeout_s=settings.stages.stall_timeout_s)
            if embeddings.trained:
                request = replace(request, embeddings=replace(embeddings, ranks=host.steps))
            try:
                tier = open_feature_tier(request, others=host.devices)
            except BaseException as error:
                host.refuse(error)
                raise
            try:
                host.welcome(tier)
            except BaseException:
                host.close()
                tier.close()
                raise
            return PartsGuard(LoaderParts(tier, host, num_ranks=num_ranks))


@contextmanager
def _telling_machines(machines: LaunchMachines | None) -> Iterator[None]:
    """Report an error of the block to the other machines. The block opens this machine's loader; they wait for it."""
    try:
        yield
    except BaseException as error:
        if machines is not None:
            machines.refuse(error)
        raise


def _machines_of(
    team: Team, dataset: Dataset, settings: LoaderSettings, membership: Membership
) -> LaunchMachines | None:
    """Return the machines that exchange rows with this rank's loader, or None.

    Raises
    ------
    ConfigError
        Some rows are on no machine of the launch, or rows must be exchanged and the settings forbid it.
    """
    ranges, mode = dataset.ranges, settings.ranks.exchange
    tables = {} if ranges is None else ranges.tables
    parts = [
        None if part is None else RowRanges(part=part[0], of=part[1], tables=tables) for part in team.parts
    ]
    require_all_rows(parts, team.machines)
    if ranges is not None and (mode == "never" or not membership.is_shared):
        setting = "exchange='never'" if mode == "never" else "sharing='private'"
        raise ConfigError(
            f"{dataset.location} stores only a range of the rows, and {setting} forbids rows from other machines; "
            f"leave {setting} out"
        )
    if len(team.hosts) == 1 or mode == "never" or not membership.is_shared or team.rank not in team.hosts:
        return None
    stored_parts = [part for part in parts if part is not None]
    # Machines are ordered by their row ranges, or else by their first ranks.
    order = hosts_by_part(stored_parts) if stored_parts else tuple(range(len(team.hosts)))
    hosts = tuple(team.hosts[number] for number in order)
    launch = Launch(
        hosts=hosts,
        names=tuple(team.machines[number] for number in order),
        rank=team.rank,
        key=team.launch,
        mode=mode,
        parts=tuple(stored_parts[number] for number in order) if stored_parts else (),
        timeout_s=settings.stages.stall_timeout_s,
        verify=settings.reading.verify != "off",
    )
    return LaunchMachines(launch, feature_rows(dataset, settings))


def _require_one_table(team: Team) -> None:
    """Raise ConfigError unless one rank loads for all: ranks that train an embedding share one table."""
    if len(team.hosts) > 1:
        names = ", ".join(team.machines)
        raise ConfigError(
            f"an embedding is trained on one machine, and these ranks are on {len(team.hosts)}: {names}; start all "
            "ranks on one machine (torchrun --nnodes 1 --nproc-per-node N)"
        )
    if len(team.ranks) == 1:
        raise ConfigError(
            "sharing='private' gives each rank a loader of its own, and ranks that train an embedding share one table; "
            "leave sharing='private' out"
        )


def _facts(dataset: Dataset, seeds: SeedPlan, settings: LoaderSettings, embeddings: GivenEmbeddings) -> Facts:
    """Return the settings that must be equal on every rank. Thread numbers may differ: the host's setting counts."""
    order, task = seeds.order, seeds.task
    kind = "HeteroLoader" if seeds.types.are_named else "Loader"
    batches = {
        **named_facts(dataset, order, settings.sampling, None if task is None else task.facts()),
        "batch_size": order.batch_size,
        "loader": f"LinkLoader over a {kind}" if isinstance(task, LinkTask) else kind,
        "seed": order.seed,
        "epochs": settings.stages.epochs,
        "exchange": settings.ranks.exchange,
        "trained rows": {each.node_type: dict(each.facts) for each in embeddings.trained},
        "frozen rows": [each.node_type for each in embeddings.frozen],
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
        part=None if dataset.ranges is None else (dataset.ranges.part, dataset.ranges.of),
    )
