"""Times and features of edges in OGB's text layout: files of a row for each edge, beside ``edge.csv.gz``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.readers.csv_table import CsvTable
from gloader.convert.readers.edge_times import StreamedTimes, TimedEdges
from gloader.convert.readers.moved_rows import PairedRows
from gloader.convert.readers.tables import TableFeatures
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.readers.edge_names import EdgeNames
    from gloader.convert.source import EdgeStream, FeatureStream

_SUFFIX: Final = ".csv.gz"
_FEATURES: Final = "edge-feat"
# What begins so in ``raw`` is of edges; the edges themselves are not.
_PREFIXES: Final = ("edge-", "edge_")


@dataclass(frozen=True, slots=True, kw_only=True)
class OgbEdgeFiles:
    """The files of a graph's edges, or of a relation's, in one folder."""

    folder: Path
    names: EdgeNames

    def there(self) -> set[str]:
        """Return the names of the files that have a row for each edge, without their suffix."""
        found = {path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"edge*{_SUFFIX}")}
        return {name for name in found if name.startswith(_PREFIXES)}

    def time_name(self) -> str | None:
        """Return the name of the file that has their times; None: they have none."""
        return self.names.pick_time(self.there())

    def timed(self, edges: EdgeStream, *, add_inverse: bool = False) -> EdgeStream:
        """Return ``edges`` with their times, where there are any.

        Parameters
        ----------
        edges : as they are streamed
        add_inverse : whether the reverse of each is streamed right behind it

        Raises
        ------
        SourceError
            The file is malformed.
        ShapeError
            It has several columns.
        """
        name = self.time_name()
        if name is None:
            return edges
        table = self._table(name)
        if len(table.names) != 1:
            raise ShapeError(
                f"{table.path} has {len(table.names)} columns; times are one number for each edge"
            )

        def pieces() -> Iterator[NDArray[np.generic]]:
            for (values,) in table.read({table.names[0]: "time"}, error=SourceError):
                yield np.repeat(values, 2) if add_inverse else values

        return TimedEdges.of(edges, StreamedTimes(pieces=pieces, where=str(table.path)))

    def features(self, num_edges: int | None, *, add_inverse: bool = False) -> FeatureStream | None:
        """Return the features of the edges; None: there are none.

        Parameters
        ----------
        num_edges : rows, where something else than the file tells
        add_inverse : whether the reverse of each is streamed right behind it

        Raises
        ------
        SourceError
            The file is malformed.
        """
        name = self.names.pick_features(self.there(), (_FEATURES,))
        if name is None:
            return None
        table = self._table(name)
        rows = TableFeatures(table=table, num_rows=table.count_rows() if num_edges is None else num_edges)
        return PairedRows(rows=rows) if add_inverse else rows

    def _table(self, name: str) -> CsvTable:
        return CsvTable.open(self.folder / (name + _SUFFIX))
