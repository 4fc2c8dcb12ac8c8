"""Verification of a dataset: every byte against its checksum, every id against the number of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gloader.dataset.record import all_limits, check_record
from gloader.dataset.values import ValueCheck
from gloader.ssd_store.format.format import DATASET_MANIFEST, Manifest, find_manifest_name
from gloader.ssd_store.format.verify import ElementCheck, Progress, VerifyReport, verify_directory
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Mapping


def verify_dataset(
    path: Path | str, *, progress: Progress | None = None, os_io: OsIO = REAL_OS
) -> VerifyReport:
    """Check every byte of the dataset or feature store at ``path``, and what a dataset's ids and labels name.

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
        return {
            array: ValueCheck(plain, limits)
            for array, plain, limits in all_limits(manifest, schema)
            if not plain.startswith("features")
        }

    return verify_directory(
        root, name, checks=checks if name == DATASET_MANIFEST else None, progress=progress, os_io=os_io
    )
