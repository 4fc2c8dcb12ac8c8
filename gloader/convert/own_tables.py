"""`gloader.prepare`: tables of other programs, and files, as a dataset.

The tables are Arrow streams, such as results of DuckDB and frames of polars or pandas, or files. They are described by
the keys of a ``graph.yaml``, and opened as such a description. A stream can be read only once, so it is kept in a
temporary file. A *key* is a value that identifies a node.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gloader.convert.in_memory import needs_labels, take_labels_as, write_source
from gloader.convert.key_numbers import temporary_folder
from gloader.convert.options import PARTS, PrepareOptions, SourceOptions
from gloader.convert.readers.column_names import id_columns, listed
from gloader.convert.readers.open_table import open_table
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.convert.sources.graph_folder import open_described
from gloader.convert.sources.graph_yaml import EDGE_KEYS, NODE_KEYS, ROWS_KEYS, described_graph
from gloader.core.fanouts import parse_relation
from gloader.core.near_names import near_advice, near_options
from gloader.core.units import parse_bytes
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError
from gloader.types import NODE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gloader.convert.keys.numbering import Dangling
    from gloader.convert.readers.table_streams import NumberTable
    from gloader.dataset import Dataset
    from gloader.types import Relation

_LOG = logging.getLogger(__name__)
_CALL: Final = "gloader.prepare"  # the description's place in messages, and the dataset's origin
_FOLDER_PREFIX: Final = "gloader-tables-"  # beginning of the name of the folder with streams
_TABLE: Final = "table"  # the key for a stream or a path, in place of a description's ``file``
# Options of a source of tables. All others are options of the conversion.
_SOURCE_OPTIONS: Final = ("edge_time", "edge_features", "labels_as")


@near_options(_CALL, (*_SOURCE_OPTIONS, "memory_budget", *PrepareOptions.__dataclass_fields__))
def prepare(
    *,
    edges: Any,
    out: str | os.PathLike[str],
    nodes: Any = None,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    name: str | None = None,
    dangling: Dangling | None = None,
    seed: int = 0,
    **options: Any,
) -> Dataset:
    """Write tables of nodes and edges as a dataset, and open it.

    A table is a path of a file, a folder or a pattern, or an object with ``__arrow_c_stream__``: a result of DuckDB, a
    frame of polars or pandas, a table or reader of pyarrow, or a reader of a database driver. A dataset or scanner of
    pyarrow is a table too. A stream is read once, into a temporary file beside the dataset or below $GLOADER_SPILL_DIR.

    Instead of a table, an entry may be a mapping with the keys of an entry in ``graph.yaml``, and "table" in place of
    "file": ``{"table": frame, "key": "user_id", "columns": ["age"], "labels": "churned"}``. An entry that is only a
    table has the nodes' keys, or the edges' ends, in columns with known names, such as user_id, or src and dst.

    Parameters
    ----------
    edges : an entry for each relation: (source type, name, destination type), or "source:name:destination", or only a
        name if "src" and "dst" name types and columns, such as "user.user_id". With one node type or none, also one
        table
    out : the dataset's folder to make
    nodes : an entry for each node type; with one type, also one table. Types that only "src" and "dst" name, and all
        types without ``nodes``, get their nodes from the keys of the edges
    tables : tasks by name, each with a node type and rows to predict: ``{"type": "user", "train": {"table": frame,
        "node": "user_id", "time": "date", "label": "churned"}}``, and so "valid" and "test"
    name : a short display name. By default, the folder's name
    dangling : what becomes of an edge whose key no row of the type's table has: "error" (the default), "drop" or "node"
    seed : seed for random splits
    edge_time, edge_features : columns of times and of features in all edge tables
    labels_as : "classes" or "values" for labels; see `gloader.convert.readers.node_arrays.to_labels`
    memory_budget : memory for the conversion, such as "4GB". By default, half of the free memory
    edge_split, edge_split_by, edge_split_relation, reverse, symmetrize, add_reverse, self_loops, deduplicate, dtype,
        edge_dtype, allow_nan, missing, order, ranges, overwrite : see `Dataset.from_numpy` and
        `Dataset.from_numpy_hetero`

    Raises
    ------
    TypeError
        A keyword is unknown.
    SourceError, ShapeError, GraphError, ConfigError
        An entry is invalid, lacks a column, or is no table, or a value in a table is malformed. The message names the
        entry, the row and the value.
    BudgetError, StoreExistsError, StoreWriteError, SpillError
        As `gloader.convert.prepare.prepare`. Streams need disk space too.
    """
    from gloader.dataset import Dataset  # imported late: it imports this package for conversions

    out = Path(out)
    budget = options.get("memory_budget")
    source_options = SourceOptions(
        seed=seed,
        needs_labels=needs_labels(options),
        memory_budget_bytes=None if budget is None else parse_bytes(budget),
        labels_as=take_labels_as(options),
        edge_time=options.pop("edge_time", None),
        edge_features=options.pop("edge_features", None),
    )
    with ExitStack() as held:
        streams = _Tables(out, held, overwrite=bool(options.get("overwrite")))
        node_entries = {
            key: streams.entry(value, f"nodes[{key!r}]", NODE_KEYS) for key, value in _by_type(nodes).items()
        }
        edge_entries = {
            key: streams.entry(value, f"edges[{key!r}]", EDGE_KEYS)
            for key, value in _by_relation(edges, list(node_entries)).items()
        }
        tasks = (
            {key: _task(task, key, streams) for key, task in tables.items()}
            if isinstance(tables, Mapping)
            else tables
        )
        content = {
            "name": name,
            "nodes": node_entries,
            "edges": edge_entries,
            "tables": tasks,
            "dangling": dangling,
        }
        graph = described_graph(
            {key: value for key, value in content.items() if value},
            Path(_CALL),
            usual_name=out.resolve().name,
        )
        graph = replace(
            graph,
            nodes={key: replace(each, table=streams.of(each.file)) for key, each in graph.nodes.items()},
            edges={key: replace(each, table=streams.of(each.file)) for key, each in graph.edges.items()},
            tables={
                key: replace(
                    task,
                    parts={
                        part: replace(rows, table=streams.of(rows.file)) for part, rows in task.parts.items()
                    },
                )
                for key, task in graph.tables.items()
            },
            notes=tuple(streams.notes.lines),
        )
        write_source(open_described(graph, _CALL, source_options), out, options, seed=seed)
    return Dataset.open(out)


class _Tables:
    """The tables of a call: streams in temporary files, and the entries that name them.

    Parameters
    ----------
    out : the dataset's folder
    held : closes the folder of the temporary files
    overwrite : True if the dataset may exist already
    """

    def __init__(self, out: Path, held: ExitStack, *, overwrite: bool) -> None:
        self.notes = ColumnNotes()
        self._out = out
        self._held = held
        self._overwrite = overwrite
        self._folder: Path | None = None
        self._by_name: dict[str, NumberTable] = {}
        self._names: dict[int, str] = {}  # the names of streams, by the objects' ids
        self._streams: list[Any] = []  # keeps the objects, so that their ids stay theirs

    def of(self, file: Path | None) -> NumberTable | None:
        """Return the stream with the name ``file``, or None for the path of a file."""
        return None if file is None else self._by_name.get(str(file))

    def entry(self, given: Any, where: str, allowed: Sequence[str]) -> dict[str, object]:
        """Return an entry of a description for a table or a mapping.

        Parameters
        ----------
        given : the user's entry
        where : the entry's place, such as "nodes['user']", for messages and as the stream's name
        allowed : the keys of such an entry in a description

        Raises
        ------
        ConfigError
            The entry has an unknown key, or a table of nodes alone has no certain column of keys.
        SourceError, StoreWriteError, StoreExistsError, SpillError
            As `spilled_stream` and `temporary_folder`.
        """
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            file = self._file(given, where)
            return {"file": file, "key": self._key(file, where)} if "key" in allowed else {"file": file}
        known = [_TABLE, *allowed]
        for name in given:
            if name not in known:
                raise ConfigError(
                    f"{where} has the key {name!r}, which no entry has; {near_advice(str(name), known)} Columns in "
                    "memory become a table by {'table': pyarrow.table(columns)}"
                )
        entry = {str(name): _plain(value) for name, value in given.items() if name != _TABLE}
        if _TABLE in given:
            if "file" in given:
                raise ConfigError(f"{where} has table and file; give one of them")
            entry["file"] = self._file(given[_TABLE], where)
        return entry

    def _file(self, given: Any, where: str) -> str:
        """Return a path as text, or keep a stream in a temporary file and return its name ``where``."""
        if isinstance(given, str | os.PathLike):
            return os.fspath(Path(given).expanduser())
        # One stream may be the table of several entries, but it can be read only once.
        if id(given) not in self._names:
            # Imported late: pyarrow takes 30 MB.
            from gloader.convert.readers.arrow_stream import spilled_stream

            if self._folder is None:
                self._folder = self._held.enter_context(
                    temporary_folder(self._out, _FOLDER_PREFIX, overwrite=self._overwrite)
                )
            self._by_name[where] = spilled_stream(given, self._folder, where, notes=self.notes)
            self._names[id(given)] = where
            self._streams.append(given)
        return self._names[id(given)]

    def _key(self, file: str, where: str) -> str:
        """Return the column of a table of nodes that certainly has their keys. Raises ConfigError."""
        names = (self._by_name.get(file) or open_table(Path(file))).names
        keys = id_columns(names)
        if len(keys) != 1:
            raise ConfigError(
                f"{where} has the columns {listed(names)}; name the one that has the keys of the nodes: "
                "{'table': TABLE, 'key': COLUMN}"
            )
        return keys[0]


def _task(given: Any, name: str, streams: _Tables) -> Any:
    """Return a task of a description for a user's task. Raises as `_Tables.entry`."""
    if not isinstance(given, Mapping):
        return given
    return {
        key: streams.entry(value, f"tables[{name!r}][{key!r}]", ROWS_KEYS) if key in PARTS else value
        for key, value in given.items()
    }


def _by_type(nodes: Any) -> Mapping[str, Any]:
    """Return the entries of nodes by type. One table is that of the only type."""
    if nodes is None:
        return {}
    return {str(key): each for key, each in nodes.items()} if isinstance(nodes, Mapping) else {NODE: nodes}


def _by_relation(edges: Any, types: Sequence[str]) -> dict[str, Any]:
    """Return the entries of edges by relation as text. One table has the edges within the only type. Pure."""
    if isinstance(edges, Mapping):
        return dict(_relation_entries(edges))
    if len(types) > 1:
        raise ConfigError(
            f"edges is one table, and nodes has the types {', '.join(types)}; name the relation: "
            f"edges={{({types[0]!r}, 'to', {types[1]!r}): TABLE}}"
        )
    node_type = types[0] if types else NODE
    return {relation_text((node_type, "to", node_type)): edges}


def _relation_entries(edges: Mapping[str | Relation, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the entries of edges with their relation as text, or only its name. Raises ConfigError. Pure."""
    for key, each in edges.items():
        is_name = isinstance(key, str) and ":" not in key
        yield str(key) if is_name else relation_text(parse_relation(key)), each


def _plain(value: Any) -> Any:
    """Return a value as YAML has it: paths are texts, and tuples are lists. Pure."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
