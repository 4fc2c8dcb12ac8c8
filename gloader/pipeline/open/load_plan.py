"""The measured load of a loader, and the memory plan that is made from it.

A loader opens in these steps. `LoadRequest.measure` opens the files, chooses the edges' home, samples the first batches
and opens the device; the result is a `MeasuredLoad`. `plan_tiers` divides the memory budget. If the plan fails because
edges take too much memory, `LoadPlanner` measures again with less room for edges. `gloader.pipeline.open.tiers` then
opens the parts of the plan. If the budget is too small, the error of `plan_load` names a sufficient budget.

- A table is the feature rows of a node type or of a relation.
- The edges' home is memory or the SSD. Their room is the part of the memory budget that they may take.
- A probe is the first batches, sampled to measure their size. The demand is the memory that the run could use.
- A sweep is a pass over the edge file on the SSD, which draws edges for many batches. Packs are files with missing
  feature rows of one batch each.
- A tier (`DeviceTier`) is the part of a table's rows that the device holds, or reads from host memory itself.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from gloader.core.fanouts import checked_hops
from gloader.core.machine import require_descriptors
from gloader.core.order import EpochOrder, RowOrder
from gloader.dataset.hetero_passes import num_swept
from gloader.dataset.schema import relation_text
from gloader.errors import BudgetError
from gloader.pipeline.link_task import LinkTask
from gloader.pipeline.open.device_rows import DeviceTable, Workload
from gloader.pipeline.open.device_tier import open_device_tiers
from gloader.pipeline.open.disk import (
    FILES_OF_A_MIRRORED_FILE,
    FILES_OF_A_READER,
    SWEPT_SAMPLERS,
    choose_edge_home,
    feature_rows,
    open_edges,
    open_files,
    open_spill_folder,
    plan_edges,
    sweep_demand,
)
from gloader.pipeline.open.first_batches import (
    Probe,
    first_seeds,
    measure_demand,
    num_batches_of,
    probe_in_passes,
    probe_one_by_one,
)
from gloader.pipeline.open.row_slots import NO_EMBEDDINGS, embedding_demands
from gloader.pipeline.row_task import RowTask
from gloader.pipeline.seeds import label_bytes
from gloader.plan.memory_plan import plan_memory
from gloader.plan.too_small import naming_enough
from gloader.plan.topology_home import less_room
from gloader.samplers import (
    HeteroGraph,
    make_hetero_sampler,
    make_hetero_temporal_sampler,
    make_sampler,
    make_temporal_sampler,
    reads_weights,
    unreachable_relations,
)
from gloader.ssd_store.spill.regions import MAX_FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.config import LoaderSettings
    from gloader.core.order import AnyOrder
    from gloader.dataset import Dataset
    from gloader.device import DeviceTier
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.open.disk import KnownDisk, TableFiles
    from gloader.pipeline.open.row_slots import GivenEmbeddings
    from gloader.pipeline.other_ranks import OtherDevices, OtherMachines
    from gloader.pipeline.row_task import OpenRows
    from gloader.pipeline.seeds import SeedPlan
    from gloader.plan.demand import Demand
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.plan.topology_home import TopologyChoice
    from gloader.samplers import Topology
    from gloader.types import AnySampler


logger = logging.getLogger("gloader")


def tell_unreachable(graph: Topology | HeteroGraph, seeds: SeedPlan, *, num_hops: int, where: str) -> None:
    """Log once per dataset the relations that no seed can reach; batches have no edges of these relations.

    Parameters
    ----------
    graph : the topology
    seeds : the seeds of every epoch
    num_hops : L
    where : the dataset's path
    """
    graph = HeteroGraph.of(graph)
    relations = tuple(graph.relations)
    seed_types = _seed_types(graph, seeds.order) if seeds.task is None else seeds.task.seed_types
    unreachable = unreachable_relations(relations, seed_types, num_hops)
    if not unreachable or not seed_types:
        return
    # Hops beyond the number of relations reach no further relation.
    lost = unreachable_relations(relations, seed_types, len(relations))
    reachable = tuple(relation for relation in unreachable if relation not in lost)
    advice = (
        "messages go from source to destination, so that a relation that leads away from the seeds needs its reverse "
        "(gloader prepare --add-reverse)"
        if lost == unreachable
        else f"more numbers in --fanout (fanouts=), one for each hop, reach {_listed(reachable)}"
        + (f"; no number of hops reaches {_listed(lost)}, which needs its reverse" if lost else "")
    )
    hops = "1 hop" if num_hops == 1 else f"{num_hops} hops"
    reached = f"seeds of type {', '.join(seed_types)} do not reach them in {hops}"
    _warn_once(where, f"no batch has edges of {_listed(unreachable)}: {reached}; {advice}")


@cache  # a repeated call with the same arguments returns at once
def _warn_once(where: str, text: str) -> None:
    """Log ``text`` once, even if several loaders open the dataset ``where``."""
    del where
    logger.warning("%s", text)


def _listed(relations: tuple[tuple[str, str, str], ...]) -> str:
    """Return the relations as text."""
    return ", ".join(map(relation_text, relations))


def _seed_types(graph: HeteroGraph, order: AnyOrder) -> tuple[str, ...]:
    """Return the node types among the seeds; empty if the seeds are rows of a table."""
    if isinstance(order, RowOrder):
        return ()
    starts = graph.type_starts
    return tuple(
        name
        for number, name in enumerate(graph.node_types)
        if ((order.seeds >= starts[number]) & (order.seeds < starts[number + 1])).any()
    )


# Minimum and maximum memory, in bytes, for blocks on their way from an object store. At 1 GB/s and 50 ms of latency, a
# tenth of the maximum is in flight, and another tenth is being written.
_LEAST_OF_BLOCKS: Final = 32 * 2**20
_MOST_OF_BLOCKS: Final = 512 * 2**20  # 512 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """The measured work of a loader, with its open files. Of the dataset, only edges are in memory so far."""

    work: Workload  # sampler, edges and first batches
    files: TableFiles  # feature rows and spill folder
    home: TopologyChoice  # place of the edges
    # One tier for each table. Without tables, one device tier without rows.
    tiers: tuple[DeviceTier, ...]
    demand: Demand  # the memory that the run could use, and the work in a step
    task: str  # the edges or rows to predict, as text for the user
    rows: OpenRows | None  # the open task table, if the seeds are its rows

    @property
    def sampler(self) -> AnySampler:
        """The batches' sampler: the device's sampler if the device samples."""
        return self.tiers[0].sampler or self.work.sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """The batches that a loader is opened for, and the ranks and machines that it serves."""

    dataset: Dataset  # graph and features
    seeds: SeedPlan  # the seeds of this rank's batches
    settings: LoaderSettings  # the loader's settings
    dry_run: DryRun | None = None  # one step of the model, to measure its device memory
    num_ranks: int = 1  # ranks that this loader serves
    num_loaders: int = 1  # loaders on this host
    machines: OtherMachines | None = None  # other machines that open loaders too, and may exchange rows
    known: KnownDisk | None = None  # a recorded run's disks, for a plan without writes; None measures them
    embeddings: GivenEmbeddings = NO_EMBEDDINGS  # trained rows

    def measure(
        self,
        stack: ExitStack,
        *,
        budget_bytes: int,
        room_bytes: int | None = None,
        others: OtherDevices | None = None,
        probe: Probe | None = None,
        tiers: tuple[DeviceTier, ...] | None = None,
    ) -> MeasuredLoad:
        """Open edges and feature files, make the first batches, and open the device; features are not read.

        Parameters
        ----------
        stack : closes the files
        budget_bytes : memory budget
        room_bytes : the budget's part for edges and link tables; None means all of it
        others : the devices of the other ranks that the loader serves
        probe : the first batches; with None the call samples them
        tiers : the device's open tiers; with None the call opens them

        Raises
        ------
        BudgetError, ConfigError
            See `open_feature_tier`.
        """
        dataset, seeds, settings = self.dataset, self.seeds, self.settings
        machines, known = self.machines, self.known
        spill = None
        room_bytes = budget_bytes if room_bytes is None else room_bytes
        if known is None:
            spill = open_spill_folder(
                dataset,
                settings,
                stack,
                budget_bytes=room_bytes,
                num_loaders=self.num_loaders,
                trained_bytes=self.embeddings.table_bytes,
            )
        disk = known if known is not None and known.spill_bytes else spill  # None if nothing can be spilled
        home = choose_edge_home(dataset, settings, disk, budget_bytes=budget_bytes, room_bytes=room_bytes)
        require_descriptors(_most_open_files(dataset, settings, home))
        # Edges are loaded first: the plan divides the rest of the budget.
        topology = stack.enter_context(
            open_edges(
                dataset,
                seeds.types,
                max_bytes=home.max_bytes,
                io=settings.reading.io,
                times=settings.sampling.is_temporal,
            )
        )
        beside: list[tuple[str, int]] = []  # other users of the budget, and their bytes
        order, text, rows = seeds.order, "", None
        if isinstance(seeds.task, LinkTask) and isinstance(order, RowOrder):
            bound = seeds.task.bind(order, topology, settings, stack, budget_bytes=room_bytes)
            order, text = bound.order, bound.text
            beside.append(("edges to predict", bound.held_bytes))
        elif isinstance(seeds.task, RowTask) and isinstance(order, RowOrder):
            # Every rank opens the table, with a share of the whole budget. So the share does not follow the room.
            of_rows = seeds.task.bind(
                order, topology, settings, stack, budget_bytes=budget_bytes, num_ranks=self.num_ranks
            )
            order, text, rows = of_rows.order, of_rows.text, of_rows.rows
            beside.append(("rows to predict", of_rows.held_bytes))
        elif isinstance(order, EpochOrder) and (of_labels := label_bytes(dataset, order)):
            beside.append(("label columns", of_labels))
        files = open_files(
            dataset, settings, spill, stack, known=known, trained_bytes=self.embeddings.table_bytes
        )
        if on_their_way := dataset.os_io.limit_memory(_memory_of_blocks(budget_bytes)):
            beside.append(("blocks of the object store", on_their_way))
        if machines is not None:
            beside.append(("rows between machines", machines.memory_bytes(budget_bytes)))
        if probe is None:
            tell_unreachable(topology, seeds, num_hops=len(settings.sampling.fanouts), where=dataset.location)
        is_swept = home.home == "sweep"
        work = _workload(dataset, topology, order, settings, self.dry_run, files, probe, is_swept=is_swept)
        if isinstance(seeds.task, RowTask) and (of_ages := seeds.task.age_bytes(work.probe)):
            beside.append(("ages of rows", self.num_ranks * of_ages))
        num_batches = num_batches_of(settings, order, self.num_ranks)
        trained = embedding_demands(self.embeddings, dataset, work.probe, budget_bytes=budget_bytes)
        left = budget_bytes - sum(num_bytes for _, num_bytes in beside)
        left -= sum(each.fixed_bytes for each in trained)
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
                num_ranks=self.num_ranks,
                is_exchanged=machines is not None and machines.must_exchange,
            ),
            others=tuple(beside),
            embeddings=trained,
        )
        return MeasuredLoad(
            work=work, files=files, home=home, tiers=tiers, demand=demand, task=text, rows=rows
        )


def _most_open_files(dataset: Dataset, settings: LoaderSettings, home: TopologyChoice) -> int:
    """Return the maximum number of files that are open together, without packs of rows."""
    count = FILES_OF_A_READER * len(feature_rows(dataset, settings))
    if home.home == "sweep":
        arrays = 2 if reads_weights(settings.sampling.sampler) else 1
        count += FILES_OF_A_READER * arrays * num_swept(dataset)
        # All files of a pass are open together. Each hop has its own set, as the hops' batches end at different times.
        count += MAX_FILES * len(settings.sampling.fanouts)
    if dataset.mirrored is not None:
        count += FILES_OF_A_MIRRORED_FILE * len(dataset.mirrored.os_io.mirror.record.files)
    return count + FILES_OF_A_READER


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
    """Return the device's future work, with the batches of ``probe``; with None the first batches are made here."""
    threads = settings.stages.sampler_threads
    sampler = sampler_for(topology, order, settings)
    fanouts = settings.sampling.fanouts
    first = first_seeds(order, topology, fanouts, epochs=settings.stages.epochs) if probe is None else []
    if probe is None and is_swept and files.spill is not None and isinstance(sampler, SWEPT_SAMPLERS):
        # If the disk is too small even for these few batches, the planning of the passes reports it.
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
    """Return the sampler of a loader's batches from ``topology``; ConfigError if it does not support them."""
    sampling = settings.sampling
    fanouts: Any = sampling.fanouts
    make: Any = make_hetero_temporal_sampler if sampling.is_temporal else make_hetero_sampler
    if not isinstance(topology, HeteroGraph):  # its batches have no types
        fanouts = checked_hops(fanouts)
        make = make_temporal_sampler if sampling.is_temporal else make_sampler
    if not sampling.is_temporal:
        return cast(
            "AnySampler", make(sampling.sampler, topology, fanouts, order.seed, layout=sampling.layout)
        )
    sampler = make(
        topology,
        fanouts,
        order.seed,
        layout=sampling.layout,
        strategy=sampling.time_strategy,
        bound=sampling.bound,
        window=sampling.time_window,
        spec=sampling.sampler,
    )
    return cast("AnySampler", sampler)


def _device_tables(files: TableFiles) -> list[DeviceTable]:
    """Return the device's view of each table."""
    return [
        DeviceTable(
            type_number=table.rows.number,
            num_nodes=table.rows.num_rows,
            form=table.store.stored_rows.form,
            is_of_edges=table.is_of_edges,
        )
        for table in files.tables
    ]


def _memory_of_blocks(budget_bytes: int) -> int:
    """Return the memory for blocks from an object store: enough to hide its latency, small next to a cache."""
    return min(max(budget_bytes // 8, _LEAST_OF_BLOCKS), _MOST_OF_BLOCKS)


_LITTLE_BYTES: Final = 16 << 20  # first budget to try, in bytes; every loader's fixed parts need more


class LoadPlanner:
    """Plans loaders of the same batches with any budget.

    Parameters
    ----------
    request : the batches; measured again for every budget that is tried
    """

    def __init__(self, request: LoadRequest) -> None:
        self._request = request
        self._probe: Probe | None = None  # batches are the same with any budget

    def plan(
        self, stack: ExitStack, *, budget_bytes: int, others: OtherDevices | None = None
    ) -> tuple[MeasuredLoad, MemoryPlan]:
        """Return the measured work and its plan; edges get the memory that the other parts leave.

        Parameters
        ----------
        stack, budget_bytes, others : as in `plan_load`

        Raises
        ------
        BudgetError, ConfigError
            As in `plan_load`, but the error names no sufficient budget.
        """
        room, tiers = budget_bytes, None
        # Each turn either succeeds, or shrinks the edges' room. If less room cannot help, `less_room` raises.
        while True:
            with ExitStack() as attempt:
                load = self._request.measure(
                    attempt,
                    budget_bytes=budget_bytes,
                    room_bytes=room,
                    probe=self._probe,
                    others=others,
                    tiers=tiers,
                )
                self._probe = Probe(batches=load.work.probe, seconds=load.work.probe_s)
                try:
                    plan = plan_tiers(
                        load.demand, self._request.settings, load.files, load.tiers, budget_bytes=budget_bytes
                    )
                except BudgetError as error:
                    room = less_room(error, load.home, load.demand, room_bytes=room)
                    # The ranks of a machine agree on the devices' rows only once, so the tiers are used again.
                    tiers = None if others is None else load.tiers
                    continue
                stack.enter_context(attempt.pop_all())
                return load, plan


def plan_load(
    request: LoadRequest, stack: ExitStack, *, budget_bytes: int, others: OtherDevices | None = None
) -> tuple[MeasuredLoad, MemoryPlan]:
    """Measure a loader's work, and plan its memory.

    Parameters
    ----------
    request : the batches, and the ranks and machines that the loader serves
    stack : closes the files
    budget_bytes : memory budget
    others : the other ranks' devices; they agree once, for this budget only

    Raises
    ------
    BudgetError
        The budget is too small; the error names a sufficient budget if more memory helps.
    ConfigError
        See `LoadRequest.measure`.
    """
    planner = LoadPlanner(request)

    def attempt_alone(num_bytes: int) -> None:
        """Plan with another budget, without the other ranks; raises BudgetError if it is too small."""
        with ExitStack() as attempt:
            planner.plan(attempt, budget_bytes=num_bytes)

    try:
        return planner.plan(stack, budget_bytes=budget_bytes, others=others)
    except BudgetError as error:
        raise naming_enough(error, attempt_alone, budget_bytes, first=_LITTLE_BYTES) from error


def plan_tiers(
    demand: Demand,
    settings: LoaderSettings,
    files: TableFiles,
    tiers: Sequence[DeviceTier],
    *,
    budget_bytes: int,
) -> MemoryPlan:
    """Divide the budget; if the device holds a full table, only its checksums stay on the host.

    Parameters
    ----------
    demand, files, tiers : the fields of a `MeasuredLoad`
    settings : the loader's settings
    budget_bytes : memory budget

    Raises
    ------
    BudgetError
        The budget is too small.
    ConfigError
        A requested size is not allowed, see `plan_memory`.
    """
    memory, feature_bytes = settings.memory, demand.feature_bytes
    holds_all = all(tier.holds_all for tier in tiers)
    demand = replace(
        demand,
        tables=tuple(
            replace(table, feature_bytes=table.store_bytes) if tier.holds_all else table
            for table, tier in zip(demand.tables, tiers, strict=False)
        ),
    )
    return plan_memory(
        demand,
        budget_bytes=budget_bytes,
        spill_bytes=files.spill_bytes,
        features="ram" if holds_all else memory.features,
        cache_bytes=0 if memory.policy == "none" else memory.cache_bytes(feature_bytes),
        superbatch=memory.superbatch,
        # Rows from other machines need a pack: the first superbatch starts with an empty cache, and its rows
        # hardly fit into the idle memory.
        must_pack=settings.reading.io_strategy == "packed" or demand.work.is_exchanged,
        num_buffers=memory.buffers,
    )
