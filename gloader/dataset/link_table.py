"""A link table of a dataset: edges to predict, with labels, times and wrong destinations where they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.core.near_names import near_attributes
from gloader.dataset.link_record import LABELS, NEGATIVES, PAIRS, TIMES
from gloader.dataset.open_links import OpenLinks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.config import IoMode
    from gloader.dataset.open_links import LinkArrays
    from gloader.ssd_store.format.format import ArrayRecord
    from gloader.types import Relation


@near_attributes
class LinkTable:
    """A link table of a dataset. Thread-safe; reads only; holds no file open. Made by `Dataset`.

    Parameters
    ----------
    arrays : its arrays, and what the commit record says of it
    """

    def __init__(self, arrays: LinkArrays) -> None:
        self._arrays = arrays

    def __repr__(self) -> str:
        """Return its name, and the number of its rows."""
        return f"LinkTable({self.name!r}, relation={':'.join(self.relation)!r}, num_rows={self.num_rows})"

    @property
    def arrays(self) -> Mapping[str, ArrayRecord]:
        """The records of the arrays that it has, by plain name."""
        return self._arrays.records

    @property
    def name(self) -> str:
        """Its name: "train", "valid", or any."""
        return self._arrays.table.name

    @property
    def relation(self) -> Relation:
        """The relation that the edges are of, or would be."""
        return self._arrays.table.relation

    @property
    def reverse_relation(self) -> Relation | None:
        """The relation whose edges lead back; None: there is none."""
        return self._arrays.table.reverse

    @property
    def num_rows(self) -> int:
        """Edges in the table."""
        return self.arrays[PAIRS].shape[0]

    @property
    def in_graph(self) -> int:
        """Rows whose edge is in the graph: messages pass along it, if it is not excluded."""
        return self._arrays.table.in_graph

    @property
    def has_labels(self) -> bool:
        """Whether each row has a label."""
        return LABELS in self.arrays

    @property
    def label_dtype(self) -> str | None:
        """The dtype of the labels, int64 or float32; None without."""
        return self.arrays[LABELS].dtype if self.has_labels else None

    @property
    def has_times(self) -> bool:
        """Whether each row has a time."""
        return TIMES in self.arrays

    @property
    def negatives_per_row(self) -> int:
        """How many destinations are given as wrong ones for each row; 0 without."""
        return self.arrays[NEGATIVES].shape[1] if NEGATIVES in self.arrays else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of pairs, labels and times."""
        return sum(record.num_bytes for record in self.arrays.values()) - self.negative_bytes

    @property
    def negative_bytes(self) -> int:
        """Bytes of the destinations that are given as wrong ones."""
        return self.arrays[NEGATIVES].num_bytes if NEGATIVES in self.arrays else 0

    def open(self, *, max_bytes: int, io: IoMode = "auto") -> OpenLinks:
        """Open the table for reading rows in any order, until the returned reader's block ends, or its `close`.

        Labels, times, pairs and negatives, in this order, are read into memory as far as they fit into ``max_bytes``,
        verified once. Of the others nothing but page checksums is held, and rows are read, verified and checked as
        they are asked for. What is read is the same in either case.

        Parameters
        ----------
        max_bytes : memory that it may take
        io : how rows are read that are not held

        Raises
        ------
        StoreOpenError, IncompleteStoreError, TruncatedStoreError, StoreReadError
            A file cannot be read, or is not as long as the commit record says; or another dataset took the place of
            this one.
        ChecksumError, FormatError
            What was read is not what was written, or cannot be; names file and page or row.
        ConfigError
            ``io`` cannot be had here.
        """
        return OpenLinks(self._arrays, max_bytes=max_bytes, io=io)
