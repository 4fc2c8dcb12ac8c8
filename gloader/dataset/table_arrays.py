"""The arrays of one table of a dataset, which is a node type or a relation: found by plain names, checked as read."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gloader.dataset.values import DTYPES, check_array, wrong_value
from gloader.ssd_store.format.array_reader import load_array
from gloader.ssd_store.format.elements import load_elements
from gloader.ssd_store.format.format import told_apart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.dataset.values import ValueLimits
    from gloader.ssd_store.format.format import ArrayRecord, Manifest
    from gloader.ssd_store.os_io import OsIO
    from gloader.types import IdArray


class TableArrays:
    """The arrays of a type or a relation. Thread-safe; reads only; holds no file open.

    Parameters
    ----------
    root : the directory of the dataset
    manifest : its commit record
    os_io : the system calls by which the arrays are read
    folder : what stands before the table's plain names in the record
    limits : what bounds the values; they are checked whenever they are read

    Attributes
    ----------
    records : of the arrays that the table has, by plain name
    """

    def __init__(
        self, root: Path, manifest: Manifest, os_io: OsIO, *, folder: str, limits: ValueLimits
    ) -> None:
        self.root = root
        self.manifest = manifest
        self.os_io = os_io
        self.folder = folder
        self.limits = limits
        self.records: Mapping[str, ArrayRecord] = {
            name: manifest.arrays[folder + name] for name in DTYPES if folder + name in manifest.arrays
        }

    def path(self, name: str) -> Path:
        """Return the file of array ``name``."""
        return self.root / self.records[name].file

    def load(self, name: str) -> NDArray[Any]:
        """Return array ``name``, read into memory whole, verified and checked; read-only.

        Raises
        ------
        ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError
            The bytes on disk are not those that were written, or cannot be read.
        GraphError, FormatError
            A value cannot be.
        """
        with self.as_opened():
            array = load_array(self.root, self.records[name], os_io=self.os_io)
        check_array(self.path(name), name, array, self.limits)
        return array

    def load_at(self, name: str, positions: IdArray) -> NDArray[Any]:
        """Return the elements of array ``name`` at ``positions`` (n,); raises as `load`, and ShapeError."""
        with self.as_opened():
            values = load_elements(self.root, self.records[name], positions, os_io=self.os_io)
        at = self.limits.first_wrong(name, values)
        if at >= 0:
            message = self.limits.describe(name, int(positions[at]), values[at])
            raise wrong_value(self.path(name), name, message)
        return values

    @contextmanager
    def as_opened(self) -> Iterator[None]:
        """Tell another dataset at this path from damage, if files of this one are refused in the block.

        Raises
        ------
        StoreOpenError
            In place of the block's error: another dataset took the place of this one.
        """
        with told_apart(self.root, self.manifest, os_io=self.os_io):
            yield
