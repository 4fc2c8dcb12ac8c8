"""The first run on a machine: separate processes compile the kernels and free their memory when they end.

A kernel is a function that numba compiles. Compilation takes some 250 MB, which numba keeps until its process ends. So
before a command takes memory, other processes rehearse the command: they run it on a small graph and leave the kernels
in numba's cache. The memory budget covers these processes too.

A rehearsal has up to five parts, such as the loading of batches or the reading of rows. A command calls
`compile_first`, which starts the processes, one for each part. This module is also their program: it calls
`Rehearsal.hold`.
"""

import hashlib
import json
import logging
import os
import sys
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gloader.core.signals import NEVER
from gloader.errors import SpillError
from gloader.training.compile_processes import CompileJob, lack_of, room_beside, run_all, save_in_turns

if TYPE_CHECKING:
    from gloader.config import LinkConfig, LoaderSettings
    from gloader.dataset import Dataset
    from gloader.dataset.writer import DatasetWriter
    from gloader.pipeline.link_task import LinkTask
    from gloader.types import Fanouts

_LOG = logging.getLogger("gloader")
_MODULE = "gloader.training.first_run"

# Modules with a kernel that every run needs. If none is compiled, this machine has never made a run.
_READING = ("gloader.ssd_store.read.row_kernels",)
# Module with the kernels of every cache policy that uses only the past.
_ONLINE = "gloader.cache.baselines"
# Modules with the kernels of the other cache policies.
_POLICIES = {
    "belady": "gloader.cache.belady_kernels",
    "static": "gloader.cache.slot_kernels",
    "none": "gloader.ssd_store.sweep.sweep_kernels",
}

# Modules with the kernels of link loaders, and of rows that machines exchange.
_LINKS = "gloader.samplers.link_kernels"
_EXCHANGE = "gloader.distributed.exchange.owner"
# Modules with the kernels of metrics and of propagations. They are not in a room of kernels.
_SCORES = "gloader.training.score_kernels"
_HOPS = "gloader.training.propagation.propagation_kernels"
# The small graph's link tables: edges to predict, and given negatives.
_LINK_TABLE, _NEGATIVE_TABLE = "train", "wrong"
_ROW_TABLE = "rows.train"  # its task table
# Folders below ``gloader`` with kernels. After a change of a file in one of them, kernels may need compilation again.
_KERNEL_ROOMS = ("samplers", "cache", "ssd_store", "core", "dataset")

# Sizes of the small graph; _MAX_DIM is its largest number of features.
_NODES, _EDGES_PER_NODE, _MAX_DIM = 1024, 8, 1024
_BATCH_SIZE, _SUPERBATCH = 64, 2  # seeds of a batch, batches of a superbatch
_SPILL_BYTES = 64 << 20  # disk space of one rehearsal
_EXCHANGE_BYTES = 8 << 20  # memory for exchanged rows

# "batches": from seeds to feature rows. "swept": the same with edges that are read in sweeps over the edge file.
# "rows": only feature rows, in node order and in sweeps. "exchange": rows that machines exchange. "hops": hop columns.
Part = Literal["batches", "swept", "rows", "exchange", "hops"]

# Multiples of the edges' bytes, to compare a memory budget with. Below the first multiple, the edges stay on the SSD.
# Above the second, after the run's code is subtracted, the edges are in memory. In between, the loader's share of the
# budget decides.
_ON_SSD_BELOW, _IN_MEMORY_ABOVE = 2, 10
# Value of ``topology`` for a budget in between: both ways are rehearsed.
_EITHER = "either"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The settings that determine a command's kernels, and one part of the rehearsal."""

    folder: str  # folder for the small graph and for the processes' files
    index_dtype: str  # dtype of the edges' sources
    feature_dtype: str  # dtype of the stored features
    feature_dim: int  # F
    has_weights: bool  # whether edges have weights
    kind: str  # the dataset's kind; "hetero", several node types, has sampling kernels of its own
    loader: dict[str, Any] | None  # keywords of a loader; None if the command samples no batch
    links: dict[str, Any] | None = None  # further keywords of a link loader
    has_times: bool = False  # whether the seeds are rows of a task table with times
    is_exchanged: bool = False  # whether rows may come from other machines
    # The dtype of node labels whose metrics are computed, "int64" or "float32"; "" if the command computes none.
    scored: str = ""
    hops: dict[str, Any] | None = (
        None  # directions and statistics of a propagation; None if the command has none
    )
    part: Part = "rows"  # the part that this process rehearses

    def jobs(self) -> list[CompileJob]:
        """Return one job for each part. Parts have few kernels in common, so processes may run them side by side."""
        parts: list[Part] = ["rows"]
        if self.loader is not None:
            parts[:0] = ["batches", "swept"] if self.loader["topology"] == _EITHER else ["batches"]
        if self.is_exchanged:
            parts.append("exchange")
        if self.hops is not None:
            parts.append("hops")
        return [
            CompileJob(
                name=part,
                module=_MODULE,
                words=json.dumps(asdict(replace(self, part=part))),
                needs_torch=part != "rows",
            )
            for part in parts
        ]

    def mark(self) -> Path | None:
        """Return the file in numba's cache that marks a completed rehearsal of the present kernels.

        Returns None if numba has no cache folder.
        """
        caches = [getattr(kernel, "_cache", None) for kernel in _kernels_of(_READING[0])]
        folder = getattr(caches[0], "cache_path", None) if caches else None
        if folder is None:
            return None
        # Settings that do not influence the kernels are left out.
        facts = asdict(self) | {"folder": "", "feature_dim": 0}
        if self.loader is not None:
            facts["loader"] = {name: value for name, value in self.loader.items() if name != "fanouts"}
        root = Path(__file__).parents[1]
        files = (path for room in _KERNEL_ROOMS for path in (root / room).rglob("*.py"))
        # The times of the kernels' source files.
        others = (root.joinpath(*module.split(".")[1:]).with_suffix(".py") for module in (_SCORES, _HOPS))
        stamps = sorted((str(path), path.stat().st_mtime_ns) for path in (*files, *others))
        digest = hashlib.sha256(json.dumps([facts, stamps], default=str).encode()).hexdigest()[:16]
        return Path(folder) / f"gloader-{digest}.held"

    def hold(self) -> None:
        """Rehearse this part: write a graph of 1024 nodes, and sample, cache and read it as the command does."""
        from gloader.dataset import Dataset

        dataset = Dataset.open(self._write_graph())
        # The parts "batches" and "rows" both read single rows. "batches" begins with this, so "rows" finds the kernels.
        if self.part == "batches":
            self._read_rows(dataset)
            self._load(dataset)
            if self.loader is not None and self.loader["topology"] in ("sweep", "direct"):
                self._look_ahead(dataset)
        elif self.part == "swept":
            self._load(dataset, topology="sweep")
            self._look_ahead(dataset, topology="sweep")
        elif self.part == "rows":
            if self.loader is not None and self.loader["features"] == "ssd":
                self._sweep(dataset)
            self._read_in_order(dataset)
            if self.scored:
                self._score()
        elif self.part == "hops":
            self._propagate(dataset)
        else:
            self._exchange(dataset)

    def _keywords(self, **changes: str) -> dict[str, Any]:
        """Return the loader's keywords. The I/O strategy "auto" becomes "direct": the part "rows" covers the sweeps."""
        from gloader.config import loader_defaults

        given = (self.loader or {}) | changes
        keywords = {name: value for name, value in given.items() if name in loader_defaults()}
        if keywords["topology"] == _EITHER:
            keywords["topology"] = "auto"
        if keywords["io_strategy"] == "auto":
            keywords["io_strategy"] = "direct"
        return keywords | {"spill_dir": self.folder}

    def _load(self, dataset: "Dataset", **changes: str) -> None:
        """Load an epoch of batches."""
        with self._open_loader(dataset, self._keywords(**changes)) as loader:
            for _ in loader:
                pass

    def _look_ahead(self, dataset: "Dataset", **changes: str) -> None:
        """Do the further steps of a run whose edges stay on the SSD.

        Before the run, a training step is measured with batches that are sampled from the edges that fit in memory.
        Small relations stay in memory while others are swept. An evaluation reads edge lists one after another.
        """
        import numpy as np

        from gloader.config import LoaderSettings
        from gloader.dataset.topology import open_topology
        from gloader.pipeline.seeds import plan_training_seeds
        from gloader.ssd_store.spill.folder import SpillFolder
        from gloader.training.step_memory import look_ahead

        settings, links = LoaderSettings.of(**self._keywords(**changes)), self._link_task(dataset)
        seeds = plan_training_seeds(
            dataset,
            settings.sampling,
            are_named=self.kind == "hetero",
            links=links,
            table=_ROW_TABLE if self.has_times else None,
        )
        with SpillFolder(self.folder, budget_bytes=_SPILL_BYTES) as spill:
            look_ahead(dataset, seeds, settings, spill)
        with open_topology(dataset, max_bytes=0) as topology:
            starts = np.arange(_NODES, dtype=np.int64) * _EDGES_PER_NODE
            topology.sources.scan().lists(starts, np.full(_NODES, _EDGES_PER_NODE))

    def _link_task(self, dataset: "Dataset") -> "LinkTask | None":
        """Return the loader's link task; None if it loads nodes."""
        if self.links is None:
            return None
        from gloader.core.negatives import parse_negatives
        from gloader.pipeline.link_task import LinkTask

        return LinkTask.of(
            dataset,
            self.links["edges"],
            negatives=parse_negatives(self.links["negatives"]),
            exclude=self.links["exclude"],
            duplicates=self.links["exclude_duplicates"],
        )

    def _open_loader(self, dataset: "Dataset", keywords: dict[str, Any]) -> Any:
        """Return a loader of the command's kind."""
        from gloader.core.negatives import parse_negatives
        from gloader.loader import HeteroLoader, LinkLoader, Loader

        if self.links is None:
            table = _ROW_TABLE if self.has_times else None
            return (HeteroLoader if self.kind == "hetero" else Loader)(dataset, table=table, **keywords)
        links = self.links | {"negatives": parse_negatives(self.links["negatives"])}
        return LinkLoader(dataset, typed=self.kind == "hetero", **links, **keywords)

    def _read_rows(self, dataset: "Dataset") -> Any:
        """Return all rows, read by their numbers, (nodes, width) float32."""
        import numpy as np

        rows = np.empty((_NODES, dataset.feature_dim), np.float32)
        with dataset.open_features() as store:
            store.read_into(np.arange(_NODES, dtype=np.int64), rows)
        return rows

    def _read_in_order(self, dataset: "Dataset") -> None:
        """Run the steps of an evaluation: write and read activations, and read features, in node order."""
        import numpy as np

        from gloader.ssd_store import FeatureStore

        ids = np.arange(_NODES, dtype=np.int64)
        rows = self._read_rows(dataset)
        with dataset.open_features() as store:
            store.load()
        path = Path(self.folder) / f"activations-{self.part}"
        FeatureStore.create(path, rows, overwrite=True).close()
        with FeatureStore.open(path) as store:
            store.read_into(ids, rows)
        dataset.load_graph()
        dataset.labels_of(dataset.train)

    def _score(self) -> None:
        """Compute the metrics and the summary of a few scores, as an evaluation does."""
        import numpy as np

        from gloader.training.score_summary import score_summary

        ids = np.arange(8, dtype=np.int64)
        classes = ids // 4
        if self.scored == "int64":
            score_summary("classes", ids % 2, classes, None)
            score_summary("binary", (ids % 3).astype(np.float32), classes, None, are_logits=True)
        else:
            outputs = np.stack([ids % 3, ids % 2], axis=1).astype(np.float32)
            labels = np.stack([classes, 1 - classes], axis=1).astype(np.float32)
            score_summary("multilabel", outputs, labels, None, are_logits=True)
            score_summary("values", outputs, labels, None)

    def _propagate(self, dataset: "Dataset") -> None:
        """Propagate in slabs of all widths that have kernels of their own, with edges in memory and on the SSD."""
        from gloader.dataset.topology import open_hetero_topology
        from gloader.training.propagation.chains import PropagateSpec, grow_chains
        from gloader.training.propagation.hop_pass import FIXED_WIDTHS
        from gloader.training.propagation.propagate_rows import propagate
        from gloader.training.propagation.propagation_plan import GraphSizes, plan_propagation
        from gloader.training.propagation.state_rows import HeldMatrix
        from gloader.types import EDGE, NODE

        spec, rows = PropagateSpec(hops=1, **(self.hops or {})), self._read_rows(dataset)
        for width in (*FIXED_WIDTHS, 1):
            x = rows[:, :1].repeat(width, axis=1)
            trees = grow_chains(spec, widths={NODE: width}, relations=(EDGE,), target=NODE)
            sizes = GraphSizes.of_dataset(dataset)
            plan = plan_propagation(trees, sizes, budget_bytes=1 << 30, has_disk=False)
            for max_bytes in (0, plan.topology_bytes):
                with open_hetero_topology(dataset, max_bytes=max_bytes) as graph:
                    propagate(graph, {NODE: HeldMatrix(x)}, plan).close()

    def _sweep(self, dataset: "Dataset") -> None:
        """Read a superbatch's missing rows in both ways of a sweep: into memory, and into a file on the disk."""
        import numpy as np

        from gloader.ssd_store import Packer, load_misses
        from gloader.ssd_store.spill.folder import SpillFolder

        ids = np.arange(_NODES, dtype=np.int64)
        rows = np.empty((_NODES, dataset.feature_dim), np.float32)
        with (
            dataset.open_features() as store,
            SpillFolder(self.folder, budget_bytes=_SPILL_BYTES) as spill,
            Packer(store, spill) as packer,
        ):
            for misses in (
                load_misses(store, [ids], cancellation=NEVER),
                packer.pack([ids], superbatch=0, cancellation=NEVER),
            ):
                misses.read_into(0, ids, rows, at=ids)
                misses.close()

    def _exchange(self, dataset: "Dataset") -> None:
        """Run the steps of a row exchange on this machine alone: send ids and rows, stage and pack the rows."""
        import numpy as np

        from gloader.distributed.exchange.exchange import Exchange
        from gloader.distributed.exchange.host_group import HostGroup
        from gloader.distributed.exchange.owner import OwnedRows
        from gloader.ssd_store import Packer, load_misses
        from gloader.ssd_store.spill.folder import SpillFolder

        ids = np.arange(_NODES, dtype=np.int64)
        rows = np.empty((_NODES, dataset.feature_dim), np.float32)
        group = HostGroup((0,), ("rehearsal",), rank=0, name="rehearsal", timeout_s=0)
        with (
            dataset.open_features() as store,
            SpillFolder(self.folder, budget_bytes=_SPILL_BYTES) as spill,
            Packer(store, spill) as packer,
        ):
            owned = OwnedRows(store=store, bounds=np.array([0, _NODES]))
            exchange = Exchange(group, [owned], memory_bytes=_EXCHANGE_BYTES)
            # A superbatch and an evaluation ask for ids with different dtypes.
            for dtype in (np.int32, np.int64):
                with exchange.fetch(0, ids.astype(dtype), cancellation=NEVER) as arriving:
                    staged = load_misses(store, [ids], cancellation=NEVER, arriving=arriving)
                with exchange.fetch(0, ids.astype(dtype), cancellation=NEVER) as arriving:
                    packed = packer.pack([ids], superbatch=0, cancellation=NEVER, arriving=arriving)
                staged.read_into(0, ids, rows, at=ids)
                packed.read_into(0, ids, rows, at=ids)
                packed.close()
            exchange.close()

    def _write_graph(self) -> Path:
        """Write the small graph as a dataset; return its folder."""
        import numpy as np

        from gloader.dataset import Dataset

        path = Path(self.folder) / f"graph-{self.part}"
        num_edges = _NODES * _EDGES_PER_NODE
        ids = np.arange(_NODES, dtype=np.int64)
        with Dataset.create(
            path, name="rehearsal", num_nodes=_NODES, num_classes=2, overwrite=True
        ) as writer:
            with writer.indptr() as column:
                column.append(np.arange(_NODES + 1, dtype=np.int64) * _EDGES_PER_NODE)
            with writer.indices(num_edges, self.index_dtype) as column:
                column.append((np.arange(num_edges) * 7 % _NODES).astype(self.index_dtype))
            if self.has_weights:
                with writer.edge_weight(num_edges) as column:
                    column.append(np.ones(num_edges, np.float32))
            dim = min(self.feature_dim, _MAX_DIM)
            with writer.features(dim, self.feature_dtype) as rows:
                rows.append(np.ones((_NODES, dim), np.float32))
            if self.links is not None:
                self._write_links(writer)
            if self.has_times:
                self._write_rows(writer)
            writer.labels(ids % 2)
            writer.splits(train=ids[: _NODES // 2], valid=ids[_NODES // 2 :], test=ids[:0])
        return path

    def _write_rows(self, writer: "DatasetWriter") -> None:
        """Write times of edges and nodes, and a task table of rows with times, labels and weights."""
        import numpy as np

        nodes, num_edges = np.arange(_NODES // 2, dtype=np.int64), _NODES * _EDGES_PER_NODE
        with writer.edge_time(num_edges) as column:
            column.append(np.arange(num_edges, dtype=np.int64) % _EDGES_PER_NODE)
        with writer.nodes().row_time() as column:
            column.append(np.arange(_NODES, dtype=np.int64) % _EDGES_PER_NODE)
        table = writer.table(_ROW_TABLE, label_kind="classes", num_classes=2)
        for start, values in (
            (table.nodes, nodes),
            (table.times, nodes % _EDGES_PER_NODE),
            (table.labels, nodes % 2),
            (table.weights, np.ones(len(nodes), np.float32)),
        ):
            with start(len(nodes)) as column:
                column.append(values)

    def _write_links(self, writer: "DatasetWriter") -> None:
        """Write edges of the graph as predicted edges and as given negatives, with a label."""
        import numpy as np

        places = np.arange(_NODES // 2, dtype=np.int64)
        pairs = np.stack([places * 7 % _NODES, places // _EDGES_PER_NODE, places, places * 0 - 1], axis=1)
        for name in (_LINK_TABLE, _NEGATIVE_TABLE):
            table = writer.links(name)
            with table.pairs(len(pairs)) as rows:
                rows.append(pairs)
            with table.labels(len(pairs), "int64") as column:
                column.append(places % 2)


def compile_first(  # noqa: PLR0913 - independent keywords
    dataset: "Dataset",
    loader: "LoaderSettings | None",
    *,
    says: Any,
    links: "LinkConfig | None" = None,
    table: str | None = None,
    has_machines: bool = False,
    memory_budget: int | None = None,
    num_ranks: int = 1,
    hops: dict[str, Any] | None = None,
) -> None:
    """Compile a run's kernels in other processes, if this machine has never compiled them; otherwise do nothing.

    If the compilation there fails for any reason, the run itself compiles the missing kernels.

    Parameters
    ----------
    dataset : the run's dataset
    loader : settings of the run's loader; None for a command without a loader
    says : function that shows a progress message
    links : settings of the link prediction task; None for a node loader
    table : the task table whose rows are loaded; None for nodes
    has_machines : whether other machines also load and may exchange rows
    memory_budget : bytes for a command without a loader; None means half the free memory
    num_ranks : ranks on this machine, which wait meanwhile
    hops : directions and statistics of a propagation, as in `PropagateSpec`; None if the command has none
    """
    # This imports numba, which --help does not need.
    from gloader.training.run_budget import ProcessKind

    is_exchanged = has_machines and loader is not None and loader.ranks.exchange != "never"
    # True if a module that the run needs has no compiled kernel at all.
    lacks = _lacks_kernels(loader, links, is_exchanged=is_exchanged, has_hops=hops is not None)
    process = ProcessKind(
        num_ranks=num_ranks,
        is_joined=has_machines,
        has_types=dataset.kind == "hetero",
        has_links=links is not None,
    )
    # With several types, the type with the most feature bytes is rehearsed.
    nodes = max(dataset.node_tables.values(), key=lambda table: table.feature_bytes)
    edges = max(dataset.edge_tables.values(), key=lambda table: table.topology_bytes, default=None)
    has_times = table is not None and dataset.task_table(table).has_times
    small = None
    if loader is not None:
        small = _small_loader(loader, dataset, beside_bytes=process.code_bytes, has_times=has_times)
    rehearsal = Rehearsal(
        folder="",
        index_dtype="int32" if edges is None else edges.arrays["indices"].dtype,
        feature_dtype=nodes.feature_dtype,
        feature_dim=max(1, nodes.feature_dim),
        has_weights=edges is not None and edges.has_weights,
        kind=dataset.kind,
        loader=small,
        links=None
        if links is None
        else _small_links(links, task="kg" if dataset.node_types == ("entity", "relation") else "link"),
        has_times=has_times,
        is_exchanged=is_exchanged,
        scored="" if loader is None or links is not None else _label_dtype(dataset, table),
        hops=hops,
    )
    # A run of another kind needs the same kernels for other argument types. Only the mark, a file, shows whether these
    # were compiled.
    mark = rehearsal.mark()
    if not lacks and (mark is None or mark.exists()):
        return
    from gloader.ssd_store.spill.folder import SpillFolder

    room = room_beside(memory_budget if loader is None else loader.memory.memory_budget, num_ranks=num_ranks)
    kind = "" if lacks else " of this kind"
    kernels = "kernels, once (15 to 60 s" if lacks else "the kernels that it lacks, once (up to 30 s"
    says(f"first run{kind} here: compiling {kernels} on two idle cores){lack_of(room, rehearsal.jobs())}")
    try:
        # If this process is killed, the next run removes its folder.
        with SpillFolder(budget_bytes=_SPILL_BYTES) as folder:
            jobs = replace(rehearsal, folder=str(folder.path)).jobs()
            if run_all(jobs, folder.path, says, room_bytes=room) and mark:
                mark.touch()
    except (OSError, SpillError) as error:
        _LOG.debug("kernels are compiled in the run itself: %s", error)


def _small_loader(
    loader: "LoaderSettings", dataset: "Dataset", *, beside_bytes: int, has_times: bool = False
) -> dict[str, Any]:
    """Return keywords for a loader with the same kernels as ``loader`` and almost no memory. Pure.

    Parameters
    ----------
    loader : the run's settings
    dataset : the run's dataset
    beside_bytes : the part of the memory budget that the run's code takes
    has_times : whether the seeds are rows with times
    """
    memory = loader.memory
    topology: str = memory.topology
    if topology == "auto" and memory.memory_budget is not None:
        num_bytes = max(dataset.topology_bytes, 1)
        if memory.memory_budget < _ON_SSD_BELOW * num_bytes:
            topology = "sweep"
        # A budget below the code's bytes is refused later.
        elif 0 < memory.memory_budget - beside_bytes < _IN_MEMORY_ABOVE * num_bytes:
            topology = _EITHER
    times: dict[str, Any] = {}
    if has_times:
        # Edges with times are not swept. The first batches of a run are sampled in memory in any case.
        topology = "direct" if topology in ("sweep", _EITHER) else topology
        strategy = loader.sampling.time_strategy
        times = {"time_strategy": "uniform" if strategy == "none" else strategy, "time_bound": "<="}
    same = ("fanouts", "sampler", "layout", "policy", "io_strategy", "io", "verify")
    keywords: dict[str, Any] = dict(loader.keywords())
    return (
        {name: keywords[name] for name in same}
        | times
        | {
            "fanouts": _of_one_relation(keywords["fanouts"]),
            "features": "ram" if loader.memory.features == "ram" else "ssd",
            "batch_size": _BATCH_SIZE,
            "memory_budget": "128MB",
            "cache": "64KB",
            "superbatch": _SUPERBATCH,
            "threads": 1,
            "topology": topology,
            "spill_budget": _SPILL_BYTES,
            "rank": 0,  # a child of torchrun's ranks is no rank itself
            "world_size": 1,
        }
    )


def _small_links(links: "LinkConfig", *, task: str) -> dict[str, Any]:
    """Return link loader keywords that need the kernels for ``links``, over the rehearsal's table."""
    negatives = links.negatives_of(task)
    return {
        "edges": _LINK_TABLE,
        "negatives": f"table:{_NEGATIVE_TABLE}" if negatives.startswith("table:") else negatives,
        "exclude": links.exclude,
        "exclude_duplicates": links.exclude_duplicates,
    }


def _label_dtype(dataset: "Dataset", table: str | None) -> str:
    """Return the dtype of the labels: int64 for classes, otherwise float32."""
    owner = dataset.labelled if table is None else dataset.task_table(table)
    return "int64" if owner.label_kind == "classes" else "float32"


def _of_one_relation(fanouts: "Fanouts") -> tuple[int, ...] | str:
    """Return fan-outs for the rehearsal's one relation, as JSON values, with the same kernels. Pure."""
    from gloader.types import RelationFanouts

    if isinstance(fanouts, RelationFanouts):
        return fanouts.by_relation[0][1]
    return fanouts if isinstance(fanouts, tuple) else str(fanouts)


def _lacks_kernels(
    loader: "LoaderSettings | None",
    links: "LinkConfig | None",
    *,
    is_exchanged: bool = False,
    has_hops: bool = False,
) -> bool:
    """Return whether a module that the command needs has no compiled kernel. The parameters are `compile_first`'s."""
    from gloader.samplers.make import kernels_of

    modules = [*_READING]
    if links is not None:
        modules.append(_LINKS)
    if is_exchanged:
        modules.append(_EXCHANGE)
    if has_hops:
        modules.append(_HOPS)
    if loader is not None and links is None:
        modules.append(_SCORES)
    if loader is not None:
        modules.append(kernels_of(loader.sampling.sampler).__name__)
        if loader.memory.features != "ram":
            modules.append(_POLICIES.get(loader.memory.policy, _ONLINE))
    return lacks_kernels(*modules)


def lacks_kernels(*modules: str) -> bool:
    """Return whether a module has no kernel in numba's cache and needs compilation."""
    from numba import config

    return not config.DISABLE_JIT and not all(map(_is_compiled, modules))


def _is_compiled(name: str) -> bool:
    """Return whether numba's cache holds a kernel of the module's present version."""
    kernels = _kernels_of(name)
    try:
        return any(kernel._cache.is_filled() for kernel in kernels)  # noqa: SLF001 - numba has no public way
    except (AttributeError, OSError):
        # numba is another version, or has no cache folder: a rehearsal would be useless.
        return True


def _kernels_of(name: str) -> list[Any]:
    """Return the kernels that are defined in the module ``name``."""
    from numba.core.dispatcher import Dispatcher

    # The module may also have imported kernels of other modules.
    kernels: list[Any] = [
        value for value in vars(import_module(name)).values() if isinstance(value, Dispatcher)
    ]
    return [kernel for kernel in kernels if kernel.py_func.__module__ == name]


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    this_part = Rehearsal(**json.loads(sys.argv[1]))
    save_in_turns(Path(this_part.folder), this_part.part)
    this_part.hold()
