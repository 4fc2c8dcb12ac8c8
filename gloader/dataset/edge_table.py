"""The edges of one relation: for each node of the destination type its in-neighbours of the source type."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gloader.core.near_names import near_attributes
from gloader.dataset.feature_rows import FeatureRows
from gloader.dataset.values import wrong_value
from gloader.samplers import CscGraph
from gloader.samplers.graph import describe_unsorted_time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from gloader.dataset.table_arrays import TableArrays
    from gloader.dataset.values import ValueLimits
    from gloader.ssd_store.format.format import ArrayRecord
    from gloader.ssd_store.os_io import OsIO
    from gloader.types import IdArray, Relation


@near_attributes
class EdgeTable:
    """The edges of one relation of a dataset. Thread-safe; reads only; holds no file open. Made by `Dataset`.

    Whatever reads the topology of a dataset of one type reads that of a relation: `open_topology`, the passes.

    Parameters
    ----------
    relation : (source type, name, destination type)
    number : of the relation among the tables of the dataset: types come first
    arrays : indptr, indices and perhaps edge_weight, edge_features and edge_time
    name : what its features are called
    """

    def __init__(self, relation: Relation, number: int, arrays: TableArrays, *, name: str) -> None:
        self.relation = relation
        self._number = number
        self._name = name
        self._arrays = arrays

    def __repr__(self) -> str:
        """Return the sizes."""
        return f"EdgeTable({':'.join(self.relation)!r}, num_edges={self.num_edges})"

    @property
    def root(self) -> Path:
        """The directory of the dataset."""
        return self._arrays.root

    @property
    def os_io(self) -> OsIO:
        """The system calls by which the arrays are read."""
        return self._arrays.os_io

    @property
    def limits(self) -> ValueLimits:
        """What bounds the values of the arrays."""
        return self._arrays.limits

    @property
    def arrays(self) -> Mapping[str, ArrayRecord]:
        """The records of the arrays, by plain name."""
        return self._arrays.records

    @property
    def num_nodes(self) -> int:
        """N: destinations."""
        return self.limits.num_nodes

    @property
    def num_sources(self) -> int:
        """The nodes of the source type, from which edges may come."""
        return self.limits.num_sources

    @property
    def num_edges(self) -> int:
        """E."""
        return self.limits.num_edges

    @property
    def topology_bytes(self) -> int:
        """Bytes of indptr, indices and edge weights."""
        names = ("indptr", "indices", "edge_weight")
        return sum(self.arrays[name].num_bytes for name in names if name in self.arrays)

    @property
    def time_bytes(self) -> int:
        """Bytes of the times of the edges, which are held beside the topology by those that look at them."""
        return self.arrays["edge_time"].num_bytes if self.has_times else 0

    @property
    def has_weights(self) -> bool:
        """Whether edges have weights."""
        return "edge_weight" in self.arrays

    @property
    def has_times(self) -> bool:
        """Whether edges have times."""
        return "edge_time" in self.arrays

    @property
    def has_edge_features(self) -> bool:
        """Whether edges have feature rows."""
        return "edge_features" in self.arrays

    @cached_property
    def feature_rows(self) -> FeatureRows | None:
        """The feature rows of the edges, in the order of their positions; None: there are none."""
        if not self.has_edge_features:
            return None
        return FeatureRows(self._name, self._number, self._arrays, "edge_features")

    def load_times(self, indptr: IdArray) -> IdArray | None:
        """Return the time of each edge, (E,) int64 seconds, in memory, verified and found sorted; None: no times.

        Parameters
        ----------
        indptr : (N + 1,) where the lists begin, checked

        Raises
        ------
        ChecksumError, StoreReadError, StoreOpenError
            As `load_graph`.
        GraphError
            They do not ascend within a list; names file and edge.
        """
        if not self.has_times:
            return None
        times = self._arrays.load("edge_time")
        if (message := describe_unsorted_time(indptr, times)) is not None:
            raise wrong_value(self._arrays.path("edge_time"), "edge_time", message)
        return times

    def load_graph(self, *, times: bool = True) -> CscGraph:
        """Return the edges, read into memory whole and verified; `open_topology` reads what is larger page by page.

        Parameters
        ----------
        times : with the times of the edges, where they have some

        Raises
        ------
        ChecksumError, StoreReadError
            The bytes on disk are not those that were written, or cannot be read.
        StoreOpenError
            Another dataset took the place of this one.
        GraphError
            An id is no node, offsets do not ascend, a weight is not a finite number of at least 0, or times do not
            ascend in the list of a node.
        """
        weight = self._arrays.load("edge_weight") if self.has_weights else None
        indptr = self._arrays.load("indptr")
        return CscGraph(
            indptr=indptr,
            indices=self._arrays.load("indices"),
            edge_weight=weight,
            edge_time=self.load_times(indptr) if times else None,
            num_sources=self.num_sources,
            validate=False,
        )

    def as_opened(self) -> AbstractContextManager[None]:
        """Tell another dataset at this path from damage, if files are refused in the block; see `TableArrays`."""
        return self._arrays.as_opened()
