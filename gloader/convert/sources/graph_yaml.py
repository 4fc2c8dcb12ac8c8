"""The description ``graph.yaml``: a graph's node types and relations, with the files and columns of each.

.. code-block:: yaml

    nodes:
      user: {file: users.csv, key: user_id, columns: [age, {name: city, as: category}], labels: churned}
      paper: {features: paper.npy, labels: labels.npy, splits: splits.npz}
      author: {num_nodes: 1200}
    edges:
      buys: {file: orders/, src: user.user_id, dst: paper.id, time: bought_at, columns: [price]}
      author:writes:paper: writes.parquet
    tables:
      returns:
        type: user
        train: {file: returns.csv, node: user_id, time: date, label: returned}
    dangling: error

A *key* is a value that identifies a node, such as an account's name. Nodes without keys are identified by their
numbers. An entry of ``tables`` is a *task*: its parts train, valid and test are tables with rows to predict.

`read_graph_yaml` reads the description, and opens none of its files. `described_graph` does the same for a description
in memory. Descriptions with keys, tables of nodes or tasks (`GraphYaml.is_keyed`) are opened by
`gloader.convert.sources.keyed_tables`, and all others by `graph_folder`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from gloader.convert.options import FILLS, PARTS, TRAIN
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.readers.open_table import is_matrix, is_table, open_table
from gloader.core.malformed import read_yaml_mapping, shown
from gloader.dataset.schema import MAX_NODES, checked_schema
from gloader.dataset.values import MAX_CLASSES
from gloader.errors import GraphError, ShapeError, SourceError
from gloader.ssd_store.format.manifest import ALLOWED, is_type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from gloader.convert.keys.numbering import Dangling
    from gloader.convert.options import Fill
    from gloader.convert.readers.table_streams import NumberTable
    from gloader.types import Relation


GRAPH_FILE: Final = "graph.yaml"
YAML_SUFFIXES: Final = frozenset({".yaml", ".yml"})
_DANGLING: Final = ("error", "drop", "node")
# The allowed keys of the description, of a node type's entry, and of a relation's entry.
_TOP_KEYS: Final = ("name", "nodes", "edges", "tables", "dangling")
_FILE_KEYS: Final = ("num_nodes", "features", "labels", "splits", "num_classes")
_TABLE_KEYS: Final = ("file", "key", "time", "columns", "split", "missing")
NODE_KEYS: Final = (*_FILE_KEYS, *_TABLE_KEYS)
EDGE_KEYS: Final = ("file", "src", "dst", "weight", "time", "features", "columns", "missing")
TASK_KEYS: Final = ("type", *PARTS)
ROWS_KEYS: Final = ("file", "node", "time", "label", "weight")
_HOLDS: Final = {
    "nodes": "node types",
    "edges": "relations such as author:writes:paper",
    "tables": "tasks, each with a type and the parts train, valid and test",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """A node type in ``graph.yaml``.

    With ``file``, a table with a row per node, the labels and the split may be columns of this table.
    """

    num_nodes: int | None = None  # None means the number is taken from the files
    features: Path | None = None  # None means that the type has no features, or has them as columns
    labels: Path | None = None  # None means that the type has no labels, or has them as columns
    splits: Path | None = None  # None means random splits, or a split by columns
    num_classes: int | None = None  # None means the number is taken from the labels
    file: Path | None = None  # the table of the nodes
    table: NumberTable | None = (
        None  # the open table, with ``file`` as its name; None means that the file is opened
    )
    key: str | None = None  # the table's column with the nodes' keys. None means that row i is node i
    time: str | None = None  # the table's column with the times of the nodes
    columns: object = None  # the columns that are features, as they stand in the description
    # The columns of labels and of the split, as they stand in the description: a name, a list or a mapping.
    label_columns: object = None
    split: object = None
    # What a missing value of ``columns`` becomes: "zero", "mean" or "flag". None means that it is refused.
    missing: Fill | None = None

    @property
    def is_table(self) -> bool:
        """True if the entry has keys of a table."""
        return self.file is not None

    def open(self) -> NumberTable | None:
        """Open the table of the nodes. Return None without a table. Raises as `open_table`."""
        return self.table or (None if self.file is None else open_table(self.file))


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeEntry:
    """A relation in ``graph.yaml``.

    If ``file`` is a table, the other fields name its columns. If it is an array, ``weight``, ``time`` and ``features``
    name other array files in ``folder``.
    """

    folder: Path  # the folder with graph.yaml
    file: Path  # the edges
    table: NumberTable | None = (
        None  # the open table, with ``file`` as its name; None means that the file is opened
    )
    src: str | None = None  # None means that the column is found by its name, or is the first one
    dst: str | None = None  # None means that the column is found by its name, or is the second one
    weight: str | None = None  # None means a table's column with a usual name, or no weights
    time: str | None = None  # None means no times, unless --edge-time names a column for all tables
    # Column names with commas between them, or a file. None means no features, unless --edge-features names columns for
    # all tables.
    features: str | None = None
    columns: object = None  # the columns that are features, as they stand in the description
    missing: Fill | None = None  # what a missing value of ``columns`` becomes, as for a node type
    # The node types of the ends, which ``src`` and ``dst`` may name before a dot.
    types: tuple[str, str] = ("", "")

    @property
    def is_table(self) -> bool:
        """True if the edges are a table, and no array. Raises SourceError for a folder that is no table."""
        return self.table is not None or is_table(self.file)

    @property
    def is_matrix(self) -> bool:
        """True if the edges are a file of Matrix Market. Raises SourceError if there is no file."""
        return self.table is None and is_matrix(self.file)

    def open(self) -> NumberTable:
        """Open the table of the edges. Raises as `open_table`."""
        return self.table or open_table(self.file)

    def ends(self, names: Sequence[str]) -> tuple[str | None, str | None]:
        """Return the columns that ``src`` and ``dst`` name, without a type such as "user." before them. Pure.

        ``names`` are the table's columns. A column with the whole text as its name comes first.
        """
        src, dst = (
            end if end is None or end in names else end.removeprefix(f"{node_type}.")
            for end, node_type in zip((self.src, self.dst), self.types, strict=True)
        )
        return src, dst

    def open_array(self, name: str | None) -> NpyFile | None:
        """Open the array file ``name``. Return None without a name."""
        return None if name is None else NpyFile.open(self.folder / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsEntry:
    """A part of a task in ``graph.yaml``: a table with rows to predict."""

    file: Path
    table: NumberTable | None = (
        None  # the open table, with ``file`` as its name; None means that the file is opened
    )
    node: str  # the column with the node of each row: its key, or its id in a type without keys
    time: str | None = None
    label: object = None  # the column of labels, as it stands in the description; None means no labels
    weight: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """A task in ``graph.yaml``."""

    type: str  # the type of the nodes
    parts: Mapping[str, RowsEntry]  # by part: train, valid, test


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphYaml:
    """The content of a ``graph.yaml``, with the paths of its files."""

    path: Path  # the path of graph.yaml
    name: str  # the graph's display name
    nodes: Mapping[str, NodeEntry]  # by node type
    edges: Mapping[Relation, EdgeEntry]
    texts: Mapping[Relation, str]  # each relation as the description writes it, for messages
    tables: Mapping[str, TaskEntry] = field(default_factory=dict)  # by the task's name
    # Types that only relations name. The keys of their edges make their nodes.
    unlisted: tuple[str, ...] = ()
    dangling: Dangling | None = None  # None means that the description does not say it, so it is an error
    # Flags that stand for places such as "nodes.user.key", if the description was made from flags.
    flags: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # lines for the receipt on tables that were given open

    @property
    def is_keyed(self) -> bool:
        """True if types have keys, or tables of nodes. Then the numbers of nodes follow from the tables."""
        return (
            self.dangling is not None
            or bool(self.unlisted)
            or bool(self.tables)
            or any(entry.is_table for entry in self.nodes.values())
            or any(edge.columns is not None for edge in self.edges.values())
            or any(":" not in text for text in self.texts.values())
        )

    def where(self, *keys: str) -> str:
        """Return the file and the key, or the flag, for messages."""
        place = ".".join(keys)
        return self.flags.get(place, str(self.path)) if self.flags else f"{self.path}: {place}"

    @contextmanager
    def naming(self, *keys: str) -> Iterator[None]:
        """Prefix the message of an error about a named file with the description's path and the key."""
        try:
            yield
        except (SourceError, ShapeError, GraphError) as error:
            raise type(error)(f"{self.where(*keys)}: {error}") from error

    def files(self) -> list[Path]:
        """Return every file that the description may name.

        A relation's ``weight``, ``time`` and ``features``, and a node table's ``labels``, may be files or columns. For
        columns, the result has paths that do not exist.
        """
        folder = self.path.parent
        named = [
            path
            for entry in self.nodes.values()
            for path in (entry.file, entry.features, entry.labels, entry.splits)
            if path is not None
        ]
        named += [
            folder / entry.label_columns
            for entry in self.nodes.values()
            if isinstance(entry.label_columns, str)
        ]
        for edge in self.edges.values():
            names = filter(None, (edge.weight, edge.time, edge.features))
            named += [edge.file, *(edge.folder / name for name in names)]
        return named + [rows.file for task in self.tables.values() for rows in task.parts.values()]


def read_graph_yaml(given: Path) -> GraphYaml:
    """Read a description: the file ``given``, or the ``graph.yaml`` in this folder. Its files are not opened.

    Raises
    ------
    SourceError
        The description is missing, is not YAML, or has an invalid key or value. The message names file, key and the
        allowed values.
    """
    path = description_path(given)
    if path.exists() and not path.is_file():  # reading a pipe would wait
        raise SourceError(f"the description {path} is not a file")
    content = read_yaml_mapping(
        path, what="the description", holds="name, nodes and edges of a graph", error=SourceError
    )
    return described_graph(content, path, usual_name=_usual_name(path))


def described_graph(content: Mapping[str, object], path: Path, *, usual_name: str) -> GraphYaml:
    """Return the graph of a description's ``content``. Pure.

    Parameters
    ----------
    content : the description's keys and values
    path : the description's path, for messages. The named files are in its folder
    usual_name : the graph's name, if the description has none

    Raises
    ------
    SourceError
        A key or value is invalid. The message names the key and the allowed values.
    """
    folder = path.parent
    _only(content, _TOP_KEYS, str(path))
    name = content.get("name", usual_name)
    if not isinstance(name, str) or not 1 <= len(name) <= 100:
        raise SourceError(f"{path}: name is {shown(name)}; it must be a text of up to 100 characters")
    # Without any listed type, the keys of the edges make all nodes.
    listed = {} if content.get("nodes", ...) is ... else _mapping(content, "nodes", str(path))
    nodes = {
        node_type: _node_entry(folder, entry, f"{path}: nodes.{node_type}")
        for node_type, entry in listed.items()
    }
    edges: dict[Relation, EdgeEntry] = {}
    texts: dict[Relation, str] = {}
    for text, value in _mapping(content, "edges", str(path)).items():
        where = f"{path}: edges.{text}"
        entry = _edge_entry(folder, value, where)
        relation = _relation_of_key(text, entry, nodes, where)
        if relation in edges:
            raise SourceError(f"{where} is the relation {texts[relation]} once more")
        edges[relation], texts[relation] = replace(entry, types=relation[::2]), text
    unlisted = dict.fromkeys(each for relation in edges for each in relation[::2] if each not in nodes)
    try:
        # Only for its errors, about names and relations. A number that is not known yet counts as 0.
        counts = {node_type: entry.num_nodes or 0 for node_type, entry in nodes.items()}
        checked_schema(counts | dict.fromkeys(unlisted, 0), list(edges))
    except GraphError as error:
        raise SourceError(f"{path}: {error}") from error
    return GraphYaml(
        path=path,
        name=name,
        nodes=nodes,
        edges=edges,
        texts=texts,
        tables=_tasks(content, folder, nodes, str(path)),
        unlisted=tuple(unlisted),
        dangling=cast("Dangling | None", _choice(content, "dangling", _DANGLING, str(path))),
    )


def description_path(given: Path) -> Path:
    """Return the path of a description: ``given`` itself, or the ``graph.yaml`` in this folder."""
    is_file = given.suffix.lower() in YAML_SUFFIXES and not given.is_dir()
    return given if is_file else given / GRAPH_FILE


def _usual_name(path: Path) -> str:
    """Return the graph's name without ``name``: that of the folder, or of a description with another name."""
    return path.resolve().parent.name if path.name == GRAPH_FILE else path.stem


def _mapping(content: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
    """Return the mapping under ``key``, nodes or edges. Raise SourceError if it is empty or not a mapping."""
    entries = content.get(key)
    if not isinstance(entries, dict) or not entries or not all(isinstance(name, str) for name in entries):
        raise SourceError(f"{where}: {key} is {shown(entries)}; it must list {_HOLDS[key]}")
    return entries


def _tasks(
    content: Mapping[str, object], folder: Path, nodes: Mapping[str, NodeEntry], path: str
) -> dict[str, TaskEntry]:
    """Return the tasks under ``tables``. Raise SourceError for an invalid one."""
    given = {} if content.get("tables", ...) is ... else _mapping(content, "tables", path)
    tasks: dict[str, TaskEntry] = {}
    for name, value in given.items():
        where = f"{path}: tables.{name}"
        # Folders of a dataset have these names, and a file system may not tell upper from lower case.
        if not is_type_name(f"{name}.{TRAIN}") or name.casefold() in map(str.casefold, tasks):
            raise SourceError(f"{where}: a task has a name of its own, of {ALLOWED}, and no '__' inside")
        if not isinstance(value, dict):
            raise SourceError(f"{where} is {shown(value)}; it must have {', '.join(TASK_KEYS)}")
        _only(value, TASK_KEYS, where)
        node_type = value.get("type")
        if not isinstance(node_type, str) or node_type not in nodes:
            raise SourceError(
                f"{where}.type is {shown(node_type)}; it is the type of the nodes, one of those under nodes: "
                f"{', '.join(nodes) or 'none'}"
            )
        parts = {part: _rows_entry(folder, value[part], f"{where}.{part}") for part in PARTS if part in value}
        if not parts:
            raise SourceError(f"{where} has no part; add train: {{file: TABLE, node: COLUMN, label: COLUMN}}")
        tasks[name] = TaskEntry(type=node_type, parts=parts)
    return tasks


def _rows_entry(folder: Path, value: object, where: str) -> RowsEntry:
    """Return the value under a part of a task."""
    if not isinstance(value, dict):
        raise SourceError(f"{where} is {shown(value)}; it must have {', '.join(ROWS_KEYS)}")
    _only(value, ROWS_KEYS, where)
    file, node = _file(folder, value, "file", where), _text(value, "node", where)
    if file is None or node is None:
        missing = "file" if file is None else "node"
        raise SourceError(
            f"{where} has no {missing}; a part is {{file: TABLE, node: COLUMN, time: COLUMN, label: COLUMN}}, of which "
            "file and node must be there"
        )
    return RowsEntry(
        file=file,
        node=node,
        time=_text(value, "time", where),
        label=value.get("label"),
        weight=_text(value, "weight", where),
    )


def _relation_of_key(text: str, entry: EdgeEntry, nodes: Mapping[str, NodeEntry], where: str) -> Relation:
    """Return the relation in a key, "author:writes:paper", or "writes" if ``src`` and ``dst`` name the types."""
    names = text.split(":")
    if len(names) == 1:
        source, destination = (
            _type_of(end, key, nodes, where) for key, end in (("src", entry.src), ("dst", entry.dst))
        )
        return source, text, destination
    if len(names) != 3:
        raise SourceError(
            f"{where}: a relation is written source:name:destination, such as author:writes:paper, or only by its name "
            "if src and dst name the types, such as src: author.id, dst: paper.id"
        )
    for node_type in (names[0], names[2]):
        # In a description without nodes, the edges make the types.
        if nodes and node_type not in nodes:
            raise SourceError(
                f"{where} names the node type {node_type!r}; nodes has {', '.join(nodes)}. If the keys of edges make "
                f"its nodes, write only the relation's name, {names[1]}, with src: {names[0]}.COLUMN and dst: "
                f"{names[2]}.COLUMN"
            )
    return names[0], names[1], names[2]


def _type_of(end: str | None, key: str, nodes: Mapping[str, NodeEntry], where: str) -> str:
    """Return the node type in an end such as "user.user_id". Raise SourceError for an end without a type."""
    texts = [] if end is None else end.split(".")
    # A type's name may have dots, so listed types decide first.
    types = [".".join(texts[:count]) for count in range(1, len(texts))]
    found = next((name for name in reversed(types) if name in nodes), types[0] if types else "")
    if not found or end == f"{found}.":
        listed = f"; nodes has {', '.join(nodes)}" if nodes else ""
        raise SourceError(
            f"{where}.{key} is {shown(end)}; the relation is only named, so src and dst must name type and column, "
            f"such as src: user.user_id{listed}"
        )
    return found


def _node_entry(folder: Path, value: object, where: str) -> NodeEntry:
    """Return the value under a node type's key. Raise SourceError if it is not valid; ``where`` names the key."""
    # A type without any entry gets its number of nodes from the edges.
    entry = {} if value is None else value
    if not isinstance(entry, dict):
        raise SourceError(f"{where} is {shown(value)}; it must have some of {', '.join(NODE_KEYS)}")
    _only(entry, NODE_KEYS, where)
    file = _file(folder, entry, "file", where)
    if file is None:
        column = next((key for key in _TABLE_KEYS if entry.get(key) is not None), None)
        if column is not None:
            raise SourceError(
                f"{where}.{column} is about a table of nodes, and the entry has no file; add file: nodes.csv"
            )
    elif entry.get("num_nodes") is not None:
        raise SourceError(f"{where}.num_nodes: the rows of {file.name} are the nodes; leave it out")
    _refuse_both(entry, "columns", "features", where)
    _refuse_both(entry, "split", "splits", where)
    return NodeEntry(
        num_nodes=_count(entry, "num_nodes", (0, MAX_NODES), where),
        features=_file(folder, entry, "features", where),
        labels=_file(folder, entry, "labels", where) if file is None else None,
        splits=_file(folder, entry, "splits", where),
        num_classes=_count(entry, "num_classes", (1, MAX_CLASSES), where),
        file=file,
        key=_text(entry, "key", where),
        time=_text(entry, "time", where),
        columns=entry.get("columns"),
        label_columns=None if file is None else entry.get("labels"),
        split=entry.get("split"),
        missing=cast("Fill | None", _choice(entry, "missing", FILLS, where)),
    )


def _edge_entry(folder: Path, value: object, where: str) -> EdgeEntry:
    """Return the value under a relation's key: a mapping, or only the name of the edges' file."""
    entry = {"file": value} if isinstance(value, str) else value
    if not isinstance(entry, dict):
        raise SourceError(f"{where} is {shown(value)}; it must be a file, or have {', '.join(EDGE_KEYS)}")
    _only(entry, EDGE_KEYS, where)
    file = _file(folder, entry, "file", where)
    if file is None:
        raise SourceError(f"{where} has no file; name the table of its edges")
    _refuse_both(entry, "columns", "features", where)
    if entry.get("missing") is not None and not entry.get("columns"):
        raise SourceError(f"{where}.missing is about columns, and the entry has no columns")
    # A list of columns becomes one text with commas.
    columns = entry.get("features")
    if isinstance(columns, list) and columns and all(isinstance(name, str) and name for name in columns):
        entry = {**entry, "features": ",".join(columns)}
    return EdgeEntry(
        folder=folder,
        file=file,
        src=_text(entry, "src", where),
        dst=_text(entry, "dst", where),
        weight=_text(entry, "weight", where),
        time=_text(entry, "time", where),
        features=_text(entry, "features", where),
        columns=entry.get("columns"),
        missing=cast("Fill | None", _choice(entry, "missing", FILLS, where)),
    )


def _only(content: Mapping[str, object], allowed: tuple[str, ...], where: str) -> None:
    """Raise SourceError for a key that is not ``allowed``."""
    unknown = next((key for key in content if key not in allowed), None)
    if unknown is not None:
        raise SourceError(f"{where} has the key {shown(unknown)}; allowed are {', '.join(allowed)}")


def _refuse_both(entry: Mapping[str, object], first: str, second: str, where: str) -> None:
    """Raise SourceError if the entry has both keys."""
    if entry.get(first) is not None and entry.get(second) is not None:
        raise SourceError(f"{where} has {first} and {second}; give one of them")


def _choice(entry: Mapping[str, object], key: str, allowed: Sequence[str], where: str) -> str | None:
    """Return the word under ``key``, or None without the key. Raise SourceError for words that are not ``allowed``."""
    value = entry.get(key)
    if value is not None and value not in allowed:
        raise SourceError(f"{where}: {key} is {shown(value)}; it must be one of {', '.join(allowed)}")
    return cast("str | None", value)


def _text(entry: Mapping[str, object], key: str, where: str) -> str | None:
    """Return the text under ``key``, or None without the key. Raise SourceError for other values."""
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        example = (
            ", such as splits: parts.npz, a file with the arrays train, valid and test"
            if key == "splits"
            else ""
        )
        raise SourceError(f"{where}.{key} is {shown(value)}; it must be a name{example}")
    return value


def _file(folder: Path, entry: Mapping[str, object], key: str, where: str) -> Path | None:
    """Return the path of the file under ``key``, or None without the key. The file need not exist."""
    name = _text(entry, key, where)
    return None if name is None else folder / name


def _count(entry: Mapping[str, object], key: str, limits: tuple[int, int], where: str) -> int | None:
    """Return the number under ``key``, or None without the key. ``limits`` are the smallest and largest number."""
    value = entry.get(key)
    if value is None:
        return None
    if type(value) is not int or not limits[0] <= value <= limits[1]:
        raise SourceError(
            f"{where}.{key} is {shown(value)}; it must be a whole number in {limits[0]}..{limits[1]}"
        )
    return value
