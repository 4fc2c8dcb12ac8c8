"""``igb:DIR``: the homogeneous paper graph of the Illinois Graph Benchmark (Khatua et al., KDD'23)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.readers.file_edges import PairEdges
from gloader.convert.readers.file_features import NpyFeatures
from gloader.convert.readers.node_arrays import require_node_memory, to_labels
from gloader.convert.readers.npy_file import NpyFile, open_headerless
from gloader.convert.source import Source, Splits
from gloader.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from gloader.convert.options import SourceOptions
    from gloader.types import IdArray

DIM = 1024
# IGB's sizes disagree about the name of the larger set.
_LABEL_FILES = {19: ("node_label_19.npy",), 2983: ("node_label_2K.npy", "node_label_2983.npy")}


def open_igb(argument: str, options: SourceOptions) -> Source:
    """Open ``igb:DIR`` or ``igb:DIR@2983``, where DIR is the folder of a size, such as ``igb/tiny``.

    The classes are 19 unless 2983 are asked for or only they are there. Of the labelled nodes, which come
    first, the first 60% are train, the next 20% valid and the rest test, as in IGB's own loader. The arrays of
    the large and full sizes have no header: they are raw float32.

    Raises
    ------
    ConfigError
        IGB has no labels of so many classes.
    SourceError
        A file is missing, truncated or malformed.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    """
    folder, classes = parse_folder(argument, prefix="igb")
    paper, edge_file = _locate(folder)
    features = NpyFeatures.open(open_floats(paper / "node_feat.npy", row_shape=(DIM,)))
    num_classes, label_file = find_labels(paper, classes)
    # The label files of the larger sizes cover only the first nodes.
    require_node_memory(features.num_rows, options.budget_bytes, features.file.where)
    labels = first_labels(label_file, num_nodes=features.num_rows, num_labelled=features.num_rows)
    return Source(
        name=f"igb-{folder.resolve().name}-{num_classes}",
        origin=f"igb:{argument}",
        num_nodes=features.num_rows,
        num_classes=num_classes,
        edges=PairEdges.open(NpyFile.open(edge_file), prefers_rows=True),
        features=features,
        labels=labels,
        splits=sequential_splits(labels),
        edge_file=edge_file,
    )


def source_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the folders that hold what `open_igb` reads, and nothing else of size; raises ConfigError as it does."""
    del options
    paper, edge_file = _locate(parse_folder(argument, prefix="igb")[0])
    return [paper, edge_file]


def sequential_splits(labels: IdArray) -> Splits:
    """Cut the labelled nodes, in order of their ids, into 60% train, 20% valid and 20% test. Pure."""
    # Rounded down, as IGB's own loader does.
    labelled = np.flatnonzero(labels >= 0)
    first = int(0.6 * labelled.shape[0])
    second = first + int(0.2 * labelled.shape[0])
    return Splits(train=labelled[:first], valid=labelled[first:second], test=labelled[second:])


def first_labels(file: NpyFile, *, num_nodes: int, num_labelled: int) -> IdArray:
    """Return labels (N,): those of the first nodes as they are in a file, -1 behind them.

    Parameters
    ----------
    file : labels of the first nodes, or of all
    num_nodes : N
    num_labelled : nodes that have a label, at most; what the file says of others is not looked at

    Raises
    ------
    SourceError, ShapeError
        As `to_labels`; the file is truncated.
    """
    labels = np.full(num_nodes, -1, np.int64)
    stop = min(file.size, num_nodes, num_labelled)
    given = to_labels(next(file.flat(max(1, stop), stop=stop), np.empty(0)), where=file.where)
    labels[: given.shape[0]] = given
    return labels


def parse_folder(argument: str, *, prefix: str) -> tuple[Path, int | None]:
    """Return the folder that ``DIR`` or ``DIR@2983`` names, and the number of classes asked for.

    Raises
    ------
    ConfigError
        IGB has no labels of so many classes.
    """
    directory, at, classes = argument.rpartition("@")
    if not at or not classes.isdigit():
        return Path(argument).expanduser(), None
    if int(classes) not in _LABEL_FILES:
        raise ConfigError(f"{prefix}:{argument}: IGB has labels of 19 or 2983 classes, not {classes}")
    return Path(directory).expanduser(), int(classes)


def _locate(folder: Path) -> tuple[Path, Path]:
    """Return the folder of the papers' arrays, and the file of the citations."""
    processed = folder / "processed" if (folder / "processed").is_dir() else folder
    return processed / "paper", processed / "paper__cites__paper" / "edge_index.npy"


def find_labels(paper: Path, classes: int | None) -> tuple[int, NpyFile]:
    """Return the number of classes and the file of the labels; None: of 19 where they are there.

    Raises
    ------
    SourceError
        The folder holds no such labels.
    """
    candidates = _LABEL_FILES if classes is None else {classes: _LABEL_FILES[classes]}
    for count, names in candidates.items():
        for name in names:
            if (paper / name).exists():
                return count, open_floats(paper / name, row_shape=())
    names = tuple(name for group in candidates.values() for name in group)
    raise SourceError(f"{paper} holds no {' or '.join(names)}")


def open_floats(path: Path, *, row_shape: tuple[int, ...]) -> NpyFile:
    """Open an array that is raw float32 in the large and full sizes, and a .npy file in the others."""
    return open_headerless(path, dtype=np.dtype("<f4"), row_shape=row_shape)
