"""`gloader.propagate`: hop columns of a dataset, as a new dataset or as a table, within a memory budget.

A run has a request (`hop_request`), a plan for features and one for labels, and a work folder beside the output. At the
end the finished columns are joined to rows, of a dataset (`hop_dataset`) or of a table (`hop_table`).
"""

from __future__ import annotations

import json
import logging
import math
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.progress import NO_PROGRESS, PrepareProgress
from gloader.core.dtypes import STORED_DTYPES
from gloader.core.near_names import near_keywords
from gloader.core.paths import bytes_on_disk
from gloader.core.units import format_bytes, parse_bytes
from gloader.dataset import Dataset
from gloader.dataset.table_file import is_table_file
from gloader.dataset.topology import open_hetero_topology
from gloader.errors import BudgetError, ConfigError
from gloader.observe.compile_clock import compile_seconds
from gloader.plan.available import default_budget_bytes
from gloader.plan.too_small import planned_within
from gloader.ssd_store.cost.profile import remembered_profile
from gloader.ssd_store.os_io import REAL_OS, OsIO, require_free_space, write_errors
from gloader.ssd_store.write.array_writer import disk_bytes
from gloader.ssd_store.write.atomic_file import require_file_target
from gloader.ssd_store.write.new_directory import exists_error
from gloader.training.propagation.hop_dataset import copied_arrays, keeps_edges, write_hop_dataset
from gloader.training.propagation.hop_request import HopSettings, checked_request, kept_nodes, split_bytes
from gloader.training.propagation.hop_rows import HopRows
from gloader.training.propagation.hop_table import write_hop_table
from gloader.training.propagation.label_rows import LabelRows, label_bytes
from gloader.training.propagation.propagate_rows import begun_widths
from gloader.training.propagation.propagate_rows import propagate as propagate_rows
from gloader.training.propagation.propagation_plan import GraphSizes, HopCost, Rates, plan_propagation
from gloader.training.propagation.work_folder import WorkFolder, work_path

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.ssd_store import FeatureStore
    from gloader.training.propagation.chains import HopTrees
    from gloader.training.propagation.hop_request import HopRequest
    from gloader.training.propagation.propagate_rows import Pieces
    from gloader.training.propagation.propagation_plan import PropagationPlan
    from gloader.training.propagation.state_rows import RowInput
    from gloader.types import IdArray

    StrPath = str | os.PathLike[str]

_LOG = logging.getLogger(__name__)

# A run that takes less than this is not worth files from which it could go on.
_KEPT_FROM_S: Final = 30.0
# Bytes on disk: of a number in a CSV file, of key, split and label in a row of a table, and of these and the index of
# keys in a dataset. Texts are longer or shorter.
_CSV_BYTES: Final = 12
_TABLE_ROW_BYTES: Final = 32
_NODE_BYTES: Final = 64
# Memory of the join: a chunk of rows as it is read, joined and rounded, and as a table's columns and file; and the
# buffers of the output's files.
_CHUNKS_HELD: Final = 6
_JOIN_BYTES: Final = 24 << 20
_CHUNK_BYTES: Final = 4 << 20  # of the rows of a dataset
# A chunk of a table is a row group of Parquet. The file's footer, which is in memory until the end, has an entry for
# each column of each row group; pyarrow 26 took 700 bytes for one.
_ENTRY_BYTES: Final = 800
_GROUP_ROWS: Final = (1 << 10, 1 << 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class HopPlan:
    """The plan of a run."""

    request: HopRequest
    num_rows: int  # kept nodes
    num_nodes: int  # all nodes of their type
    parts: tuple[PropagationPlan, ...]  # of the features, then of the labels
    is_kept: bool  # whether finished columns are kept in the work folder, from which the run can go on
    is_continued: bool  # whether the work folder has columns of an interrupted run
    output_bytes: int  # bytes of the new dataset or table on disk
    disk_bytes: int  # bytes on disk at the peak, with the work folder
    write_s: float  # predicted seconds of the join: finished columns are read, and the result is written
    held_bytes: int  # memory at the peak
    budget_bytes: int

    @property
    def cost(self) -> HopCost:
        """The predicted bytes and seconds of the propagation, without the join."""
        return total_cost([part.cost for part in self.parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class HopReport:
    """The result of a run."""

    path: Path
    plan: HopPlan
    cost: HopCost  # measured, without the join; a continued run counts only its own part
    write_s: float  # seconds of the join
    seconds: float  # of the whole run
    compile_s: float  # seconds of it in which kernels were compiled, at their first use on a machine
    output_bytes: int  # bytes of the new dataset or table on disk

    def to_json(self) -> dict[str, Any]:
        """Return the result for ``--json``. Pure."""
        plan = self.plan
        return {
            "path": str(self.path),
            "num_rows": plan.num_rows,
            "num_columns": plan.request.width,
            "columns": [[group.name, len(group.columns)] for group in plan.request.groups],
            "num_slabs": sum(part.num_slabs for part in plan.parts),
            "is_continued": plan.is_continued,
            "budget_bytes": plan.budget_bytes,
            "held_bytes": plan.held_bytes,
            "disk_bytes": plan.disk_bytes,
            "output_bytes": self.output_bytes,
            "predicted": {**asdict(plan.cost), "write_s": plan.write_s},
            "measured": {**asdict(self.cost), "write_s": self.write_s},
            "seconds": self.seconds,
            "compile_s": self.compile_s,
            "not_used": list(plan.request.unused),
        }


def total_cost(costs: Sequence[HopCost]) -> HopCost:
    """Return the sums of several costs. Pure."""
    return HopCost(**{each.name: sum(getattr(cost, each.name) for cost in costs) for each in fields(HopCost)})


@near_keywords
def propagate(  # noqa: PLR0913 - each a setting
    dataset: StrPath | Dataset,
    out: StrPath,
    *,
    hops: int = 3,
    norm: str | None = None,
    directions: Sequence[str] = ("in",),
    stats: Sequence[str] = ("mean",),
    nodes: str = "all",
    dtype: str = "float32",
    labels: bool = False,
    memory_budget: str | int | None = None,
    overwrite: bool = False,
    resume: bool = True,
) -> Dataset | Path:
    """Sum up each node's features over its neighbours, hop by hop, and write the columns as a dataset or a table.

    docs/propagate.md defines norms, statistics and directions.

    Parameters
    ----------
    dataset : a prepared dataset, its folder or its URL
    out : the dataset's folder to make, or a table, .parquet or .csv
    hops : number of hops
    norm : "gcn", "mean" or "ppr:0.15". By default, gcn for one node type and mean for several
    directions : "in", "out" or both: along the edges, or against them
    stats : "mean", "min", "max" and "std" over the neighbours
    nodes : "all", or "labelled" to keep only the nodes of the splits
    dtype : the stored dtype: float32, float16, bfloat16 or int8; of a table float32 or float16
    labels : propagate the labels of the training nodes too; no node sees its own label
    memory_budget : memory for the propagation, such as "4GB". By default, half of the free memory
    overwrite : replace what is at ``out``, in one step, when the new one is complete
    resume : go on with what an interrupted call has left beside ``out``; False begins again

    Returns
    -------
    The new dataset, or the path of the table

    Raises
    ------
    ConfigError
        A setting is unknown, or does not fit the dataset.
    BudgetError
        The memory budget is too small. The message has a sufficient one.
    FeatureValueError
        A value does not fit the stored dtype.
    StateError
        An interrupted call with other settings has left its columns beside ``out``.
    StoreExistsError, StoreLockedError, StoreWriteError
        ``out`` exists, another process makes it, or the disk refuses or has too little room.
    ChecksumError, StoreOpenError, StoreReadError, GraphError
        The dataset is damaged, or cannot be read.
    """
    settings = HopSettings(
        hops=hops,
        norm=norm,
        directions=tuple(directions),  # type: ignore[arg-type] # checked with the request
        stats=tuple(stats),  # type: ignore[arg-type] # checked with the request
        nodes=nodes,  # type: ignore[arg-type] # checked with the request
        dtype=dtype,
        labels=labels,
    )
    with ExitStack() as held:
        opened = (
            dataset if isinstance(dataset, Dataset) else held.enter_context(closing(Dataset.open(dataset)))
        )
        report = make_hops(
            opened,
            Path(out),
            settings,
            memory_budget_bytes=default_budget_bytes()
            if memory_budget is None
            else parse_bytes(memory_budget),
            overwrite=overwrite,
            resume=resume,
        )
    for part in report.plan.request.unused:
        _LOG.info("%s: not used: %s", report.path, part)
    return report.path if is_table_file(report.path) else Dataset.open(report.path)


def make_hops(  # noqa: PLR0913 - each a setting
    dataset: Dataset,
    out: Path,
    settings: HopSettings,
    *,
    memory_budget_bytes: int,
    overwrite: bool = False,
    resume: bool = True,
    on_plan: Callable[[HopPlan], None] = lambda _: None,
    progress: PrepareProgress = NO_PROGRESS,
    os_io: OsIO = REAL_OS,
) -> HopReport:
    """Write the hop columns of ``dataset`` to ``out``; see `propagate`.

    Parameters
    ----------
    dataset : the dataset, which stays open
    out : the folder or the file to make
    settings : the columns
    memory_budget_bytes : memory for everything
    overwrite, resume : see `propagate`
    on_plan : called before the work begins
    progress : receives the progress
    os_io : the system calls of writing
    """
    began, compiled_s = time.perf_counter(), compile_seconds()
    request = checked_request(dataset, settings, is_table=is_table_file(out))
    _require_target(out, dataset, overwrite=overwrite)
    with WorkFolder(out, os_io=os_io) as work:
        if not resume:
            work.empty()
        run = _Run(dataset, out, request, work, progress, os_io)
        plan = planned_within(run.plan, memory_budget_bytes)
        on_plan(plan)
        with write_errors(work.path, "checking the free space", os_io=os_io):
            require_free_space(work.path, plan.disk_bytes - work.used_bytes, os_io=os_io)
        try:
            cost, write_s = run.write(plan, overwrite=overwrite)
        except BaseException as error:
            if plan.is_kept:
                error.add_note(f"stopped; {work.path} keeps the finished columns; go on: the same command")
            raise
    return HopReport(
        path=out,
        plan=plan,
        cost=cost,
        write_s=write_s,
        seconds=time.perf_counter() - began,
        compile_s=compile_seconds() - compiled_s,
        output_bytes=bytes_on_disk(out, has_holes=False) if out.is_dir() else out.stat().st_size,
    )


def _require_target(out: Path, dataset: Dataset, *, overwrite: bool) -> None:
    """Raise an error before hours of work if ``out`` cannot become the result."""
    if out.exists() and out.samefile(dataset.root):
        raise ConfigError(f"{out} is the dataset itself, which is read until the end; give another folder")
    if is_table_file(out):
        require_file_target(out)
    if out.exists() and not overwrite:
        error = exists_error(out)
        if (left := work_path(out)).exists():
            error.add_note(f"{left} is left from a run that was killed; remove it, or replace both")
        raise error


class _FeatureInput:
    """Feature rows as the input of a propagation. Does not own the store."""

    def __init__(self, store: FeatureStore) -> None:
        self.num_rows, self.width = store.num_rows, store.dim
        self.bytes_read = 0  # from the device
        self._store = store

    def read(self, start: int, stop: int, out: NDArray[np.float32]) -> None:
        """Read rows ``start`` to ``stop`` into ``out``."""
        self.bytes_read += self._store.read_into(np.arange(start, stop), out).bytes_read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The propagation of features, or of labels."""

    name: str  # its folder in the work folder
    trees: HopTrees
    sizes: GraphSizes
    dtype: str  # of finished columns


class _Run:
    """A run; see `make_hops` for the parameters."""

    def __init__(
        self,
        dataset: Dataset,
        out: Path,
        request: HopRequest,
        work: WorkFolder,
        progress: PrepareProgress,
        os_io: OsIO,
    ) -> None:
        self._dataset = dataset
        self._out = out
        self._request = request
        self._work = work
        self._progress = progress
        self._os_io = os_io
        self._is_table = is_table_file(out)
        settings, sizes = request.settings, GraphSizes.of_dataset(dataset)
        # The scale of an int8 row is that of all its columns, so its columns stay float32 until they are joined.
        dtype = "float32" if STORED_DTYPES[settings.dtype].has_scale else settings.dtype
        parts = [_Part(name="features", trees=request.features, sizes=sizes, dtype=dtype)]
        if request.labels is not None:
            # Labels come from memory, and those of the folds are summed up before they are rounded.
            sizes = replace(sizes, input_bytes=dict.fromkeys(sizes.input_bytes, 0))
            parts.append(_Part(name="labels", trees=request.labels, sizes=sizes, dtype="float32"))
        self._parts = parts
        self._rates = Rates()
        if (profile := remembered_profile(work.path)) is not None:
            self._rates = Rates(
                read_bytes_per_s=profile.read_bytes_per_s,
                write_bytes_per_s=profile.write_bytes_per_s or self._rates.write_bytes_per_s,
            )
        asked = {**asdict(settings), "norm": request.norm, "dataset": dataset.fingerprint}
        self._fingerprint = json.dumps(asked, sort_keys=True)
        self._begun = {
            part.name: begun_widths(work.path / part.name, self._fingerprint, os_io=os_io) for part in parts
        }

    def plan(self, budget_bytes: int) -> HopPlan:
        """Return the plan for a memory budget.

        Raises
        ------
        BudgetError
            The budget is too small.
        """
        request = self._request
        splits = self._dataset.labelled.split_sizes
        num_nodes = self._dataset.labelled.num_nodes
        num_kept = num_nodes if request.settings.nodes == "all" else min(sum(splits.values()), num_nodes)
        keeps_all = num_kept == num_nodes and request.settings.nodes == "all"
        _, join_bytes = self._join(num_kept)
        left = budget_bytes - self._fixed_bytes()
        if left < join_bytes:
            needed = budget_bytes - left + join_bytes
            raise BudgetError(
                f"the ids and labels of the splits, and a chunk of rows, take {format_bytes(needed)}, and the memory "
                f"budget is {format_bytes(budget_bytes)}",
                short_bytes=needed - budget_bytes,
            )
        num_rows = None if keeps_all else num_kept
        plans, is_kept = self._in_memory(left - join_bytes, num_rows), False
        if plans is None:
            is_kept = True
            plans = tuple(
                plan_propagation(
                    part.trees,
                    part.sizes,
                    budget_bytes=left,
                    num_kept=num_rows,
                    dtype=part.dtype,
                    widths=self._begun[part.name],
                    rates=self._rates,
                )
                for part in self._parts
            )
        output_bytes = self._output_bytes(num_kept)
        return HopPlan(
            request=request,
            num_rows=num_kept,
            num_nodes=num_nodes,
            parts=plans,
            is_kept=is_kept,
            is_continued=any(widths is not None for widths in self._begun.values()),
            output_bytes=output_bytes,
            disk_bytes=output_bytes + sum(plan.disk_bytes for plan in plans),
            write_s=output_bytes / self._rates.write_bytes_per_s
            + is_kept
            * 4
            * num_kept
            * sum(part.trees.width for part in self._parts)
            / self._rates.read_bytes_per_s,
            held_bytes=budget_bytes - left + max(join_bytes, *(plan.held_bytes for plan in plans)),
            budget_bytes=budget_bytes,
        )

    def write(self, plan: HopPlan, *, overwrite: bool) -> tuple[HopCost, float]:
        """Compute the columns and write the result. Return the cost of the columns, and the seconds of the join."""
        nodes = kept_nodes(self._dataset, self._request.settings)
        with ExitStack() as held:
            made = [
                held.enter_context(self._made(part, part_plan, nodes, held, is_kept=plan.is_kept))
                for part, part_plan in zip(self._parts, plan.parts, strict=True)
            ]
            rows = HopRows(
                nodes=nodes,
                groups=self._request.groups,
                dtype=self._request.settings.dtype,
                features=made[0],
                labels=made[1] if len(made) > 1 else None,
                num_label_groups=self._request.num_label_groups,
                on_rows=lambda done: self._progress.advance("writing rows", done, plan.num_rows, "rows"),
            )
            chunk_rows, _ = self._join(plan.num_rows)
            began = time.perf_counter()
            if self._is_table:
                write_hop_table(self._out, self._dataset, rows, chunk_rows=chunk_rows, os_io=self._os_io)
            else:
                write_hop_dataset(
                    self._out,
                    self._dataset,
                    rows,
                    self._request.recorded(self._dataset),
                    overwrite=overwrite,
                    chunk_rows=chunk_rows,
                    budget_bytes=max(plan.budget_bytes - self._fixed_bytes(), 0) // 2,
                    os_io=self._os_io,
                )
            return total_cost([each.cost for each in made]), time.perf_counter() - began

    def _made(
        self, part: _Part, plan: PropagationPlan, nodes: IdArray | range, held: ExitStack, *, is_kept: bool
    ) -> Pieces:
        """Return the columns of a part. ``held`` owns the inputs, which the result may read."""
        step = f"propagating {part.name}"
        with open_hetero_topology(self._dataset, max_bytes=plan.topology_bytes) as graph:
            return propagate_rows(
                graph,
                self._inputs(part, held),
                plan,
                add_self_loops=not self._dataset.has_self_loops,
                work=self._work.path / part.name if is_kept else None,
                fingerprint=self._fingerprint,
                keep=None if isinstance(nodes, range) else nodes,
                dtype=part.dtype,
                on_progress=lambda share: self._progress.advance(
                    step, round(share * part.trees.width), part.trees.width, "columns"
                ),
                os_io=self._os_io,
            )

    def _inputs(self, part: _Part, held: ExitStack) -> dict[str, RowInput]:
        """Return the input rows of a part, by node type."""
        if part.trees is self._request.labels:
            return {part.trees.target: LabelRows(self._dataset)}
        tables = self._dataset.node_tables
        return {
            name: _FeatureInput(held.enter_context(tables[name].open_features())) for name in part.trees.roots
        }

    def _in_memory(self, budget_bytes: int, num_kept: int | None) -> tuple[PropagationPlan, ...] | None:
        """Return the plans without files, or None if they do not fit, or are worth files from which a run can go on."""
        if any(widths is not None for widths in self._begun.values()):
            return None
        plans: list[PropagationPlan] = []
        left = budget_bytes
        try:
            for part in self._parts:
                plan = plan_propagation(
                    part.trees,
                    part.sizes,
                    budget_bytes=left,
                    num_kept=num_kept,
                    has_disk=False,
                    rates=self._rates,
                )
                plans.append(plan)
                num_rows = self._dataset.labelled.num_nodes if num_kept is None else num_kept
                left -= 4 * num_rows * part.trees.width  # the result
        except BudgetError:
            return None
        return tuple(plans) if total_cost([each.cost for each in plans]).seconds < _KEPT_FROM_S else None

    def _join(self, num_rows: int) -> tuple[int, int]:
        """Return the rows that are joined at a time, and the memory of the join."""
        row_bytes = 4 * sum(part.trees.width for part in self._parts)
        chunk_rows, footer = max(_CHUNK_BYTES // row_bytes, 1), 0
        if self._is_table:
            # Small row groups make a large footer. At the root, both take the same memory, whatever the columns.
            least, most = _GROUP_ROWS
            chunk_rows = min(max(math.isqrt(num_rows * _ENTRY_BYTES // (4 * _CHUNKS_HELD)), least), most)
            footer = -(-num_rows // chunk_rows) * self._request.width * _ENTRY_BYTES
        chunk = row_bytes * min(chunk_rows, max(num_rows, 1))
        return chunk_rows, _CHUNKS_HELD * chunk + footer + _JOIN_BYTES

    def _fixed_bytes(self) -> int:
        """Return the memory that a run takes from its beginning to its end."""
        tables = self._dataset.node_tables
        # A page of 4096 bytes has a checksum of 8 bytes.
        checksums = sum(tables[name].feature_bytes // 512 for name in self._request.features.roots)
        needs_splits = self._is_table or self._request.settings.nodes == "labelled"
        return (
            checksums
            + (split_bytes(self._dataset) if needs_splits else 0)
            + (label_bytes(self._dataset) if self._request.labels is not None else 0)
        )

    def _output_bytes(self, num_rows: int) -> int:
        """Return the bytes on disk of the result."""
        settings, width = self._request.settings, self._request.width
        if self._is_table:
            value_bytes = (
                _CSV_BYTES
                if self._out.suffix.lower() == ".csv"
                else STORED_DTYPES[settings.dtype].stored.itemsize
            )
            return num_rows * (value_bytes * width + _TABLE_ROW_BYTES)
        num_bytes = (
            disk_bytes(settings.dtype, (num_rows, width))
            + 4 * num_rows * STORED_DTYPES[settings.dtype].has_scale
        )
        if settings.nodes == "labelled":
            return num_bytes + num_rows * _NODE_BYTES
        same_disk = self._dataset.root.stat().st_dev == self._work.path.stat().st_dev
        if self._dataset.os_io.is_whole and same_disk:
            return num_bytes  # the other arrays get second names
        has_edges = keeps_edges(self._dataset, range(num_rows))
        copied = copied_arrays(self._dataset, has_edges=has_edges).values()
        return num_bytes + sum(disk_bytes(each.dtype, each.shape) for each in copied)
