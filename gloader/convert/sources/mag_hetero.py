"""``mag240m:DIR``: OGB-LSC's MAG240M in full, papers, authors and institutions; the features stay float16.

Only papers have features of their own. Those of authors and institutions are read where the folder has them, as DGL's
example makes them, and otherwise derived: an author's are the mean of their papers', an institution's of its authors'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.hetero_source import HeteroSource, MeanOf, NodeSource, RelationSource
from gloader.convert.readers.file_edges import PairEdges
from gloader.convert.readers.file_features import NpyFeatures
from gloader.convert.readers.npy_file import NpyFile, open_headerless
from gloader.convert.sources.mag import described_by, locate, read_papers
from gloader.errors import ShapeError

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.convert.options import SourceOptions
    from gloader.types import Relation

_RELATIONS: Final[tuple[Relation, ...]] = (
    ("author", "affiliated_with", "institution"),
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
)
# What the features of a type are the mean over, where they are in none of these files.
_DERIVED: Final[dict[str, Relation]] = {"author": _RELATIONS[1], "institution": _RELATIONS[0]}
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


def open_mag240m(argument: str, options: SourceOptions) -> HeteroSource:
    """Open the folder ``argument``, or ``mag240m_kddcup2021`` in it, as `ogb.lsc.MAG240MDataset` downloads it.

    Relations are OGB's three; ``--add-reverse`` and ``--symmetrize cites`` make the five of OGB's example. Files of
    features of authors and institutions are arrays with a header or, as DGL's script writes them, raw float16.

    Raises
    ------
    SourceError
        A file is missing, malformed, or holds other objects than numbers and arrays.
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
    return HeteroSource(
        name="mag240m",
        origin=f"mag240m:{argument}",
        nodes=tuple(nodes),
        relations=tuple(
            RelationSource(
                relation=relation,
                edges=PairEdges.open(NpyFile.open(papers.edge_file(*relation)), prefers_rows=False),
                edge_file=papers.edge_file(*relation),
            )
            for relation in _RELATIONS
        ),
        labelled="paper",
        num_classes=papers.num_classes,
        labels=papers.labels,
        splits=papers.splits,
    )


def source_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the files and folders that `open_mag240m` reads."""
    del options
    folder = locate(argument)
    relations = [folder / "processed" / "___".join(relation) for relation in _RELATIONS]
    features = [folder / name for names in _FILES.values() for name in names]
    return [*described_by(folder), folder / "processed" / "paper", *relations, *features]


def _given(folder: Path, node_type: str, count: int, dim: int) -> NpyFeatures | None:
    """Return the features that the folder has of a type; None: none."""
    path = next((folder / name for name in _FILES[node_type] if (folder / name).is_file()), None)
    if path is None:
        return None
    features = NpyFeatures.open(open_headerless(path, dtype=np.dtype("<f2"), row_shape=(dim,)))
    if (features.num_rows, features.dim) != (count, dim):
        raise ShapeError(
            f"{path} has shape ({features.num_rows}, {features.dim}); features of {count} {node_type}s are "
            f"({count}, {dim}), as meta.pt and the papers' say"
        )
    return features
