"""What the commit record of a dataset says of its link tables: sets of edges to predict, each of one relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.core.malformed import shown
from gloader.dataset.schema import LinkRecord, relation_text
from gloader.errors import FormatError
from gloader.ssd_store.format.array_names import ALLOWED, SEPARATOR, is_of_links, is_type_name
from gloader.ssd_store.format.manifest import LINKS_FEATURE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gloader.dataset.schema import Schema
    from gloader.ssd_store.format.format import ArrayRecord, Manifest
    from gloader.types import Relation

METADATA_KEY: Final = "links"
PAIRS, LABELS, TIMES, NEGATIVES = "pairs", "labels", "times", "negatives"
# The dtypes that the arrays of a link table may have on disk.
LINK_DTYPES: Final[dict[str, tuple[str, ...]]] = {
    PAIRS: ("int64",),
    LABELS: ("int64", "float32"),
    TIMES: ("int64",),
    NEGATIVES: ("int32", "int64"),
}
PAIR_WIDTH: Final = 4
POSITION: Final = 2  # its column of the pairs, behind source and destination
# What ends a leak: edges of the graph that are to be predicted.
REPEATED_PAIRS: Final = (
    "train has earlier edges of the same pairs: keep one edge of each, and prepare it again"
)
KNOWN_PAIRS: Final = "take them out of the edges of the source, and prepare it again"
_MEMBERS: Final = {"relation", "reverse", "in_graph"}


def link_error(name: object, message: str) -> str:
    """Return ``message`` of the link table ``name``. Pure."""
    return f"links {repr(name)[:120]}: {message}"


def wrong_table(name: object, relation: Relation, reverse: Relation | None, schema: Schema) -> str | None:
    """Return what is wrong with a link table of a dataset, or None. Pure.

    Parameters
    ----------
    name : of the table
    relation, reverse : whose edges they are, and which leads back; None: none does
    schema : of the dataset
    """
    if not is_type_name(name):
        return link_error(
            name, f"a name has {ALLOWED}, no '{SEPARATOR}' inside, and neither a dot nor a dash at its ends"
        )
    for each in (relation, reverse):
        if each is not None and each not in schema.relations:
            allowed = ", ".join(map(relation_text, schema.relations[:20])) or "none"
            return link_error(name, f"there is no relation {relation_text(each)[:320]}; there are {allowed}")
    if reverse is not None and (reverse[0], reverse[2]) != (relation[2], relation[0]):
        return link_error(
            name,
            f"{relation_text(reverse)} does not lead back along {relation_text(relation)}; the reverse goes from "
            f"{relation[2]!r} to {relation[0]!r}",
        )
    return None


def read_links(root: Path, manifest: Manifest, schema: Schema) -> tuple[LinkRecord, ...]:
    """Return the link tables that a commit record lists, in its order, each with its arrays checked. Pure.

    Parameters
    ----------
    root : of the dataset, for messages
    manifest : its record, of any content
    schema : the types and relations that it lists

    Raises
    ------
    FormatError
        A table or one of its arrays cannot be, or an array is of no table.
    """
    # Without the feature, which arrays of links need, whatever the metadata say of "links" is somebody's note.
    if LINKS_FEATURE not in manifest.required_features:
        return ()
    entries = manifest.metadata.get(METADATA_KEY)
    if not isinstance(entries, dict):
        raise FormatError(f"{root}: {METADATA_KEY!r} must list relation, reverse and in_graph of each table")
    relations = {relation_text(relation): relation for relation in schema.relations}
    tables = tuple(_read_entry(root, name, entry, relations, schema) for name, entry in entries.items())
    left = {name for name in manifest.arrays if is_of_links(name)}
    for table in tables:
        arrays = link_arrays(manifest.arrays, table)
        left.difference_update(record.name for record in arrays.values())
        _check_arrays(root, table, arrays)
    if left:
        raise FormatError(f"{root}: array {min(left)!r} is none of a link table that the record lists")
    return tables


def link_arrays(arrays: Mapping[str, ArrayRecord], table: LinkRecord) -> dict[str, ArrayRecord]:
    """Return the records of the arrays that ``table`` has, by plain name. Pure."""
    return {name: arrays[table.folder + name] for name in LINK_DTYPES if table.folder + name in arrays}


def _read_entry(
    root: Path, name: str, entry: object, relations: Mapping[str, Relation], schema: Schema
) -> LinkRecord:
    if not isinstance(entry, dict) or entry.keys() != _MEMBERS:
        raise FormatError(f"{root}: {link_error(name, 'it must have relation, reverse and in_graph')}")
    texts = [entry["relation"], *([] if entry["reverse"] is None else [entry["reverse"]])]
    for text in texts:
        if not isinstance(text, str) or text not in relations:
            allowed = ", ".join(list(relations)[:20]) or "none"
            message = f"{shown(text)} is no relation of the dataset; there are {allowed}"
            raise FormatError(f"{root}: {link_error(name, message)}")
    relation, reverse = relations[texts[0]], relations[texts[1]] if len(texts) > 1 else None
    if (wrong := wrong_table(name, relation, reverse, schema)) is not None:
        raise FormatError(f"{root}: {wrong}")
    count = entry["in_graph"]
    if type(count) is not int or count < 0:
        message = f"in_graph is {shown(count)}; it must be a number of rows"
        raise FormatError(f"{root}: {link_error(name, message)}")
    return LinkRecord(name=name, relation=relation, reverse=reverse, in_graph=count)


def _check_arrays(root: Path, table: LinkRecord, arrays: Mapping[str, ArrayRecord]) -> None:
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
    """Return what is wrong with the shape of array ``name`` of a table of ``num_rows``, or None. Pure."""
    if shape[0] != num_rows:
        return f"{name} has {shape[0]} rows beside {num_rows} of {PAIRS}; it must have one for each"
    if name in (LABELS, TIMES) and len(shape) != 1:
        return f"{name} has shape {shape}; it must have one dimension"
    if name == NEGATIVES and (len(shape) != 2 or shape[1] < 1):
        return f"{name} has shape {shape}; it must be (n, k), with k of 1 or more for each row"
    return None
