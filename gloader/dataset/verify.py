"""Verification of a dataset: every byte against its checksum, every id against the number of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.dataset.edge_times import TimeCheck
from gloader.dataset.link_record import link_arrays
from gloader.dataset.link_values import LinkCheck
from gloader.dataset.record import MATRICES, all_limits, check_record, link_limits
from gloader.dataset.schema import relation_text
from gloader.dataset.values import ValueCheck
from gloader.errors import StoreError
from gloader.ssd_store.format.array_reader import array_pieces
from gloader.ssd_store.format.format import DATASET_MANIFEST, Manifest, find_manifest_name, read_manifest
from gloader.ssd_store.format.verify import ElementCheck, Progress, VerifyReport, verify_directory
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Mapping


def verify_dataset(
    path: Path | str, *, progress: Progress | None = None, os_io: OsIO = REAL_OS
) -> VerifyReport:
    """Check every byte of the dataset or feature store at ``path``, and what a dataset's ids, labels and links name.

    Damage is reported, not raised. Memory is two buffers, and a bit for each node where original ids are kept.

    Parameters
    ----------
    path : the directory
    progress : called with bytes done and bytes in all, every few MB

    Raises
    ------
    StoreOpenError, NotAStoreError, IncompleteStoreError, FormatError, VersionError, StoreReadError
        As `verify_directory`; also a record that is no dataset's.
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
    """What was found of a node type, a relation or a link table."""

    table: str  # "type paper", "relation author:writes:paper" or "links train"
    num_arrays: int
    num_bytes: int  # of the elements
    num_problems: int  # of those in the report


def verified_tables(report: VerifyReport, *, os_io: OsIO = REAL_OS) -> tuple[VerifiedTable, ...]:
    """Return what ``report`` found of each type and relation of a dataset of several types, and of each link table."""
    root = Path(report.path)
    try:
        manifest = read_manifest(root, DATASET_MANIFEST, os_io=os_io)
        schema = check_record(root, manifest)
    except StoreError:  # a feature store, or a record that is damaged, as the report says
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
