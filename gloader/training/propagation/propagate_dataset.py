"""`gloader.propagate`: hop columns of a dataset, as a new dataset or as a table, within a memory budget.

A run has a request (`hop_request`), a plan for features and one for labels, and a work folder beside the output. At the
end the finished columns are joined to rows (`hop_rows`), of a dataset (`hop_dataset`) or of a table.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.progress import NO_PROGRESS, PrepareProgress
from gloader.core.near_names import near_keywords
from gloader.core.paths import bytes_on_disk
from gloader.core.units import parse_bytes
from gloader.dataset import Dataset
from gloader.dataset.table_file import is_table_file
from gloader.dataset.topology import open_hetero_topology
from gloader.errors import ConfigError, StoreOpenError
from gloader.observe.compile_clock import compile_seconds
from gloader.plan.available import default_budget_bytes
from gloader.plan.too_small import planned_within
from gloader.ssd_store.cost.profile import refresh_profile, remembered_profile
from gloader.ssd_store.os_io import REAL_OS, OsIO, require_free_space, write_errors
from gloader.ssd_store.write.atomic_file import require_file_target
from gloader.ssd_store.write.new_directory import exists_error
from gloader.training.propagation.hop_dataset import write_hop_dataset
from gloader.training.propagation.hop_plan import HopPlanner, parts_of, total_cost
from gloader.training.propagation.hop_request import HopSettings, checked_request, kept_nodes
from gloader.training.propagation.hop_rows import HopRows, write_hop_table
from gloader.training.propagation.label_rows import LabelRows
from gloader.training.propagation.propagate_rows import begun_widths
from gloader.training.propagation.propagate_rows import propagate as propagate_rows
from gloader.training.propagation.propagation_plan import Rates
from gloader.training.propagation.work_folder import WorkFolder, work_path

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.ssd_store import FeatureStore
    from gloader.training.propagation.hop_plan import HopPart, HopPlan
    from gloader.training.propagation.hop_request import HopRequest
    from gloader.training.propagation.propagate_rows import Pieces
    from gloader.training.propagation.propagation_plan import HopCost, PropagationPlan
    from gloader.training.propagation.state_rows import RowInput
    from gloader.types import IdArray

    StrPath = str | os.PathLike[str]

_LOG = logging.getLogger(__name__)
_PROBED_FROM_S: Final = (
    30.0  # a run that is expected to take longer is worth a probe of its disk, which takes 3 s
)


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
        run = _HopRun(dataset=dataset, out=out, request=request, work=work, progress=progress, os_io=os_io)
        planner = run.planner()
        plan = planned_within(planner.plan, memory_budget_bytes)
        if plan.cost.seconds > _PROBED_FROM_S and not planner.rates.is_measured:
            with suppress(StoreOpenError):
                refresh_profile(work.path, os_io=os_io)
            planner = run.planner()
            plan = planned_within(planner.plan, memory_budget_bytes)
        on_plan(plan)
        with write_errors(work.path, "checking the free space", os_io=os_io):
            require_free_space(work.path, plan.disk_bytes - work.used_bytes, os_io=os_io)
        try:
            cost, write_s = run.write(planner, plan, overwrite=overwrite)
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
class _HopRun:
    """A run; see `make_hops` for the parameters."""

    dataset: Dataset
    out: Path
    request: HopRequest
    work: WorkFolder
    progress: PrepareProgress
    os_io: OsIO

    @property
    def fingerprint(self) -> str:
        """The request as text, which the work folder keeps."""
        asked = {"norm": self.request.norm, "dataset": self.dataset.fingerprint}
        return json.dumps(asdict(self.request.settings) | asked, sort_keys=True)

    def planner(self) -> HopPlanner:
        """Return the planner, with the slabs that the work folder has."""
        parts, folder = parts_of(self.dataset, self.request), self.work.path
        is_same_disk = self.dataset.root.stat().st_dev == folder.stat().st_dev
        return HopPlanner(
            dataset=self.dataset,
            request=self.request,
            suffix=self.out.suffix.lower() if is_table_file(self.out) else "",
            begun={part.name: begun_widths(folder / part.name, self.fingerprint) for part in parts},
            shares_files=is_same_disk and self.dataset.os_io.is_whole,
            rates=_rates(folder),
        )

    def write(self, planner: HopPlanner, plan: HopPlan, *, overwrite: bool) -> tuple[HopCost, float]:
        """Compute the columns and write the result. Return the cost of the columns, and the seconds of the join."""
        nodes = kept_nodes(self.dataset, self.request.settings)
        with ExitStack() as held:
            made = [
                held.enter_context(self._made(part, part_plan, nodes, held, is_kept=plan.is_kept))
                for part, part_plan in zip(planner.parts, plan.parts, strict=True)
            ]
            rows = HopRows(
                nodes=nodes,
                groups=self.request.groups,
                dtype=self.request.settings.dtype,
                features=made[0],
                labels=made[1] if len(made) > 1 else None,
                num_label_groups=len(labels.groups) if (labels := self.request.labels) else 0,
                on_rows=lambda done: self.progress.advance("writing rows", done, plan.num_rows, "rows"),
            )
            chunk_rows, _ = planner.join(plan.num_rows, plan.budget_bytes * plan.is_kept)
            began = time.perf_counter()
            if planner.suffix:
                write_hop_table(self.out, self.dataset, rows, chunk_rows=chunk_rows, os_io=self.os_io)
            else:
                write_hop_dataset(
                    self.out,
                    self.dataset,
                    rows,
                    self.request.recorded(self.dataset),
                    overwrite=overwrite,
                    chunk_rows=chunk_rows,
                    budget_bytes=max(plan.budget_bytes - planner.fixed_bytes(), 0) // 2,
                    os_io=self.os_io,
                )
            return total_cost([each.cost for each in made]), time.perf_counter() - began

    def _made(
        self, part: HopPart, plan: PropagationPlan, nodes: IdArray | range, held: ExitStack, *, is_kept: bool
    ) -> Pieces:
        """Return the columns of a part. ``held`` owns the inputs, which the result may read."""
        step = f"propagating {part.name}"
        with open_hetero_topology(self.dataset, max_bytes=plan.topology_bytes) as graph:
            return propagate_rows(
                graph,
                self._inputs(part, held),
                plan,
                add_self_loops=not self.dataset.has_self_loops,
                work=self.work.path / part.name if is_kept else None,
                fingerprint=self.fingerprint,
                keep=None if isinstance(nodes, range) else nodes,
                dtype=part.dtype,
                on_progress=lambda share: self.progress.advance(
                    step, round(share * part.trees.width), part.trees.width, "columns"
                ),
                os_io=self.os_io,
            )

    def _inputs(self, part: HopPart, held: ExitStack) -> dict[str, RowInput]:
        """Return the input rows of a part, by node type."""
        if part.trees is self.request.labels:
            return {part.trees.target: LabelRows(self.dataset)}
        tables = self.dataset.node_tables
        return {
            name: _FeatureInput(held.enter_context(tables[name].open_features())) for name in part.trees.roots
        }


def _rates(folder: Path) -> Rates:
    """Return the rates of the disk with ``folder``, as far as they are known."""
    profile, usual = remembered_profile(folder), Rates()
    if profile is None:
        return usual
    return Rates(
        read_bytes_per_s=profile.read_bytes_per_s,
        write_bytes_per_s=profile.write_bytes_per_s or usual.write_bytes_per_s,
        is_measured=True,
    )
