"""The data of the nodes of a type, or of the edges of a relation: columns with a row for each."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gloader.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


class Frame(MutableMapping[str, Any]):
    """Columns by name. One that is not there is asked for where it can be had, and kept.

    Parameters
    ----------
    num_rows : of each column
    columns : tensors, or functions that are called for one when it is read first
    fetch : returns a column that is not there, or raises KeyError; None: nobody has any
    """

    def __init__(
        self,
        num_rows: int,
        columns: Mapping[str, Any] | None = None,
        *,
        fetch: Callable[[str], Any] | None = None,
    ) -> None:
        self.num_rows = num_rows
        self._columns = dict(columns or {})
        self._fetch = fetch

    def __getitem__(self, key: str) -> Any:
        if key in self._columns:
            column = self._columns[key]
        elif self._fetch is not None:
            column = self._columns[key] = self._fetch(key)
        else:
            raise KeyError(f"{key}: there is {', '.join(map(repr, self._columns)) or 'nothing'}")
        if callable(column):
            column = self._columns[key] = column()
        return column

    def __setitem__(self, key: str, column: Any) -> None:
        if len(column) != self.num_rows:
            raise ShapeError(f"{key!r} has {len(column)} rows; {self.num_rows} are needed, one for each")
        self._columns[key] = column

    def __delitem__(self, key: str) -> None:
        del self._columns[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, key: object) -> bool:
        return key in self._columns

    def __repr__(self) -> str:
        return f"{{{', '.join(self._columns)}}} of {self.num_rows} rows"

    def add(self, key: str, column: Any) -> None:
        """Have the column ``key``, which may be a function that is called for it when it is read first."""
        self._columns[key] = column

    def columns(self) -> dict[str, Any]:
        """Return the columns that are there, functions not called."""
        return dict(self._columns)

    def restore(self, columns: dict[str, Any]) -> None:
        """Return to the columns that `columns` returned."""
        self._columns = columns

    def to(self, device: Any) -> Frame:
        """Return the frame with its columns on ``device``; what is fetched later comes there, too."""

        def moved(column: Any) -> Any:
            return (lambda: column().to(device)) if callable(column) else column.to(device)

        fetch = self._fetch
        return Frame(
            self.num_rows,
            {key: moved(column) for key, column in self._columns.items()},
            fetch=None if fetch is None else lambda key: fetch(key).to(device),
        )


class TypedColumns(MutableMapping[str, Any]):
    """The columns of several frames, by name: each is a mapping from the types that have it to its rows.

    Parameters
    ----------
    frames : by type
    """

    def __init__(self, frames: Mapping[Any, Frame]) -> None:
        self._frames = frames

    def __getitem__(self, key: str) -> dict[Any, Any]:
        found = {}
        for name, frame in self._frames.items():
            try:
                found[name] = frame[key]
            except KeyError:
                continue
        if not found:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, columns: Mapping[Any, Any]) -> None:
        for name, column in columns.items():
            self._frames[name][key] = column

    def __delitem__(self, key: str) -> None:
        for frame in [frame for frame in self._frames.values() if key in frame]:
            del frame[key]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key for frame in self._frames.values() for key in frame))

    def __len__(self) -> int:
        return len(list(iter(self)))


def data_of(frames: Mapping[Any, Frame]) -> Frame | TypedColumns:
    """Return the data of the only frame, or of all of them."""
    return next(iter(frames.values())) if len(frames) == 1 else TypedColumns(frames)


@contextmanager
def forgetting(frames: Iterable[Frame]) -> Iterator[None]:
    """Have what is written to ``frames`` in the block below forgotten at its end."""
    before = [(frame, frame.columns()) for frame in frames]
    try:
        yield
    finally:
        for frame, columns in before:
            frame.restore(columns)
