"""A graph's fit on a machine: memory, disk and time to prepare and train, from the graph's size only.

`FitQuestion` answers `gloader plan` for a graph that need not exist. It makes the plans of a run for a `SizedGraph`,
which has the graph's size and no edges. Batches are drawn from a random graph with this size. A fit (`Fit`) is the plan
for one memory budget: the parts that are in memory, and the predicted seconds of an epoch.
`gloader.lab.analyze.dataset_fit` does the same for a prepared dataset.

Edges have three homes: in memory, on the SSD in sweeps (passes over the file, in order, for many batches together), or
on the SSD page by page. A demand is a loader's list of memory needs, from which the memory plan is made.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from gloader.cache import slot_bytes
from gloader.cache.curve import measure_reuse
from gloader.convert.options import PrepareOptions
from gloader.convert.prepare_plan import PreparePlan, plan_prepare
from gloader.convert.source import EdgeStream, FeatureStream, Source, Splits
from gloader.core.dtypes import SCALE_SUFFIX, STORED_DTYPES, feature_dtype
from gloader.core.ids import id_dtype
from gloader.core.offsets import compact_bytes
from gloader.dataset import Dataset
from gloader.errors import BudgetError, ConfigError
from gloader.pipeline.open.device_rows import LARGER_THAN_PROBED
from gloader.pipeline.open.disk import KnownDisk, choose_edge_home, plan_edges, sweep_demand
from gloader.plan.demand import Demand, TableDemand
from gloader.plan.memory_plan import MemoryPlan, plan_memory
from gloader.plan.predict import StepWork, TableWork
from gloader.plan.too_small import least_planned
from gloader.plan.topology_home import less_room
from gloader.replay.work import SAMPLED_AHEAD
from gloader.samplers import node_map_bytes
from gloader.samplers.arguments import resolve_fanouts
from gloader.ssd_store.cost.device_profile import MAX_GAP_BYTES
from gloader.ssd_store.cost.io_rates import IoRates
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.format.manifest import ArrayRecord, Manifest, data_bytes
from gloader.training.model_spec import ModelSpec
from gloader.training.run_budget import RunBudget, share_budget
from gloader.training.step_memory import largest, parameter_bytes, step_bytes
from gloader.types import BatchId, Block, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.cache.curve import ReuseProfile
    from gloader.config import LoaderSettings, ModelConfig, SamplingSettings
    from gloader.plan.topology_home import TopologyChoice


_NUM_BATCHES: Final = 3  # drawn batches; a loader makes as many before it plans


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedGraph:
    """One node type with its features and edges, as numbers."""

    num_nodes: int
    num_edges: int  # stored edges; an undirected edge counts twice
    feature_dim: int
    dtype: str = "float32"  # dtype of the stored features
    num_train: int | None = None  # seeds per epoch; None means a hundredth of the nodes
    num_classes: int = 100  # also the number of the model's outputs

    def __post_init__(self) -> None:
        """Raise ConfigError if no graph has these sizes."""
        for name in ("num_nodes", "num_edges", "feature_dim", "num_classes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        feature_dtype(self.dtype)
        if self.num_train is not None and not 1 <= self.num_train <= self.num_nodes:
            raise ConfigError(f"num_train is {self.num_train}; it must be in 1..{self.num_nodes}")

    @property
    def num_seeds(self) -> int:
        """Number of training nodes."""
        return max(1, self.num_nodes // 100) if self.num_train is None else self.num_train

    def dataset(self) -> Dataset:
        """Return a dataset record with these sizes; no files exist."""
        ids = id_dtype(self.num_nodes).name
        arrays = [
            _record("indptr", "int64", self.num_nodes + 1),
            _record("indices", ids, self.num_edges),
            _record("features", self.dtype, self.num_nodes, self.feature_dim),
            _record("labels", "int64", self.num_nodes),
            _record("train", "int64", self.num_seeds),
            *(_record(name, "int64", 0) for name in ("valid", "test")),
        ]
        if STORED_DTYPES[self.dtype].has_scale:
            arrays.append(_record("features" + SCALE_SUFFIX, "float32", self.num_nodes))
        manifest = Manifest(
            kind="dataset",
            arrays={record.name: record for record in arrays},
            metadata={"name": "sized", "num_classes": self.num_classes},
        )
        return Dataset(Path("sized"), manifest)

    def source(self) -> Source:
        """Return a source with these sizes and no data, for a conversion's plan."""
        ids = np.broadcast_to(np.zeros(1, np.int64), self.num_nodes)  # a long array without memory
        return Source(
            name="sized",
            origin="a graph of this size",
            num_nodes=self.num_nodes,
            num_classes=self.num_classes,
            edges=EdgeStream(chunks=_unread, num_edges=self.num_edges),
            features=FeatureStream(
                chunks=_unread,
                num_rows=self.num_nodes,
                dim=self.feature_dim,
                dtype=np.dtype(np.float32),
            ),
            labels=ids,
            splits=Splits(train=ids[: self.num_seeds], valid=ids[:0], test=ids[:0]),
        )

    def batches(self, sampling: SamplingSettings) -> list[SampledBatch]:
        """Return the first batches in a random graph with this size. Pure.

        Every node has about the same degree, and a batch meets few nodes twice. Most graphs have hubs, so their batches
        are smaller. Neighbours are drawn uniformly for any sampler.
        """
        (fanouts,) = resolve_fanouts(sampling.fanouts, tuple(self.dataset().relations))
        random = np.random.default_rng(sampling.seed)
        size = min(sampling.batch_size, self.num_seeds)
        return [self._batch(index, size, fanouts, random) for index in range(_NUM_BATCHES)]

    def _batch(
        self, index: int, num_seeds: int, fanouts: tuple[int, ...], random: np.random.Generator
    ) -> SampledBatch:
        """Return a random batch with ``num_seeds`` seeds. Degrees are Poisson-distributed, and neighbours uniform."""
        nodes = random.choice(self.num_nodes, num_seeds, replace=False, shuffle=False)
        blocks: list[Block] = []
        for fanout in fanouts:
            degrees = random.poisson(self.num_edges / self.num_nodes, len(nodes))
            counts = degrees if fanout < 0 else np.minimum(degrees, fanout)
            sources = random.integers(0, self.num_nodes, int(counts.sum()))
            src_nodes = np.concatenate([nodes, _without(sources, nodes)])
            blocks.insert(0, _block(counts, len(src_nodes), random))
            nodes = src_nodes
        return SampledBatch(
            id=BatchId(epoch=0, index=index), nodes=nodes, num_seeds=num_seeds, blocks=tuple(blocks)
        )


def _without(ids: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct ``ids`` that are not in ``known``, ascending. Pure.

    `np.setdiff1d` would hash, which takes a second for a million ids. Sorting takes a hundredth of a second.
    """
    ids, known = np.sort(ids), np.sort(known)
    distinct = ids[np.flatnonzero(np.diff(ids, prepend=-1))]
    positions = np.minimum(np.searchsorted(known, distinct), len(known) - 1)
    return distinct[known[positions] != distinct]


def _block(counts: NDArray[np.int64], num_src: int, random: np.random.Generator) -> Block:
    """Return a block with these edge counts per destination. Its neighbours are random and do not matter."""
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    num_edges = int(indptr[-1])
    return Block(
        indptr=indptr,
        indices=random.integers(0, num_src, num_edges, dtype=np.int32),
        edge_ids=np.zeros(num_edges, np.int64),  # no plan reads them
        num_src=num_src,
        num_dst=len(counts),
    )


def _record(name: str, dtype: str, *shape: int) -> ArrayRecord:
    """Return the record of a file that does not exist."""
    return ArrayRecord(
        name=name,
        file=f"{name}.npy",
        dtype=dtype,
        shape=shape,
        num_bytes=data_bytes(dtype, shape),
        digest="0" * 16,  # no content, so no digest
        pages_file=f"{name}.pages",
    )


def _unread(_count: int) -> Iterator[Any]:
    """Raise NotImplementedError in place of reading a stream, because a plan's source has only sizes."""
    raise NotImplementedError


# The rates of a plain NVMe SSD, the default. `gloader doctor` measures this machine's disk.
PLAIN_SSD: Final = IoRates(
    random_reads_per_s=100_000, read_bytes_per_s=1.5e9, write_bytes_per_s=1e9, pack_read_bytes_per_s=1.5e9
)

_BOUNCE_BYTES: Final = 8 << 20  # assumed bytes for the read buffers of a feature store
_EDGE_BOUNCE_BYTES: Final = 2 << 20  # assumed bytes for the read buffers of edges that are read page by page
_CHECKSUM_BYTES: Final = 8  # bytes per page checksum
_KEPT_SHARE: Final = 1 / 2  # of the memory for edges on the SSD: the share that holds pages
_FETCHED_EDGE_BYTES: Final = 24  # bytes per edge of a hop that a sampler fetches from the SSD
_SPILL_MULTIPLE: Final = 4  # assumed disk for packs and passes, as a multiple of the data
_EDGES_PER_S: Final = 5e7  # assumed sampled edges per second and core
_LEAST_BYTES: Final = 16 << 20  # bytes: the search for the least budget begins here


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The predicted plan of training within a budget."""

    budget: RunBudget
    plan: MemoryPlan
    topology: TopologyChoice
    num_batches: int  # batches per epoch

    @property
    def holds_features(self) -> bool:
        """True if features are in memory, or would be without a request for the SSD."""
        return self.plan.features == "ram" or self.plan.would_fit

    @property
    def loading_s(self) -> float:
        """Seconds per epoch with a model that takes no time."""
        return self.num_batches * self.plan.step.seconds

    def words(self, what: Literal["features", "edges"]) -> str:
        """Return the place of the features or edges in words."""
        if what == "features":
            return "in memory" if self.plan.features == "ram" else "on the SSD"
        return {"ram": "in memory", "sweep": "in sweeps", "direct": "page by page"}[self.topology.home]

    def to_json(self) -> dict[str, str | float]:
        """Return the choices, with an epoch's figures."""
        return {
            "memory_budget": self.budget.total_bytes,
            "features": self.plan.features,
            "topology": self.topology.home,
            "miss_rate": self.plan.step.miss_rate,
            "step_s": self.plan.step.seconds,
            "epoch_s": self.loading_s,
        }


class FitQuestion:
    """Plans for a graph that does not exist. Nothing is read or written.

    Parameters
    ----------
    graph : the graph's size
    settings : the loader's settings
    model : the trained model
    rates : the SSD's rates
    """

    most_shown: Final = 10**12  # bytes: larger budgets are not tried

    def __init__(
        self, graph: SizedGraph, settings: LoaderSettings, model: ModelConfig, *, rates: IoRates = PLAIN_SSD
    ) -> None:
        self._graph = graph
        self._settings = settings
        self._rates = rates
        self._spec = ModelSpec(
            config=model,
            in_dim=graph.feature_dim,
            out_dim=graph.num_classes,
            num_layers=len(settings.sampling.hops),
            add_self_loops=True,
        )
        self.dataset: Dataset = graph.dataset()

    @cached_property
    def batches(self) -> list[SampledBatch]:
        """A few batches from a random graph with this size."""
        return self._graph.batches(self._settings.sampling)

    @cached_property
    def _reuse(self) -> ReuseProfile:
        """The rate at which batches access the same rows again, from which cache hits are predicted."""
        return measure_reuse([batch.nodes for batch in self.batches], self._graph.num_nodes)

    @cached_property
    def _step_bytes(self) -> int:
        """Bytes of one training step on the largest batch."""
        batch = largest(self.batches)
        return 0 if batch is None else step_bytes(self._spec, batch)

    @property
    def batch_rows(self) -> int:
        """Mean rows per batch, rounded."""
        return round(sum(len(batch.nodes) for batch in self.batches) / len(self.batches))

    @property
    def num_seeds(self) -> int:
        """Number of training nodes per epoch."""
        return self._graph.num_seeds

    @property
    def knows_seeds(self) -> bool:
        """True if `num_seeds` was given; otherwise it is a default."""
        return self._graph.num_train is not None

    @property
    def num_batches(self) -> int:
        """Batches per epoch."""
        return math.ceil(self._graph.num_seeds / self._settings.sampling.batch_size)

    def train(self, budget_bytes: int) -> Fit:
        """Return a run's division of ``budget_bytes``. Raises BudgetError if the run does not fit."""
        # The possible divisions, the best first: the first one that fits is taken, and the last one raises the error.
        ways = share_budget(
            total_bytes=budget_bytes,
            parameter_bytes=parameter_bytes(self._spec),
            step_bytes=self._step_bytes,
        )
        for budget in ways[:-1]:
            try:
                return self._load(budget)
            except BudgetError:
                continue
        return self._load(ways[-1])

    def prepare(self, budget_bytes: int) -> PreparePlan:
        """Return `gloader prepare`'s division of ``budget_bytes``, with its disk usage.

        Raises
        ------
        BudgetError
            The conversion does not fit.
        """
        options = PrepareOptions(dtype=self._graph.dtype)
        return plan_prepare(self._graph.source(), options, budget_bytes=budget_bytes)

    def least_to_train(self) -> int:
        """Return the least budget that `train` accepts. Raises BudgetError if there is none."""
        return least_planned(self.train, low=_LEAST_BYTES)

    def least_to_prepare(self) -> int:
        """Return the least budget that `prepare` accepts. Raises BudgetError if there is none."""
        return least_planned(self.prepare, low=_LEAST_BYTES)

    def _load(self, budget: RunBudget) -> Fit:
        """Return the loader's fit within its part of ``budget``.

        At first, the edges may take all of the memory. If the other parts do not fit then, the edges get less, and the
        plan is made again. `less_room` raises the BudgetError if they cannot get less.
        """
        room_bytes = budget.loader_bytes
        while True:
            home, demand, spill_bytes = self._measure(budget.loader_bytes, room_bytes)
            try:
                plan = self._plan(demand, budget.loader_bytes, spill_bytes)
            except BudgetError as error:
                room_bytes = less_room(error, home, demand, room_bytes=room_bytes)
                continue
            return Fit(budget=budget, plan=plan, topology=home, num_batches=self.num_batches)

    def _measure(self, num_bytes: int, room_bytes: int) -> tuple[TopologyChoice, Demand, int]:
        """Return the edges' home, a loader's memory demand, and the bytes of its disk space (spill).

        Parameters
        ----------
        num_bytes : the loader's memory
        room_bytes : the part of it that the edges may take
        """
        settings = self._settings
        memory, data = settings.memory, self.dataset.feature_bytes + self.dataset.topology_bytes
        spill = _SPILL_MULTIPLE * data if memory.spill_budget is None else memory.spill_budget
        disk = KnownDisk(rates=self._rates, spill_bytes=spill)
        home = choose_edge_home(
            self.dataset, settings, disk if spill else None, budget_bytes=num_bytes, room_bytes=room_bytes
        )
        home, sweeps = plan_edges(
            home,
            sweep_demand(self.dataset, settings, self.batches, num_batches=None),
            is_required=memory.topology == "sweep",
            budget_bytes=num_bytes,
            spill_bytes=spill,
            room_bytes=room_bytes,
        )
        demand = self._demand(home)
        if sweeps is not None:
            # While a thread makes a batch, it holds the passes' output for the batch and a lookup table over it. Both
            # take about three times the output's bytes.
            work = replace(
                demand.work, edges_s=sweeps.pass_seconds(self._rates), edge_bytes=sweeps.read_bytes
            )
            demand = replace(demand, sweeps=sweeps, sampler_call_bytes=3 * sweeps.drawn_bytes, work=work)
        return home, demand, spill

    def _plan(self, demand: Demand, num_bytes: int, spill_bytes: int) -> MemoryPlan:
        """Return a loader's memory plan for ``demand``. Raises BudgetError if it does not fit."""
        settings = self._settings
        memory = settings.memory
        return plan_memory(
            demand,
            budget_bytes=num_bytes,
            spill_bytes=spill_bytes,
            features=memory.features,
            cache_bytes=0 if memory.policy == "none" else memory.cache_bytes(self.dataset.feature_bytes),
            superbatch=memory.superbatch,
            must_pack=settings.reading.io_strategy == "packed",
            num_buffers=memory.buffers,
        )

    def _demand(self, home: TopologyChoice) -> Demand:
        """Return the same demand as `measure_demand`, for a dataset with this size."""
        settings, graph = self._settings, self._graph
        threads = settings.stages.sampler_threads
        # Maximum nodes and edges of a batch, and edges of its outermost hop (``blocks[0]``).
        rows = _larger(max(len(batch.nodes) for batch in self.batches))
        edges = _larger(max(sum(block.num_edges for block in batch.blocks) for batch in self.batches))
        last_hop = _larger(max(batch.blocks[0].num_edges for batch in self.batches))
        return Demand(
            tables=(self._table(min(rows, graph.num_nodes)),),
            topology_bytes=home.topology_bytes if home.home == "ram" else self._paged_bytes(home),
            policy=settings.memory.policy,
            batch_rows=min(rows, graph.num_nodes),
            batch_edges=edges,
            batches_in_flight=threads + SAMPLED_AHEAD,
            sampler_threads=threads,
            sampler_map_bytes=node_map_bytes(
                settings.sampling.sampler, num_nodes=graph.num_nodes, found=rows + edges
            ),
            sampler_call_bytes=0 if home.home == "ram" else _FETCHED_EDGE_BYTES * last_hop,
            work=self._work(),
            num_batches=None,
            num_seeds=graph.num_seeds,
            is_reset=settings.memory.superbatch_reset,
        )

    def _table(self, batch_rows: int) -> TableDemand:
        """Return the features' part of the demand, for batches with up to ``batch_rows`` rows."""
        rows = self.dataset.feature_rows(edges=False)[0]
        element = STORED_DTYPES[self._graph.dtype]
        scales = (element.row_bytes(0)) * self._graph.num_nodes
        return TableDemand(
            name=rows.name,
            num_nodes=rows.num_rows,
            feature_bytes=rows.feature_bytes,
            row_bytes=4 * self._graph.feature_dim,  # float32 in a batch, on the CPU
            slot_bytes=slot_bytes(self._settings.memory.policy),
            batch_rows=batch_rows,
            store_bytes=_BOUNCE_BYTES + _CHECKSUM_BYTES * -(-rows.feature_bytes // PAGE_BYTES) + scales,
            stored_row_bytes=self._stored_row_bytes,
            reuse=self._reuse,
        )

    @property
    def _stored_row_bytes(self) -> int:
        """Bytes of one feature row in its storage dtype."""
        return data_bytes(self._graph.dtype, (self._graph.feature_dim,))

    def _paged_bytes(self, home: TopologyChoice) -> int:
        """Return the memory for edges that are read page by page."""
        pages = -(-4 * self._graph.num_edges // PAGE_BYTES)  # 4 bytes per edge
        kept = int(_KEPT_SHARE * home.max_bytes)
        held = compact_bytes(self._graph.num_nodes) + _CHECKSUM_BYTES * pages
        return held + min(kept, pages * PAGE_BYTES) + _EDGE_BOUNCE_BYTES

    def _work(self) -> StepWork:
        """Return a mean step's work, for the plan's prediction of its seconds."""
        rows = sum(len(batch.nodes) for batch in self.batches) / len(self.batches)
        edges = sum(block.num_edges for batch in self.batches for block in batch.blocks) / len(self.batches)
        gap = self._rates.times.sweep_gap_bytes(most=MAX_GAP_BYTES)
        table = TableWork(
            rows=rows,
            row_bytes=4 * self._graph.feature_dim,
            stored_row_bytes=self._stored_row_bytes,
            file_rows=float(self._graph.num_nodes),
            gap_bytes=gap,
        )
        return StepWork(
            tables=(table,),
            rates=self._rates,
            sweep_gap_bytes=gap,
            sample_s=edges / _EDGES_PER_S,
            cores=len(os.sched_getaffinity(0)),
            strategy=self._settings.reading.io_strategy,
        )


def _larger(count: int) -> int:
    """Return ``count`` with a loader's reserve for batches larger than the first ones."""
    return math.ceil(LARGER_THAN_PROBED * count)
