"""The sources ``igb:DIR`` and ``igbh:DIR``: the Illinois Graph Benchmark in all sizes (Khatua et al., KDD'23).

``igb`` is the homogeneous graph of papers. ``igbh`` is the heterogeneous graph, with the relations of MLPerf's R-GAT
benchmark, which follows a GraphLearn-for-PyTorch script. Each relation between two types has a reverse relation.
Citations have both directions of every edge, and new self loops (`undirected_edges`). `open_igb` and `open_igbh` open
the sources, and share the functions that find and read the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.readers.file_streams import npy_features, pair_file_edges
from gloader.convert.readers.node_arrays import random_splits, require_node_memory, to_labels
from gloader.convert.readers.npy_file import NpyFile, open_headerless
from gloader.convert.source import (
    EdgeChunk,
    EdgeStream,
    GraphSource,
    NodeSource,
    RelationSource,
    Source,
    Splits,
    reversed_edges,
)
from gloader.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.convert.options import SourceOptions
    from gloader.types import IdArray, Relation


DIM = 1024  # features per node
# File names of the labels by number of classes. The name for 2983 classes differs between IGB's sizes.
_LABEL_FILES = {19: ("node_label_19.npy",), 2983: ("node_label_2K.npy", "node_label_2983.npy")}


def open_igb(argument: str, options: SourceOptions) -> Source:
    """Open ``igb:DIR`` or ``igb:DIR@2983``. DIR is the folder of one size, such as ``igb/tiny``.

    There are 19 classes, or 2983 on request or if only these labels exist. Labelled nodes have the lowest ids. As in
    IGB's loader, the first 60% of them are train, the next 20% valid and the rest test. In the large and full sizes,
    arrays are raw float32 without a header.

    Raises
    ------
    ConfigError
        IGB has no labels with this number of classes.
    SourceError
        A file is missing, truncated or malformed.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    """
    folder, classes = parse_folder(argument, prefix="igb")
    paper, edge_file = _locate(folder)
    file = open_floats(paper / "node_feat.npy", row_shape=(DIM,))
    features = npy_features(file)
    num_classes, label_file = find_labels(paper, classes)
    require_node_memory(features.num_rows, options.budget_bytes, file.where)
    # The label files of the larger sizes have labels only for the first nodes. All these labels are used.
    labels = first_labels(label_file, num_nodes=features.num_rows, num_labelled=features.num_rows)
    return Source(
        name=f"igb-{folder.resolve().name}-{num_classes}",
        origin=f"igb:{argument}",
        num_nodes=features.num_rows,
        num_classes=num_classes,
        # The edges are (E, 2). prefers_rows matters for a (2, 2) array, which could also be (2, E).
        edges=pair_file_edges(NpyFile.open(edge_file), prefers_rows=True),
        features=features,
        labels=labels,
        splits=sequential_splits(labels),
        edge_file=edge_file,
    )


def igb_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the folder and the file that `open_igb` reads. Raises ConfigError."""
    del options
    paper, edge_file = _locate(parse_folder(argument, prefix="igb")[0])
    return [paper, edge_file]


def sequential_splits(labels: IdArray) -> Splits:
    """Split the labelled nodes, in id order, into 60% train, 20% valid and 20% test. Pure."""
    # Sizes are rounded down, as in IGB's loader.
    labelled = np.flatnonzero(labels >= 0)
    first = int(0.6 * labelled.shape[0])
    second = first + int(0.2 * labelled.shape[0])
    return Splits(train=labelled[:first], valid=labelled[first:second], test=labelled[second:])


def first_labels(file: NpyFile, *, num_nodes: int, num_labelled: int) -> IdArray:
    """Return labels (N,): a file's labels for the first nodes, and -1 for the others.

    Parameters
    ----------
    file : labels for the first nodes, or for all
    num_nodes : N
    num_labelled : maximum number of labelled nodes; the file's further labels are ignored

    Raises
    ------
    SourceError, ShapeError
        As `to_labels`. SourceError also if the file is truncated.
    """
    labels = np.full(num_nodes, -1, np.int64)
    stop = min(file.size, num_nodes, num_labelled)
    given = to_labels(
        next(file.flat(max(1, stop), stop=stop), np.empty(0)), where=file.where, labels_as="classes"
    )
    labels[: given.shape[0]] = given
    return labels


def parse_folder(argument: str, *, prefix: str) -> tuple[Path, int | None]:
    """Return the folder in ``DIR`` or ``DIR@2983``, and the requested number of classes or None.

    Raises
    ------
    ConfigError
        IGB has no labels with this number of classes.
    """
    # A folder's own name may have an @, so only digits after the last @ are a number of classes.
    directory, at, classes = argument.rpartition("@")
    if not at or not classes.isdigit():
        return Path(argument).expanduser(), None
    if int(classes) not in _LABEL_FILES:
        raise ConfigError(f"{prefix}:{argument}: IGB has labels of 19 or 2983 classes, not {classes}")
    return Path(directory).expanduser(), int(classes)


def _locate(folder: Path) -> tuple[Path, Path]:
    """Return the folder with the papers' arrays, and the file of citations."""
    processed = folder / "processed" if (folder / "processed").is_dir() else folder
    return processed / "paper", processed / "paper__cites__paper" / "edge_index.npy"


def find_labels(paper: Path, classes: int | None) -> tuple[int, NpyFile]:
    """Return the number of classes and the label file. If ``classes`` is None, 19 classes are preferred.

    Raises
    ------
    SourceError
        The folder has no such labels.
    """
    candidates = _LABEL_FILES if classes is None else {classes: _LABEL_FILES[classes]}
    for count, names in candidates.items():
        for name in names:
            if (paper / name).exists():
                return count, open_floats(paper / name, row_shape=())
    names = tuple(name for group in candidates.values() for name in group)
    raise SourceError(f"{paper} holds no {' or '.join(names)}")


def open_floats(path: Path, *, row_shape: tuple[int, ...]) -> NpyFile:
    """Open an array. It is raw float32 in the large and full sizes, and a .npy file in the other sizes.

    ``row_shape`` is a row's shape, which a file without a header does not have: (F,) for features, () for labels.
    """
    return open_headerless(path, dtype=np.dtype("<f4"), row_shape=row_shape)


# Node types and relations in all sizes, and further ones in the large and full sizes. "fos" means field of study.
_TYPES: Final = ("paper", "author", "institute", "fos")
_LARGE_TYPES: Final = ("journal", "conference")
_CITES: Final[Relation] = ("paper", "cites", "paper")
_RELATIONS: Final[tuple[Relation, ...]] = (
    ("paper", "written_by", "author"),
    ("author", "affiliated_to", "institute"),
    ("paper", "topic", "fos"),
)
_LARGE_RELATIONS: Final[tuple[Relation, ...]] = (
    ("paper", "published", "journal"),
    ("paper", "venue", "conference"),
)
# The number of papers in the full size, and the number of labelled ones by number of classes. Labelled papers come
# first. Other sizes are fully labelled.
_FULL_PAPERS: Final = 269_346_174
_FULL_LABELLED: Final = {19: 227_130_858, 2983: 157_675_969}


def undirected_edges(edges: EdgeStream, num_nodes: int) -> EdgeStream:
    """Drop self loops, and return both directions of every other edge, then two self loops per node. Pure.

    MLPerf's script makes the same edges: it drops self loops, adds one per node, and appends the reverse of each edge.
    Parallel edges stay. The number of edges is unknown until they are read, because self loops are dropped.
    """

    def chunks(max_edges: int) -> Iterator[EdgeChunk]:
        half = max(1, max_edges // 2)
        for chunk in edges.chunks(half):
            kept = chunk.src != chunk.dst
            src, dst = chunk.src[kept], chunk.dst[kept]
            yield EdgeChunk(src=np.concatenate([src, dst]), dst=np.concatenate([dst, src]))
        for start in range(0, num_nodes, half):
            loops = np.tile(np.arange(start, min(num_nodes, start + half), dtype=np.int64), 2)
            yield EdgeChunk(src=loops, dst=loops)

    return EdgeStream(chunks=chunks, num_edges=None)


def open_igbh(argument: str, options: SourceOptions) -> GraphSource:
    """Open ``igbh:DIR`` or ``igbh:DIR@2983``. DIR is the folder of one size, such as ``igbh/tiny``.

    There are 19 classes, or 2983 on request or if only these labels exist. Labelled papers are split 60/20/20 at random
    by ``options.seed``. In the large and full sizes, arrays are raw float32 without a header. Only these two sizes have
    journals and conferences.

    Raises
    ------
    ConfigError
        IGB has no labels with this number of classes.
    SourceError
        A file is missing, truncated or malformed.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    """
    folder, classes = parse_folder(argument, prefix="igbh")
    processed = _processed(folder)
    is_large = any((processed / name).is_dir() for name in _LARGE_TYPES)
    files = {
        name: open_floats(processed / name / "node_feat.npy", row_shape=(DIM,))
        for name in _TYPES + (_LARGE_TYPES if is_large else ())
    }
    features = {name: npy_features(file) for name, file in files.items()}
    num_papers = features["paper"].num_rows
    num_classes, label_file = find_labels(processed / "paper", classes)
    require_node_memory(num_papers, options.budget_bytes, files["paper"].where)
    num_labelled = _FULL_LABELLED[num_classes] if num_papers == _FULL_PAPERS else num_papers
    labels = first_labels(label_file, num_nodes=num_papers, num_labelled=num_labelled)
    return GraphSource(
        name=f"igbh-{folder.resolve().name}-{num_classes}",
        origin=f"igbh:{argument}",
        nodes=tuple(
            NodeSource(name=name, num_nodes=rows.num_rows, features=rows) for name, rows in features.items()
        ),
        relations=_relations(
            processed, _RELATIONS + (_LARGE_RELATIONS if is_large else ()), num_papers=num_papers
        ),
        labelled="paper",
        num_classes=num_classes,
        labels=labels,
        splits=random_splits(labels, seed=options.seed),
    )


def igbh_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the folders and files that `open_igbh` reads. Raises ConfigError."""
    del options
    processed = _processed(parse_folder(argument, prefix="igbh")[0])
    relations = (_CITES, *_RELATIONS, *_LARGE_RELATIONS)
    return [processed / name for name in (*_TYPES, *_LARGE_TYPES)] + [
        processed / "__".join(relation) / "edge_index.npy" for relation in relations
    ]


def _processed(folder: Path) -> Path:
    """Return IGB's subfolder ``processed``, which has the arrays, or ``folder`` if it is this subfolder itself."""
    return folder / "processed" if (folder / "processed").is_dir() else folder


def _relations(
    processed: Path, relations: tuple[Relation, ...], *, num_papers: int
) -> tuple[RelationSource, ...]:
    """Return the citations both ways, the other relations, and last their reverses."""
    given = [_relation(processed, relation) for relation in relations]
    cites = _relation(processed, _CITES)
    both_ways = RelationSource(
        relation=_CITES,
        edges=undirected_edges(cites.edges, num_papers),
        edge_file=cites.edge_file,
        is_symmetric=True,
    )
    reverses = [
        RelationSource(
            relation=(each.relation[2], f"rev_{each.relation[1]}", each.relation[0]),
            edges=reversed_edges(each.edges),
            edge_file=each.edge_file,
        )
        for each in given
    ]
    return (both_ways, *given, *reverses)


def _relation(processed: Path, relation: Relation) -> RelationSource:
    """Return a relation with the edges in its file, as they are."""
    path = processed / "__".join(relation) / "edge_index.npy"
    edges = pair_file_edges(NpyFile.open(path), prefers_rows=True)
    return RelationSource(relation=relation, edges=edges, edge_file=path)
