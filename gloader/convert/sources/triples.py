"""The source ``triples:...``: a knowledge graph as tables of heads, relations and tails, or as N-Triples.

A *triple* says that a relation leads from its head to its tail. Heads and tails are *entities*. The dataset has the
node types ``entity`` and ``relation``, without edges or features, and a link table for each part (train, valid, test):
a row leads from head to tail, and its label is the relation's node. Keys of any kind name entities and relations.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gloader.convert.keyed_edges import column_where
from gloader.convert.keyed_graph import KeyedGraph, KeyedNodes
from gloader.convert.keyed_links import KeyedLinks
from gloader.convert.keys.values import key_kind
from gloader.convert.options import PARTS, TRAIN
from gloader.convert.readers.column_names import KNOWN_TRIPLES, TRIPLE_NAMES, listed, triple_columns
from gloader.convert.readers.open_table import is_text_table, open_table, part_files, plain_suffix
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.core.malformed import shown
from gloader.errors import ConfigError, SourceError
from gloader.types import ENTITY, RELATION, TRIPLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.convert.options import SourceOptions
    from gloader.convert.readers.table_streams import NumberTable
    from gloader.core.keys import KeyKind

_PART: Final = re.compile(rf"(?:^|,)({'|'.join(PARTS)})=")
# Options of other sources, by their flags.
_OF_OTHERS: Final = {
    "--features": "features",
    "--labels": "labels",
    "--splits": "splits",
    "--edge-time": "edge_time",
    "--edge-features": "edge_features",
}


def open_triples(argument: str, options: SourceOptions) -> KeyedGraph:
    """Open the tables of triples that ``argument`` names: a file, a folder, or the file of each part.

    A folder with files such as ``train.txt`` and ``test.tsv.gz`` has a table for each of them. Any other folder is one
    table in part files. A table has named columns, see `TRIPLE_NAMES`, or exactly three columns: head, relation, tail.

    Raises
    ------
    ConfigError
        An option is about other sources.
    SourceError
        A file is missing or malformed, its columns are unclear, or there is no table for training.
    """
    origin = f"triples:{argument}"
    for flag, name in _OF_OTHERS.items():
        if getattr(options, name) is not None:
            raise ConfigError(
                f"{flag} {shown(str(getattr(options, name)))} does not go with {origin}, which has triples alone; "
                "leave it out"
            )
    notes = ColumnNotes()
    paths = _paths(argument)
    tables = {part: open_table(path, is_header=_is_header) for part, path in paths.items()}
    links = tuple(_links(part, table, notes) for part, table in tables.items())
    (path, *_) = paths.values()
    return KeyedGraph(
        name=_name_of(path),
        origin=origin,
        where=origin,
        nodes=(
            KeyedNodes(name=ENTITY, kind=_kind(links, (0, 2))),
            KeyedNodes(name=RELATION, kind=_kind(links, (1,))),
        ),
        relations=(),
        notes=notes,
        seed=options.seed,
        needs_labels=False,
        links=links,
    )


def source_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the files and folders that a conversion reads."""
    del options
    return list(_paths(argument).values())


def _paths(argument: str) -> dict[str, Path]:
    """Return the file or folder of each part. One table alone is that of training."""
    named = _PART.split(argument)
    if len(named) > 1:
        paths = {part: Path(file).expanduser() for part, file in zip(named[1::2], named[2::2], strict=True)}
        if named[0] or len(paths) < len(named) // 2 or TRAIN not in paths:
            raise SourceError(
                f"triples:{argument} must name a file of training triples, and each part once: "
                "triples:train=FILE,valid=FILE,test=FILE"
            )
        return {part: paths[part] for part in PARTS if part in paths}
    path = Path(argument).expanduser()
    if not path.is_dir():
        return {TRAIN: path}
    by_part: dict[str, Path] = {}
    for file in part_files(path):
        stem = Path(file.stem).stem if file.suffix == ".gz" else file.stem
        if stem in PARTS and (other := by_part.setdefault(stem, file)) != file:
            raise SourceError(f"{path} has {other.name} and {file.name}; which has the triples of {stem}?")
    if not by_part:
        return {TRAIN: path}
    if TRAIN not in by_part:
        raise SourceError(
            f"{path} has {', '.join(sorted(by_part))}, and no file of training triples, train.*"
        )
    return {part: by_part[part] for part in PARTS if part in by_part}


def _is_header(fields: Sequence[str]) -> bool:
    """True if a first row has known names for head, relation and tail. Pure."""
    return _named(fields) is not None


def _named(names: Sequence[str]) -> tuple[str, str, str] | None:
    """Return the columns of heads, relations and tails by their names, or None. Pure."""
    found = triple_columns(names)
    return None if len(found) < len(TRIPLE_NAMES) else (found["head"], found["relation"], found["tail"])


def _links(part: str, table: NumberTable, notes: ColumnNotes) -> KeyedLinks:
    """Return the link table of a part. Raises SourceError if its columns are unclear."""
    names = table.names
    if not names:
        raise SourceError(
            f"{table.path} is empty; a table of triples has a head, a relation and a tail in each row"
        )
    columns = _named(names) if table.has_names else None
    if columns is None and not table.has_names and len(names) == 3:
        columns = (names[0], names[1], names[2])
    if columns is None:
        text = (
            f"the columns {listed(names)}"
            if table.has_names
            else f"{len(names)} {'column' if len(names) == 1 else 'columns'} without names"
        )
        raise SourceError(
            f"{table.path} has {text}; name its columns {KNOWN_TRIPLES} (a table without names has three, in this "
            "order)"
        )
    roles = zip(columns, TRIPLE_NAMES, strict=True)
    if table.has_names:
        text = ", ".join(name if name == role else f"{name} is the {role}" for name, role in roles)
    else:
        text = "head, relation and tail, without a header"
    notes.add(f"{part}: {text} of {table.path.name}", table, columns)
    return KeyedLinks(name=part, table=table, columns=columns, relation=TRIPLE, label_type=RELATION)


def _kind(links: Sequence[KeyedLinks], places: tuple[int, ...]) -> KeyKind:
    """Return the kind of the keys in the columns at ``places`` of all tables. Raises SourceError."""
    columns = [(each.table, each.columns[place]) for each in links for place in places]
    return key_kind(
        [(column_where(table, column), table.arrow_type(column)) for table, column in columns],
        text_places={column_where(table, column) for table, column in columns if is_text_table(table)},
    )


def _name_of(path: Path) -> str:
    """Return the graph's name: the file's stem, or the folder's name for a file such as train.tsv. Pure."""
    stem = path.name.removesuffix(".gz").removesuffix(plain_suffix(path))
    return (path.resolve().parent.name or stem) if stem in PARTS and not path.is_dir() else stem
