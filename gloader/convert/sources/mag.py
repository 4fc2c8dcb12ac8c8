"""``mag240m-papers:DIR``: the paper-cites-paper graph of OGB-LSC's MAG240M; the features stay float16."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.file_edges import PairEdges
from gloader.convert.readers.file_features import NpyFeatures
from gloader.convert.readers.node_arrays import (
    count_classes,
    read_labels,
    require_node_memory,
    require_split_size,
    to_split,
)
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.readers.torch_file import load_mapping
from gloader.convert.source import Source, Splits
from gloader.core.malformed import MALFORMED, shown
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.convert.options import SourceOptions
    from gloader.types import IdArray

_FOLDER = "mag240m_kddcup2021"
_MISSING = "DIR names the folder that OGB-LSC's archive unpacks to"


@dataclass(frozen=True, slots=True, kw_only=True)
class MagPapers:
    """What a folder of MAG240M holds of the papers, labels and splits in memory, and how many other nodes there are."""

    folder: Path
    meta: Mapping[str, Any]
    num_papers: int
    num_classes: int
    features: NpyFeatures
    labels: IdArray  # (N,)
    splits: Splits

    @property
    def citations(self) -> Path:
        """The file of the edges from citing to cited paper."""
        return self.edge_file("paper", "cites", "paper")

    def edge_file(self, source: str, name: str, destination: str) -> Path:
        """Return the (2, E) file of a relation."""
        return self.folder / "processed" / f"{source}___{name}___{destination}" / "edge_index.npy"

    def count(self, node_type: str) -> int:
        """Return the number of nodes of a type; raises SourceError where ``meta.pt`` does not say it."""
        return _count(self.meta, node_type, self.folder / "meta.pt")


def read_papers(argument: str, options: SourceOptions) -> MagPapers:
    """Read what is known of the papers; raises as `open_papers`."""
    folder = locate(argument)
    meta = load_mapping(folder / "meta.pt", missing=_MISSING)
    splits = load_mapping(folder / "split_dict.pt", missing=_MISSING)
    paper = folder / "processed" / "paper"
    num_nodes = _count(meta, "paper", folder / "meta.pt")
    features = NpyFeatures.open(NpyFile.open(paper / "node_feat.npy"))
    if features.num_rows != num_nodes:
        raise ShapeError(
            f"{features.file.where} has {features.num_rows} rows; meta.pt counts {num_nodes} papers"
        )
    budget = options.budget_bytes
    require_node_memory(num_nodes, budget, features.file.where)
    labels = read_labels(NpyFile.open(paper / "node_label.npy"), num_nodes=num_nodes, budget_bytes=budget)
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
            test=_split(splits, ("test-dev", "test", "test-whole"), num_nodes, folder),
        ),
    )


def open_papers(argument: str, options: SourceOptions) -> Source:
    """Open the folder ``argument``, or ``mag240m_kddcup2021`` in it, as `ogb.lsc.MAG240MDataset` downloads it.

    Citations are edges from the citing to the cited paper, as OGB has them; ``--symmetrize`` adds the other
    direction. Papers without a class have label -1. The labels of the test nodes (``test-dev``) are not public.

    Raises
    ------
    SourceError
        A file is missing, malformed, or holds other objects than numbers and arrays.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    """
    papers = read_papers(argument, options)
    return Source(
        name="mag240m-papers",
        origin=f"mag240m-papers:{argument}",
        num_nodes=papers.num_papers,
        num_classes=papers.num_classes,
        edges=PairEdges.open(NpyFile.open(papers.citations), prefers_rows=False),
        features=papers.features,
        labels=papers.labels,
        splits=papers.splits,
        edge_file=papers.citations,
    )


def source_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the files and folders that `open_papers` reads."""
    del options
    folder = locate(argument)
    processed = folder / "processed"
    return [*described_by(folder), processed / "paper", processed / "paper___cites___paper"]


def described_by(folder: Path) -> list[Path]:
    """Return the files that say what a folder of MAG240M holds."""
    return [folder / "meta.pt", folder / "split_dict.pt"]


def locate(argument: str) -> Path:
    """Return the folder of the data set: what ``argument`` names, or OGB-LSC's folder in it."""
    given = Path(argument).expanduser()
    return given / _FOLDER if (given / _FOLDER).is_dir() else given


def _count(meta: Mapping[str, Any], key: str, path: Path, *, default: int | None = None) -> int:
    value = meta.get(key, default)
    if not isinstance(value, int | np.integer) or not 1 <= value < 2**62:
        what = f"{key}s" if default is None else "classes"
        raise SourceError(f"{path}: {key!r} is {shown(value)}; it must be the number of {what}")
    return int(value)


def _split(splits: Mapping[str, Any], names: tuple[str, ...], num_nodes: int, folder: Path) -> Any:
    where = str(folder / "split_dict.pt")
    for name in names:
        if name in splits:
            return _split_ids(splits[name], num_nodes, f"{where}[{name}]")
    there = ", ".join(name for name in splits if type(name) is str)
    raise SourceError(f"{where} holds no split {' or '.join(names)}; there: {there or 'nothing'}")


def _split_ids(value: object, num_nodes: int, where: str) -> IdArray:
    try:
        ids = np.asarray(value)
    except (RuntimeError, *MALFORMED) as error:  # lists of lists, tensors that are no arrays
        raise SourceError(f"{where} is a {type(value).__name__} that is no array of ids: {error}") from error
    # A tensor may repeat a few stored numbers any number of times.
    require_split_size(ids.size, num_nodes, where)
    return to_split(ids, num_nodes=num_nodes, where=where)
