"""The arrays of one link table of a dataset: found by plain names, with what bounds their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.dataset.link_record import link_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gloader.dataset.link_values import LinkLimits
    from gloader.dataset.schema import LinkRecord
    from gloader.ssd_store.format.format import ArrayRecord, Manifest
    from gloader.ssd_store.os_io import OsIO


class LinkArrays:
    """The arrays of a link table. Thread-safe; reads nothing; holds no file open.

    Parameters
    ----------
    root : the directory of the dataset
    manifest : its commit record, which was checked
    os_io : the system calls by which the arrays are read
    table : what the commit record says of the table
    limits : what bounds the values; they are checked whenever they are read

    Attributes
    ----------
    records : of the arrays that the table has, by plain name
    """

    def __init__(
        self, root: Path, manifest: Manifest, os_io: OsIO, *, table: LinkRecord, limits: LinkLimits
    ) -> None:
        self.root = root
        self.manifest = manifest
        self.os_io = os_io
        self.table = table
        self.limits = limits
        self.records: Mapping[str, ArrayRecord] = link_arrays(manifest.arrays, table)
