"""Verification of a dataset, for ``gloader verify``: all checksums, all ids' ranges, and the order of edge times.

A node's in-edges are consecutive and form a list. Edge times ascend within each list, so that a sampler finds all edges
before a given time at the list's start. `verify_dataset` reads every file once, with a check of the values for each
kind of array. `verified_tables` sums up its report by type, relation, link table and task table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gloader.core.kernels import njit
from gloader.dataset.key_record import BUCKETS, HASHES, KEYS, OFFSETS, AscendingCheck
from gloader.dataset.link_record import LinkCheck, link_arrays
from gloader.dataset.record import MATRICES, all_limits, check_record, link_limits, task_limits
from gloader.dataset.schema import relation_text
from gloader.dataset.task_record import task_arrays
from gloader.dataset.values import ValueCheck
from gloader.errors import StoreError
from gloader.ssd_store.format.array_reader import array_pieces
from gloader.ssd_store.format.format import DATASET_MANIFEST, Manifest, find_manifest_name, read_manifest
from gloader.ssd_store.format.verification import ElementCheck, Progress, VerifyReport, verify_directory
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gloader.types import IdArray


_NONE = np.empty(0, dtype=np.int64)


class TimeCheck:
    """The check that the times of each node's in-edges are sorted. Times come in consecutive parts, in edge order.

    A part's times are compared with their predecessors. A time below its predecessor is an error, unless a list starts
    with it. Only the list starts of one part are in memory.

    Parameters
    ----------
    offsets : consecutive parts of indptr. If they cannot be read, this check reports nothing, because the check of the
        offsets reports the damage.
    """

    def __init__(self, offsets: Iterable[IdArray]) -> None:
        self._offsets = iter(offsets)
        # Positions at which the lists of later times start, as far as they were read; None if offsets cannot be read.
        self._starts: IdArray | None = _NONE
        self._count = 0  # times checked so far
        self._last = np.iinfo(np.int64).min  # the last time of the previous part

    def wrong(self, values: IdArray) -> str | None:
        """Check the next ``values`` (n,). Return a message about the first unsorted time, or None."""
        first, self._count = self._count, self._count + len(values)
        starts = self._starts_up_to(self._count)
        if starts is None or len(values) == 0:
            return None
        # Loaded arrays are read-only. To numba, a writable array has another type and would need a second compilation.
        view = values.view()
        view.flags.writeable = False
        index = int(_first_unsorted(view, first, self._last, starts))
        before, self._last = (values[index - 1] if index > 0 else self._last), int(values[-1])
        if index < 0:
            return None
        return (
            f"edge_time[{first + index}] = {values[index]} comes behind {before} in the same list: times that are not "
            "sorted where sorted ones were promised"
        )

    def wrong_end(self) -> str | None:
        """Return None, because any last time is valid."""
        return None

    def _starts_up_to(self, end: int) -> IdArray | None:
        """Return the ascending list starts up to position ``end``, or None if the offsets cannot be read."""
        if self._starts is None:
            return None
        known = [self._starts]
        last = int(self._starts[-1]) if len(self._starts) else -1
        try:
            while last < end and (piece := next(self._offsets, None)) is not None:
                # The starts are copied, because the reader reuses its memory. Empty lists share one start.
                begins = piece[np.flatnonzero(np.diff(piece, prepend=last))]
                known.append(begins)
                last = int(piece[-1])
        except StoreError:
            self._starts = None
            return None
        starts = np.concatenate(known)
        # Starts before the next part of the times are no longer needed.
        self._starts = starts[np.searchsorted(starts, end) :]
        return starts


@njit(cache=True, nogil=True)
def _first_unsorted(times: IdArray, first: int, last: int, starts: IdArray) -> int:
    """Return the index of the first time that is below its predecessor in the same list, or -1.

    Parameters
    ----------
    times : (n,) times of consecutive edges
    first : position of the first of these edges
    last : the time before the first one
    starts : (m,) ascending list starts, which contain every start among these edges
    """
    before = last
    for i in range(times.shape[0]):
        if times[i] < before:
            list_number = np.searchsorted(starts, first + i)
            if list_number == starts.shape[0] or starts[list_number] != first + i:
                return i
        before = times[i]
    return -1


def verify_dataset(
    path: Path | str, *, progress: Progress | None = None, os_io: OsIO = REAL_OS
) -> VerifyReport:
    """Check every byte of the dataset or feature store at ``path``. Check a dataset's ids, labels and links too.

    Damage is in the report, and raises no error. The check takes the memory of two buffers, and one bit per node if the
    dataset has original ids or keys.

    Parameters
    ----------
    path : the directory
    progress : called every few MB, with the number of bytes that were checked and the total number of bytes

    Raises
    ------
    StoreOpenError, NotAStoreError, IncompleteStoreError, FormatError, VersionError, StoreReadError
        As `verify_directory`. FormatError also if the record is not a dataset's.
    """
    root = Path(path)
    name = find_manifest_name(root, os_io=os_io)

    def checks(manifest: Manifest) -> Mapping[str, ElementCheck]:
        """Return the check of each array's values, by the array's name in the record."""
        schema = check_record(root, manifest)
        by_array: dict[str, ElementCheck] = {}
        for array, plain, limits in all_limits(manifest, schema):
            if plain == "edge_time":  # its check also needs the offsets of the same relation
                offsets = manifest.arrays[array.removesuffix(plain) + "indptr"]
                by_array[array] = TimeCheck(array_pieces(root, offsets, os_io=os_io))
            elif plain in (OFFSETS, BUCKETS, HASHES):
                # The last offset is the number of bytes of the texts, and the last bucket ends with the hashes.
                ends = {OFFSETS: KEYS, BUCKETS: HASHES}.get(plain)
                last = None if ends is None else manifest.arrays[array.removesuffix(plain) + ends].shape[0]
                by_array[array] = AscendingCheck(plain, last)
            # Any key, feature value and scale is valid.
            elif plain != KEYS and plain.partition(".")[0] not in MATRICES:
                by_array[array] = ValueCheck(plain, limits)
        for task in schema.tasks:
            check = partial(ValueCheck, limits=task_limits(schema, task))
            by_array |= {
                record.name: check(plain) for plain, record in task_arrays(manifest.arrays, task).items()
            }
        for table in schema.links:
            bounds = link_limits(manifest, schema, table)
            for plain, record in link_arrays(manifest.arrays, table).items():
                by_array[record.name] = LinkCheck(plain, bounds, in_graph=table.in_graph)
        return by_array

    return verify_directory(
        root, name, checks=checks if name == DATASET_MANIFEST else None, progress=progress, os_io=os_io
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTable:
    """The result of the verification for one node type, relation, link table or task table."""

    table: str  # "type paper", "relation author:writes:paper", "links train" or "table churn.train"
    num_arrays: int  # number of the table's arrays
    num_bytes: int  # bytes of the arrays' elements
    num_problems: int  # problems that the report lists for the table's files


def verified_tables(report: VerifyReport, *, os_io: OsIO = REAL_OS) -> tuple[VerifiedTable, ...]:
    """Return the results of `verify_dataset` by link and task table and, for named types, by type and relation."""
    root = Path(report.path)
    try:
        manifest = read_manifest(root, DATASET_MANIFEST, os_io=os_io)
        schema = check_record(root, manifest)
    except StoreError:  # a feature store, or a damaged record, which the report lists
        return ()
    folders: dict[str, str] = {}
    if schema.kind == "hetero":
        folders |= {f"type {name}": schema.node_folder(name) for name in schema.num_nodes}
        folders |= {f"relation {relation_text(each)}": schema.edge_folder(each) for each in schema.relations}
    folders |= {f"links {table.name}": table.folder for table in schema.links}
    folders |= {f"table {task.name}": task.folder for task in schema.tasks}
    tables = []
    for table, folder in folders.items():
        records = [record for name, record in manifest.arrays.items() if name.startswith(folder)]
        tables.append(
            VerifiedTable(
                table=table,
                num_arrays=len(records),
                num_bytes=sum(record.num_bytes for record in records),
                num_problems=sum(problem.file.startswith(folder) for problem in report.problems),
            )
        )
    return tuple(tables)
