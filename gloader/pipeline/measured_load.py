"""What a loader brings batches of, and what the first ones take: all that its memory budget is shared out by."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gloader.core.descriptors import require_descriptors
from gloader.core.fanouts import checked_hops
from gloader.core.row_order import RowOrder
from gloader.dataset.hetero_passes import num_swept
from gloader.dataset.topology import open_hetero_topology, open_topology
from gloader.errors import BudgetError
from gloader.pipeline.device_rows import DeviceTable, Workload
from gloader.pipeline.measure_demand import measure_demand, num_batches_of
from gloader.pipeline.open_device_tier import open_device_tiers, row_format
from gloader.pipeline.open_edges import (
    SWEPT_SAMPLERS,
    choose_edge_home,
    open_spill_folder,
    plan_edges,
    sweep_demand,
)
from gloader.pipeline.probe import first_seeds, probe_in_passes, probe_one_by_one
from gloader.pipeline.table_files import FILES_OF_A_MIRRORED_FILE, FILES_OF_A_READER, feature_rows, open_files
from gloader.pipeline.unreachable import tell_unreachable
from gloader.samplers import (
    HeteroGraph,
    make_hetero_sampler,
    make_hetero_temporal_sampler,
    make_sampler,
    make_temporal_sampler,
    reads_weights,
)
from gloader.ssd_store.regions.layout import MAX_FILES

if TYPE_CHECKING:
    from gloader.config import LoaderSettings
    from gloader.core.row_order import AnyOrder
    from gloader.dataset import Dataset
    from gloader.device import DeviceTier
    from gloader.pipeline.device_room import DryRun
    from gloader.pipeline.other_devices import OtherDevices
    from gloader.pipeline.other_machines import OtherMachines
    from gloader.pipeline.probe import Probe
    from gloader.pipeline.seed_order import SeedPlan
    from gloader.pipeline.table_files import KnownDisk, TableFiles
    from gloader.plan.demand import Demand
    from gloader.plan.topology_home import TopologyChoice
    from gloader.samplers import Topology
    from gloader.types import AnySampler

_LEAST_OF_BLOCKS: Final = 32 * 2**20
_MOST_OF_BLOCKS: Final = (
    512 * 2**20
)  # 1 GB/s and 50 ms need a tenth of it in flight, and as much is being written


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """The work of a loader before anything is held for it but edges."""

    work: Workload
    files: TableFiles
    home: TopologyChoice  # of the edges
    # One more than there are tables, where there is none: what there is of the device.
    tiers: tuple[DeviceTier, ...]
    demand: Demand
    links: str  # what is predicted, for people


def measure_load(  # noqa: PLR0913 - what a loader is opened for, each a keyword
    dataset: Dataset,
    seeds: SeedPlan,
    settings: LoaderSettings,
    stack: ExitStack,
    *,
    budget_bytes: int,
    room_bytes: int | None = None,
    dry_run: DryRun | None,
    num_ranks: int,
    num_loaders: int,
    others: OtherDevices | None,
    machines: OtherMachines | None,
    known: KnownDisk | None = None,
    probe: Probe | None = None,
    tiers: tuple[DeviceTier, ...] | None = None,
) -> MeasuredLoad:
    """Open edges and files of rows, and make the first batches; the features are left alone.

    Parameters
    ----------
    dataset, seeds, settings, dry_run, num_ranks, num_loaders, others, machines : as of `open_feature_tier`
    stack : closes what was opened
    budget_bytes : of memory
    room_bytes : of it, by which is dealt with what may be held or read: edges, and those to predict; None: all
    known : of the disks of a run that is planned alone, for which nothing is written; None: they are measured
    probe : the first batches, where they are known; None: they are made
    tiers : of the device, where they are open; None: they are opened

    Raises
    ------
    BudgetError, ConfigError
        As `open_feature_tier`.
    """
    spill = None
    room_bytes = budget_bytes if room_bytes is None else room_bytes
    if known is None:
        spill = open_spill_folder(dataset, settings, stack, budget_bytes=room_bytes, num_loaders=num_loaders)
    disk = known if known is not None and known.spill_bytes else spill
    home = choose_edge_home(dataset, settings, disk, budget_bytes=budget_bytes, room_bytes=room_bytes)
    require_descriptors(_most_open_files(dataset, settings, home))
    # Held first: what it leaves of the budget is shared out below.
    topology = _open_edges(dataset, settings, stack, max_bytes=home.max_bytes, is_typed=seeds.is_typed)
    beside: list[tuple[str, int]] = []
    order, links = seeds.order, ""
    if seeds.links is not None and isinstance(order, RowOrder):
        bound = seeds.links.bind(order, topology, settings, stack, budget_bytes=room_bytes)
        order, links = bound.order, bound.text
        beside.append(("edges to predict", bound.held_bytes))
    files = open_files(dataset, settings, spill, stack, known=known)
    if on_their_way := dataset.os_io.limit_memory(_memory_of_blocks(budget_bytes)):
        beside.append(("blocks of the object store", on_their_way))
    if machines is not None:
        beside.append(("rows between machines", machines.memory_bytes(budget_bytes)))
    if isinstance(topology, HeteroGraph) and probe is None:
        tell_unreachable(topology, seeds, num_hops=len(settings.sampling.fanouts), where=dataset.location)
    is_swept = home.home == "sweep"
    work = _workload(dataset, topology, order, settings, dry_run, files, probe, is_swept=is_swept)
    num_batches = num_batches_of(settings, order, num_ranks)
    left = budget_bytes - sum(num_bytes for _, num_bytes in beside)
    home, sweeps = plan_edges(
        home,
        sweep_demand(dataset, settings, work.probe, num_batches=num_batches),
        is_required=settings.memory.topology == "sweep",
        budget_bytes=left,
        spill_bytes=files.spill_bytes,
        room_bytes=min(room_bytes, left),
    )
    if tiers is None:
        tiers = open_device_tiers(settings.device, work, tables=_device_tables(files), others=others)
    demand = replace(
        measure_demand(
            settings,
            work,
            files,
            tiers,
            sweeps,
            num_ranks=num_ranks,
            is_exchanged=machines is not None and machines.must_exchange,
        ),
        others=tuple(beside),
    )
    return MeasuredLoad(work=work, files=files, home=home, tiers=tiers, demand=demand, links=links)


def _most_open_files(dataset: Dataset, settings: LoaderSettings, home: TopologyChoice) -> int:
    """Return how many files may be open at a time, without those of packs of rows."""
    count = FILES_OF_A_READER * len(feature_rows(dataset, settings))
    if home.home == "sweep":
        arrays = 2 if reads_weights(settings.sampling.sampler) else 1
        count += FILES_OF_A_READER * arrays * num_swept(dataset)
        # Those of a pass are written together: of each hop, as its batches are not done at the same time.
        count += MAX_FILES * len(settings.sampling.fanouts)
    if dataset.mirrored is not None:
        count += FILES_OF_A_MIRRORED_FILE * len(dataset.mirrored.os_io.mirror.record.files)
    return count + FILES_OF_A_READER


def _open_edges(
    dataset: Dataset, settings: LoaderSettings, stack: ExitStack, *, max_bytes: int, is_typed: bool
) -> Topology | HeteroGraph:
    io, times = settings.reading.io, settings.sampling.is_temporal
    if is_typed:
        return stack.enter_context(open_hetero_topology(dataset, max_bytes=max_bytes, io=io, times=times))
    return stack.enter_context(open_topology(dataset, max_bytes=max_bytes, io=io, times=times))


def _workload(
    dataset: Dataset,
    topology: Topology | HeteroGraph,
    order: AnyOrder,
    settings: LoaderSettings,
    dry_run: DryRun | None,
    files: TableFiles,
    probe: Probe | None,
    *,
    is_swept: bool,
) -> Workload:
    threads = settings.stages.sampler_threads
    sampler = sampler_for(topology, order, settings)
    fanouts = settings.sampling.fanouts
    first = first_seeds(order, topology, fanouts, epochs=settings.stages.epochs) if probe is None else []
    if probe is None and is_swept and files.spill is not None and isinstance(sampler, SWEPT_SAMPLERS):
        # A disk without room for so few is found out, and told of, where the passes are planned.
        with suppress(BudgetError):
            probe = probe_in_passes(
                dataset, sampler, order, first, files.spill, rates=files.rates, io=settings.reading.io
            )
    if probe is None:
        probe = probe_one_by_one(sampler, order, first, threads=threads)
    return Workload(
        topology=topology,
        sampler=sampler,
        order=order,
        fanouts=fanouts,
        probe=probe.batches,
        probe_s=probe.seconds,
        threads=threads,
        dry_run=dry_run,
    )


def sampler_for(topology: Topology | HeteroGraph, order: AnyOrder, settings: LoaderSettings) -> AnySampler:
    """Return what samples the batches of a loader from ``topology``; ConfigError where it cannot."""
    sampling = settings.sampling
    if not isinstance(topology, HeteroGraph):
        hops = checked_hops(sampling.fanouts)
        if sampling.is_temporal:
            return make_temporal_sampler(
                topology,
                hops,
                order.seed,
                layout=sampling.layout,
                strategy=sampling.time_strategy,
                bound=sampling.time_bound,
                window=sampling.time_window,
                spec=sampling.sampler,
            )
        return make_sampler(sampling.sampler, topology, hops, order.seed, layout=sampling.layout)
    if sampling.is_temporal:
        return make_hetero_temporal_sampler(
            topology,
            sampling.fanouts,
            order.seed,
            layout=sampling.layout,
            strategy=sampling.time_strategy,
            bound=sampling.time_bound,
            window=sampling.time_window,
            spec=sampling.sampler,
        )
    return make_hetero_sampler(
        sampling.sampler, topology, sampling.fanouts, order.seed, layout=sampling.layout
    )


def _device_tables(files: TableFiles) -> list[DeviceTable]:
    return [
        DeviceTable(
            type_number=table.rows.number,
            num_nodes=table.rows.num_rows,
            form=row_format(table.store),
            is_of_edges=table.is_of_edges,
        )
        for table in files.tables
    ]


def _memory_of_blocks(budget_bytes: int) -> int:
    """Return the memory for blocks from an object store: enough to hide its latency, little beside a cache."""
    return min(max(budget_bytes // 8, _LEAST_OF_BLOCKS), _MOST_OF_BLOCKS)
