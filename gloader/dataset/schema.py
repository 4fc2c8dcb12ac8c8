"""A dataset's node types, relations, link tables and task tables, in the order of its commit record.

A relation is an edge type: (source type, name, destination type). A link table lists edges to predict, and a task table
lists rows to predict, each of them a node. In a homogeneous dataset, the one node type and the one relation have no
names in the record, and their arrays are in no subfolder. In a "hetero" dataset, each has a name and a folder.
`checked_schema` makes the schema from a user's names, and `read_schema` from a commit record. Both check the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import numpy as np

from gloader.core.malformed import shown
from gloader.dataset.values import LABEL_VALUE_DTYPE, TASK_DTYPES
from gloader.errors import FormatError, GraphError, VersionError
from gloader.ssd_store.format.manifest import (
    ALLOWED,
    LINKS,
    MAX_FOLDER_LENGTH,
    NODES,
    RELATIONS,
    SEPARATOR,
    TASKS,
    is_type_name,
)
from gloader.types import EDGE, NODE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gloader.dataset.values import LabelKind
    from gloader.ssd_store.format.format import Manifest
    from gloader.types import IdArray, Relation

DatasetKind: TypeAlias = Literal["homogeneous", "hetero"]

# The values of ``kind`` in a commit record: a homogeneous dataset, and one with named types.
KIND: Final = "dataset"
HETERO_KIND: Final = "hetero"
# ``dataset_version`` in a record with named types. A homogeneous dataset has version 1, which its record does not name.
DATASET_VERSION: Final = 2
# Maximum number of node types: far above real graphs, and small enough that a damaged record costs little work.
MAX_TYPES: Final = 1000
MAX_NODES: Final = 2**48  # nodes per type; the numbers of all types' nodes then fit in int64


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """The commit record's entry for one link table."""

    name: str  # the table's name, such as "train"
    relation: Relation  # the edges' relation
    reverse: Relation | None  # the relation with the reverse edges, or None
    in_graph: int  # rows whose edge is also an edge of the relation

    @property
    def folder(self) -> str:
        """The folder that precedes the table's array names."""
        return f"{LINKS}/{self.name}/"

    def to_metadata(self) -> dict[str, Any]:
        """Return the table's entry in the commit record. Pure."""
        return {
            "relation": relation_text(self.relation),
            "reverse": None if self.reverse is None else relation_text(self.reverse),
            "in_graph": self.in_graph,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """The commit record's entry for one task table, whose rows are to be predicted."""

    name: str  # the table's name, such as "churn.train"
    node_type: str  # the type of the rows' nodes
    label_kind: LabelKind | None = None  # the kind of the labels; None without labels
    label_names: tuple[str, ...] | None = None  # the names of the classes or of the k columns, or None
    num_classes: int = 0  # number of classes, or of columns k; 0 without labels

    @property
    def folder(self) -> str:
        """The folder that precedes the table's array names."""
        return f"{TASKS}/{self.name}/"

    @property
    def has_label_values(self) -> bool:
        """True if the labels are float32 values (n, k), and not int64 classes (n,)."""
        return self.label_kind not in (None, "classes")

    def dtypes(self, name: str) -> tuple[str, ...]:
        """Return the allowed dtypes of the array ``name``; none for labels if the table has no labels. Pure."""
        if name != "labels":
            return TASK_DTYPES[name]
        if self.label_kind is None:
            return ()
        return (LABEL_VALUE_DTYPE,) if self.has_label_values else ("int64",)

    def to_metadata(self) -> dict[str, Any]:
        """Return the table's entry in the commit record. Pure."""
        labels = {
            "kind": self.label_kind,
            "names": None if self.label_names is None else list(self.label_names),
            "num_classes": self.num_classes,
        }
        return {"type": self.node_type, "labels": None if self.label_kind is None else labels}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSchema:
    """A dataset's types, relations, link tables and task tables."""

    num_nodes: Mapping[str, int]  # nodes per type, in the order of the record
    relations: tuple[Relation, ...]  # in the order of the record
    kind: DatasetKind  # "homogeneous", or "hetero" if types and relations have names
    links: tuple[LinkRecord, ...] = ()  # in the order of the record
    tasks: tuple[TaskRecord, ...] = ()  # in the order of the record

    @classmethod
    def of_one_type(cls, num_nodes: int) -> DatasetSchema:
        """Return the schema for one type and one relation. Pure."""
        return cls(num_nodes={NODE: num_nodes}, relations=(EDGE,), kind="homogeneous")

    @property
    def has_names(self) -> bool:
        """True if the types and relations have names in the record, and folders."""
        return self.kind == "hetero"

    @property
    def record_kind(self) -> str:
        """The value of ``kind`` in the commit record."""
        return HETERO_KIND if self.has_names else KIND

    @property
    def type_starts(self) -> IdArray:
        """(T + 1,) int64 starts of the T types in one numbering: node v of type t has number ``type_starts[t] + v``."""
        return np.array([0, *accumulate(self.num_nodes.values())], dtype=np.int64)

    def node_folder(self, node_type: str) -> str:
        """Return the folder that precedes a type's array names; "" if types have no names."""
        return f"{NODES}/{node_type}/" if self.has_names else ""

    def edge_folder(self, relation: Relation) -> str:
        """Return the folder that precedes a relation's array names; "" if relations have no names."""
        return f"{RELATIONS}/{SEPARATOR.join(relation)}/" if self.has_names else ""

    def to_metadata(self) -> dict[str, Any]:
        """Return the commit record's entry for types and relations, empty if they have no names. Pure."""
        if not self.has_names:
            return {}
        return {
            "dataset_version": DATASET_VERSION,
            "node_types": [{"name": name, "num_nodes": count} for name, count in self.num_nodes.items()],
            "relations": [list(relation) for relation in self.relations],
        }


def relation_text(relation: Relation) -> str:
    """Return a relation as text, such as "author:writes:paper". Pure."""
    return ":".join(relation)


def checked_schema(num_nodes: Mapping[str, int], relations: Sequence[Relation]) -> DatasetSchema:
    """Return the checked schema for named types and relations. Pure.

    Parameters
    ----------
    num_nodes : nodes per type
    relations : (source type, name, destination type) of each relation

    Raises
    ------
    GraphError
        A name is not valid as a folder name, or occurs twice. A relation names an unknown type, or does not have three
        names. A number of nodes is not an integer or not in range.
    """
    for name, count in num_nodes.items():
        if not isinstance(count, int | np.integer):
            raise GraphError(f"node type {name!r} has {shown(count)} nodes; it must be a whole number")
    for relation in cast("Sequence[object]", relations):
        if not isinstance(relation, tuple | list) or len(relation) != 3:
            raise GraphError(f"{shown(relation)} is no relation; write (source type, name, destination type)")
    schema = DatasetSchema(
        num_nodes={name: int(count) for name, count in num_nodes.items()},
        relations=tuple((source, name, destination) for source, name, destination in relations),
        kind="hetero",
    )
    if (message := _wrong(schema)) is not None:
        raise GraphError(message)
    return schema


def read_schema(root: Path, manifest: Manifest) -> DatasetSchema:
    """Return the checked schema for named types from a commit record. Pure.

    Parameters
    ----------
    root : the dataset's directory, for messages
    manifest : the dataset's commit record, not yet checked

    Raises
    ------
    FormatError
        The record lists no types and relations, or invalid ones.
    VersionError
        The record has another version.
    """
    metadata = manifest.metadata
    version = metadata.get("dataset_version")
    if version != DATASET_VERSION:
        raise VersionError(
            f"{root}: dataset_version is {repr(version)[:100]}, this build reads {DATASET_VERSION}; use a matching "
            "build, or prepare the data again"
        )
    types, relations = metadata.get("node_types"), metadata.get("relations")
    if not isinstance(types, list) or not all(map(_is_type_entry, types)):
        raise FormatError(f"{root}: 'node_types' must list the name and num_nodes of each type")
    if not isinstance(relations, list) or not all(map(_is_relation_entry, relations)):
        raise FormatError(f"{root}: 'relations' must list source type, name and destination type of each")
    schema = DatasetSchema(
        num_nodes={entry["name"]: entry["num_nodes"] for entry in types},
        relations=tuple((source, name, destination) for source, name, destination in relations),
        kind="hetero",
    )
    message = "a node type is there twice" if len(schema.num_nodes) < len(types) else _wrong(schema)
    if message is not None:
        raise FormatError(f"{root}: {message}")
    return schema


def _is_type_entry(entry: object) -> bool:
    """Return True if a record's value is a mapping with a type's name and its number of nodes."""
    return (
        isinstance(entry, dict)
        and entry.keys() == {"name", "num_nodes"}
        and isinstance(entry["name"], str)
        and type(entry["num_nodes"]) is int
    )


def _is_relation_entry(entry: object) -> bool:
    """Return True if a record's value is a list of three texts."""
    return isinstance(entry, list) and len(entry) == 3 and all(isinstance(name, str) for name in entry)


def _wrong(schema: DatasetSchema) -> str | None:
    """Return a message about invalid types or relations, or None."""
    if not 1 <= len(schema.num_nodes) <= MAX_TYPES:
        return f"there are {len(schema.num_nodes)} node types; there must be 1 to {MAX_TYPES}"
    for name, count in schema.num_nodes.items():
        if (message := _wrong_name("node type", name)) is not None:
            return message
        if not 0 <= count <= MAX_NODES:
            return f"node type {name!r} has {str(count)[:100]} nodes; it must have 0 to {MAX_NODES}"
    return (
        _first_wrong_relation(schema)
        or _first_alike("node types", list(schema.num_nodes))
        or _first_alike("relations", [SEPARATOR.join(relation) for relation in schema.relations])
    )


def _wrong_name(kind: str, name: object) -> str | None:
    """Return a message about a name that is not valid as a folder name, or None."""
    if is_type_name(name):
        return None
    return (
        f"{kind} {repr(name)[:120]}: a name has {ALLOWED}, no '{SEPARATOR}' inside, and neither a "
        "dot nor a dash at its ends"
    )


def _first_wrong_relation(schema: DatasetSchema) -> str | None:
    """Return a message about the first relation with an unknown type or an invalid name, or None."""
    for relation in schema.relations:
        source, name, destination = relation
        text = relation_text(relation)
        for node_type in (source, destination):
            if node_type not in schema.num_nodes:
                allowed = ", ".join(map(repr, list(schema.num_nodes)[:20]))
                return f"relation {text[:320]} names the node type {node_type[:120]!r}; there are {allowed}"
        if (message := _wrong_name("relation", name)) is not None:
            return message
        if len(SEPARATOR.join(relation)) > MAX_FOLDER_LENGTH:
            return (
                f"relation {text}: its three names have at most {MAX_FOLDER_LENGTH - 4} characters together"
            )
    return None


def _first_alike(kind: str, folders: list[str]) -> str | None:
    """Return a message about the first folder that is equal to an earlier folder, up to case, or None."""
    seen: dict[str, str] = {}
    for folder in folders:
        # Some file systems ignore case. There, two such folders would be one.
        other = seen.setdefault(folder.casefold(), folder)
        if other is not folder:
            if other == folder:
                return f"{kind} {folder!r} is there twice"
            return f"{kind} {other!r} and {folder!r} would share a folder on file systems that ignore case"
    return None
