"""The sources ``mag240m:DIR`` and ``mag240m-papers:DIR``: OGB-LSC's MAG240M, with float16 features.

``mag240m-papers`` is the citation graph of papers. ``mag240m`` has papers, authors and institutions. OGB gives features
only for papers. DGL's example makes features for authors and institutions. If the folder has them, they are read.
Otherwise, the conversion derives them: an author's features are the mean over its papers, and an institution's features
are the mean over its authors. `open_papers` and `open_mag240m` open the sources. Both call `read_papers` first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.readers.file_streams import npy_features, pair_file_edges
from gloader.convert.readers.node_arrays import (
    count_classes,
    read_labels,
    require_node_memory,
    require_split_size,
    to_split,
)
from gloader.convert.readers.npy_file import NpyFile, open_headerless
from gloader.convert.readers.torch_file import load_mapping
from gloader.convert.source import GraphSource, MeanOf, NodeSource, RelationSource, Source, Splits
from gloader.core.malformed import MALFORMED, shown
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gloader.convert.options import SourceOptions
    from gloader.convert.source import FeatureStream
    from gloader.types import IdArray, Relation


_FOLDER = "mag240m_kddcup2021"  # the folder that OGB-LSC's archive unpacks to
_MISSING = "DIR names the folder that OGB-LSC's archive unpacks to"  # the remedy for missing files


@dataclass(frozen=True, slots=True, kw_only=True)
class MagPapers:
    """A MAG240M folder's papers, with labels and splits in memory, and the numbers of other nodes."""

    folder: Path  # the data set's folder, with meta.pt
    meta: Mapping[str, Any]  # the content of meta.pt: the number of nodes by type, and the number of classes
    num_papers: int  # N
    num_classes: int  # from meta.pt, or more if a label is larger
    features: FeatureStream  # (N, F)
    labels: NDArray[Any]  # (N,) int64 classes, -1 if unlabelled
    splits: Splits

    @property
    def citations(self) -> Path:
        """The file with edges from citing to cited paper."""
        return self.edge_file("paper", "cites", "paper")

    def edge_file(self, source: str, name: str, destination: str) -> Path:
        """Return a relation's (2, E) file."""
        return self.folder / "processed" / f"{source}___{name}___{destination}" / "edge_index.npy"

    def count(self, node_type: str) -> int:
        """Return a type's number of nodes. Raises SourceError if ``meta.pt`` lacks it."""
        return _count(self.meta, node_type, self.folder / "meta.pt")


def read_papers(argument: str, options: SourceOptions) -> MagPapers:
    """Read the papers' sizes, labels and splits. Raises as `open_papers`."""
    folder = locate(argument)
    meta = load_mapping(folder / "meta.pt", missing=_MISSING)
    splits = load_mapping(folder / "split_dict.pt", missing=_MISSING)
    paper = folder / "processed" / "paper"
    num_nodes = _count(meta, "paper", folder / "meta.pt")
    file = NpyFile.open(paper / "node_feat.npy")
    features = npy_features(file)
    if features.num_rows != num_nodes:
        raise ShapeError(f"{file.where} has {features.num_rows} rows; meta.pt counts {num_nodes} papers")
    budget = options.budget_bytes
    require_node_memory(num_nodes, budget, file.where)
    labels = read_labels(
        NpyFile.open(paper / "node_label.npy"), num_nodes=num_nodes, budget_bytes=budget, labels_as="classes"
    )
    return MagPapers(
        folder=folder,
        meta=meta,
        num_papers=num_nodes,
        num_classes=max(count_classes(labels), _count(meta, "num_classes", folder / "meta.pt", default=1)),
        features=features,
        labels=labels,
        splits=Splits(
            train=_split(splits, ("train",), num_nodes, folder),
            valid=_split(splits, ("valid",), num_nodes, folder),
            # Older archives have only the name "test".
            test=_split(splits, ("test-dev", "test", "test-whole"), num_nodes, folder),
        ),
    )


def open_papers(argument: str, options: SourceOptions) -> Source:
    """Open the folder ``argument``, or ``mag240m_kddcup2021`` in it, from `ogb.lsc.MAG240MDataset`.

    As in OGB, citations are edges from citing to cited paper. ``--symmetrize`` adds the other direction. Papers without
    a class have label -1. The labels of test nodes (``test-dev``) are not public.

    Raises
    ------
    SourceError
        A file is missing or malformed, or has objects other than numbers and arrays.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    """
    papers = read_papers(argument, options)
    return Source(
        name="mag240m-papers",
        origin=f"mag240m-papers:{argument}",
        num_nodes=papers.num_papers,
        num_classes=papers.num_classes,
        edges=pair_file_edges(NpyFile.open(papers.citations), prefers_rows=False),
        features=papers.features,
        labels=papers.labels,
        splits=papers.splits,
        edge_file=papers.citations,
    )


def papers_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the files and folders that `open_papers` reads."""
    del options
    folder = locate(argument)
    processed = folder / "processed"
    return [*described_by(folder), processed / "paper", processed / "paper___cites___paper"]


def described_by(folder: Path) -> list[Path]:
    """Return the files that describe a MAG240M folder."""
    return [folder / "meta.pt", folder / "split_dict.pt"]


def locate(argument: str) -> Path:
    """Return the data set's folder: ``argument``, or OGB-LSC's folder in it."""
    given = Path(argument).expanduser()
    return given / _FOLDER if (given / _FOLDER).is_dir() else given


def _count(meta: Mapping[str, Any], key: str, path: Path, *, default: int | None = None) -> int:
    """Return the number under ``key``, or ``default`` without the key.

    Raises SourceError if it is not a whole number, or is less than 1. ``path`` is for the message.
    """
    value = meta.get(key, default)
    if not isinstance(value, int | np.integer) or not 1 <= value < 2**62:
        what = f"{key}s" if default is None else "classes"
        raise SourceError(f"{path}: {key!r} is {shown(value)}; it must be the number of {what}")
    return int(value)


def _split(splits: Mapping[str, Any], names: tuple[str, ...], num_nodes: int, folder: Path) -> Any:
    """Return the node ids under the first existing name in ``names``."""
    where = str(folder / "split_dict.pt")
    for name in names:
        if name in splits:
            return _split_ids(splits[name], num_nodes, f"{where}[{name}]")
    existing = ", ".join(name for name in splits if type(name) is str)
    raise SourceError(f"{where} holds no split {' or '.join(names)}; it holds {existing or 'nothing'}")


def _split_ids(value: object, num_nodes: int, where: str) -> IdArray:
    """Return the node ids in an array, list or tensor that was read from a file."""
    try:
        ids = np.asarray(value)
    except (RuntimeError, *MALFORMED) as error:  # such as ragged lists, or sparse tensors
        raise SourceError(f"{where} is a {type(value).__name__} that is no array of ids: {error}") from error
    # A damaged or hostile file may declare a huge tensor that repeats a few numbers. It is refused before it is copied.
    require_split_size(ids.size, num_nodes, where)
    return to_split(ids, num_nodes=num_nodes, where=where)


_RELATIONS: Final[tuple[Relation, ...]] = (
    ("author", "affiliated_with", "institution"),
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
)
# The relation for a type's derived features, if no file in `_FILES` has its features.
_DERIVED: Final[dict[str, Relation]] = {"author": _RELATIONS[1], "institution": _RELATIONS[0]}
# The possible files with a type's features, by type. The first existing file is read.
_FILES: Final = {
    "author": ("processed/author/node_feat.npy", "processed/author.npy", "author.npy"),
    "institution": (
        "processed/institution/node_feat.npy",
        "processed/institution.npy",
        "institution.npy",
        "processed/inst.npy",
        "inst.npy",
    ),
}


def open_mag240m(argument: str, options: SourceOptions) -> GraphSource:
    """Open the folder ``argument``, or ``mag240m_kddcup2021`` in it, from `ogb.lsc.MAG240MDataset`.

    Relations are OGB's three. ``--add-reverse`` and ``--symmetrize cites`` make the five relations in OGB's example.
    Feature files for authors and institutions have a header, or are raw float16 from DGL's script.

    Raises
    ------
    SourceError
        A file is missing or malformed, or has objects other than numbers and arrays.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    """
    papers = read_papers(argument, options)
    dim = papers.features.dim
    nodes = [NodeSource(name="paper", num_nodes=papers.num_papers, features=papers.features)]
    for node_type in _DERIVED:
        count = papers.count(node_type)
        given = _given(papers.folder, node_type, count, dim)
        nodes.append(
            NodeSource(
                name=node_type,
                num_nodes=count,
                features=MeanOf(relation=_DERIVED[node_type]) if given is None else given,
            )
        )
    return GraphSource(
        name="mag240m",
        origin=f"mag240m:{argument}",
        nodes=tuple(nodes),
        relations=tuple(
            RelationSource(
                relation=relation,
                edges=pair_file_edges(NpyFile.open(papers.edge_file(*relation)), prefers_rows=False),
                edge_file=papers.edge_file(*relation),
            )
            for relation in _RELATIONS
        ),
        labelled="paper",
        num_classes=papers.num_classes,
        labels=papers.labels,
        splits=papers.splits,
    )


def mag240m_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the files and folders that `open_mag240m` reads."""
    del options
    folder = locate(argument)
    relations = [folder / "processed" / "___".join(relation) for relation in _RELATIONS]
    features = [folder / name for names in _FILES.values() for name in names]
    return [*described_by(folder), folder / "processed" / "paper", *relations, *features]


def _given(folder: Path, node_type: str, count: int, dim: int) -> FeatureStream | None:
    """Return the folder's features for a type, or None without features.

    ``count`` and ``dim`` are the number of rows and columns that the features must have.
    """
    path = next((folder / name for name in _FILES[node_type] if (folder / name).is_file()), None)
    if path is None:
        return None
    features = npy_features(open_headerless(path, dtype=np.dtype("<f2"), row_shape=(dim,)))
    if (features.num_rows, features.dim) != (count, dim):
        raise ShapeError(
            f"{path} has shape ({features.num_rows}, {features.dim}); features of {count} {node_type}s must be "
            f"({count}, {dim}), by meta.pt and the papers' features"
        )
    return features
