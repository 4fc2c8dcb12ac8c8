"""What lies on the disk beside the edges: the feature rows of each table, and room for what is spilled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gloader.ssd_store.cost.learner import RateLearner
from gloader.ssd_store.cost.rates import find_rates

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from gloader.config import LoaderSettings, ReadingSettings
    from gloader.dataset import Dataset
    from gloader.dataset.feature_rows import FeatureRows
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.cost.strategy import IoRates
    from gloader.ssd_store.spill.folder import SpillFolder


# Open files at most of what reads a file: the file, a ring, and the events that it waits for.
FILES_OF_A_READER: Final = 4
FILES_OF_A_MIRRORED_FILE: Final = 3  # for reading and for writing, and its marks
_AS_PROBED: Final = ("auto", "uring")  # the ways to make requests that a probe would choose


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """The feature rows of a node type, or of the edges of a relation."""

    rows: FeatureRows
    store: FeatureStore
    is_of_edges: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDisk:
    """What a run had of its disks, for planning it again: nothing is measured then, and no folder is made."""

    rates: IoRates
    spill_bytes: int  # that could be spilled


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """The feature rows of every node type and relation that has them, and room for packs."""

    tables: tuple[TableFile, ...]
    spill: SpillFolder | None
    rates: IoRates
    known: KnownDisk | None = None  # of a run that is planned alone
    edge_spill: SpillFolder | None = None  # for what passes over the edges bring; None: there are no such
    learner: RateLearner | None = (
        None  # of what a run sees of the disks; None: that says nothing of their rates
    )

    @property
    def stores(self) -> tuple[FeatureStore, ...]:
        """The rows of each table."""
        return tuple(table.store for table in self.tables)

    @property
    def types(self) -> tuple[int, ...]:
        """The number of each table, see `table_rows`."""
        return tuple(table.rows.number for table in self.tables)

    @property
    def names(self) -> tuple[str, ...]:
        """The node type, or relation, of each table."""
        return tuple(table.rows.name for table in self.tables)

    @property
    def spill_bytes(self) -> int:
        """Bytes of disk that may be spilled."""
        if self.known is not None:
            return self.known.spill_bytes
        return 0 if self.spill is None else self.spill.budget_bytes


def open_files(
    dataset: Dataset,
    settings: LoaderSettings,
    spill: SpillFolder | None,
    stack: ExitStack,
    *,
    known: KnownDisk | None = None,
) -> TableFiles:
    """Open the feature rows of ``dataset``.

    Parameters
    ----------
    dataset : whose nodes and edges
    settings : those of the loader
    spill : the folder for packs; None: there is none
    stack : closes what was opened
    known : of the disks of a run that is planned alone; None: they are measured
    """
    tables = feature_rows(dataset, settings)
    # Before a store is opened, which reads through holes as long as the device's rates make that cheaper.
    learner = None
    if known is None:
        rates, learner = _measured_rates(dataset, tables, settings, spill)
    else:
        rates = known.rates
    if learner is not None:
        stack.callback(learner.close)
    found = [
        TableFile(
            rows=rows,
            store=stack.enter_context(open_store(rows, settings.reading)),
            is_of_edges=rows.number >= len(dataset.node_types),
        )
        for rows in tables
    ]
    return TableFiles(tables=tuple(found), spill=spill, rates=rates, known=known, learner=learner)


def with_edge_spill(files: TableFiles, plan: MemoryPlan, stack: ExitStack) -> TableFiles:
    """Return ``files`` with a folder for passes over the edges, whose part of the disk packs cannot take."""
    if files.spill is None or plan.sweeps is None:
        return files
    return replace(files, edge_spill=stack.enter_context(files.spill.split_off(plan.sweeps.spill_bytes)))


def feature_rows(dataset: Dataset, settings: LoaderSettings) -> tuple[FeatureRows, ...]:
    """Return the tables of ``dataset`` that a loader of ``settings`` brings rows of, in the order of their numbers."""
    return dataset.feature_rows(edges=settings.sampling.edge_features == "auto")


def open_store(rows: FeatureRows, reading: ReadingSettings) -> FeatureStore:
    """Open the features ``rows`` for reading as ``reading`` says."""
    return rows.open_features(io=reading.io, verify=reading.verify, gap_bytes=reading.max_gap)


def _measured_rates(
    dataset: Dataset, tables: Sequence[FeatureRows], settings: LoaderSettings, spill: SpillFolder | None
) -> tuple[IoRates, RateLearner | None]:
    """Return the rates of the disks, and who learns from the run, where it reads as their probes do."""
    file, span = _largest_file(dataset, tables)
    found = find_rates(file, None if spill is None else spill.path, span=span)
    if dataset.mirrored is not None:
        return dataset.mirrored.rates(found.rates), None
    return found.rates, RateLearner(found) if settings.reading.io in _AS_PROBED else None


def _largest_file(dataset: Dataset, tables: Sequence[FeatureRows]) -> tuple[Path, tuple[int, int] | None]:
    """Return the file by which the disk is judged, the largest of features, else of edges, and which bytes are here."""
    if tables:
        largest = max(tables, key=lambda rows: rows.held_bytes)
        return largest.features_path, None if largest.held is None else largest.held_span
    edges = max(dataset.edge_tables.values(), key=lambda table: table.topology_bytes, default=None)
    # Nothing is read of a dataset without either.
    return (dataset.root if edges is None else edges.root / edges.arrays["indices"].file), None
