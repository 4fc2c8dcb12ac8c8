"""The file ``graph.yaml`` of a folder of tables: which files hold which node type and relation."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.core.malformed import shown
from gloader.core.yaml_file import read_yaml_mapping
from gloader.dataset.schema import MAX_NODES, checked_schema
from gloader.dataset.values import MAX_CLASSES
from gloader.errors import GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gloader.types import Relation

GRAPH_FILE: Final = "graph.yaml"
_TOP_KEYS: Final = ("name", "nodes", "edges")
_NODE_KEYS: Final = ("num_nodes", "features", "labels", "splits", "num_classes")
_EDGE_KEYS: Final = ("file", "src", "dst", "weight", "time", "features")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """What the description says of a node type."""

    num_nodes: int | None  # None: the files tell
    features: Path | None
    labels: Path | None
    splits: Path | None
    num_classes: int | None  # None: the labels tell


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeEntry:
    """What the description says of a relation."""

    file: Path
    src: str | None = None  # column; None: by its name, or the first
    dst: str | None = None
    weight: str | None = None  # column of a table
    weight_file: Path | None = None  # the same name as a file, which it is beside an array
    time: str | None = None  # likewise a column of a table
    time_file: Path | None = None
    features: str | None = None  # columns of a table, with commas between them, or a file
    features_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphYaml:
    """A description, with the paths of the files as they lie."""

    path: Path
    name: str
    nodes: Mapping[str, NodeEntry]
    edges: Mapping[Relation, EdgeEntry]

    def where(self, *keys: str) -> str:
        """Return the file and the key, for messages."""
        return f"{self.path}: {'.'.join(keys)}"

    @contextmanager
    def naming(self, *keys: str) -> Iterator[None]:
        """Put the file and the key before what is said of a file that they name."""
        try:
            yield
        except (SourceError, ShapeError, GraphError) as error:
            raise type(error)(f"{self.where(*keys)}: {error}") from error

    def files(self) -> list[Path]:
        """Return every file that is named."""
        named = [
            path
            for entry in self.nodes.values()
            for path in (entry.features, entry.labels, entry.splits)
            if path is not None
        ]
        for edge in self.edges.values():
            beside = (edge.weight_file, edge.time_file, edge.features_file)
            named += [edge.file, *(path for path in beside if path is not None)]
        return named


def read_graph_yaml(folder: Path) -> GraphYaml:
    """Read the description in ``folder``; the files that it names are not looked at.

    Raises
    ------
    SourceError
        It is missing, is not YAML, or has a key or value that means nothing; names file, key and what is allowed.
    """
    path = folder / GRAPH_FILE
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise SourceError(f"the description {path} is not a file")
    content = read_yaml_mapping(
        path, what="the description", holds="name, nodes and edges of a graph", error=SourceError
    )
    _only(content, _TOP_KEYS, str(path))
    name = content.get("name", folder.resolve().name)
    if not isinstance(name, str) or not 1 <= len(name) <= 100:
        raise SourceError(f"{path}: name is {shown(name)}; it must be a text of up to 100 characters")
    nodes = {
        node_type: _node_entry(folder, entry, f"{path}: nodes.{node_type}")
        for node_type, entry in _mapping(content, "nodes", str(path)).items()
    }
    edges = {}
    for text, value in _mapping(content, "edges", str(path)).items():
        relation = _relation(text, nodes, f"{path}: edges.{text}")
        edges[relation] = _edge_entry(folder, value, f"{path}: edges.{text}")
    try:
        checked_schema({node_type: entry.num_nodes or 0 for node_type, entry in nodes.items()}, list(edges))
    except GraphError as error:
        raise SourceError(f"{path}: {error}") from error
    return GraphYaml(path=path, name=name, nodes=nodes, edges=edges)


def _mapping(content: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
    found = content.get(key)
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found):
        what = "node types" if key == "nodes" else "relations such as author:writes:paper"
        raise SourceError(f"{where}: {key} is {shown(found)}; it must list {what}")
    return found


def _relation(text: str, nodes: Mapping[str, NodeEntry], where: str) -> Relation:
    names = text.split(":")
    if len(names) != 3:
        raise SourceError(
            f"{where}: a relation is written source:name:destination, such as author:writes:paper"
        )
    for node_type in (names[0], names[2]):
        if node_type not in nodes:
            raise SourceError(f"{where} names the node type {node_type!r}; nodes has {', '.join(nodes)}")
    return names[0], names[1], names[2]


def _node_entry(folder: Path, value: object, where: str) -> NodeEntry:
    # A type without anything is one that edges alone tell of.
    entry = {} if value is None else value
    if not isinstance(entry, dict):
        raise SourceError(f"{where} is {shown(value)}; it must have some of {', '.join(_NODE_KEYS)}")
    _only(entry, _NODE_KEYS, where)
    return NodeEntry(
        num_nodes=_count(entry, "num_nodes", (0, MAX_NODES), where),
        features=_file(folder, entry, "features", where),
        labels=_file(folder, entry, "labels", where),
        splits=_file(folder, entry, "splits", where),
        num_classes=_count(entry, "num_classes", (1, MAX_CLASSES), where),
    )


def _edge_entry(folder: Path, value: object, where: str) -> EdgeEntry:
    entry = {"file": value} if isinstance(value, str) else value
    if not isinstance(entry, dict):
        raise SourceError(f"{where} is {shown(value)}; it must be a file, or have {', '.join(_EDGE_KEYS)}")
    _only(entry, _EDGE_KEYS, where)
    file = _file(folder, entry, "file", where)
    if file is None:
        raise SourceError(f"{where} has no file; name the table of its edges")
    # A list of columns is the text of their names.
    listed = entry.get("features")
    if isinstance(listed, list) and listed and all(isinstance(name, str) and name for name in listed):
        entry = {**entry, "features": ",".join(listed)}
    return EdgeEntry(
        file=file,
        src=_text(entry, "src", where),
        dst=_text(entry, "dst", where),
        weight=_text(entry, "weight", where),
        weight_file=_file(folder, entry, "weight", where),
        time=_text(entry, "time", where),
        time_file=_file(folder, entry, "time", where),
        features=_text(entry, "features", where),
        features_file=_file(folder, entry, "features", where),
    )


def _only(content: Mapping[str, object], allowed: tuple[str, ...], where: str) -> None:
    unknown = next((key for key in content if key not in allowed), None)
    if unknown is not None:
        raise SourceError(f"{where} has the key {shown(unknown)}; allowed are {', '.join(allowed)}")


def _text(entry: Mapping[str, object], key: str, where: str) -> str | None:
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise SourceError(f"{where}.{key} is {shown(value)}; it must be a name")
    return value


def _file(folder: Path, entry: Mapping[str, object], key: str, where: str) -> Path | None:
    name = _text(entry, key, where)
    return None if name is None else folder / name


def _count(entry: Mapping[str, object], key: str, limits: tuple[int, int], where: str) -> int | None:
    value = entry.get(key)
    if value is None:
        return None
    if type(value) is not int or not limits[0] <= value <= limits[1]:
        raise SourceError(
            f"{where}.{key} is {shown(value)}; it must be a whole number in {limits[0]}..{limits[1]}"
        )
    return value
