"""Records and value rules for link tables: sets of edges to predict, each within one relation.

A table's relation may also be free: the graph does not have it, as for recommendations, which are no edges.

The array ``pairs`` (n, 4) has one row per edge: source, destination, position and reverse position. The position is the
edge's index in the relation's ``indices``; the reverse position is the reverse edge's index in the reverse relation. -1
means that the graph has no such edge. Optional arrays have labels (n,), times (n,) and negative destinations (n, k),
which are wrong destinations for the row's source: a model should not predict them.

The commit record ``dataset.json`` lists each link table's arrays. `read_links` checks their names, dtypes and shapes,
when a dataset is opened. `LinkLimits` and `LinkCheck` check the values: ids must be within their node types,
and positions within their relations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.kernels import njit
from gloader.core.malformed import shown
from gloader.core.value_kernels import first_outside
from gloader.dataset.schema import LinkRecord, relation_text
from gloader.errors import FormatError
from gloader.ssd_store.format.manifest import (
    ALLOWED,
    FREE_LINKS_FEATURE,
    LINKS_FEATURE,
    SEPARATOR,
    is_of_links,
    is_type_name,
)
from gloader.types import NO_EDGE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.dataset.schema import DatasetSchema
    from gloader.ssd_store.format.format import ArrayRecord, Manifest
    from gloader.types import IdArray, Relation


METADATA_KEY: Final = "links"  # the record's entry that describes the link tables
# The plain names of a link table's arrays, without the table's folder.
PAIRS, LINK_LABELS, TIMES, NEGATIVES = "pairs", "labels", "times", "negatives"
# The allowed dtypes on disk, by array name. Arrays are held in memory in this order, as far as they fit. Narrow ones
# come first: on disk, each row costs a request for a full page, even if the row is narrow.
LINK_DTYPES: Final[dict[str, tuple[str, ...]]] = {
    LINK_LABELS: ("int64", "float32"),
    TIMES: ("int64",),
    PAIRS: ("int64",),
    NEGATIVES: ("int32", "int64"),
}
PAIR_WIDTH: Final = 4  # columns of the pairs
POSITION: Final = 2  # the column of the pairs with the position
# Remedies for a leak: an edge to predict is also an edge of the graph. The first is for tables from a split of the
# graph's edges by time, the second is for other tables.
REPEATED_PAIRS: Final = (
    "train has earlier edges of the same pairs: keep one edge of each, and prepare it again"
)
KNOWN_PAIRS: Final = "take them out of the edges of the source, and prepare it again"
_MEMBERS: Final = {"relation", "reverse", "in_graph"}  # keys of a link table's entry in the record


def link_error(name: object, message: str) -> str:
    """Return ``message`` with the link table's name in front. Pure."""
    return f"links {repr(name)[:120]}: {message}"


def wrong_table(
    name: object,
    relation: Relation,
    reverse: Relation | None,
    schema: DatasetSchema,
    *,
    may_be_free: bool = False,
) -> str | None:
    """Return a message about an invalid link table, or None. Pure.

    Parameters
    ----------
    name : the table's name
    relation, reverse : the edges' relation, and the reverse relation or None
    schema : the dataset's types and relations
    may_be_free : whether the graph may lack the relation; then no row has a position, and there is no reverse
    """
    if not is_type_name(name):
        return link_error(
            name, f"a name has {ALLOWED}, no '{SEPARATOR}' inside, and neither a dot nor a dash at its ends"
        )
    is_free = may_be_free and reverse is None and schema.has_names and is_type_name(relation[1])
    for given in (relation, reverse):
        is_known = given in schema.relations or (
            is_free and {relation[0], relation[2]} <= schema.num_nodes.keys()
        )
        if given is not None and not is_known:
            allowed = ", ".join(map(relation_text, schema.relations[:20])) or "none"
            return link_error(name, f"there is no relation {relation_text(given)[:320]}; there are {allowed}")
    if reverse is not None and (reverse[0], reverse[2]) != (relation[2], relation[0]):
        return link_error(
            name,
            f"{relation_text(reverse)} does not lead back along {relation_text(relation)}; the reverse goes from "
            f"{relation[2]!r} to {relation[0]!r}",
        )
    return None


def read_links(root: Path, manifest: Manifest, schema: DatasetSchema) -> tuple[LinkRecord, ...]:
    """Return a commit record's link tables in record order, after a check of their arrays. Pure.

    Parameters
    ----------
    root : the dataset's directory, for messages
    manifest : the commit record, not yet checked
    schema : the record's types and relations

    Raises
    ------
    FormatError
        A table or one of its arrays is invalid, or an array belongs to no table.
    """
    # Link tables need the format feature. Without it, a "links" entry in the metadata is a user's note.
    if LINKS_FEATURE not in manifest.required_features:
        return ()
    entries = manifest.metadata.get(METADATA_KEY)
    if not isinstance(entries, dict):
        raise FormatError(f"{root}: {METADATA_KEY!r} must list relation, reverse and in_graph of each table")
    relations = {relation_text(relation): relation for relation in schema.relations}
    may_be_free = FREE_LINKS_FEATURE in manifest.required_features
    tables = tuple(
        _read_entry(root, name, entry, relations, schema, may_be_free=may_be_free)
        for name, entry in entries.items()
    )
    left = {name for name in manifest.arrays if is_of_links(name)}  # arrays that no table has yet
    for table in tables:
        arrays = link_arrays(manifest.arrays, table)
        left.difference_update(record.name for record in arrays.values())
        _check_arrays(root, table, arrays)
    if left:
        raise FormatError(f"{root}: array {min(left)!r} belongs to no link table in the record")
    return tables


def link_arrays(arrays: Mapping[str, ArrayRecord], table: LinkRecord) -> dict[str, ArrayRecord]:
    """Return a table's array records, by plain name. Pure."""
    return {name: arrays[table.folder + name] for name in LINK_DTYPES if table.folder + name in arrays}


def _read_entry(
    root: Path,
    name: str,
    entry: object,
    relations: Mapping[str, Relation],
    schema: DatasetSchema,
    *,
    may_be_free: bool,
) -> LinkRecord:
    """Return the checked record of the link table ``name`` from its entry in the commit record.

    With ``may_be_free``, the graph may lack the table's relation.
    """
    if not isinstance(entry, dict) or entry.keys() != _MEMBERS:
        raise FormatError(f"{root}: {link_error(name, 'it must have relation, reverse and in_graph')}")
    texts = [entry["relation"], *([] if entry["reverse"] is None else [entry["reverse"]])]
    found: list[Relation] = []
    for text in texts:
        free = tuple(text.split(":")) if isinstance(text, str) and may_be_free else ()
        if isinstance(text, str) and text in relations:
            found.append(relations[text])
        elif len(free) == 3:  # `wrong_table` checks its names
            found.append(free)
        else:
            allowed = ", ".join(list(relations)[:20]) or "none"
            message = f"{shown(text)} is no relation of the dataset; there are {allowed}"
            raise FormatError(f"{root}: {link_error(name, message)}")
    relation, reverse = found[0], found[1] if len(found) > 1 else None
    if (wrong := wrong_table(name, relation, reverse, schema, may_be_free=may_be_free)) is not None:
        raise FormatError(f"{root}: {wrong}")
    count = entry["in_graph"]
    if type(count) is not int or count < 0:
        message = f"in_graph is {shown(count)}; it must be a number of rows"
        raise FormatError(f"{root}: {link_error(name, message)}")
    return LinkRecord(name=name, relation=relation, reverse=reverse, in_graph=count)


def _check_arrays(root: Path, table: LinkRecord, arrays: Mapping[str, ArrayRecord]) -> None:
    """Raise FormatError if an array is missing, or has a wrong dtype or shape."""

    def refuse(message: str) -> FormatError:
        return FormatError(f"{root}: {link_error(table.name, message)}")

    if PAIRS not in arrays:
        raise refuse(f"the array {table.folder}{PAIRS} is missing")
    for name, record in arrays.items():
        if record.dtype not in LINK_DTYPES[name]:
            raise refuse(f"{name} has dtype {record.dtype}; it must be {' or '.join(LINK_DTYPES[name])}")
    shape = arrays[PAIRS].shape
    if len(shape) != 2 or shape[1] != PAIR_WIDTH:
        raise refuse(f"{PAIRS} has shape {shape}; it must be (n, {PAIR_WIDTH})")
    for name, record in arrays.items():
        message = wrong_rows(name, record.shape, shape[0])
        if message is not None:
            raise refuse(message)
    if table.in_graph > shape[0]:
        raise refuse(f"in_graph is {table.in_graph}; there are {shape[0]} rows")


def wrong_rows(name: str, shape: tuple[int, ...], num_rows: int) -> str | None:
    """Return a message about an array's wrong shape in a table with ``num_rows`` rows, or None. Pure."""
    if shape[0] != num_rows:
        return f"{name} has {shape[0]} rows, and {PAIRS} has {num_rows}; it must have one for each pair"
    if name in (LINK_LABELS, TIMES) and len(shape) != 1:
        return f"{name} has shape {shape}; it must have one dimension"
    if name == NEGATIVES and (len(shape) != 2 or shape[1] < 1):
        return f"{name} has shape {shape}; it must be (n, k), with k of 1 or more for each row"
    return None


# Nouns for the columns of the pairs, for messages.
_NOUNS: Final = ("source", "destination", "position", "reverse position")
_BLOCK: Final = 1 << 20  # elements that `_first_not_finite` checks at a time, which bounds its memory


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """Bounds for the array values of a link table."""

    num_sources: int  # number of the source type's nodes
    num_destinations: int  # number of the destination type's nodes
    num_edges: int  # number of the relation's edges
    num_reverses: int  # number of the reverse relation's edges; 0 without such a relation
    num_negatives: int = 0  # k: given negatives per row

    @property
    def most(self) -> tuple[int, int, int, int]:
        """The largest valid value in each column of the pairs; -1 if there are no nodes or no edges."""
        return (
            self.num_sources - 1,
            self.num_destinations - 1,
            self.num_edges - 1,
            self.num_reverses - 1,
        )

    def first_wrong(self, name: str, values: NDArray[Any]) -> int:
        """Return the index of the first invalid value in ``values``, or -1. Pure.

        Parameters
        ----------
        name : the array's plain name
        values : (m,) elements of complete rows, row by row
        """
        # Loaded arrays are read-only. To numba, a writable array has another type and would need a second compilation.
        view = values.reshape(-1).view()
        view.flags.writeable = False
        if name == PAIRS:
            return int(_first_wrong_pair(view, np.array(self.most)))
        if name == NEGATIVES:
            return int(first_outside(view, 0, self.num_destinations - 1))
        return _first_not_finite(view) if name == LINK_LABELS and view.dtype.kind == "f" else -1

    def describe(self, name: str, position: int, value: object) -> str:
        """Return a message about the invalid ``value`` at element ``position`` of the flat array ``name``. Pure."""
        if name == PAIRS:
            row, column = divmod(position, PAIR_WIDTH)
            noun, most = _NOUNS[column], self.most[column]
            if column >= POSITION:
                edges = f"of an edge, in 0..{most}, or " if most >= 0 else ""
                return f"{name}, row {row}: {noun} {value} must be {edges}{NO_EDGE}, which means no such edge"
            return f"{name}, row {row}: {noun} {value} is not a node: {_allowed(most)}"
        if name == NEGATIVES:
            row = position // self.num_negatives
            most = self.num_destinations - 1
            return f"{name}, row {row}: destination {value} is not a node: {_allowed(most)}"
        return f"{name}, row {position}: {value} is not a finite number"


class LinkCheck:
    """The check of one array of a link table. The array comes in consecutive parts with complete rows.

    Parameters
    ----------
    name : the array's plain name
    limits : bounds for its values
    in_graph : number of rows with a position, as the commit record says
    """

    def __init__(self, name: str, limits: LinkLimits, *, in_graph: int) -> None:
        self._name = name
        self._limits = limits
        self._in_graph = in_graph
        self._count = 0  # elements checked so far
        self._num_in_graph = 0  # rows with a position so far

    def wrong(self, values: NDArray[Any]) -> str | None:
        """Check the next ``values`` (m,). Return a message about the first invalid value, or None."""
        first, self._count = self._count, self._count + values.size
        wrong_index = self._limits.first_wrong(self._name, values)
        if wrong_index >= 0:
            return self._limits.describe(self._name, first + wrong_index, values.reshape(-1)[wrong_index])
        if self._name == PAIRS:
            self._num_in_graph += count_in_graph(values.reshape(-1, PAIR_WIDTH))
        return None

    def wrong_end(self) -> str | None:
        """Return a message about the complete array, or None. Call it after the last part."""
        if self._name == PAIRS and self._num_in_graph != self._in_graph:
            return (
                f"{PAIRS}: {self._num_in_graph} rows have a position; the commit record says {self._in_graph}"
            )
        return None


def count_in_graph(pairs: NDArray[np.int64]) -> int:
    """Return the number of pairs (n, 4) with a position. Pure."""
    return int(np.count_nonzero(pairs[:, POSITION] != NO_EDGE))


def _allowed(most: int) -> str:
    """Return text about the valid ids 0..most."""
    return f"it must be in 0..{most}" if most >= 0 else "there is none"


def _first_not_finite(values: NDArray[Any]) -> int:
    """Return the index of the first NaN or infinity in ``values`` (m,), or -1."""
    for start in range(0, len(values), _BLOCK):
        wrong = np.flatnonzero(~np.isfinite(values[start : start + _BLOCK]))
        if len(wrong):
            return start + int(wrong[0])
    return -1


@njit(cache=True, nogil=True)
def _first_wrong_pair(pairs: IdArray, most: IdArray) -> int:
    """Return the index of the first invalid element in ``pairs`` (n * 4,), or -1.

    ``most`` (4,) has the largest valid value of each column. A row is first checked as a whole, without branches. Only
    if it is invalid, its columns are tested one by one.
    """
    for row in range(0, pairs.shape[0], 4):
        # The values are compared, not subtracted, because a difference may overflow.
        is_wrong = (
            (pairs[row] < 0) | (pairs[row] > most[0]) | (pairs[row + 1] < 0) | (pairs[row + 1] > most[1])
        )
        is_wrong |= (pairs[row + 2] < -1) | (pairs[row + 2] > most[2])
        is_wrong |= (pairs[row + 3] < -1) | (pairs[row + 3] > most[3])
        if is_wrong:
            for column in range(4):
                least = 0 if column < 2 else -1
                if not least <= pairs[row + column] <= most[column]:
                    return row + column
    return -1
