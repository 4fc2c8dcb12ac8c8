"""Rules for a dataset's commit record: its arrays, their dtypes and their lengths.

The commit record ``dataset.json`` (`Manifest`) has an entry for every array: name, dtype, shape and checksums. An
array's name is its table's folder plus a *plain name*, such as "nodes/paper/" + "labels". `check_record` refuses a
record whose arrays contradict each other, before any array is read. `content_digest` identifies the content. The other
public functions return bounds for the arrays' values, from a checked record. A *format feature* is an addition to the
format, such as edge times. The record names the features that it uses, and a version of gloader that does not know one
of them refuses the dataset.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from gloader.core.dtypes import SCALE_SUFFIX, STORED_DTYPES
from gloader.dataset.key_record import KEY_ARRAYS, wrong_keys
from gloader.dataset.link_record import NEGATIVES, LinkLimits, link_arrays, read_links
from gloader.dataset.schema import HETERO_KIND, KIND, DatasetSchema, read_schema, relation_text
from gloader.dataset.task_record import read_tasks
from gloader.dataset.values import (
    DTYPES,
    LABEL_KINDS,
    LABEL_VALUE_DTYPE,
    MAX_CLASSES,
    LabelKind,
    ValueLimits,
    are_names,
)
from gloader.errors import FormatError
from gloader.ssd_store.format.manifest import (
    EDGE_COLUMNS_FEATURE,
    KEYS_FEATURE,
    LABEL_VALUES_FEATURE,
    ROW_TIMES_FEATURE,
    is_of_graph,
)
from gloader.types import EDGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gloader.dataset.schema import LinkRecord, TaskRecord
    from gloader.ssd_store.format.format import ArrayRecord, Manifest
    from gloader.types import Relation

LABELS: Final = ("labels", "train", "valid", "test")  # the labelled type's arrays
EDGES: Final = ("indptr", "indices")  # each relation's arrays
REQUIRED_ARRAYS: Final = (*EDGES, "features", *LABELS)  # in a homogeneous dataset
# The plain names of the arrays that a node type (_OF_NODES) or a relation (_OF_EDGES) may have. EDGE_COLUMNS,
# KEY_ARRAYS and ROW_TIME came with later versions of gloader, so they need a format feature in the record.
ROW_TIME: Final = "row_time"  # (N,) seconds, the time of each node; the least int64 where there is none
_OF_NODES: Final = ("features", "features.scale", *LABELS, "original_ids", *KEY_ARRAYS, ROW_TIME)
EDGE_COLUMNS: Final = ("edge_features", "edge_features.scale", "edge_time")
_OF_EDGES: Final = (*EDGES, "edge_weight", *EDGE_COLUMNS)
MATRICES: Final = ("features", "edge_features")  # feature matrices, whose rows may be divided over machines
LABELS_ENTRY: Final = "labels"  # metadata entry: {"kind": LabelKind, "names": [text, ...] or absent}


def check_record(root: Path, manifest: Manifest) -> DatasetSchema:
    """Check a dataset's record, and return its types, relations, link tables and task tables. Pure.

    A record with such tables, edge features, edge times or row times must name a required format feature. A version of
    gloader that does not know the feature refuses the dataset. Without this rule, an old version would ignore these
    arrays: it would draw edges that are later than their seeds, or train without the edge features.

    Raises
    ------
    FormatError
        The record's kind or number of classes is invalid. An array is missing, belongs to no table, or has the wrong
        dtype or shape. Types, relations, tables, row ranges or format features are invalid.
    VersionError
        The record of a dataset with named types has another version.
    """
    if manifest.kind == HETERO_KIND:
        schema = read_schema(root, manifest)
        _check_typed(root, manifest, schema)
    else:
        arrays = manifest.arrays
        missing = [name for name in REQUIRED_ARRAYS if name not in arrays]
        if manifest.kind != KIND or missing:
            raise FormatError(f"{root}: not a dataset: kind {manifest.kind!r}, missing arrays {missing}")
        schema = DatasetSchema.of_one_type(arrays["features"].shape[0])
        num_nodes, num_edges = arrays["features"].shape[0], arrays["indices"].shape[0]
        sizes = f"{num_nodes} rows of features and {num_edges} edges"
        _check_arrays(root, arrays, _lengths(num_nodes, num_nodes, num_edges), sizes)
        _check_keys(root, arrays, num_nodes)
    classes = manifest.metadata.get("num_classes")
    if type(classes) is not int or not 1 <= classes <= MAX_CLASSES:
        raise FormatError(
            f"{root}: num_classes is {repr(classes)[:100]}; it must be a whole number in 1..{MAX_CLASSES}"
        )
    _check_columns_known(root, manifest)
    _check_labels(root, manifest, schema)
    _check_ranges(root, manifest)
    return replace(schema, links=read_links(root, manifest, schema), tasks=read_tasks(root, manifest, schema))


def content_digest(manifest: Manifest, schema: DatasetSchema) -> str:
    """Return a digest of a dataset's content. Equal arrays have equal digests, in any storage. Pure."""
    digest = hashlib.sha256()
    # The order of types and relations affects the random draws of samplers. A type without arrays has its node count
    # only here.
    if schema.kind == "hetero":
        digest.update(f"{tuple(schema.num_nodes.items())} {schema.relations}\n".encode())
    # The relation of a link table, and the type and labels of a task table, are only in the metadata. The order of
    # these tables has no effect.
    for table in sorted(schema.links, key=lambda each: each.name):
        digest.update(f"links {table.name} {table.relation} {table.reverse}\n".encode())
    for task in sorted(schema.tasks, key=lambda each: each.name):
        digest.update(f"table {task.name} {task.to_metadata()}\n".encode())
    # The record's digests stand for the bytes, so no array is read.
    for name in sorted(manifest.arrays):
        entry = manifest.arrays[name]
        digest.update(f"{name} {entry.dtype} {entry.shape} {entry.digest}\n".encode())
    return digest.hexdigest()[:32]


def node_limits(manifest: Manifest, schema: DatasetSchema, node_type: str) -> ValueLimits:
    """Return the bounds for a type's arrays, from a checked record. Pure."""
    if schema.kind == "homogeneous":
        return edge_limits(manifest, schema, EDGE)
    count = schema.num_nodes[node_type]
    # A type has no arrays of edges. The bounds for such arrays are given, but not used.
    return _limits(manifest, num_nodes=count, num_sources=count, num_edges=0)


def edge_limits(manifest: Manifest, schema: DatasetSchema, relation: Relation) -> ValueLimits:
    """Return the bounds for a relation's arrays, from a checked record. Pure."""
    source, _, destination = relation
    return _limits(
        manifest,
        num_nodes=schema.num_nodes[destination],
        num_sources=schema.num_nodes[source],
        num_edges=manifest.arrays[schema.edge_folder(relation) + "indices"].shape[0],
    )


def link_limits(manifest: Manifest, schema: DatasetSchema, table: LinkRecord) -> LinkLimits:
    """Return the bounds for a link table's arrays, from a checked record. Pure."""
    source, _, destination = table.relation
    is_free = table.relation not in schema.relations  # then no row is an edge of the graph
    arrays = link_arrays(manifest.arrays, table)
    return LinkLimits(
        num_sources=schema.num_nodes[source],
        num_destinations=schema.num_nodes[destination],
        num_edges=0 if is_free else edge_limits(manifest, schema, table.relation).num_edges,
        num_reverses=0 if table.reverse is None else edge_limits(manifest, schema, table.reverse).num_edges,
        num_negatives=arrays[NEGATIVES].shape[1] if NEGATIVES in arrays else 0,
    )


def task_limits(schema: DatasetSchema, table: TaskRecord) -> ValueLimits:
    """Return the bounds for a task table's arrays, from a checked record. Pure."""
    count = schema.num_nodes[table.node_type]
    # A task table has no arrays of edges. The bounds for such arrays are given, but not used.
    return ValueLimits(num_nodes=count, num_sources=count, num_edges=0, num_classes=table.num_classes)


def all_limits(manifest: Manifest, schema: DatasetSchema) -> Iterator[tuple[str, str, ValueLimits]]:
    """Yield each type's and relation's arrays: the name in the record, the plain name and the bounds. Pure."""
    tables: list[tuple[str, tuple[str, ...], ValueLimits]] = [
        (schema.node_folder(name), _OF_NODES, node_limits(manifest, schema, name))
        for name in schema.num_nodes
    ]
    tables += [
        (schema.edge_folder(relation), _OF_EDGES, edge_limits(manifest, schema, relation))
        for relation in schema.relations
    ]
    for folder, names, limits in tables:
        for name in names:
            if folder + name in manifest.arrays:
                yield folder + name, name, limits


def _limits(manifest: Manifest, **counts: int) -> ValueLimits:
    """Return bounds with the record's number of classes, and the other fields of `ValueLimits` in ``counts``."""
    return ValueLimits(num_classes=manifest.metadata["num_classes"], **counts)


def _check_typed(root: Path, manifest: Manifest, schema: DatasetSchema) -> None:
    """Check the arrays of a dataset with named types. `read_links` and `read_tasks` check those of other tables."""
    left = {name for name in manifest.arrays if is_of_graph(name)}  # arrays that no table has yet

    def table(folder: str, names: tuple[str, ...]) -> dict[str, ArrayRecord]:
        """Return the existing arrays of the table in ``folder``, by plain name, and take them out of ``left``."""
        entries = {name: manifest.arrays[folder + name] for name in names if folder + name in left}
        left.difference_update(folder + name for name in entries)
        return entries

    labelled = []
    for node_type, count in schema.num_nodes.items():
        arrays = table(schema.node_folder(node_type), _OF_NODES)
        _check_arrays(root, arrays, _lengths(count, count, 0), f"{count} nodes of type {node_type!r}")
        _check_keys(root, arrays, count)
        present = [name for name in LABELS if name in arrays]
        if present and len(present) < len(LABELS):
            missing = [name for name in LABELS if name not in arrays]
            raise FormatError(
                f"{root}: type {node_type!r} has {', '.join(present)} and misses {', '.join(missing)}"
            )
        labelled += [node_type] if present else []
    if len(labelled) != 1:
        names = ", ".join(map(repr, labelled)) or "none"
        raise FormatError(f"{root}: exactly one node type must have labels and splits; these have: {names}")
    for relation in schema.relations:
        arrays = table(schema.edge_folder(relation), _OF_EDGES)
        missing = [name for name in EDGES if name not in arrays]
        text = relation_text(relation)
        if missing:
            raise FormatError(f"{root}: relation {text} misses {', '.join(missing)}")
        destinations, num_edges = schema.num_nodes[relation[2]], arrays["indices"].shape[0]
        sizes = f"{destinations} nodes of type {relation[2]!r} and {num_edges} edges of relation {text}"
        # The number of nodes is 0, because a relation has no arrays of nodes, so this length is not used.
        _check_arrays(root, arrays, _lengths(0, destinations, num_edges), sizes)
    if left:
        raise FormatError(f"{root}: array {min(left)!r} belongs to no node type or relation in the record")


def _lengths(num_nodes: int, num_destinations: int, num_edges: int) -> dict[str, int]:
    """Return the required length of each array, by plain name. Splits may have any length, so they have no entry."""
    return {
        "features": num_nodes,
        "features.scale": num_nodes,
        "labels": num_nodes,
        "original_ids": num_nodes,
        ROW_TIME: num_nodes,
        "indptr": num_destinations + 1,
        "indices": num_edges,
        "edge_weight": num_edges,
        **dict.fromkeys(EDGE_COLUMNS, num_edges),
    }


def _check_arrays(
    root: Path, arrays: Mapping[str, ArrayRecord], lengths: Mapping[str, int], sizes: str
) -> None:
    """Raise FormatError for a wrong dtype, dimension or length, or missing scales. ``sizes`` is for the message."""
    for name, dtypes in DTYPES.items():
        if name not in arrays or name in KEY_ARRAYS:  # `wrong_keys` has the rules for keys
            continue
        entry = arrays[name]
        if entry.dtype not in dtypes:
            raise FormatError(
                f"{root}: {entry.name} has dtype {entry.dtype}; it must be {' or '.join(dtypes)}"
            )
        is_matrix = name in MATRICES or (name == "labels" and entry.dtype == LABEL_VALUE_DTYPE)
        num_dimensions = 2 if is_matrix else 1
        if len(entry.shape) != num_dimensions or entry.shape[0] != lengths.get(name, entry.shape[0]):
            raise FormatError(
                f"{root}: shapes contradict each other: {entry.name} {entry.shape} with {sizes}"
            )
    for name in MATRICES:
        features = arrays.get(name)
        if (
            features is not None
            and STORED_DTYPES[features.dtype].has_scale
            and name + SCALE_SUFFIX not in arrays
        ):
            raise FormatError(
                f"{root}: {features.name} are int8 and have no scales; {features.name}.scale must hold one for each "
                "row"
            )


def _check_keys(root: Path, arrays: Mapping[str, ArrayRecord], num_nodes: int) -> None:
    """Raise FormatError if the arrays with a type's keys are incomplete or contradict each other."""
    if (message := wrong_keys(arrays, num_nodes)) is not None:
        raise FormatError(f"{root}: {message}")


def _check_columns_known(root: Path, manifest: Manifest) -> None:
    """Raise FormatError if the record has edge columns, keys or row times, and does not name their format feature.

    The features of link tables and task tables are checked earlier, when the manifest is read.
    """
    for names, feature in (
        (EDGE_COLUMNS, EDGE_COLUMNS_FEATURE),
        (KEY_ARRAYS, KEYS_FEATURE),
        ((ROW_TIME,), ROW_TIMES_FEATURE),
    ):
        found = [name for name in manifest.arrays if name.rpartition("/")[2] in names and is_of_graph(name)]
        if found and feature not in manifest.required_features:
            raise FormatError(
                f"{root}: with the array {found[0]!r}, the record must name the required feature {feature!r}"
            )


def _check_labels(root: Path, manifest: Manifest, schema: DatasetSchema) -> None:
    """Raise FormatError if the labels' array contradicts its format feature, its metadata or the number of classes."""
    name = next(
        schema.node_folder(node_type) + "labels"
        for node_type in schema.num_nodes
        if schema.node_folder(node_type) + "labels" in manifest.arrays
    )
    entry = manifest.arrays[name]
    are_values = entry.dtype == LABEL_VALUE_DTYPE
    if are_values and LABEL_VALUES_FEATURE not in manifest.required_features:
        raise FormatError(
            f"{root}: with labels of dtype {entry.dtype}, the record must name the required feature "
            f"{LABEL_VALUES_FEATURE!r}"
        )
    classes = manifest.metadata["num_classes"]
    if are_values and entry.shape[1] != classes:
        raise FormatError(
            f"{root}: labels have {entry.shape[1]} columns and num_classes is {classes}; both must be the same"
        )
    given = manifest.metadata.get(LABELS_ENTRY)
    if given is None:
        return
    kind, names = (given.get("kind"), given.get("names")) if isinstance(given, dict) else (None, None)
    allowed = LABEL_KINDS[1:] if are_values else LABEL_KINDS[:1]
    if kind not in allowed or (kind == "binary" and classes != 1):
        raise FormatError(
            f"{root}: the kind of the labels is {repr(kind)[:100]}; with {entry.dtype} {entry.shape} it must be "
            f"{' or '.join(allowed)}"
        )
    if names is not None and not are_names(names, classes):
        raise FormatError(f"{root}: the names of the labels must be a list of {classes} different texts")


def read_label_kind(manifest: Manifest, *, are_values: bool) -> LabelKind:
    """Return the kind of the labels from a checked record; ``are_values`` is True for float32 labels (N, k). Pure.

    Without an entry, labels are "classes" or "values".
    """
    entry = manifest.metadata.get(LABELS_ENTRY)
    if entry is None:
        return "values" if are_values else "classes"
    return cast("LabelKind", entry["kind"])


def read_label_names(manifest: Manifest) -> tuple[str, ...] | None:
    """Return the names of the classes, or of the k columns, from a checked record; None without names. Pure."""
    names = manifest.metadata.get(LABELS_ENTRY, {}).get("names")
    return None if names is None else tuple(names)


def _check_ranges(root: Path, manifest: Manifest) -> None:
    """Raise FormatError unless the record's row ranges, if any, are for exactly the feature matrices.

    A record has row ranges if a machine stores only some of each matrix's rows.
    """
    # Ids, labels and scales must be complete, because their readers ignore ranges.
    matrices = {name for name in manifest.arrays if name.rpartition("/")[2] in MATRICES and is_of_graph(name)}
    if manifest.ranges is not None and manifest.ranges.tables.keys() != matrices:
        wrong = min(manifest.ranges.tables.keys() ^ matrices)
        raise FormatError(
            f"{root}: the record has row ranges of {', '.join(manifest.ranges.tables)}, and its feature matrices are "
            f"{', '.join(sorted(matrices)) or 'none'}; both must be the same, and differ in {wrong!r}"
        )
