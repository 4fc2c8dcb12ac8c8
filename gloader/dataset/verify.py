"""Verification of a dataset: all checksums, all ids' ranges, and the order of edge times.

Edge times ascend within each node's in-edges. So the edges before a given time are a prefix of the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gloader.core.kernels import njit
from gloader.dataset.link_record import LinkCheck, link_arrays
from gloader.dataset.record import MATRICES, all_limits, check_record, link_limits
from gloader.dataset.schema import relation_text
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
    """Check that the times of each node's in-edges are sorted. Times come in pieces, in edge order.

    The check holds the list starts of one piece.

    Parameters
    ----------
    offsets : pieces of indptr, in order. If they cannot be read, this check reports nothing, because the check of the
        offsets reports the damage.
    """

    def __init__(self, offsets: Iterable[IdArray]) -> None:
        self._offsets = iter(offsets)
        self._starts: IdArray | None = _NONE
        self._count = 0
        self._last = np.iinfo(np.int64).min

    def wrong(self, values: IdArray) -> str | None:
        """Check the next ``values`` (n,). Return a message about the first unsorted time, or None."""
        first, self._count = self._count, self._count + len(values)
        starts = self._starts_up_to(self._count)
        if starts is None or len(values) == 0:
            return None
        # Loaded arrays are read-only. To numba, a writable array has another type and would need a second compilation.
        view = values.view()
        view.flags.writeable = False
        at = int(_first_unsorted(view, first, self._last, starts))
        before, self._last = (values[at - 1] if at > 0 else self._last), int(values[-1])
        if at < 0:
            return None
        return (
            f"edge_time[{first + at}] = {values[at]} comes behind {before} in the same list: times that are not sorted "
            "where sorted ones were promised"
        )

    def wrong_end(self) -> str | None:
        """Return None, because any last time is valid."""
        return None

    def _starts_up_to(self, end: int) -> IdArray | None:
        """Return the ascending list starts up to element ``end``, or None if the offsets cannot be read."""
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
        # Starts before the next piece are no longer needed.
        self._starts = starts[np.searchsorted(starts, end) :]
        return starts


@njit(cache=True, nogil=True)
def _first_unsorted(times: IdArray, first: int, last: int, starts: IdArray) -> int:
    """Return the first position whose time is below the one before in its list, or -1. ``last`` precedes the times."""
    before = last
    for i in range(times.shape[0]):
        if times[i] < before:
            at = np.searchsorted(starts, first + i)
            if at == starts.shape[0] or starts[at] != first + i:
                return i
        before = times[i]
    return -1


def verify_dataset(
    path: Path | str, *, progress: Progress | None = None, os_io: OsIO = REAL_OS
) -> VerifyReport:
    """Check every byte of the dataset or feature store at ``path``. Check a dataset's ids, labels and links too.

    Damage is reported, not raised. Memory is two buffers, and one bit per node with an original id.

    Parameters
    ----------
    path : the directory
    progress : called with bytes done and bytes in all, every few MB

    Raises
    ------
    StoreOpenError, NotAStoreError, IncompleteStoreError, FormatError, VersionError, StoreReadError
        As `verify_directory`. FormatError also if the record is not a dataset's.
    """
    root = Path(path)
    name = find_manifest_name(root, os_io=os_io)

    def checks(manifest: Manifest) -> Mapping[str, ElementCheck]:
        schema = check_record(root, manifest)
        found: dict[str, ElementCheck] = {}
        for array, plain, limits in all_limits(manifest, schema):
            if plain == "edge_time":
                offsets = manifest.arrays[array.removesuffix(plain) + "indptr"]
                found[array] = TimeCheck(array_pieces(root, offsets, os_io=os_io))
            elif plain.partition(".")[0] not in MATRICES:
                found[array] = ValueCheck(plain, limits)
        for table in schema.links:
            bounds = link_limits(manifest, schema, table)
            for plain, record in link_arrays(manifest.arrays, table).items():
                found[record.name] = LinkCheck(plain, bounds, in_graph=table.in_graph)
        return found

    return verify_directory(
        root, name, checks=checks if name == DATASET_MANIFEST else None, progress=progress, os_io=os_io
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTable:
    """The findings about a node type, a relation or a link table."""

    table: str  # "type paper", "relation author:writes:paper" or "links train"
    num_arrays: int
    num_bytes: int  # bytes of the elements
    num_problems: int  # problems in the report


def verified_tables(report: VerifyReport, *, os_io: OsIO = REAL_OS) -> tuple[VerifiedTable, ...]:
    """Return the findings by link table and, for a dataset of several types, by type and relation."""
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
    found = []
    for table, folder in folders.items():
        records = [record for name, record in manifest.arrays.items() if name.startswith(folder)]
        found.append(
            VerifiedTable(
                table=table,
                num_arrays=len(records),
                num_bytes=sum(record.num_bytes for record in records),
                num_problems=sum(problem.file.startswith(folder) for problem in report.problems),
            )
        )
    return tuple(found)
